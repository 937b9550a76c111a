"""Projections of few tokens by small weights, in a launch that begins while the one before ends.

Where in the flow: every product of a layer between the small kernels; DRAFT and VERIFY of small models. cuBLAS has no
dependent launches: its kernels wait for the end of what is before them, and what is behind waits for theirs. Where the
product itself takes a microsecond, that is most of its time. Whatever is not `suits` goes to cuBLAS: large weights are
read at the memory's rate there, and fp32 would run without tensor cores here.
Letters: T tokens, I inputs, O outputs.

Products head by head (MLA's absorbed projections) are the same with a weight for each head.

A program takes BLOCK_O rows of the weight and all tokens (at most MAX_TOKENS), the weight as the tall operand, so that
its tile is the same for any number of tokens and a token's result does not depend on its company. All of a short row of
inputs is on its way at once.

On an H200 cuBLAS takes 2.1 to 2.8 us for nano-k2's products of 33 tokens, and 0.3 to get there. Prediction, in a chain
of dependent launches: 1.2 us (a load from L2, a few products, a store).
If it misses: the rows of inputs of a program in two halves, for two warps each.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, is_hopper, wait_for_launch_before
from .linear import head_linear

MAX_TOKENS = 64
MAX_WEIGHTS = 2**20  # 2 MB: more, and its rate of reading counts
MAX_INPUTS = 2048
COLUMNS = 128  # of a step
NARROW = 1024  # outputs: up to so many, tiles of 16 rows instead of 32


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
    """Grid: tiles of outputs, heads."""
    EVEN: tl.constexpr = INPUTS % COLUMNS == 0 and OUTPUTS % BLOCK_O == 0
    row = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    token = tl.arange(0, BLOCK_T)
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


def _sizes(num_tokens: int, outputs: int, inputs: int) -> dict[str, int]:
    columns = min(COLUMNS, max(16, triton.next_power_of_2(inputs)))
    return {
        "INPUTS": inputs,
        "OUTPUTS": outputs,
        "BLOCK_T": max(16, triton.next_power_of_2(num_tokens)),
        "BLOCK_O": 16 if outputs <= NARROW else 32,
        "COLUMNS": columns,
    }


def _stages(inputs: int, columns: int) -> int:
    """As many tiles on their way as a row of inputs has, up to three."""
    return min(4, triton.cdiv(inputs, columns) + 1)


def suits(x: torch.Tensor, weight: torch.Tensor, num_tokens: int) -> bool:
    """Whether so few bytes are read that how a launch begins counts for more than how it reads."""
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and 0 < num_tokens <= MAX_TOKENS
        and weight.numel() <= MAX_WEIGHTS
        and x.shape[-1] <= MAX_INPUTS
    )


def linear_triton(
    x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None, wanted: bool | None = None
) -> torch.Tensor:
    """x [..., I] times weight [O, I] -> [..., O] in x.dtype; fp32 inside. By cuBLAS where it does not `suit`.

    `wanted` says where (None: on Hopper, where a launch can begin early).
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
        assert out is None, "cuBLAS makes its own"
        return F.linear(x, weight)
    if x.dim() != 3 or x.stride(2) != 1 or x.is_contiguous():
        x_rows = x.reshape(1, -1, inputs)  # of one stride
    else:
        x_rows = x
    shape = (*x.shape[:-1], outputs)
    out = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    assert out.shape == shape, f"expected out {shape}, got {tuple(out.shape)}"
    assert out.is_contiguous(), f"out has strides {out.stride()}"
    _launch(x_rows, 0, weight[None], out, num_tokens, x_rows.shape[1])
    return out


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
    rows: torch.Tensor, head_stride: int, weight: torch.Tensor, out: torch.Tensor, num_tokens: int, inner: int
) -> None:
    """Tokens as two dims of `rows`, heads by their stride; nothing where there are no tokens."""
    heads, outputs, inputs = weight.shape
    assert num_tokens <= MAX_TOKENS, f"{num_tokens} tokens"
    assert rows.stride(2) == 1, f"rows have strides {rows.stride()}"
    if num_tokens:
        sizes = _sizes(num_tokens, outputs, inputs)
        _linear_kernel[(triton.cdiv(outputs, sizes["BLOCK_O"]), heads)](
            rows, weight, out, num_tokens, inner, *rows.stride()[:2], head_stride, *weight.stride(), **sizes,
            INTERPRET=triton.knobs.runtime.interpret, **dependence(out), num_warps=4,
            num_stages=_stages(inputs, sizes["COLUMNS"]),
        )  # fmt: skip


def _entry(name: str, num_tokens: int, outputs: int, inputs: int, is_turned: bool = False) -> dict[str, Any]:
    pointers = dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), "*bf16")
    sizes = _sizes(num_tokens, outputs, inputs)
    strides = ("outer_stride", "row_stride", "head_stride", "weight_head_stride", "weight_row_stride", "weight_stride")
    one = {("weight_row_stride" if is_turned else "weight_stride"): 1}
    numbers = {name: "i32" for name in ("num_tokens", "inner", *strides) if name not in one}
    return {
        "name": name,
        "kernel": _linear_kernel,
        "signature": pointers | numbers,
        "constexprs": one | sizes | {"INTERPRET": False, "IS_DEPENDENT": True},
        "divisible_by_16": (*pointers, *(name for name in strides if name not in one)),
        "num_warps": 4,
        "num_stages": _stages(inputs, sizes["COLUMNS"]),
    }


AOT = (
    _entry("hidden 256, 33 tokens", 33, 256, 256),
    _entry("hidden 256, 8 tokens", 8, 512, 256),
    _entry("head 4096 x 256, 33 tokens", 33, 4096, 256),
    _entry("odd 96, 33 tokens", 33, 256, 96),
    _entry("heads 64 to 64, 33 tokens", 33, 64, 64),
    _entry("heads 32 to 64, turned, 33 tokens", 33, 64, 32, is_turned=True),
)
