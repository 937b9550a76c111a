"""New latent rows of MLA in one launch: norm, rotation and the write into the cache, nine launches in plain PyTorch.

Where in the flow: VERIFY (and prefill), after a layer's key/value product, before its attention.
Letters: B batch rows, N new tokens, R latent rank, Dr rotary dims, S cache rows. A program is one row, held in
registers by one warp (R up to 512): no barrier. It loads its row beside the length and only then decides whether to
write. fp32 inside, each part rounded once. Rows never meet: a row does not depend on the batch.

Floor, K2.6 (512 + 64), 65 nodes: 150 KB, nothing; 16 requests 2.4 MB, 0.6 us at 4.4 TB/s.
On an H200 in a graph (`bench-ops`, cold) 2.5 us for one request, 2.8 us for 16; predicted 2 and 2.5: latency binds (one
load, one sum over a warp, one store), as for the launches before it that it replaces.
If it misses: into the launch that normalises q's compressed row, whose input may hold these rows too.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before


@triton.jit(do_not_specialize=["num_rows"])
def _latent_rows_kernel(
    kv_ptr,  # [B, N, RANK + 2*HALF] by strides, innermost 1
    weight_ptr,  # [RANK]
    cos_ptr,  # [B, N, HALF]
    sin_ptr,  # [B, N, HALF]
    lengths_ptr,  # [B]
    cache_ptr,  # [B, S, RANK + 2*HALF] by strides, innermost 1
    eps,
    num_rows,  # S
    kv_batch_stride,
    kv_token_stride,
    cache_batch_stride,
    cache_row_stride,
    RANK: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tokens, batch rows."""
    i = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK_RANK)
    is_latent = column < RANK
    pair = tl.arange(0, BLOCK_HALF)
    is_pair = pair < HALF
    source = kv_ptr + b * kv_batch_stride + i * kv_token_stride
    table = (b * tl.num_programs(0) + i) * HALF + pair
    wait_for_launch_before(IS_DEPENDENT)
    length = tl.load(lengths_ptr + b).to(tl.int64)
    latent = tl.load(source + column, mask=is_latent, other=0).to(tl.float32)
    first = tl.load(source + RANK + pair, mask=is_pair, other=0).to(tl.float32)
    second = tl.load(source + RANK + HALF + pair, mask=is_pair, other=0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=is_latent, other=0).to(tl.float32)
    cos = tl.load(cos_ptr + table, mask=is_pair, other=0).to(tl.float32)
    sin = tl.load(sin_ptr + table, mask=is_pair, other=0).to(tl.float32)
    scale = 1 / tl.sqrt_rn(tl.sum(latent * latent, 0) / RANK + eps)
    if (length >= 0) & (length < num_rows - i):  # a sum of the two could overflow
        target = cache_ptr + b * cache_batch_stride + (length + i) * cache_row_stride
        kind = cache_ptr.dtype.element_ty
        tl.store(target + column, (latent * scale * weight).to(kind), mask=is_latent)
        tl.store(target + RANK + pair, (first * cos - second * sin).to(kind), mask=is_pair)
        tl.store(target + RANK + HALF + pair, (second * cos + first * sin).to(kind), mask=is_pair)


def _constants(rank: int, half: int) -> tuple[dict[str, int], int]:
    """-> (sizes, warps)."""
    block_rank = triton.next_power_of_2(rank)
    sizes = {"RANK": rank, "HALF": half, "BLOCK_RANK": block_rank, "BLOCK_HALF": triton.next_power_of_2(half)}
    return sizes, min(8, max(1, block_rank // 512))


def latent_rows_triton(
    kv: torch.Tensor,  # [B, N, R+Dr] by any strides, innermost 1
    norm_weight: torch.Tensor,  # [R]
    eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    lengths: torch.Tensor,  # [B] int64
    cache: torch.Tensor,  # [B, S, R+Dr] by any strides, innermost 1
) -> None:
    """In place: cache row `lengths[b] + i` := [rms_norm of kv[b, i, :R], rope of the rest]; outside of it, nothing."""
    if not (kv.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"latent_rows_triton: kv is on {kv.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    kv_strides, cache_strides = kv.stride(), cache.stride()
    batch, num_tokens, width = kv.shape
    rank, half = norm_weight.shape[0], cos_rows.shape[-1]
    if kv_strides[2] != 1 or cache_strides[2] != 1:
        raise ValueError(
            f"latent_rows_triton: elements of a row must lie together, strides {kv_strides}, {cache_strides}"
        )
    assert width == rank + 2 * half == cache.shape[2], f"kv {tuple(kv.shape)}, cache {tuple(cache.shape)}, norm {rank}"
    assert cos_rows.shape == sin_rows.shape == (batch, num_tokens, 1, half), f"tables: {tuple(cos_rows.shape)}"
    assert cache.shape[0] == batch == lengths.shape[0], f"cache {tuple(cache.shape)}, lengths {tuple(lengths.shape)}"
    assert all(t.is_contiguous() for t in (norm_weight, cos_rows, sin_rows, lengths)), "tables must be contiguous"
    if batch and num_tokens:
        sizes, num_warps = _constants(rank, half)
        _latent_rows_kernel[(num_tokens, batch)](
            kv, norm_weight, cos_rows, sin_rows, lengths, cache, eps, cache.shape[1],
            *kv_strides[:2], *cache_strides[:2], **sizes, **dependence(kv), num_warps=num_warps,
        )  # fmt: skip


def _entry(name: str, element: str, rank: int, half: int) -> dict[str, Any]:
    pointers = dict.fromkeys(("kv_ptr", "weight_ptr", "cache_ptr"), f"*{element}")
    pointers |= {"cos_ptr": "*fp32", "sin_ptr": "*fp32", "lengths_ptr": "*i64"}
    strides = dict.fromkeys(
        ("kv_batch_stride", "kv_token_stride", "cache_batch_stride", "cache_row_stride"),
        "i32",
    )
    sizes, num_warps = _constants(rank, half)
    return {
        "name": f"{name}-{element}",
        "kernel": _latent_rows_kernel,
        "signature": {**pointers, "eps": "fp32", "num_rows": "i32", **strides},
        "constexprs": sizes | {"IS_DEPENDENT": True},
        "divisible_by_16": (*pointers, *strides),
        "num_warps": num_warps,
        "num_stages": 3,
    }


_SHAPES = (("k2.6", 512, 32), ("nano-k2", 64, 8))
AOT = tuple(_entry(name, element, *shape) for name, *shape in _SHAPES for element in ("bf16", "fp32"))
