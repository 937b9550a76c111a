"""New latent rows of MLA in one launch: norm, rotation and the write into the cache, nine launches in plain PyTorch.
Where one product makes q's compressed row beside them, its norm is in that launch, too.

Where in the flow: VERIFY (and prefill), after a layer's key/value product, before its attention.
Letters: B batch rows, N new tokens, Q rank of the compressed query, R latent rank, Dr rotary dims, S cache rows,
X parts of a product whose inner dimension was split: fp32 sums left in memory, added here in their order.

A program is one row, held in registers by one warp (R up to 512): no barrier. It loads its row beside the length and
only then decides whether to write. With q its row is another program's, and both have the warps that `rms_norm_triton`
takes for a row of q's width (of rows below 512 it takes several at once). fp32 inside, each result rounded once. Rows
never meet: a row does not depend on the batch.

Floor, K2.6 (512 + 64), 65 nodes: 150 KB, nothing; 16 requests 2.4 MB, 0.6 us at 4.4 TB/s. With q (1536) in four fp32
parts, 33 nodes: 1.3 MB, 0.3 us.
On an H200 in a graph (`bench-ops`, cold, 33 nodes) 1.8 us for one request, 2.2 us for 16; predicted 2 and 2.5: latency
binds (one load, one sum over a warp, one store), as for the launches before it that it replaces. With q predicted 2.4
us for 33 tokens in four parts, a sum over 16 warps instead of one; measured 2.0; 2.6 for 16 requests, in one part.
If it misses: q's row of four parts is 24 KB for one multiprocessor. Two programs to a row would have to exchange their
sums, so rather fewer parts.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before
from .rms_norm_triton import num_warps_for
from .stream_linear_triton import load_added, part_layout


@triton.jit
def _norm_query(
    source,  # q's row of the first part
    weight_ptr,
    target,
    eps,
    part_stride,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """As `rms_norm_triton`: the same block of one row, so the same sum."""
    column = tl.arange(0, BLOCK)[None, :]
    mask = column < RANK
    weight = tl.load(weight_ptr + column, mask=mask, other=0).to(tl.float32)
    x = load_added(source + column, mask, part_stride, PARTS)
    scale = 1 / tl.sqrt_rn(tl.sum(x * x, 1) / RANK + eps)
    out = x * scale[:, None] * weight
    tl.store(target + column, out.to(target.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _latent_rows_kernel(
    kv_ptr,  # [B, N, Q + RANK + 2*HALF] of every part by strides, innermost 1
    q_weight_ptr,  # [Q], read with HAS_QUERY only
    weight_ptr,  # [RANK]
    cos_ptr,  # [B, N, HALF]
    sin_ptr,  # [B, N, HALF]
    lengths_ptr,  # [B]
    q_ptr,  # [B, N, Q], written with HAS_QUERY only
    cache_ptr,  # [B, S, RANK + 2*HALF] by strides, innermost 1
    q_eps,
    eps,
    num_rows,  # S
    kv_batch_stride,
    kv_token_stride,
    cache_batch_stride,
    cache_row_stride,
    part_stride,
    HAS_QUERY: tl.constexpr,
    Q: tl.constexpr,  # 0 without a compressed query before the row
    RANK: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    PARTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: tokens, batch rows, and with a query: the latent row or q's."""
    i = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    token = b * tl.num_programs(0) + i
    column = tl.arange(0, BLOCK_RANK)
    is_latent = column < RANK
    pair = tl.arange(0, BLOCK_HALF)
    is_pair = pair < HALF
    source = kv_ptr + b * kv_batch_stride + i * kv_token_stride
    table = token * HALF + pair
    wait_for_launch_before(IS_DEPENDENT)
    if HAS_QUERY:
        is_query = tl.program_id(2) == 1
        if is_query:
            _norm_query(source, q_weight_ptr, q_ptr + token * Q, q_eps, part_stride, Q, BLOCK_Q, PARTS)
            return
    source += Q
    length = tl.load(lengths_ptr + b).to(tl.int64)
    latent = load_added(source + column, is_latent, part_stride, PARTS)
    first = load_added(source + RANK + pair, is_pair, part_stride, PARTS)
    second = load_added(source + RANK + HALF + pair, is_pair, part_stride, PARTS)
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


