"""Weights asked for into the L2 cache, by a launch that waits for nothing and writes nothing.

Where in the flow: on a side branch of DRAFT, VERIFY and short prefills, beside a layer, for the layer behind it;
whether that pays the models know (`ddbench/models/prefetch.py`). Small layers do not ask for memory fast enough: a
product of a few megabytes is over before enough of it is on its way, and between two products nobody asks.

A lane asks for LANE_BYTES at once (`cp.async.bulk.prefetch.L2`); its program ends, and the copies go on. Launched the
usual way, as it stands behind a fork of streams, and without dependents (`dependent_launch_triton`). Only Hopper is
asked: elsewhere, and interpreted, nothing is done, which is right everywhere, as no result depends on it.

Measured on an H200, the next layer's weights asked for at the start of every layer; a verify of SmolLM2-135M's shape
(30 layers of 7 MB) at contexts of 256 to 350, us:

    batch x nodes    1 x 8    1 x 32    1 x 64    1 x 128    4 x 32
    without            693       798      1002       1062      1058
    asked for          630       738       920        984       985

Whole rounds of SmolLM2-135M and its drafter (`tests/benchmarks/prefetch_rounds.py`), us, by nodes at a concurrency and
tokens verified; what was asked for (one recording each: of the same, two differ by up to 30 us):

    nodes at concurrency         16@1  64@1 128@1  8@16 15@16 256@1 512@1 32@16
    tokens                         17    65   129   144   256   257   513   528
    nothing                       867   961  1168  1333  1431  1459  2062  1776
    the drafter's layers          831   961  1160  1334  1436  1451  2060  1776
    the target's                  774   930  1107  1273  1380  1398  2011  1724
    both                          770   926  1098  1281  1374  1392  2000  1724

Large layers lost by it, whose products ask for all that the memory gives by themselves. Kimi-K2.6's (30 to 117 MB a
product): attention's output projection during attention +4 us a layer, four products ahead of their turn +15, and none
of 24 ways faster; Qwen3-8B 2 to 9 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import is_hopper

LANE_BYTES, LANES = 4096, 32
PER_LAUNCH = 4  # tensors; a layer's projections are as many


@triton.jit
def _ask(ptr, num_bytes, offset, LANE_BYTES: tl.constexpr):
    """Every lane for its bytes, as far as there are so many."""
    size = tl.maximum(tl.minimum(num_bytes - offset, LANE_BYTES), 0).to(tl.int32)
    tl.inline_asm_elementwise(
        "{ .reg .pred some; setp.gt.s32 some, $2, 0; @some cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
        "=r,l,r",
        [ptr.to(tl.int64) + offset, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["bytes_0", "bytes_1", "bytes_2", "bytes_3"])
def _prefetch_kernel(
    ptr_0, ptr_1, ptr_2, ptr_3,
    bytes_0, bytes_1, bytes_2, bytes_3,  # multiples of 16
    LANE_BYTES: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Grid: pieces of LANES * LANE_BYTES bytes, the same of every tensor."""
    offset = (tl.program_id(0) * LANES + tl.arange(0, LANES)).to(tl.int64) * LANE_BYTES
    _ask(ptr_0, bytes_0, offset, LANE_BYTES)
    _ask(ptr_1, bytes_1, offset, LANE_BYTES)
    _ask(ptr_2, bytes_2, offset, LANE_BYTES)
    _ask(ptr_3, bytes_3, offset, LANE_BYTES)


def prefetch_triton(tensors: Sequence[torch.Tensor]) -> None:
    """Ask for contiguous tensors, whose last bytes beyond a multiple of 16 are left out. A launch for four of them."""
    asked = [tensor for tensor in tensors if tensor.nbytes >= 16]
    if not (asked and is_hopper(asked[0])):
        return
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in asked), "contiguous, aligned"
    for first in range(0, len(asked), PER_LAUNCH):
        some = asked[first : first + PER_LAUNCH]
        sizes = [tensor.nbytes // 16 * 16 for tensor in some]
        missing = PER_LAUNCH - len(some)
        _prefetch_kernel[(triton.cdiv(max(sizes), LANES * LANE_BYTES),)](
            *some, *some[:1] * missing, *sizes, *[0] * missing, LANE_BYTES=LANE_BYTES, LANES=LANES, num_warps=1
        )


def _entry(name: str, element: str) -> dict[str, Any]:
    pointers = {f"ptr_{i}": f"*{element}" for i in range(PER_LAUNCH)}
    return {
        "name": name,
        "kernel": _prefetch_kernel,
        "signature": pointers | {f"bytes_{i}": "i32" for i in range(PER_LAUNCH)},
        "constexprs": {"LANE_BYTES": LANE_BYTES, "LANES": LANES},
        "divisible_by_16": tuple(pointers),
        "num_warps": 1,
        "num_stages": 3,
    }


AOT = (_entry("a layer's weights, bf16", "bf16"), _entry("a layer's weights, fp32", "fp32"))
