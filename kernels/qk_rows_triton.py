"""Queries and new K/V rows in one launch: two norms, two rotations and two writes, some 25 launches in plain PyTorch.

Where in the flow: after a layer's q, k, v products, before its attention; target (VERIFY) and drafter (DRAFT).
Letters: B batch rows, N new tokens, H query heads, G KV heads, D head dim, S cache rows. A program takes one token and
ELEMENTS / D of its query heads, or as many of its KV heads (k and v). Heads are read where the products left them. fp32
inside; rounded after the norm and after the rotation, as when the ops run apart. A program loads its heads beside the
length and only then decides whether to write. No value meets another token's: company changes nothing.

Floor, K2.6's drafter (64 and 8 heads of 128), a block of 8: 330 KB in bf16, nothing; 16 requests 5.2 MB, 1.2 us at 4.4
TB/s. On an H200 in a graph (`bench-ops`, cold) 1.8 us for one request; predicted 2 us, and 3 us for 16: latency binds
(one load, one sum over eight threads, one store; 18 programs of one warp per token). If it misses: more heads in a
program (tables and norms are loaded once for all of its heads), or fewer.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

ELEMENTS = 512  # of one tensor in a program: what one warp holds


@triton.jit
def _rotate_heads(
    source,  # [BLOCK_H, 1] pointers to the heads
    target,  # [BLOCK_H, 1]
    norm_ptr,  # [DIM], read with HAS_NORM only
    cos,  # [1, BLOCK_HALF]
    sin,
    eps,
    is_head,  # [BLOCK_H, 1]
    is_written,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,  # 0 where all dims rotate
):
    kind: tl.constexpr = source.dtype.element_ty
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    is_pair = pair < HALF
    mask = is_head & is_pair
    first = tl.load(source + pair, mask=mask, other=0).to(tl.float32)
    second = tl.load(source + HALF + pair, mask=mask, other=0).to(tl.float32)
    if BLOCK_TAIL:
        rest = 2 * HALF + tl.arange(0, BLOCK_TAIL)[None, :]
        tail = tl.load(source + rest, mask=is_head & (rest < DIM), other=0).to(tl.float32)
    if HAS_NORM:
        square = tl.sum(first * first + second * second, 1)
        if BLOCK_TAIL:
            square += tl.sum(tail * tail, 1)
        scale = 1 / tl.sqrt_rn(square / DIM + eps)[:, None]
        weight_1 = tl.load(norm_ptr + pair, mask=is_pair, other=0).to(tl.float32)
        weight_2 = tl.load(norm_ptr + HALF + pair, mask=is_pair, other=0).to(tl.float32)
        first = (first * scale * weight_1).to(kind).to(tl.float32)
        second = (second * scale * weight_2).to(kind).to(tl.float32)
        if BLOCK_TAIL:
            weight_3 = tl.load(norm_ptr + rest, mask=rest < DIM, other=0).to(tl.float32)
            tail = tail * scale * weight_3
    to: tl.constexpr = target.dtype.element_ty
    mask = mask & is_written
    tl.store(target + pair, (first * cos - second * sin).to(to), mask=mask)
    tl.store(target + HALF + pair, (second * cos + first * sin).to(to), mask=mask)
    if BLOCK_TAIL:
        tl.store(target + rest, tail.to(to), mask=is_head & is_written & (rest < DIM))


@triton.jit(do_not_specialize=["num_rows"])
def _qk_rows_kernel(
    q_ptr,  # [B, N, HEADS, DIM] by strides, innermost 1
    k_ptr,  # [B, N, KV_HEADS, DIM] by strides, innermost 1
    v_ptr,  # [B, N, KV_HEADS, DIM] by strides, innermost 1
    q_norm_ptr,  # [DIM]
    k_norm_ptr,  # [DIM]
    cos_ptr,  # [B, N, HALF]
    sin_ptr,  # [B, N, HALF]
    lengths_ptr,  # [B]
    out_ptr,  # [B, N, HEADS, DIM]
    k_cache_ptr,  # [B, S, KV_HEADS, DIM] by strides, innermost 1
    v_cache_ptr,  # [B, S, KV_HEADS, DIM] by strides, innermost 1
    eps,
    num_rows,  # S
    q_batch_stride,
    q_token_stride,
    q_head_stride,
    k_batch_stride,
    k_token_stride,
    k_head_stride,
    v_batch_stride,
    v_token_stride,
    v_head_stride,
    k_cache_batch_stride,
    k_cache_row_stride,
    k_cache_head_stride,
    v_cache_batch_stride,
    v_cache_row_stride,
    v_cache_head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tokens, blocks of query heads and then of KV heads, batch rows."""
    i = tl.program_id(0).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    token = b * tl.num_programs(0) + i
    block = tl.program_id(1)
    Q_BLOCKS: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    wait_for_launch_before(IS_DEPENDENT)
    cos = tl.load(cos_ptr + token * HALF + pair, mask=pair < HALF, other=0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HALF + pair, mask=pair < HALF, other=0).to(tl.float32)
    if block < Q_BLOCKS:
        head = (block * BLOCK_H + tl.arange(0, BLOCK_H))[:, None].to(tl.int64)
        source = q_ptr + b * q_batch_stride + i * q_token_stride + head * q_head_stride
        target = out_ptr + (token * HEADS + head) * DIM
        _rotate_heads(
            source, target, q_norm_ptr, cos, sin, eps, head < HEADS, True,
            DIM, HALF, HAS_NORM, BLOCK_HALF, BLOCK_TAIL,
        )  # fmt: skip
    else:
        head = ((block - Q_BLOCKS) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None].to(tl.int64)
        is_head = head < KV_HEADS
        length = tl.load(lengths_ptr + b).to(tl.int64)
        is_written = (length >= 0) & (length < num_rows - i)  # a sum of the two could overflow
        row = length + i
        column = tl.arange(0, BLOCK_DIM)[None, :]
        mask = is_head & (column < DIM)
        source = v_ptr + b * v_batch_stride + i * v_token_stride + head * v_head_stride
        v = tl.load(source + column, mask=mask)
        source = k_ptr + b * k_batch_stride + i * k_token_stride + head * k_head_stride
        target = k_cache_ptr + b * k_cache_batch_stride + row * k_cache_row_stride + head * k_cache_head_stride
        _rotate_heads(
            source, target, k_norm_ptr, cos, sin, eps, is_head, is_written,
            DIM, HALF, HAS_NORM, BLOCK_HALF, BLOCK_TAIL,
        )  # fmt: skip
        target = v_cache_ptr + b * v_cache_batch_stride + row * v_cache_row_stride + head * v_cache_head_stride
        tl.store(target + column, v.to(v_cache_ptr.dtype.element_ty), mask=mask & is_written)