def _constants(rank: int, half: int, q_rank: int = 0, num_parts: int = 1) -> tuple[dict[str, int], int]:
    """-> (sizes, warps)."""
    block_q, block_rank = (triton.next_power_of_2(size) if size else 0 for size in (q_rank, rank))
    sizes = {
        "HAS_QUERY": q_rank > 0, "Q": q_rank, "RANK": rank, "HALF": half, "BLOCK_Q": block_q, "BLOCK_RANK": block_rank,
        "BLOCK_HALF": triton.next_power_of_2(half), "PARTS": num_parts,
    }  # fmt: skip
    return sizes, max(1, min(8, block_rank // 512), num_warps_for(block_q, num_parts))


def _launch(
    op: str,
    kv: torch.Tensor,  # [B, N, Q+R+Dr], the first of the parts
    parts: tuple[int, int],  # how many, and the elements from one to the next
    query: tuple[torch.Tensor, float, torch.Tensor] | None,  # the norm's weight and eps, the result
    norm_weight: torch.Tensor,
    eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    lengths: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    if not (kv.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"{op}: kv is on {kv.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    kv_strides, cache_strides = kv.stride(), cache.stride()
    batch, num_tokens, width = kv.shape
    q_weight, q_eps, q = query or (norm_weight, eps, kv)
    q_rank = 0 if query is None else q_weight.shape[0]
    rank, half = norm_weight.shape[0], cos_rows.shape[-1]
    if kv_strides[2] != 1 or cache_strides[2] != 1:
        raise ValueError(f"{op}: elements of a row must lie together, strides {kv_strides}, {cache_strides}")
    assert width == q_rank + rank + 2 * half, f"kv {tuple(kv.shape)}, norms {q_rank} and {rank}, tables {half}"
    assert cache.shape[2] == rank + 2 * half, f"cache {tuple(cache.shape)}, norm {rank}, tables {half}"
    assert cos_rows.shape == sin_rows.shape == (batch, num_tokens, 1, half), f"tables: {tuple(cos_rows.shape)}"
    assert cache.shape[0] == batch == lengths.shape[0], f"cache {tuple(cache.shape)}, lengths {tuple(lengths.shape)}"
    tables = (q_weight, norm_weight, cos_rows, sin_rows, lengths)
    assert all(table.is_contiguous() for table in tables), "tables must be contiguous"
    if batch and num_tokens:
        num_parts, part_stride = parts
        sizes, num_warps = _constants(rank, half, q_rank, num_parts)
        _latent_rows_kernel[(num_tokens, batch, 2 if q_rank else 1)](
            kv, q_weight, norm_weight, cos_rows, sin_rows, lengths, q, cache, q_eps, eps, cache.shape[1],
            *kv_strides[:2], *cache_strides[:2], part_stride, **sizes, **dependence(kv), num_warps=num_warps,
        )  # fmt: skip


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
    _launch("latent_rows_triton", kv, (1, 0), None, norm_weight, eps, cos_rows, sin_rows, lengths, cache)


def compressed_rows_triton(
    parts: torch.Tensor,  # [X, B, N, Q+R+Dr], contiguous
    q_weight: torch.Tensor,  # [Q]
    kv_weight: torch.Tensor,  # [R]
    q_eps: float,
    kv_eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    lengths: torch.Tensor,  # [B] int64
    cache: torch.Tensor,  # [B, S, R+Dr] by any strides, innermost 1
    dtype: torch.dtype | None = None,  # of q; None: the parts'
) -> torch.Tensor:
    """`rms_norm` of q's compressed row, returned [B, N, Q], and `latent_rows` of the rest, in place.

    Parts are added in fp32 and their sum is rounded only with the results; a single part came rounded to its dtype.
    """
    assert parts.is_contiguous(), f"parts have strides {parts.stride()}"
    q = torch.empty(*parts.shape[1:3], len(q_weight), dtype=dtype or parts.dtype, device=parts.device)
    _launch(
        "compressed_rows_triton", parts[0], part_layout(parts), (q_weight, q_eps, q), kv_weight, kv_eps,
        cos_rows, sin_rows, lengths, cache,
    )  # fmt: skip
    return q


def _entry(name: str, element: str, rank: int, half: int, *, q_rank: int = 0, num_parts: int = 1) -> dict[str, Any]:
    pointers = dict.fromkeys(("q_weight_ptr", "weight_ptr", "q_ptr", "cache_ptr"), f"*{element}")
    pointers |= {"kv_ptr": f"*{element if num_parts == 1 else 'fp32'}"}
    pointers |= {"cos_ptr": "*fp32", "sin_ptr": "*fp32", "lengths_ptr": "*i64"}
    offsets = dict.fromkeys(
        ("kv_batch_stride", "kv_token_stride", "cache_batch_stride", "cache_row_stride", "part_stride"), "i32"
    )
    sizes, num_warps = _constants(rank, half, q_rank, num_parts)
    return {
        "name": f"{name}-{element}",
        "kernel": _latent_rows_kernel,
        "signature": {**pointers, "q_eps": "fp32", "eps": "fp32", "num_rows": "i32", **offsets},
        "constexprs": sizes | {"IS_DEPENDENT": True},
        "divisible_by_16": (*pointers, *offsets),
        "num_warps": num_warps,
        "num_stages": 3,
    }


_SHAPES = (("k2.6", 512, 32), ("nano-k2", 64, 8))
AOT = (
    *(_entry(name, element, *shape) for name, *shape in _SHAPES for element in ("bf16", "fp32")),
    *(_entry(f"k2.6-q-x{num_parts}", "bf16", 512, 32, q_rank=1536, num_parts=num_parts) for num_parts in (1, 4)),
    _entry("nano-k2-q-x1", "fp32", 64, 8, q_rank=96),
)
