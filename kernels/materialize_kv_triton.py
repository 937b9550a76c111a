"""Draft-KV materialize in four launches: GEMM, norm, GEMM, then K-norm + RoPE + scatter into every layer's cache.

    fc GEMM           features x fc         -> fp32 partial sums, one per split of K*Dt
    reduce + norm     partial sums          -> context rows, and the sum of squares of each piece of a row
    K/V GEMM          context x kv_weights  -> fp32 partial sums, one per split of D, all layers at once
    K-norm + scatter  partial sums          -> K and V rows in the caches

A decode round has few rows (1 .. 64 in all), so both GEMMs only stream weights. The weight tile is the tall operand
(64 output features per tensor-core instruction) and the rows are padded to 16, 32 or 64 columns; K is split over
programs to keep 132 multiprocessors busy to the end, and the split sums are added where they are read, so that no
launch only adds. The hidden norm's factor 1/rms is one number per row: rows are stored without it, in pieces that many
programs weight at once, and the last launch, where all pieces are known, puts it in. More than 64 rows (prefill, large
batches) are a matter of arithmetic: there torch's GEMM runs, between the same two other launches with whole-row norms.
Nothing is read on the host. Rows that do not count are not written, and not read but by torch's GEMM, which keeps rows
apart; where no row counts, no weight is read either.

Letters: B batch rows, T feature rows per request, M = B*T tokens, K captured layers, Dt target hidden, D drafter
hidden, Ld drafter layers, G KV heads, hd head dim, S cache rows, X splits of a GEMM's inner dimension.

Floor, Kimi-K2.6 drafter (K*Dt = 43008, D = 7168, Ld = 6, G*hd = 1024), bf16, whatever M <= 16: 616.6 MB of fc and
176.2 MB of K/V weights, 180 us at 4.4 TB/s; 12.7 GFLOP for 16 rows, 16 us of tensor cores: DRAM binds.
On an H200 (`bench-ops`) 191-199 us for 1-16 tokens, 1.02-1.06x. Predicted were 206 us, 1.14x: fc 152 us and K/V 44 us
at 92 % of the read ceiling: 784 and 768 programs, 2.97 and 2.91 waves of 264, two per multiprocessor with 4 of 5 stages
of 16 KB of weights in flight each, 128 KB where latency x bandwidth asks for about 33; 3 us for each of the two small
launches, 1 us per launch in a graph to drain and fill. Partial sums (3.2 MB for each GEMM at 16 rows) stay in the L2
cache. At 33 .. 64 rows about 225 us: the rows' tiles, read from the L2 cache once per 128 output features, add half of
the weights' bytes again. If it misses, look at the bandwidth of the fc GEMM alone. Below 85 %: weights by tensor maps
(TMA) instead of cp.async, for which triton 3.6 also drops the eviction hints, then BLOCK_K 256 with 3 stages (512
contiguous bytes per weight row). Gaps between launches: a launch begins while the one before it ends, but loads nothing
until then, weights neither: a caller may just have made them (`dependent_launch_triton`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before
from .materialize_kv import _check as check_bounds

MAX_SKINNY_TOKENS = 64  # beyond, the rows' own traffic nears that of the weights and arithmetic counts
SLOTS = 264  # programs that run at once: 132 multiprocessors, two each
PIECE = 1024  # columns of a context row per program of the norm


@triton.jit
def _counts(num_rows_ptr, token, rows_per_request, num_tokens):
    """Which of the given tokens (a block or one) count: row t of request b does where t < num_rows[b]."""
    batch = token // rows_per_request
    count = tl.load(num_rows_ptr + batch, mask=token < num_tokens, other=0)
    return token - batch * rows_per_request < count


@triton.jit(do_not_specialize=["num_tokens", "rows_per_request"])
def _skinny_gemm_kernel(
    rows_ptr,  # [B, T, INNER], strides given, innermost 1
    weight_ptr,  # [OUTER, INNER]
    num_rows_ptr,  # [B] int64
    partial_ptr,  # [X, BLOCK_M, OUTER] fp32
    num_tokens,
    rows_per_request,
    row_stride_b,
    row_stride_t,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    CHUNK: tl.constexpr,  # columns per split, a multiple of BLOCK_K
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET: tl.constexpr,  # the interpreter's bf16 products are wrong
    IS_DEPENDENT: tl.constexpr,
):
    """partial[x, m, n] = sum over the k of split x of weight[n, k] * row m's [k], for the rows that count."""
    NUM_TILES: tl.constexpr = (OUTER + BLOCK_N - 1) // BLOCK_N
    IS_EVEN: tl.constexpr = INNER % CHUNK == 0
    tile = tl.program_id(0) % NUM_TILES  # neighbours share the rows' columns, which so stay in the L2 cache
    split = tl.program_id(0) // NUM_TILES
    token = tl.arange(0, BLOCK_M)
    wait_for_launch_before(IS_DEPENDENT)
    counts = (token < num_tokens) & _counts(num_rows_ptr, token, rows_per_request, num_tokens)
    if tl.max(counts.to(tl.int32), axis=0) == 0:
        return
    batch = token // rows_per_request
    offsets_m = batch.to(tl.int64) * row_stride_b + (token - batch * rows_per_request) * row_stride_t
    outer = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    first = split * CHUNK
    weights = weight_ptr + tile.to(tl.int64) * BLOCK_N * INNER + first
    weights = weights + (tl.arange(0, BLOCK_N)[:, None] * INNER + columns[None, :])
    rows = rows_ptr + first + (offsets_m[None, :] + columns[:, None])  # [BLOCK_K, BLOCK_M]
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in range(0, CHUNK, BLOCK_K):
        weight_mask = (outer < OUTER)[:, None]
        row_mask = counts[None, :]
        if not IS_EVEN:
            inside = first + start + columns < INNER
            weight_mask = weight_mask & inside[None, :]
            row_mask = row_mask & inside[:, None]
        if IS_EVEN and OUTER % BLOCK_N == 0:
            w = tl.load(weights + start, eviction_policy="evict_first")  # read once, by this program only
        else:
            w = tl.load(weights + start, mask=weight_mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(rows + start, mask=row_mask, other=0.0, eviction_policy="evict_last")
        if INTERPRET:
            w, x = w.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    out = partial_ptr + split.to(tl.int64) * BLOCK_M * OUTER + token[None, :] * OUTER + outer[:, None]
    tl.store(out, acc, mask=(outer < OUTER)[:, None] & counts[None, :])


@triton.jit(do_not_specialize=["rows_per_request"])
def _reduce_norm_kernel(
    partial_ptr,  # [X, ?, D]: fp32 partial sums or, with one split, rows of any float type
    weight_ptr,  # [D]
    num_rows_ptr,  # [B] int64
    context_ptr,  # [M, D]
    square_ptr,  # [M, NUM_PIECES] fp32, written where there is more than one piece
    rows_per_request,
    eps,
    HIDDEN: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_STRIDE: tl.constexpr,
    NUM_PIECES: tl.constexpr,  # 1: the row is normalised here; else only weighted, 1/rms is left to the reader
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Sum of the splits times the norm's weight; one program per token and piece of its row."""
    token = tl.program_id(0)
    piece = tl.program_id(1)
    batch = token // rows_per_request
    wait_for_launch_before(IS_DEPENDENT)
    if token - batch * rows_per_request >= tl.load(num_rows_ptr + batch):
        return
    column = piece * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    offsets = token.to(tl.int64) * HIDDEN + column
    x = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        x += tl.load(partial_ptr + split * SPLIT_STRIDE + offsets, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(x * x, axis=0)
    x = x * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if NUM_PIECES == 1:
        x = x * tl.rsqrt(square / HIDDEN + eps)
    else:
        tl.store(square_ptr + token * NUM_PIECES + piece, square)
    tl.store(context_ptr + offsets, x.to(context_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _summed_heads(kv_ptr, token, column, mask, OUTER: tl.constexpr, SPLITS: tl.constexpr, SPLIT_STRIDE: tl.constexpr):
    """fp32 sum over the splits of one token's K or V values at the given columns."""
    offsets = token.to(tl.int64) * OUTER + column
    x = tl.load(kv_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        x += tl.load(kv_ptr + split * SPLIT_STRIDE + offsets, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["rows_per_request", "position_stride_b", "position_stride_t"])
def _norm_rope_scatter_kernel(
    kv_ptr,  # [X, ?, Ld * 2 * G * hd]: fp32 partial sums or, with one split, rows of any float type
    square_ptr,  # [M, NUM_PIECES] fp32, read where there is more than one piece
    k_norms_ptr,  # [Ld, hd]
    positions_ptr,  # [B, T] int64, strides given
    num_rows_ptr,  # [B] int64
    cos_ptr,  # [table rows, HALF]
    sin_ptr,
    k_cache_ptr,  # [Ld, B, S, G, hd], strides given, innermost 1
    v_cache_ptr,  # same strides
    rows_per_request,
    eps,
    position_stride_b,
    position_stride_t,
    cache_stride_l,
    cache_stride_b,
    cache_stride_s,
    cache_stride_g,
    NUM_LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,  # rotary_dim / 2; dims from 2 * HALF on pass through
    HIDDEN: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_STRIDE: tl.constexpr,
    NUM_PIECES: tl.constexpr,
    BLOCK_P: tl.constexpr,  # powers of two: pieces, heads, head dim
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """One program per token, layer and K or V: all heads of one cache row. K is fp32 from the GEMM to the store."""
    token = tl.program_id(0)
    layer = tl.program_id(1) // 2
    is_value = tl.program_id(1) % 2
    batch = token // rows_per_request
    row = token - batch * rows_per_request
    wait_for_launch_before(IS_DEPENDENT)
    if row >= tl.load(num_rows_ptr + batch):
        return
    OUTER: tl.constexpr = NUM_LAYERS * 2 * HEADS * DIM
    position = tl.load(positions_ptr + batch * position_stride_b + row * position_stride_t)
    head = tl.arange(0, BLOCK_G)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    mask = (head < HEADS) & (dim < DIM)
    base = tl.program_id(1) * HEADS * DIM + head * DIM
    factor = 1.0
    if NUM_PIECES > 1:
        pieces = tl.arange(0, BLOCK_P)
        squares = tl.load(square_ptr + token * NUM_PIECES + pieces, mask=pieces < NUM_PIECES, other=0.0)
        factor = tl.rsqrt(tl.sum(squares, axis=0) / HIDDEN + eps)
    x = _summed_heads(kv_ptr, token, base + dim, mask, OUTER, SPLITS, SPLIT_STRIDE) * factor
    out = layer.to(tl.int64) * cache_stride_l + batch.to(tl.int64) * cache_stride_b + position * cache_stride_s
    out = out + head * cache_stride_g + dim
    if is_value == 1:
        tl.store(v_cache_ptr + out, x.to(v_cache_ptr.dtype.element_ty), mask=mask)
    else:
        # Each dim needs its partner, HALF away: read again (from the L1 cache), not moved across threads.
        partner = tl.where(dim < HALF, dim + HALF, tl.where(dim < 2 * HALF, dim - HALF, dim))
        pair = tl.where(dim < HALF, dim, dim - HALF)
        if HALF % 8 == 0:  # the compiler does not see through the choices: runs of 8, so 16-byte loads
            partner = tl.max_contiguous(tl.multiple_of(partner, (1, 8)), (1, 8))
            pair = tl.max_contiguous(tl.multiple_of(pair, (1, 8)), (1, 8))
        y = _summed_heads(kv_ptr, token, base + partner, mask, OUTER, SPLITS, SPLIT_STRIDE) * factor
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + eps)[:, None]
        norms = k_norms_ptr + layer * DIM
        x = x * scale * tl.load(norms + dim, mask=dim < DIM, other=0.0).to(tl.float32)
        y = y * scale * tl.load(norms + partner, mask=dim < DIM, other=0.0).to(tl.float32)
        rotates = dim < 2 * HALF
        angle = position * HALF + pair
        cos = tl.load(cos_ptr + angle, mask=rotates, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=rotates, other=0.0).to(tl.float32)
        x = x * cos + tl.where(dim < HALF, -y, y) * sin
        tl.store(k_cache_ptr + out, x.to(k_cache_ptr.dtype.element_ty), mask=mask)


class GemmPlan(NamedTuple):
    """How `_skinny_gemm_kernel` covers one weight matrix for up to `block_m` rows."""

    block_m: int
    block_n: int
    block_k: int
    splits: int
    chunk: int  # columns per split
    num_stages: int


@cache
def gemm_plan(num_tokens: int, outer: int, inner: int, dtype: torch.dtype) -> GemmPlan:
    """The fewest splits that fill whole waves of programs about as well as any; from shapes that the host knows."""
    block_m = max(16, triton.next_power_of_2(num_tokens))
    if dtype == torch.float32:  # no tensor cores: the operands of a step must fit in registers
        block_n, block_k, num_stages, slots = 64, 16, 3, SLOTS
    elif block_m <= 32:  # 100 KB: two programs share a multiprocessor
        block_n, block_k, num_stages, slots = 64, 128, 5 if block_m == 16 else 4, SLOTS
    else:  # 192 KB, one program: twice the weights per read of the rows, which else come near the L2 cache's rate
        block_n, block_k, num_stages, slots = 128, 128, 4, SLOTS // 2
    tiles, steps = triton.cdiv(outer, block_n), triton.cdiv(inner, block_k)

    def score(splits: int) -> float:
        programs, longest = tiles * splits, triton.cdiv(steps, splits)
        filled = programs / (triton.cdiv(programs, slots) * slots)
        return filled * steps / (splits * longest) - 0.002 * splits

    splits = max(range(1, min(16, steps) + 1), key=score)
    chunk = triton.cdiv(steps, splits) * block_k
    splits = triton.cdiv(inner, chunk)  # rounding up may have left the last split empty
    return GemmPlan(block_m, block_n, block_k, splits, chunk, num_stages)


def _gemm_constants(plan: GemmPlan, outer: int, inner: int, interpret: bool) -> dict[str, Any]:
    return {
        "OUTER": outer, "INNER": inner, "CHUNK": plan.chunk, "BLOCK_M": plan.block_m, "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k, "INTERPRET": interpret,
    }  # fmt: skip


def _summed(num_tokens: int, outer: int, inner: int, dtype: torch.dtype) -> dict[str, int]:
    """How a GEMM's reader finds its sums: splits and the elements between them."""
    if num_tokens > MAX_SKINNY_TOKENS:
        return {"SPLITS": 1, "SPLIT_STRIDE": 0}
    plan = gemm_plan(num_tokens, outer, inner, dtype)
    return {"SPLITS": plan.splits, "SPLIT_STRIDE": plan.block_m * outer}


def _pieces(num_tokens: int, hidden: int) -> tuple[int, int]:
    """-> (pieces of a context row, columns of each padded to a power of two)."""
    whole = triton.next_power_of_2(hidden)
    block = min(PIECE, whole) if num_tokens <= MAX_SKINNY_TOKENS else whole
    return triton.cdiv(hidden, block), block


def _norm_constants(num_tokens: int, hidden: int, inner: int, dtype: torch.dtype) -> dict[str, Any]:
    num_pieces, block = _pieces(num_tokens, hidden)
    summed = _summed(num_tokens, hidden, inner, dtype)
    return summed | {"HIDDEN": hidden, "NUM_PIECES": num_pieces, "BLOCK": block}


def _scatter_constants(
    num_tokens: int, hidden: int, layers: int, heads: int, dim: int, half: int, dtype: torch.dtype
) -> dict[str, Any]:
    num_pieces, _ = _pieces(num_tokens, hidden)
    return _summed(num_tokens, layers * 2 * heads * dim, hidden, dtype) | {
        "NUM_LAYERS": layers, "HEADS": heads, "DIM": dim, "HALF": half, "HIDDEN": hidden, "NUM_PIECES": num_pieces,
        "BLOCK_P": triton.next_power_of_2(num_pieces), "BLOCK_G": triton.next_power_of_2(heads),
        "BLOCK_D": triton.next_power_of_2(dim),
    }  # fmt: skip


class Workspace(NamedTuple):
    """Scratch of one call, reusable by every call with as many tokens, the same weights' shapes and dtype."""

    fc_partial: torch.Tensor  # [X, BLOCK_M, D] fp32
    context: torch.Tensor  # [M, D]
    squares: torch.Tensor  # [M, pieces] fp32
    kv_partial: torch.Tensor  # [X, BLOCK_M, Ld * 2 * G * hd] fp32


def materialize_workspace(features: torch.Tensor, fc: torch.Tensor, kv_weights: torch.Tensor) -> Workspace:
    """Scratch for `features` [B, T, K*Dt]; uninitialised. Beyond MAX_SKINNY_TOKENS only `context` has a size."""
    num_tokens, hidden = features.shape[0] * features.shape[1], fc.shape[0]
    context = features.new_empty(num_tokens, hidden)
    none = features.new_empty(0, dtype=torch.float32)
    if num_tokens > MAX_SKINNY_TOKENS:
        return Workspace(none, context, none, none)
    partials = []
    for outer, inner in ((hidden, fc.shape[1]), (kv_weights.shape[0] * kv_weights.shape[1], hidden)):
        plan = gemm_plan(num_tokens, outer, inner, features.dtype)
        partials.append(none.new_empty(plan.splits, plan.block_m, outer))
    squares = none.new_empty(num_tokens, _pieces(num_tokens, hidden)[0])
    return Workspace(partials[0], context, squares, partials[1])


def _skinny_gemm(rows: torch.Tensor, weight: torch.Tensor, num_rows: torch.Tensor, partial: torch.Tensor) -> None:
    """rows [B, T, inner] x weight [outer, inner] -> partial [X, BLOCK_M, outer]; B*T <= MAX_SKINNY_TOKENS."""
    num_tokens = rows.shape[0] * rows.shape[1]
    outer, inner = weight.shape
    plan = gemm_plan(num_tokens, outer, inner, rows.dtype)
    assert partial.shape == (plan.splits, plan.block_m, outer), "scratch of another shape"
    _skinny_gemm_kernel[(triton.cdiv(outer, plan.block_n) * plan.splits,)](
        rows, weight, num_rows, partial, num_tokens, rows.shape[1], rows.stride(0), rows.stride(1),
        **_gemm_constants(plan, outer, inner, triton.knobs.runtime.interpret), num_warps=4, num_stages=plan.num_stages,
        **dependence(rows),
    )  # fmt: skip


def _check_layout(
    features: torch.Tensor, weights: dict[str, torch.Tensor], k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Refuse what the kernels cannot address."""
    if not (features.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"materialize_kv_triton: tensors are on {features.device}, need a CUDA device; "
            "on a CPU take another implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    for name, weight in weights.items():
        if not weight.is_contiguous():
            raise ValueError(f"materialize_kv_triton: {name} must be contiguous, has strides {weight.stride()}")
    if not features.dtype == weights["fc"].dtype == weights["kv_weights"].dtype:
        raise ValueError(
            f"materialize_kv_triton: features are {features.dtype}, fc {weights['fc'].dtype}, "
            f"kv_weights {weights['kv_weights'].dtype}; need one type for all three"
        )
    if features.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"materialize_kv_triton: got {features.dtype}, need bfloat16 or float32")
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1 or features.stride(-1) != 1:
        raise ValueError(
            "materialize_kv_triton: k_cache and v_cache need equal strides, and with features stride 1 in the last "
            f"dim; got {k_cache.stride()}, {v_cache.stride()}, {features.stride()}"
        )


def materialize_kv_triton(
    features: torch.Tensor,  # [B, T, K*Dt]
    positions: torch.Tensor,  # [B, T] int64, absolute, also the cache rows; distinct within a request
    num_rows: torch.Tensor,  # [B] int64, rows of each request that count
    fc: torch.Tensor,  # [D, K*Dt]
    hidden_norm: torch.Tensor,  # [D]
    kv_weights: torch.Tensor,  # [Ld, 2*G*hd, D], K rows first
    k_norms: torch.Tensor,  # [Ld, hd]
    eps: float,
    cos: torch.Tensor,  # [positions, rotary_dim/2] fp32
    sin: torch.Tensor,
    k_cache: torch.Tensor,  # [Ld, B, S, G, hd], written in place
    v_cache: torch.Tensor,  # [Ld, B, S, G, hd], written in place
    position_bound: int | None = None,  # host integer > every position that counts, checked against table and cache
    *,
    workspace: Workspace | None = None,  # of `materialize_workspace`; None: allocated here
) -> None:
    """Row t < num_rows[b] goes to cache row positions[b, t] of every layer; nothing else changes, nothing is returned.

    As `materialize_kv.materialize_fused`, to rounding. ValueError for layouts the kernels cannot address, IndexError
    for a position known on the host to lie beyond table or cache.
    """
    check_bounds(features, positions, num_rows, min(cos.shape[0], k_cache.shape[2]), position_bound)
    weights = {
        "fc": fc,
        "kv_weights": kv_weights,
        "hidden_norm": hidden_norm,
        "k_norms": k_norms,
        "cos": cos,
        "sin": sin,
    }
    _check_layout(features, weights | {"num_rows": num_rows}, k_cache, v_cache)
    batch, rows_per_request, _ = features.shape
    num_tokens, hidden = batch * rows_per_request, fc.shape[0]
    if num_tokens == 0:
        return
    scratch = workspace or materialize_workspace(features, fc, kv_weights)
    is_skinny = num_tokens <= MAX_SKINNY_TOKENS
    flat_kv = kv_weights.flatten(0, 1)  # [Ld * 2*G*hd, D]
    if is_skinny:
        hidden_rows = scratch.fc_partial
        _skinny_gemm(features, fc, num_rows, hidden_rows)
    else:
        hidden_rows = F.linear(features, fc).view(1, num_tokens, hidden)
    context = scratch.context.view(batch, rows_per_request, hidden)
    constants = _norm_constants(num_tokens, hidden, fc.shape[1], features.dtype)
    _reduce_norm_kernel[(num_tokens, constants["NUM_PIECES"])](
        hidden_rows, hidden_norm, num_rows, context, scratch.squares, rows_per_request, eps,
        **constants, **dependence(features), num_warps=4 if is_skinny else 8,
    )  # fmt: skip
    if is_skinny:
        kv_rows = scratch.kv_partial
        _skinny_gemm(context, flat_kv, num_rows, kv_rows)
    else:
        kv_rows = F.linear(context, flat_kv).view(1, num_tokens, -1)
    num_layers, _, _, heads, dim = k_cache.shape
    _norm_rope_scatter_kernel[(num_tokens, 2 * num_layers)](
        kv_rows, scratch.squares, k_norms, positions, num_rows, cos, sin, k_cache, v_cache,
        rows_per_request, eps, *positions.stride(), *k_cache.stride()[:4],
        **_scatter_constants(num_tokens, hidden, num_layers, heads, dim, cos.shape[1], features.dtype), num_warps=4,
        **dependence(features),
    )  # fmt: skip


# Ahead-of-time compilation, one entry per kernel and product shape. `divisible_by_16` names the arguments that the
# just-in-time compiler finds to be so (pointers and strides of whole tensors): without, no load is 16 bytes wide.
GEMM_SIGNATURE = {
    "rows_ptr": "*bf16", "weight_ptr": "*bf16", "num_rows_ptr": "*i64", "partial_ptr": "*fp32", "num_tokens": "i32",
    "rows_per_request": "i32", "row_stride_b": "i32", "row_stride_t": "i32",
}  # fmt: skip
NORM_SIGNATURE = {
    "partial_ptr": "*fp32", "weight_ptr": "*bf16", "num_rows_ptr": "*i64", "context_ptr": "*bf16",
    "square_ptr": "*fp32", "rows_per_request": "i32", "eps": "fp32",
}  # fmt: skip
SCATTER_SIGNATURE = {
    "kv_ptr": "*fp32", "square_ptr": "*fp32", "k_norms_ptr": "*bf16", "positions_ptr": "*i64", "num_rows_ptr": "*i64",
    "cos_ptr": "*fp32", "sin_ptr": "*fp32", "k_cache_ptr": "*bf16", "v_cache_ptr": "*bf16", "rows_per_request": "i32",
    "eps": "fp32", "position_stride_b": "i32", "position_stride_t": "i32", "cache_stride_l": "i32",
    "cache_stride_b": "i32", "cache_stride_s": "i32", "cache_stride_g": "i32",
}  # fmt: skip
LOOSE = ("num_tokens", "rows_per_request", "eps", "position_stride_b", "position_stride_t")


def _entry(
    name: str, kernel: Any, signature: dict[str, str], constants: dict[str, Any], **options: int
) -> dict[str, Any]:
    aligned = tuple(argument for argument in signature if argument not in LOOSE)
    parts = {"name": name, "kernel": kernel, "signature": signature, "constexprs": constants | {"IS_DEPENDENT": True}}
    return parts | {"num_warps": 4, "num_stages": 3} | options | {"divisible_by_16": aligned}


def _gemm_entry(
    name: str, num_tokens: int, outer: int, inner: int, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    plan = gemm_plan(num_tokens, outer, inner, dtype)
    kind = "*bf16" if dtype == torch.bfloat16 else "*fp32"
    signature = GEMM_SIGNATURE | {"rows_ptr": kind, "weight_ptr": kind}
    constants = _gemm_constants(plan, outer, inner, interpret=False)
    return _entry(name, _skinny_gemm_kernel, signature, constants, num_stages=plan.num_stages)


def _norm_entry(name: str, num_tokens: int, hidden: int, inner: int) -> dict[str, Any]:
    is_skinny = num_tokens <= MAX_SKINNY_TOKENS
    signature = NORM_SIGNATURE | {"partial_ptr": "*fp32" if is_skinny else "*bf16"}
    constants = _norm_constants(num_tokens, hidden, inner, torch.bfloat16)
    return _entry(name, _reduce_norm_kernel, signature, constants, num_warps=4 if is_skinny else 8)


def _scatter_entry(name: str, num_tokens: int, hidden: int, layers: int, heads: int, dim: int) -> dict[str, Any]:
    signature = SCATTER_SIGNATURE | {"kv_ptr": "*fp32" if num_tokens <= MAX_SKINNY_TOKENS else "*bf16"}
    constants = _scatter_constants(num_tokens, hidden, layers, heads, dim, dim // 2, torch.bfloat16)
    return _entry(name, _norm_rope_scatter_kernel, signature, constants)


AOT = (
    _gemm_entry("k2.6-fc-16", 16, 7168, 6 * 7168),
    _gemm_entry("k2.6-fc-32", 32, 7168, 6 * 7168),
    _gemm_entry("k2.6-fc-64", 64, 7168, 6 * 7168),
    _gemm_entry("k2.6-kv-16", 16, 6 * 2 * 8 * 128, 7168),
    _gemm_entry("k2.6-kv-64", 64, 6 * 2 * 8 * 128, 7168),
    _gemm_entry("nano-k2-fc-16-fp32", 16, 256, 3 * 256, torch.float32),
    _gemm_entry("nano-k2-fc-64-fp32", 64, 256, 3 * 256, torch.float32),
    _norm_entry("k2.6-norm-16", 16, 7168, 6 * 7168),
    _norm_entry("k2.6-norm-prefill", 8192, 7168, 6 * 7168),
    _scatter_entry("k2.6-scatter-16", 16, 7168, 6, 8, 128),
    _scatter_entry("k2.6-scatter-prefill", 8192, 7168, 6, 8, 128),
    _scatter_entry("nano-k2-scatter-16", 16, 256, 3, 4, 32),
)
