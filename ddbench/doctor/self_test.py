"""The program that the doctor runs below nsys and ncu: one named range, and in it one kernel where there is a GPU.

Run as `python -m ddbench.doctor.self_test DEVICE`. What a capture of it must hold is read by `profilers.py`.
"""

from __future__ import annotations

import sys

RANGE = "doctor self-test"
DOMAIN = "ddbench"


def run_self_test(device: str) -> None:
    """One range; on `cuda` with work in it that has ended before the range does."""
    import nvtx

    if device != "cuda":
        with nvtx.annotate(RANGE, domain=DOMAIN):
            return
    import torch

    ones = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    with nvtx.annotate(RANGE, domain=DOMAIN):
        (ones + ones).sum().item()


if __name__ == "__main__":
    run_self_test(sys.argv[1])
