"""A run against a baseline: exact counters, paired times, noise floors, one verdict."""
