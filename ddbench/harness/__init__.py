"""The harness: from a question (experiment) to observed records in a run folder."""
