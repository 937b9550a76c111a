"""The answers to the three questions, each with its evidence, and what to optimise next."""
