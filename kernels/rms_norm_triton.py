"""RMS normalisation in one launch, with the residual addition before it in the same launch.

Where in the flow: every layer's input and the final norm (M = hidden). Latent rows and MLA's compressed q beside them
are `latent_rows_triton`'s, the heads of q and k `qk_rows_triton`'s. The round's smallest ops and its most frequent:
fused for launches, not for bytes.
Letters: M the normalised dim, S parts of a product whose inner dimension was split: fp32 sums left in memory, added
here in their order, so that no launch only adds.

A program holds whole rows in registers: one row of 7168 (8 warps, 32 elements per thread), or as many short rows as
make 4096 elements. How many depends on M alone and rows never mix, so a row's result does not depend on the batch.
fp32 inside, one rounding at the end. The sum with the residual is rounded before it is normalised: what is stored is
what is normalised, as when the two ops run apart.

Floor: K2.6, 65 nodes x 7168 x 2 B, read and written: 1.9 MB or 0.4 us at 4.4 TB/s (with residual 3.7 MB), 16 requests
30 MB or 7 us (60 MB, 14 us). On an H200 (`bench-ops`, cold) 2.0-2.1 us up to 65 rows, 9.1 us at 1040, 15 with the
residual. Prediction, in a graph: 2.5 us up to 132 rows (load, sum over 8 warps, store:
latency binds), 9 us at 1040 rows (17 with the residual; DRAM, if the L2 cache does not hold the rows still).
Of two fp32 parts, 33 rows, predicted 2.8 us: 1.4 MB more to read, from the L2 cache, all loads on their way at once.
If it misses: at few rows two CTAs per row are not worth their exchange: fuse into the neighbouring GEMM's reduction; at
many rows look for 16-byte accesses and 4 programs per multiprocessor.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before
from .stream_linear_triton import load_added, part_layout

TILE_ELEMENTS = 4096  # short rows: elements a program holds
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit(do_not_specialize=["num_rows", "inner_rows"])
def _rms_norm_kernel(
    x_ptr,  # row r at (r // inner_rows) * outer_stride + (r % inner_rows) * row_stride, of every part
    more_ptr,  # [rows, M], read with HAS_MORE only
    residual_ptr,  # [rows, M], read with HAS_RESIDUAL only
    weight_ptr,  # [M]
    out_ptr,  # [rows, M]
    sum_ptr,  # [rows, M], written with HAS_RESIDUAL only
    eps,
    num_rows,
    inner_rows,
    outer_stride,
    row_stride,
    part_stride,
    M: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_MORE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_M)[None, :]
    start = (row // inner_rows).to(tl.int64) * outer_stride + (row % inner_rows).to(tl.int64) * row_stride
    at = row.to(tl.int64)[:, None] * M + column
    mask = (row < num_rows)[:, None] & (column < M)
    wait_for_launch_before(IS_DEPENDENT)
    weight = tl.load(weight_ptr + column, mask=column < M, other=0).to(tl.float32)
    x = load_added(x_ptr + start[:, None] + column, mask, part_stride, PARTS)
    if HAS_MORE:
        x += tl.load(more_ptr + at, mask=mask, other=0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + at, mask=mask, other=0).to(tl.float32)
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, rounded, mask=mask)
        x = rounded.to(tl.float32)
    scale = 1 / tl.sqrt_rn(tl.sum(x * x, 1) / M + eps)
    out = x * scale[:, None] * weight
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def _check(op: str, x: torch.Tensor, contiguous: dict[str, torch.Tensor]) -> None:
    """Refuse what the kernels cannot address."""
    for name, tensor in {"x": x, **contiguous}.items():
        if not (tensor.is_cuda or triton.knobs.runtime.interpret):
            raise ValueError(
                f"{op}: {name} is on {tensor.device}, need a CUDA device; "
                "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
            )
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{op}: {name} is {tensor.dtype}, need bfloat16, float16 or float32")
    for name, tensor in contiguous.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{op}: {name} must be contiguous, has strides {tensor.stride()}")


def _row_strides(x: torch.Tensor) -> tuple[int, int, int]:
    """-> (inner rows, outer stride, row stride) of x's rows in order; heads cut out of a wider projection have both."""
    groups: list[tuple[int, int]] = []  # (size, stride) of the leading dims, merged where they run on, outermost first
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == size * stride:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    if len(groups) > 2 or (x.shape[-1] > 1 and x.stride(-1) != 1):
        raise ValueError(
            f"rms_norm_triton: rows must be reachable by two strides, their elements by 1; got shape {tuple(x.shape)}, "
            f"strides {x.stride()}: call .contiguous() first"
        )
    outer, inner = ((1, 0), (1, 0), *groups)[-2:]
    return inner[0], outer[1], inner[1]


