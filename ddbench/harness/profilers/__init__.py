"""Captures: a case run once more under a profiler, what the profiler left, and its digest."""
