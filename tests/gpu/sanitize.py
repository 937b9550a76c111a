"""Every Triton implementation once, on few small inputs, to be watched by compute-sanitizer; no test of pytest's.

Run it plainly first, with ddbench installed: kernels are compiled then, and the sanitizer finds them in Triton's cache.

    python tests/gpu/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/sanitize.py
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu/sanitize.py

Without torch's caching allocator every tensor is an allocation of its own, so that a row too many is seen: from the
cache they are cut out of large blocks, and an overrun lands in a neighbour. memcheck finds accesses out of bounds and
misaligned ones, racecheck threads of a program that meet in shared memory without a barrier.
Names of ops as arguments: those only. One line a check; the exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ddbench.ops import OPS, TritonLauncher, check_op, find_op, why_not

SIZES = ("small", "odd", "adversarial")


def main(names: Sequence[str]) -> int:
    """Check the named ops, all without names; -> exit status."""
    num_wrong = 0
    for op in [find_op(name) for name in names] or OPS.values():
        for implementation, run in op.implementations.items():
            if not isinstance(run, TritonLauncher):
                continue
            if (reason := why_not(op, implementation, "cuda")) is not None:
                sys.exit(f"{op.name} {implementation}: {reason}")
            for size in SIZES:
                start = time.perf_counter()
                check = check_op(op, implementation, size, device="cuda")
                verdict = "ok" if check.ok else f"WRONG {check.detail}"
                seconds = time.perf_counter() - start
                sys.stdout.write(f"{op.name} {implementation} {size}: {verdict} ({seconds:.2f} s)\n")
                sys.stdout.flush()
                num_wrong += not check.ok
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
