"""Projections of few tokens by large weights: the weight streamed once, in a launch that begins before the last ends.

Where in the flow: the products of a large model's layer in VERIFY and DRAFT at small batches. cuBLAS reads as fast once
it is on its way, but waits for the end of the launch before, adds the sums of a split inner dimension in a launch of
its own, and is waited for in turn. Here a split product leaves its sums, and who reads them adds (`swiglu`,
`add_rms_norm` and `compressed_rows`, in the order of the parts).
Letters: T tokens, I inputs, O outputs, S parts of I.

A program takes 64 rows of the weight, the tall operand of the tensor cores, and one part of the columns; all tokens,
padded to 16, 32 or 64, are the other operand. In how many parts depends on the weight's shape alone, columns are added
in order: a token's result does not depend on its company, as long as that is no more than MAX_TOKENS. What counts is
that all multiprocessors ask for memory all the time: `plan` takes as few parts as fill them.

Floor: the weight's bytes. Measured on an H200 over cold weights, us (floor at 4.29 TB/s): alone (`bench-ops`), and in a
chain of dependent launches with the product's reader:

    outputs x inputs    tokens    floor    alone: cuBLAS, this    chained: cuBLAS, this    parts
    2112 x 7168         33          7.2     13.9     9.5           14.6    11.4            4      q and kv, compressed
    12288 x 1536        33          9.0     12.3    12.8           15.0    13.0            1      q
    7168 x 8192         33         27.6     31.6    31.5           36.2    33.6            1      out of attention
    4096 x 7168         33         13.9     20.4    16.6           21.7    18.8            2      shared experts, up
    7168 x 2048         33          7.0     10.1     9.3           12.5    10.7            1      and down
    36864 x 7168        8         123.4    127.9   123.4          139.5   127.8            1      drafter, up
    7168 x 18432        8          61.7     74.3    64.8           76.8    65.5 in two     1      and down

That chain's reader alone is 1.3 to 3.1. On one of eight ranks of Kimi-K2.6 verify of 33 tokens fell from 17.1 to 16.1
ms, a plain decoding step from 9.2 to 8.1 ms and drafting from 2.4 to 2.2 ms, with `compressed_rows` (predicted: 0.9 and
0.17 ms). The shared experts' products find room beside the routed ones now.
To ask for weights ahead of all this, into L2 from a side branch, made such layers slower (`prefetch_triton`). A head's
weights, more than MAX_TILES tiles, are read at 4.4 TB/s by cuBLAS.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, is_hopper, wait_for_launch_before

MAX_TOKENS = 64
MIN_BYTES = 2**24  # of a weight: smaller ones are `linear_triton`'s
MAX_TILES = 1024
BLOCK_O = 64
STEP = 128  # columns of a part are a multiple of it
MAX_PARTS = 8
LEAST_FILLED = 0.7  # of the multiprocessors' places, else cuBLAS cuts it better
NUM_SMS = 132  # the shapes are cut for an H200 whatever runs them, so that results do not differ


class Plan(NamedTuple):
    """How a weight is cut."""

    tiles: int
    parts: int
    residents: int  # programs that a multiprocessor has room for

    @property
    def waves(self) -> int:
        return math.ceil(self.tiles * self.parts / (NUM_SMS * self.residents))

    @property
    def filled(self) -> float:
        """Share of the places in all waves that have a program."""
        return self.tiles * self.parts / (self.waves * NUM_SMS * self.residents)


@triton.jit
def load_added(source, mask, part_stride, PARTS: tl.constexpr):
    """fp32 sum, in their order, of what stands at `source` and every `part_stride` elements behind it."""
    total = tl.load(source, mask=mask, other=0).to(tl.float32)
    for _ in tl.static_range(1, PARTS):
        source += part_stride
        total += tl.load(source, mask=mask, other=0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["num_tokens"])
def _stream_linear_kernel(
    x_ptr,  # [T, INPUTS]
    weight_ptr,  # [OUTPUTS, INPUTS]
    out_ptr,  # [PARTS, T, OUTPUTS]
    num_tokens,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    COLUMNS: tl.constexpr,
    INTERPRET: tl.constexpr,  # the interpreter's bf16 products are wrong
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tiles of outputs, part after part: neighbours share the tokens' columns."""
    TILES: tl.constexpr = OUTPUTS // BLOCK_O
    WIDTH: tl.constexpr = INPUTS // PARTS
    tile = tl.program_id(0) % TILES
    part = tl.program_id(0) // TILES
    row = tl.arange(0, BLOCK_O)
    token = tl.arange(0, BLOCK_T)
    column = tl.arange(0, COLUMNS)
    is_token = token < num_tokens
    weights = weight_ptr + (tile.to(tl.int64) * BLOCK_O * INPUTS + part * WIDTH)
    weights = weights + (row[:, None] * INPUTS + column[None, :])
    rows = x_ptr + part * WIDTH + (token[None, :] * INPUTS + column[:, None])
    acc = tl.zeros((BLOCK_O, BLOCK_T), tl.float32)
    wait_for_launch_before(IS_DEPENDENT)
    for k in range(0, WIDTH, COLUMNS):
        w = tl.load(weights + k, eviction_policy="evict_first")  # read once, by this program only
        x = tl.load(rows + k, mask=is_token[None, :], other=0.0, eviction_policy="evict_last")
        if INTERPRET:
            w = w.to(tl.float32)
            x = x.to(tl.float32)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    place = (part * num_tokens + token).to(tl.int64) * OUTPUTS
    target = out_ptr + place[None, :] + (tile * BLOCK_O + row)[:, None]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=is_token[None, :])


