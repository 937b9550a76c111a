"""Projections of few tokens by small weights, in a launch that begins while the one before ends.

Where in the flow: every product of a layer between the small kernels; DRAFT and VERIFY of small models. cuBLAS has no
dependent launches: its kernels wait for the end of what is before them, and what is behind waits for theirs. Where the
product itself takes a microsecond, that is most of its time. Large weights are `stream_linear_triton`'s; whatever
neither `suits` goes to cuBLAS, as fp32 does, which would run without tensor cores here.
Letters: T tokens, I inputs, O outputs.

Products head by head (MLA's absorbed projections) are the same with a weight for each head.

A program takes BLOCK_O rows of the weight and BLOCK_T tokens, the weight as the tall operand; columns are added in an
order that the number of inputs decides alone, so that a token's result does not depend on its company. What counts is
how much all programs read (from L2: a weight is read again for every tile of tokens), and that few of them wait for
memory at once: tiles of 16 rows as long as all programs find a multiprocessor, of 32 beyond, and of 64 for many heads.

Measured on an H200 in a chain of dependent launches (norm, product, norm, ...), us for a norm and a product; bf16:

    outputs x inputs    1 token: cuBLAS, this    33: cuBLAS, this    65: cuBLAS, this
    256 x 256           4.4   2.6                4.5   2.9           4.6   2.9
    576 x 576           4.2   3.1                4.8   3.3           4.9   3.5
    960 x 576           5.2   3.2                4.9   3.4           4.9   3.9
    576 x 1536          6.4   4.3                6.1   4.8           6.2   5.5
    3072 x 576          4.8   3.3                5.0   4.7           5.2   6.1: cuBLAS is taken

Heads of K2.6's MLA, 64 of 512 x 128, turned, and of 128 x 512, from memory: 33 tokens 7.7 and 6.2, 7.2 and 5.9; one
token 6.9 and 4.9, 6.8 and 5.2; 65 tokens as cuBLAS, which is taken. Floor 2.0.

The norm alone is 1.0 to 1.4. All tokens in one tile were 1.2 us slower at 33: a program waited for 64 columns of x.
These weights were in L2. In a whole model larger than that they come from memory, unless somebody asks for a layer's
ahead (`prefetch_triton`). Verify of SmolLM2-135M's shape, us, cuBLAS and this, without and with that: 65 tokens 1002
and 844, 920 and 810; 129 tokens 1062 and 1033, 984 and 983. In rounds of the model itself, weights asked for up to 256
tokens, of two runs that differ in this and in the tiles of long attention: 128 tokens 943 and 847, of prompt lookup 900
and 838, 129 tokens 1010 and 958, 132 tokens 994 and 936, 144 tokens 1020 and 934, 272 tokens 1130 and 1115.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, is_hopper, wait_for_launch_before
from .linear import head_linear
from .stream_linear_triton import is_wanted as is_streamed
from .stream_linear_triton import stream_linear_triton

MAX_TOKENS = 512
MAX_INPUTS = 2048
MOST_READ = 15e6  # bytes, by all programs: more, and cuBLAS's larger tiles pay (seen between 14 and 16 MB)
MANY_HEADS, MOST_READ_BY_HEADS = 64, 2e7  # MLA's: each reads a weight of its own, in tall tiles
PROGRAMS = 128  # that find a multiprocessor each, and memory for five steps on their way


class Plan(NamedTuple):
    """How a product is cut."""

    block_t: int
    block_o: int
    columns: int  # of a step
    num_stages: int  # steps on their way, and one
    grid: tuple[int, int, int]

    @property
    def num_programs(self) -> int:
        return math.prod(self.grid)


@triton.jit(do_not_specialize=["num_tokens", "inner"])
def _linear_kernel(
    x_ptr,  # token t of head h at (t // inner) * outer_stride + (t % inner) * row_stride + h * head_stride
    weight_ptr,  # [heads, O, I] by strides
    out_ptr,  # [T, heads, O]
    num_tokens,
    inner,
    outer_stride,
    row_stride,
    head_stride,
    weight_head_stride,
    weight_row_stride,
    weight_stride,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_O: tl.constexpr,
    COLUMNS: tl.constexpr,
    INTERPRET: tl.constexpr,  # the interpreter's bf16 products are wrong
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tiles of outputs, heads, tiles of tokens."""
    EVEN: tl.constexpr = INPUTS % COLUMNS == 0 and OUTPUTS % BLOCK_O == 0
    row = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    token = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, COLUMNS)
    is_row = (row < OUTPUTS)[:, None]
    is_token = (token < num_tokens)[None, :]
    start = (token // inner).to(tl.int64) * outer_stride + (token % inner).to(tl.int64) * row_stride
    head = tl.program_id(1).to(tl.int64)
    weights = weight_ptr + head * weight_head_stride
    weights += row[:, None] * weight_row_stride + column[None, :] * weight_stride
    rows = x_ptr + head * head_stride + (start[None, :] + column[:, None])
    acc = tl.zeros((BLOCK_O, BLOCK_T), tl.float32)
    wait_for_launch_before(IS_DEPENDENT)
    for k in range(0, INPUTS, COLUMNS):
        if EVEN:
            w = tl.load(weights + k * weight_stride)
            x = tl.load(rows + k, mask=is_token, other=0.0)
        else:
            is_column = k + column < INPUTS
            w = tl.load(weights + k * weight_stride, mask=is_row & is_column[None, :], other=0.0)
            x = tl.load(rows + k, mask=is_token & is_column[:, None], other=0.0)
        if INTERPRET:
            w = w.to(tl.float32)
            x = x.to(tl.float32)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    place = token.to(tl.int64) * tl.num_programs(1) + head
    target = out_ptr + place[None, :] * OUTPUTS + row[:, None]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=is_row & is_token)


