"""Can racecheck follow a hand-over by mbarrier? Two warp groups, one value a step, sound and with its waits left out.

    compute-sanitizer --tool racecheck python tests/gpu/racecheck_control.py sound
    compute-sanitizer --tool racecheck python tests/gpu/racecheck_control.py racy

The attention kernels for Hopper hand weights and peaks from one warp group to another in this way. What the tool says
of `sound` is what its findings on those kernels are worth: hazards there mean that it does not see the barrier.
The script itself fails if the sound kernel's result is wrong.
"""

from __future__ import annotations

import sys

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # its name from Triton 3.7 on
STEPS = 8


@gluon.jit
def _tell(cell, there, free, steps, WAITS: gl.constexpr):
    at = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    for step in range(steps):
        if WAITS:
            mbarrier.wait(free, (step & 1) ^ 1)
        cell.store(at + 1000 * step)
        thread_barrier()
        mbarrier.arrive(there, count=1)


@gluon.jit
def _hear(cell, there, free, out_ptr, steps, WAITS: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.arange(0, 128, layout=LAYOUT)
    total = gl.zeros([128], gl.int32, layout=LAYOUT)
    for step in range(steps):
        if WAITS:
            mbarrier.wait(there, step & 1)
        total += cell.load(LAYOUT)
        thread_barrier()
        mbarrier.arrive(free, count=1)
    gl.store(out_ptr + at, total)


@gluon.jit
def _handed_over(out_ptr, steps, WAITS: gl.constexpr):
    cell = gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    barriers = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(barriers.index(i), count=1)
    fence_async_shared()
    thread_barrier()
    gl.warp_specialize(
        [
            (_tell, (cell, barriers.index(0), barriers.index(1), steps, WAITS)),
            (_hear, (cell, barriers.index(0), barriers.index(1), out_ptr, steps, WAITS)),
        ],
        [4],
        [64],
    )


def main(kind: str) -> int:
    """Exit code 1 if the sound kernel adds up wrong."""
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    _handed_over[(1,)](out, STEPS, WAITS=kind == "sound", num_warps=4)
    wanted = STEPS * torch.arange(128) + 1000 * STEPS * (STEPS - 1) // 2
    is_right = torch.equal(out.cpu().long(), wanted)
    sys.stdout.write(f"{kind}: {'right' if is_right else 'wrong'}\n")
    return int(kind == "sound" and not is_right)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
