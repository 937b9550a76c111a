"""`ddbench models`: what models there are, taking one from the package index, and what a folder holds."""
