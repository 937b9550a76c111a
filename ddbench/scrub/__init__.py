"""`ddbench scrub`: a copy of a run that may be given away."""
