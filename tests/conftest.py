"""What every test shares: one thread per worker (tests run in parallel on few cores) and one deterministic hypothesis
profile. Anything a test computes with is in `ddbench.testing` or in the test itself."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the first import of torch; child processes inherit it

import hypothesis

hypothesis.settings.register_profile("ddbench", deadline=None, derandomize=True, max_examples=25, database=None)
hypothesis.settings.load_profile("ddbench")