def _constants(heads: int, kv_heads: int, dim: int, half: int, has_norm: bool) -> tuple[dict[str, Any], int]:
    """-> (sizes, warps)."""
    block_dim = triton.next_power_of_2(dim)
    block_h = min(triton.next_power_of_2(heads), max(1, ELEMENTS // block_dim))
    sizes = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "HALF": half,
        "HAS_NORM": has_norm,
        "BLOCK_H": block_h,
        "BLOCK_DIM": block_dim,
        "BLOCK_HALF": triton.next_power_of_2(half),
        "BLOCK_TAIL": 0 if dim == 2 * half else triton.next_power_of_2(dim - 2 * half),
    }
    return sizes, max(1, block_h * block_dim // 512)


def qk_rows_triton(
    q: torch.Tensor,  # [B, N, H, D]; this and the others by any strides, innermost 1
    k: torch.Tensor,  # [B, N, G, D]
    v: torch.Tensor,  # [B, N, G, D]
    q_norm: torch.Tensor | None,  # [D]
    k_norm: torch.Tensor | None,  # [D]
    eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, rotary_dim/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, rotary_dim/2] fp32
    lengths: torch.Tensor,  # [B] int64
    k_cache: torch.Tensor,  # [B, S, G, D]
    v_cache: torch.Tensor,  # [B, S, G, D]
    *,
    out: torch.Tensor | None = None,  # [B, N, H, D]
) -> torch.Tensor:
    """-> normalised, rotated q [B, N, H, D], contiguous; cache rows `lengths[b] + i` := normalised, rotated k, and v.

    No norms: both None. Rows that fall outside of the cache are skipped.
    """
    if not (q.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"qk_rows_triton: q is on {q.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    batch, num_tokens, heads, dim = q.shape
    kv_heads, half, num_rows = k.shape[2], cos_rows.shape[-1], k_cache.shape[1]
    strides = [t.stride() for t in (q, k, v, k_cache, v_cache)]
    if any(stride[3] != 1 for stride in strides):
        raise ValueError(f"qk_rows_triton: elements of a head must lie together, strides {strides}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    assert (q_norm is None) == (k_norm is None), "one of the two norms is missing"
    assert k.shape == v.shape == (batch, num_tokens, kv_heads, dim), f"{q.shape}, {k.shape}, {v.shape}"
    assert k_cache.shape == v_cache.shape == (batch, num_rows, kv_heads, dim), f"{k_cache.shape}, {v_cache.shape}"
    assert cos_rows.shape == sin_rows.shape == (batch, num_tokens, 1, half), f"tables: {tuple(cos_rows.shape)}"
    assert out.shape == q.shape, f"out: {tuple(out.shape)}, q {tuple(q.shape)}"
    assert lengths.shape == (batch,), f"lengths: {tuple(lengths.shape)}"
    assert 2 * half <= dim, f"{2 * half} of {dim} dims to rotate"
    assert all(t.is_contiguous() for t in (out, cos_rows, sin_rows, lengths)), "out or tables must be contiguous"
    if batch and num_tokens:
        sizes, num_warps = _constants(heads, kv_heads, dim, half, q_norm is not None)
        blocks = triton.cdiv(heads, sizes["BLOCK_H"]) + triton.cdiv(kv_heads, sizes["BLOCK_H"])
        _qk_rows_kernel[(num_tokens, blocks, batch)](
            q, k, v, q if q_norm is None else q_norm, k if k_norm is None else k_norm,
            cos_rows, sin_rows, lengths, out, k_cache, v_cache, eps, num_rows,
            *(step for stride in strides for step in stride[:3]), **sizes, **dependence(q), num_warps=num_warps,
        )  # fmt: skip
    return out


def _entry(name: str, element: str, has_norm: bool, heads: int, kv_heads: int, dim: int, half: int) -> dict[str, Any]:
    floats = ("q_ptr", "k_ptr", "v_ptr", "q_norm_ptr", "k_norm_ptr", "out_ptr", "k_cache_ptr", "v_cache_ptr")
    pointers = dict.fromkeys(floats, f"*{element}") | {"cos_ptr": "*fp32", "sin_ptr": "*fp32", "lengths_ptr": "*i64"}
    places = {"q": "token", "k": "token", "v": "token", "k_cache": "row", "v_cache": "row"}
    strides = [f"{name}_{dim}_stride" for name, row in places.items() for dim in ("batch", row, "head")]
    sizes, num_warps = _constants(heads, kv_heads, dim, half, has_norm)
    return {
        "name": f"{name}-{element}",
        "kernel": _qk_rows_kernel,
        "signature": {**pointers, "eps": "fp32", "num_rows": "i32", **dict.fromkeys(strides, "i32")},
        "constexprs": sizes | {"IS_DEPENDENT": True},
        "divisible_by_16": (*pointers, *strides),
        "num_warps": num_warps,
        "num_stages": 3,
    }


_SHAPES = (
    ("k2.6-drafter", True, 64, 8, 128, 64),
    ("gqa-32-8-no-norm", False, 32, 8, 128, 64),
    ("nano-k2-drafter", True, 8, 4, 32, 16),
)
AOT = tuple(
    _entry(name, element, has_norm, *shape) for name, has_norm, *shape in _SHAPES for element in ("bf16", "fp32")
)
