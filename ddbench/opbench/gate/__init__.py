"""Single ops against a baseline: exact counters, times with noise floors, the machine told from the code."""
