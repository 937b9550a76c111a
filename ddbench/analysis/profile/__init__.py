"""What captures of a case say: pure functions from the rows of a profiler's pass to tables for report and findings."""
