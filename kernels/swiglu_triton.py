"""The gated activation of an MLP in one launch: plain PyTorch takes two and a trip through memory between them.

Where in the flow: between the products of every dense MLP and of every shared expert; routed experts do it themselves.
Letters: I MLP width, S parts of a product whose inner dimension was split: fp32 sums left in memory, added here.
A program holds COLUMNS columns of one row, 16 bytes of each half per thread in bf16, or of each part of it in fp32;
fp32 inside, one rounding at the end. Elements never meet: a row's result does not depend on the batch.

Floor, K2.6: shared expert (I 2048), 65 nodes: 0.8 MB, 0.2 us at 4.4 TB/s; dense layer (I 18432), 65 nodes: 7.2 MB,
1.6 us; 16 requests 115 MB, 26 us. On an H200 in a graph (`bench-ops`, cold) 1.1-1.3 us up to 65 tokens; predicted 2 us
up to a MB (one load, an exponential and one store deep), then 85 % of the DRAM rate where the rows come from there;
they mostly come from L2. Two fp32 parts, 33 tokens of the shared expert: 1.1 MB from L2, predicted 2 us as well.
If it misses: into the epilogue of the product before it, at the cost of interleaving its gate and up rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before
from .rms_norm_triton import num_warps_for
from .stream_linear_triton import load_added, part_layout

COLUMNS = 1024  # of a program


@triton.jit
def _swiglu_kernel(
    gate_up_ptr,  # [rows, 2I] of every part
    out_ptr,  # [rows, I]
    part_stride,
    WIDTH: tl.constexpr,  # I
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < WIDTH
    source = gate_up_ptr + row * (2 * WIDTH) + column
    wait_for_launch_before(IS_DEPENDENT)
    gate = load_added(source, mask, part_stride, PARTS)
    up = load_added(source + WIDTH, mask, part_stride, PARTS)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * WIDTH + column, value.to(out_ptr.dtype.element_ty), mask=mask)


def _columns(width: int, num_parts: int) -> tuple[int, int]:
    """-> (columns of a program, its warps)."""
    columns = min(COLUMNS, triton.next_power_of_2(width))
    return columns, max(1, columns // 256) if num_parts == 1 else num_warps_for(columns, num_parts)


def swiglu_triton(
    gate_up: torch.Tensor,  # [..., 2I], gate first; in parts [S, ..., 2I]
    *,
    in_parts: bool = False,
    dtype: torch.dtype | None = None,  # of the result; None: gate_up's
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`silu(gate) * up` of contiguous [..., 2I], or of parts' sum -> [..., I]; fp32 inside, rounded once."""
    if not (gate_up.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"swiglu_triton: gate_up is on {gate_up.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    if not gate_up.is_contiguous():
        raise ValueError(f"swiglu_triton: gate_up must be contiguous, has strides {gate_up.stride()}")
    num_parts, part_stride = part_layout(gate_up) if in_parts else (1, 0)
    *leading, both = gate_up.shape[1:] if in_parts else gate_up.shape
    width = both // 2
    assert both == 2 * width, f"gate_up: an odd number of columns, {both}"
    if out is None:
        out = torch.empty((*leading, width), dtype=dtype or gate_up.dtype, device=gate_up.device)
    assert out.shape == (*leading, width), f"gate_up has {tuple(gate_up.shape)}, out {tuple(out.shape)}"
    assert out.is_contiguous(), f"out has strides {out.stride()}"
    assert dtype in (None, out.dtype), f"out is {out.dtype}, wanted {dtype}"
    num_rows = out.numel() // max(width, 1)
    if num_rows:
        columns, num_warps = _columns(width, num_parts)
        grid = (num_rows, triton.cdiv(width, columns))
        _swiglu_kernel[grid](
            gate_up, out, part_stride, WIDTH=width, PARTS=num_parts, COLUMNS=columns, num_warps=num_warps,
            **dependence(gate_up),
        )  # fmt: skip
    return out


def _entry(name: str, element: str, width: int, num_parts: int = 1) -> dict[str, Any]:
    columns, num_warps = _columns(width, num_parts)
    pointers = {"gate_up_ptr": f"*{element if num_parts == 1 else 'fp32'}", "out_ptr": f"*{element}"}
    return {
        "name": f"{name}-{element}",
        "kernel": _swiglu_kernel,
        "signature": pointers | {"part_stride": "i32"},
        "constexprs": {"WIDTH": width, "PARTS": num_parts, "COLUMNS": columns, "IS_DEPENDENT": True},
        "divisible_by_16": (*pointers, "part_stride"),
        "num_warps": num_warps,
        "num_stages": 3,
    }


_WIDTHS = (("k2.6-dense", 18432), ("k2.6-shared", 2048), ("nano-k2-shared", 96))
AOT = (
    *(_entry(name, element, width) for name, width in _WIDTHS for element in ("bf16", "fp32")),
    _entry("k2.6-shared-parts", "bf16", 2048, num_parts=2),
)
