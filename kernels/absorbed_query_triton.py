"""The query of absorbed MLA in one launch: plain PyTorch takes six for the rotation and the two halves side by side.

Where in the flow: VERIFY, after the query's products, before the attention over latent rows. Both parts are read where
the products left them: the latent part heads first, the rotary part between the heads' other dims.
Letters: B batch rows, N new tokens, H heads, R latent rank, Dr rotary dims. A program takes one token and
ELEMENTS / R of its heads; rotation in fp32, rounded once. No value meets another token's.

Floor, K2.6 (64 heads, 512 + 64), 65 nodes: 9.6 MB in bf16 in and out, 2.2 us at 4.4 TB/s; 8 nodes 1.2 MB, 0.3 us.
Measured on an H200 (`bench-ops`, cold): 2.4 us at batch 1. Prediction, in a graph: 2 us up to 8 nodes (one load and one
store deep), 3.5 us at 65 nodes, since the latent part was written just before and comes from L2. 16 requests of 65: 40
us, DRAM binds. If it misses: let the product of the latent part write into the result directly (strided output), and
rotate only.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

ELEMENTS = 2048  # of the latent part in a program


@triton.jit
def _absorbed_query_kernel(
    latent_ptr,  # [B, N, H, RANK] by strides, innermost 1
    rope_ptr,  # [B, N, H, 2*HALF] by strides, innermost 1
    cos_ptr,  # [B, N, HALF]
    sin_ptr,  # [B, N, HALF]
    out_ptr,  # [B, N, H, RANK + 2*HALF]
    latent_batch_stride,
    latent_token_stride,
    latent_head_stride,
    rope_batch_stride,
    rope_token_stride,
    rope_head_stride,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tokens, blocks of heads, batch rows."""
    i = tl.program_id(0).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    token = b * tl.num_programs(0) + i
    head = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    is_head = head < HEADS
    head = head.to(tl.int64)
    kind = out_ptr.dtype.element_ty
    target = out_ptr + (token * HEADS + head) * (RANK + 2 * HALF)
    column = tl.arange(0, BLOCK_RANK)[None, :]
    mask = is_head & (column < RANK)
    source = latent_ptr + b * latent_batch_stride + i * latent_token_stride + head * latent_head_stride
    wait_for_launch_before(IS_DEPENDENT)
    latent = tl.load(source + column, mask=mask)
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    is_pair = pair < HALF
    cos = tl.load(cos_ptr + token * HALF + pair, mask=is_pair, other=0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HALF + pair, mask=is_pair, other=0).to(tl.float32)
    is_pair = is_head & is_pair
    source = rope_ptr + b * rope_batch_stride + i * rope_token_stride + head * rope_head_stride
    first = tl.load(source + pair, mask=is_pair, other=0).to(tl.float32)
    second = tl.load(source + HALF + pair, mask=is_pair, other=0).to(tl.float32)
    tl.store(target + column, latent.to(kind), mask=mask)
    tl.store(target + RANK + pair, (first * cos - second * sin).to(kind), mask=is_pair)
    tl.store(target + RANK + HALF + pair, (second * cos + first * sin).to(kind), mask=is_pair)


def _constants(heads: int, rank: int, half: int) -> dict[str, int]:
    block_rank = triton.next_power_of_2(rank)
    return {
        "HEADS": heads,
        "RANK": rank,
        "HALF": half,
        "BLOCK_H": min(triton.next_power_of_2(heads), max(1, ELEMENTS // block_rank)),
        "BLOCK_RANK": block_rank,
        "BLOCK_HALF": triton.next_power_of_2(half),
    }


def absorbed_query_triton(
    q_latent: torch.Tensor,  # [B, N, H, R] by any strides, innermost 1
    q_rope: torch.Tensor,  # [B, N, H, Dr] by any strides, innermost 1
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    *,
    out: torch.Tensor | None = None,  # [B, N, H, R+Dr]
) -> torch.Tensor:
    """-> [B, N, H, R+Dr] contiguous, in q_latent.dtype: `q_latent`, and `q_rope` rotated (half-split, fp32 inside)."""
    if not (q_latent.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"absorbed_query_triton: q_latent is on {q_latent.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    latent_strides, rope_strides = q_latent.stride(), q_rope.stride()
    batch, num_tokens, heads, rank = q_latent.shape
    rotary = q_rope.shape[-1]
    if (rank > 1 and latent_strides[3] != 1) or rope_strides[3] != 1:
        raise ValueError(f"absorbed_query_triton: elements must lie together, strides {latent_strides}, {rope_strides}")
    shape = (batch, num_tokens, heads, rank + rotary)
    out = torch.empty(shape, dtype=q_latent.dtype, device=q_latent.device) if out is None else out
    assert out.shape == shape, f"expected out {shape}, got {tuple(out.shape)}"
    assert q_rope.shape == (*shape[:3], rotary), f"q_rope: {tuple(q_rope.shape)}, q_latent {tuple(q_latent.shape)}"
    assert cos_rows.shape == sin_rows.shape == (batch, num_tokens, 1, rotary // 2), f"tables: {tuple(cos_rows.shape)}"
    assert all(t.is_contiguous() for t in (out, cos_rows, sin_rows)), "out, cos_rows or sin_rows is not contiguous"
    if out.numel():
        constants = _constants(heads, rank, rotary // 2)
        grid = (num_tokens, triton.cdiv(heads, constants["BLOCK_H"]), batch)
        _absorbed_query_kernel[grid](
            q_latent, q_rope, cos_rows, sin_rows, out, *latent_strides[:3], *rope_strides[:3], **constants, num_warps=4,
            **dependence(q_latent),
        )  # fmt: skip
    return out


def _entry(name: str, element: str, heads: int, rank: int, half: int) -> dict[str, Any]:
    signature = dict.fromkeys(("latent_ptr", "rope_ptr", "out_ptr"), f"*{element}")
    signature |= {"cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    parts = ("batch", "token", "head")
    signature |= {f"{part}_{dim}_stride": "i32" for part in ("latent", "rope") for dim in parts}
    return {
        "name": f"{name}-{element}",
        "kernel": _absorbed_query_kernel,
        "signature": signature,
        "constexprs": _constants(heads, rank, half) | {"IS_DEPENDENT": True},
        "divisible_by_16": tuple(signature),
        "num_warps": 4,
        "num_stages": 3,
    }


_SHAPES = (("k2.6", 64, 512, 32), ("k2.6-rank-of-8", 8, 512, 32), ("nano-k2", 8, 64, 8))
AOT = tuple(_entry(name, element, *shape) for name, *shape in _SHAPES for element in ("bf16", "fp32"))