@cache  # asked for twice by every launch: whether it suits, and how
def plan(num_tokens: int, heads: int, outputs: int, inputs: int) -> Plan:
    """Narrow tiles where all of them run at once and do not read too much; tall ones for many heads."""
    narrow = _cut(num_tokens, heads, outputs, inputs, block_o=16)
    if narrow.num_programs <= PROGRAMS and bytes_read(narrow, inputs) <= MOST_READ:
        return narrow
    if heads < MANY_HEADS:
        return _cut(num_tokens, heads, outputs, inputs, block_o=32)
    return _cut(num_tokens, heads, outputs, inputs, block_o=64, most_tokens=64)


def _cut(num_tokens: int, heads: int, outputs: int, inputs: int, block_o: int, most_tokens: int = 32) -> Plan:
    block_t = min(most_tokens, max(16, triton.next_power_of_2(num_tokens)))
    columns = min(64 if inputs <= 768 else 128, max(16, triton.next_power_of_2(inputs)))
    grid = (triton.cdiv(outputs, block_o), heads, triton.cdiv(num_tokens, block_t))
    most_stages = 5 if math.prod(grid) <= PROGRAMS else 3
    return Plan(block_t, block_o, columns, min(most_stages, triton.cdiv(inputs, columns) + 1), grid)


def bytes_read(cut: Plan, inputs: int) -> int:
    """Of bf16, by all programs."""
    return cut.num_programs * (cut.block_t + cut.block_o) * inputs * 2


def suits(x: torch.Tensor, weight: torch.Tensor, num_tokens: int) -> bool:
    """Whether so few bytes are read that how a launch begins counts for more than how it reads. weight [..., O, I]."""
    outputs, inputs = weight.shape[-2:]
    heads = math.prod(weight.shape[:-2])
    most_read = MOST_READ if heads < MANY_HEADS else MOST_READ_BY_HEADS
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and 0 < num_tokens <= MAX_TOKENS
        and inputs <= MAX_INPUTS
        and bytes_read(plan(num_tokens, heads, outputs, inputs), inputs) <= most_read
    )