def num_warps_for(elements: int, num_parts: int = 1) -> int:
    """Of a program that holds as many in registers.

    Of several parts a thread takes 16 bytes each: with more, the assembler adds what has arrived before it asks for the
    rest, and so waits for memory three or four times instead of once.
    """
    if num_parts > 1:
        return min(32, max(1, elements // 128))
    return 1 if elements <= 256 else 4 if elements <= 4096 else 8


def _norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: list[torch.Tensor],
    more: torch.Tensor | None = None,
    parts: tuple[int, int] = (1, 0),  # how many, x the first of them, and the elements from one to the next
) -> None:
    """Launch the norm into out[0] and, with a residual, the sum into out[1]."""
    given = {"weight": weight, **{f"out[{i}]": tensor for i, tensor in enumerate(out)}}
    given |= {name: tensor for name, tensor in (("residual", residual), ("more", more)) if tensor is not None}
    _check("rms_norm_triton", x, given)
    size = x.shape[-1]
    num_rows = x.numel() // size
    assert weight.shape == (size,), f"weight: got {tuple(weight.shape)}, x {tuple(x.shape)}"
    assert all(t.shape == x.shape for name, t in given.items() if name != "weight"), f"x has {tuple(x.shape)}"
    if num_rows == 0:
        return
    inner_rows, outer_stride, row_stride = _row_strides(x)
    block = triton.next_power_of_2(size)
    block_r = max(1, TILE_ELEMENTS // block) if block <= 512 else 1
    num_parts, part_stride = parts
    _rms_norm_kernel[(triton.cdiv(num_rows, block_r),)](
        x, x if more is None else more, x if residual is None else residual, weight, out[0], out[-1], eps,
        num_rows, inner_rows, outer_stride, row_stride, part_stride, M=size, PARTS=num_parts,
        HAS_MORE=more is not None, HAS_RESIDUAL=residual is not None, BLOCK_R=block_r, BLOCK_M=block,
        num_warps=num_warps_for(block_r * block, num_parts),
        **dependence(x, is_join=more is not None),  # what comes in two parts may come from two streams
    )  # fmt: skip


def _dense_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def rms_norm_triton(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim, [..., M] -> [..., M]; fp32 inside, result in x.dtype."""
    out = _dense_like(x) if out is None else out
    _norm(x, None, weight, eps, [out])
    return out


def add_rms_norm_triton(
    x: torch.Tensor,  # [..., M] what a layer adds
    residual: torch.Tensor,  # [..., M]
    weight: torch.Tensor,  # [M]
    eps: float,
    more: torch.Tensor | None = None,  # [..., M] what the layer adds besides, contiguous: first to x
    *,
    in_parts: bool = False,  # x is [S, ..., M], contiguous: the parts of a split product
    out: tuple[torch.Tensor, torch.Tensor] | None = None,  # the results, to be written; the sum may be `residual`
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (rms_norm(x + residual), x + residual), both in x.dtype; the sum is what a captured feature must be.

    In parts: both in residual.dtype; the parts and the residual are added in fp32 and their sum is rounded once.
    """
    parts = (1, 0)
    normed, total = out or [_dense_like(residual if in_parts else x) for _ in range(2)]
    if in_parts:
        assert more is None, "parts, or two addends"
        assert x.is_contiguous(), f"parts have strides {x.stride()}"
        parts, x = part_layout(x), x[0]
    _norm(x, residual, weight, eps, [normed, total], more, parts)
    return normed, total


_NORM = {
    **dict.fromkeys(("x_ptr", "more_ptr", "residual_ptr", "weight_ptr", "out_ptr", "sum_ptr"), "*bf16"),
    "eps": "fp32",
    "num_rows": "i32",
    "inner_rows": "i32",
    "outer_stride": "i32",
    "row_stride": "i32",
    "part_stride": "i32",
}


def _entry(name: str, kernel: object, signature: dict[str, str], num_warps: int, **constexprs: Any) -> dict[str, Any]:
    multiples = (arg for arg, kind in signature.items() if kind.startswith("*") or arg.endswith("stride"))
    return {
        "name": name,
        "kernel": kernel,
        "signature": signature,
        "constexprs": {"PARTS": 1} | constexprs | {"IS_DEPENDENT": True},
        "num_warps": num_warps,
        "num_stages": 3,
        "divisible_by_16": tuple(multiples),
    }


AOT = (
    *(
        _entry(
            f"k2.6-hidden{name}", _rms_norm_kernel, _NORM, 8,
            M=7168, HAS_MORE=has_more, HAS_RESIDUAL=has_residual, BLOCK_R=1, BLOCK_M=8192,
        )
        for name, has_more, has_residual in (("", False, False), ("-add", False, True), ("-add-two", True, True))
    ),
    _entry(
        "k2.6-hidden-add-parts", _rms_norm_kernel, _NORM | {"x_ptr": "*fp32"}, 32,
        M=7168, PARTS=2, HAS_MORE=False, HAS_RESIDUAL=True, BLOCK_R=1, BLOCK_M=8192,
    ),
    _entry("latent-512", _rms_norm_kernel, _NORM, 4, M=512, HAS_MORE=False, HAS_RESIDUAL=False, BLOCK_R=8, BLOCK_M=512),
    _entry("head-128", _rms_norm_kernel, _NORM, 4, M=128, HAS_MORE=False, HAS_RESIDUAL=False, BLOCK_R=32, BLOCK_M=128),
)  # fmt: skip