@cache  # asked for by every launch
def plan(outputs: int, inputs: int, may_split: bool) -> Plan | None:
    """The fewest parts whose programs fill the GPU's places; None where none do, or the shape does not fit.

    Places are filled in waves: a last one with few programs leaves the others' idle.
    """
    if outputs % BLOCK_O or inputs % STEP or outputs // BLOCK_O > MAX_TILES:
        return None
    tiles = outputs // BLOCK_O
    for parts in range(1, MAX_PARTS + 1 if may_split else 2):
        if inputs % (parts * STEP) == 0:
            cuts = [Plan(tiles, parts, residents) for residents in (1, 2)]
            best = max(cuts, key=lambda cut: (round(cut.filled, 2), -cut.waves))
            if best.filled >= LEAST_FILLED:
                return best
    return None


def suits(x: torch.Tensor, weight: torch.Tensor, num_tokens: int, may_split: bool = False) -> bool:
    """Whether this is a large weight for few tokens that can be cut so as to fill the GPU. weight [O, I]."""
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and 0 < num_tokens <= MAX_TOKENS
        and weight.nbytes >= MIN_BYTES
        and weight.is_contiguous()
        and plan(*weight.shape, may_split) is not None
    )


def stream_linear_triton(
    x: torch.Tensor,  # [..., I]
    weight: torch.Tensor,  # [O, I], contiguous
    *,
    may_split: bool = False,
    is_join: bool = False,  # launched behind a join or a fork of streams
) -> torch.Tensor:
    """x times weight -> [S, ..., O], to be added over S: in x.dtype where S is 1, else fp32.

    S is 1 unless it may split. For weights that `plan` has a cut for, and up to MAX_TOKENS tokens.
    """
    if not (x.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"stream_linear_triton: x is on {x.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    outputs, inputs = weight.shape
    assert x.shape[-1] == inputs, f"x has {tuple(x.shape)}, weight {tuple(weight.shape)}"
    assert weight.is_contiguous(), f"weight has strides {weight.stride()}"
    cut = plan(outputs, inputs, may_split)
    assert cut is not None, f"no cut for a weight of {tuple(weight.shape)}"
    num_tokens = x.numel() // inputs
    assert num_tokens <= MAX_TOKENS, f"{num_tokens} tokens"
    dtype = x.dtype if cut.parts == 1 else torch.float32
    out = torch.empty(cut.parts, *x.shape[:-1], outputs, dtype=dtype, device=x.device)
    if num_tokens:
        constants, num_stages = _constants(cut, num_tokens, outputs, inputs)
        _stream_linear_kernel[(cut.tiles * cut.parts,)](
            x.contiguous(), weight, out, num_tokens, **constants, INTERPRET=triton.knobs.runtime.interpret,
            **dependence(out, is_join=is_join), num_warps=4, num_stages=num_stages if x.element_size() == 2 else 2,
        )  # fmt: skip
    return out


def part_layout(parts: torch.Tensor) -> tuple[int, int]:
    """-> how many, and the elements from one to the next: 0 of a single one, so that all of them run one kernel."""
    return len(parts), parts.stride(0) if len(parts) > 1 else 0


def is_wanted(x: torch.Tensor, weight: torch.Tensor, may_split: bool = False) -> bool:
    """On Hopper, where a launch can begin early, for the shapes that suit."""
    num_tokens = x.numel() // max(x.shape[-1], 1)
    return is_hopper(x) and suits(x, weight, num_tokens, may_split)


def _constants(cut: Plan, num_tokens: int, outputs: int, inputs: int) -> tuple[dict[str, int], int]:
    """-> (sizes, stages): 120 to 160 KB for the steps of a multiprocessor's only program, up to 100 for each of two."""
    block_t = max(16, triton.next_power_of_2(num_tokens))
    columns, num_stages = (STEP, {16: 6, 32: 6, 64: 5}[block_t])
    if cut.residents == 2:
        columns, num_stages = (STEP // 2, 6) if block_t == 64 else (STEP, 4)
    sizes = {"BLOCK_T": block_t, "BLOCK_O": BLOCK_O, "COLUMNS": columns}
    return {"INPUTS": inputs, "OUTPUTS": outputs, "PARTS": cut.parts} | sizes, num_stages


def _entry(name: str, num_tokens: int, outputs: int, inputs: int, may_split: bool = False) -> dict[str, Any]:
    cut = plan(outputs, inputs, may_split)
    assert cut is not None
    constants, num_stages = _constants(cut, num_tokens, outputs, inputs)
    pointers = {"x_ptr": "*bf16", "weight_ptr": "*bf16", "out_ptr": "*bf16" if cut.parts == 1 else "*fp32"}
    return {
        "name": name,
        "kernel": _stream_linear_kernel,
        "signature": pointers | {"num_tokens": "i32"},
        "constexprs": constants | {"INTERPRET": False, "IS_DEPENDENT": True},
        "divisible_by_16": tuple(pointers),
        "num_warps": 4,
        "num_stages": num_stages,
        "residents": cut.residents,
    }


AOT = (
    _entry("k2.6 compressed, 33 tokens", 33, 2112, 7168, may_split=True),
    _entry("k2.6 q, 33 tokens", 33, 12288, 1536),
    _entry("k2.6 o, 33 tokens", 33, 7168, 8192),
    _entry("k2.6 up, 17 tokens", 17, 4096, 7168, may_split=True),
    _entry("drafter up, 8 tokens", 8, 36864, 7168),
)
