"""Exports of Nsight Systems -> typed frames, every kernel attributed to a stage, with a ledger that adds up."""
