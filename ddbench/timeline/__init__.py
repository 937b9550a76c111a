"""`ddbench timeline`: what host and device did, round by round, in a capture: summary, zoomable strip, trace file."""