def linear_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    wanted: bool | None = None,
    is_join: bool = False,  # launched behind a join or a fork of streams
) -> torch.Tensor:
    """x [..., I] times weight [O, I] -> [..., O] in x.dtype; fp32 inside. Where it does not `suit`, see the module.

    `wanted` says where it does (None: on Hopper, where a launch can begin early).
    """
    if not (x.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"linear_triton: x is on {x.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    outputs, inputs = weight.shape
    assert x.shape[-1] == inputs, f"x has {tuple(x.shape)}, weight {tuple(weight.shape)}"
    num_tokens = x.numel() // max(inputs, 1)
    if not (is_hopper(x) and suits(x, weight, num_tokens) if wanted is None else wanted):
        assert out is None, "the others make their own"
        return stream_linear_triton(x, weight, is_join=is_join)[0] if is_streamed(x, weight) else F.linear(x, weight)
    if x.dim() != 3 or x.stride(2) != 1 or x.is_contiguous():
        x_rows = x.reshape(1, -1, inputs)  # of one stride
    else:
        x_rows = x
    shape = (*x.shape[:-1], outputs)
    out = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    assert out.shape == shape, f"expected out {shape}, got {tuple(out.shape)}"
    assert out.is_contiguous(), f"out has strides {out.stride()}"
    _launch(x_rows, 0, weight[None], out, num_tokens, x_rows.shape[1], is_join)
    return out


def linear_parts_triton(x: torch.Tensor, weight: torch.Tensor, *, is_join: bool = False) -> torch.Tensor:
    """The same, or [S, ..., O] in fp32, a dim more, for who reads it to add up: where the inner dimension is split."""
    if not is_streamed(x, weight, may_split=True):
        return linear_triton(x, weight, is_join=is_join)
    parts = stream_linear_triton(x, weight, may_split=True, is_join=is_join)
    return parts if len(parts) > 1 else parts[0]


def head_linear_triton(
    x: torch.Tensor,  # [T, H, I] by strides, innermost 1
    weight: torch.Tensor,  # [H, O, I] by strides
    *,
    out: torch.Tensor | None = None,  # [T, H, O], contiguous
    wanted: bool | None = None,
) -> torch.Tensor:
    """Head h of every token times the weight of head h -> [T, H, O]: contiguous, or as cuBLAS made it without `out`."""
    if not (x.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(f"head_linear_triton: x is on {x.device}, need a CUDA device; see linear_triton")
    num_tokens, heads, inputs = x.shape
    assert weight.shape[::2] == (heads, inputs), f"x has {tuple(x.shape)}, weight {tuple(weight.shape)}"
    fits = is_hopper(x) and suits(x, weight, num_tokens) and x.stride(2) == 1
    if not (fits if wanted is None else wanted):
        return head_linear(x, weight, out=out)
    shape = (num_tokens, heads, weight.shape[1])
    out = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    assert out.shape == shape, f"expected out {shape}, got {tuple(out.shape)}"
    assert out.is_contiguous(), f"out has strides {out.stride()}"
    _launch(x[None, :, 0], x.stride(1), weight, out, num_tokens, num_tokens)
    return out


def _launch(
    rows: torch.Tensor,
    head_stride: int,
    weight: torch.Tensor,
    out: torch.Tensor,
    num_tokens: int,
    inner: int,
    is_join: bool = False,
) -> None:
    """Tokens as two dims of `rows`, heads by their stride; nothing where there are no tokens."""
    heads, outputs, inputs = weight.shape
    assert num_tokens <= MAX_TOKENS, f"{num_tokens} tokens"
    assert rows.stride(2) == 1, f"rows have strides {rows.stride()}"
    if num_tokens:
        cut = plan(num_tokens, heads, outputs, inputs)
        _linear_kernel[cut.grid](
            rows, weight, out, num_tokens, inner, *rows.stride()[:2], head_stride, *weight.stride(),
            **_constants(cut, outputs, inputs), INTERPRET=triton.knobs.runtime.interpret,
            **dependence(out, is_join=is_join), num_warps=4, num_stages=cut.num_stages,
        )  # fmt: skip


def _constants(cut: Plan, outputs: int, inputs: int) -> dict[str, int]:
    sizes = {"BLOCK_T": cut.block_t, "BLOCK_O": cut.block_o, "COLUMNS": cut.columns}
    return {"INPUTS": inputs, "OUTPUTS": outputs} | sizes


def _entry(
    name: str, num_tokens: int, outputs: int, inputs: int, heads: int = 1, is_turned: bool = False
) -> dict[str, Any]:
    pointers = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), "*bf16")
    cut = plan(num_tokens, heads, outputs, inputs)
    strides = ("outer_stride", "row_stride", "head_stride", "weight_head_stride", "weight_row_stride", "weight_stride")
    one = {("weight_row_stride" if is_turned else "weight_stride"): 1}
    numbers = {name: "i32" for name in ("num_tokens", "inner", *strides) if name not in one}
    return {
        "name": name,
        "kernel": _linear_kernel,
        "signature": pointers | numbers,
        "constexprs": one | _constants(cut, outputs, inputs) | {"INTERPRET": False, "IS_DEPENDENT": True},
        "divisible_by_16": (*pointers, *(name for name in strides if name not in one)),
        "num_warps": 4,
        "num_stages": cut.num_stages,
    }


AOT = (
    _entry("hidden 256, 33 tokens", 33, 256, 256),
    _entry("hidden 256, 8 tokens", 8, 512, 256),
    _entry("hidden 576, 33 tokens", 33, 960, 576),
    _entry("hidden 576, wide, 33 tokens", 33, 3072, 576),
    _entry("down 1536, 65 tokens", 65, 576, 1536),
    _entry("head 4096 x 256, 33 tokens", 33, 4096, 256),
    _entry("odd 96, 33 tokens", 33, 256, 96),
    _entry("heads 64 to 64, 33 tokens", 33, 64, 64, heads=4),
    _entry("heads 32 to 64, turned, 33 tokens", 33, 64, 32, heads=4, is_turned=True),
    _entry("k2.6 heads 128 to 512, turned, 33 tokens", 33, 512, 128, heads=64, is_turned=True),
    _entry("k2.6 heads 512 to 128, 8 tokens", 8, 128, 512, heads=64),
)
