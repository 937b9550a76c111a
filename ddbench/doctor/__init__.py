"""`ddbench doctor`: what this machine lacks for sweeps, nsys and ncu, and how to get it."""
