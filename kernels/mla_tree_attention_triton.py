"""Absorbed latent attention of N new tokens on a GPU: a program reads its piece of the context once for 64 rows.

Semantics of `reference.mla_tree_attention`. The heads are folded into the query rows: row r = i * H + h of a request is
head h of new token i, and a program serves BLOCK_M of them. It walks over the cache in tiles of BLOCK_S rows; a tile's
latent part [BLOCK_S, R] stands in shared memory once and is both keys (transposed) and values, its rotary part
[BLOCK_S, Dr] is keys only. Tiles wholly inside the context need no mask; the last ones mask by position and by packed
ancestor bits. Where query rows are few, the context is split over programs, evenly by the length read on the device,
and a second kernel combines the partial sums. Grids come from `context_bound` alone, so a CUDA graph can hold the call.
Cache rows past `lengths[b] + N` are never loaded, whatever they hold; those below must be finite, as everywhere.
A negative length marks an idle batch row: its cache is not read, its output is 0.
Letters: B batch rows, N new tokens, S cache rows, H heads, R latent rank, Dr rotary key dims, W words of 64 ancestors.

Floor on an H200 at 64 heads, 512 + 64, context 8192, batch 1: 9.4 MB of latent rows (2 us at 4.3 TB/s) against 73 GFLOP
at 64 nodes (93 us at 786 TFLOP/s) and 9.1 GFLOP at 8 nodes (12 us): the tensor cores bind from 2 nodes on.
Measured on an H200 (CUDA graph, cold cache): a tile of 64 x 64 takes 3.2 us, 5,600 cycles, where products bound by
shared memory would take 2,750: the pipeliner puts its copies behind the value product, so that most of a tile's latency
shows. BLOCK_S 32 with 3 or 4 stages hides it, but its scores cost more: 245 us against 213 at 64 nodes and context
8192. `mla_tree_attention_gluon` asks for tiles in time, and serves the product's shape; this kernel serves the others.
The second launch is one program per query row, all of its partial sums in flight: 5 us where 18 were with programs of
128 dims.

Why the compiler must not see the two products as chained: it then gives all scores to both warp groups (the tensor work
of the scores doubles). It looks for a second product that depends on the first within one block, so the mask's branch
between them, which yields the scores, divides them; and the rotary scores are added, not accumulated, for the same end.
tests/kernels/test_mla_tree_attention_triton.py holds the instruction count.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, is_hopper, wait_for_launch_before

LOG2_E = 1.4426950408889634
NUM_SMS = 132  # of an H200; at the product's shape one program fills a multiprocessor
MAX_SPLITS = 128
MAX_CHUNK = 16  # partial sums that a combining program has in flight
# In pairs of tiles, as the Hopper kernel takes them (3.4 us on an H200): a program's start and end, the second launch.
PAIRS_PER_PROGRAM = 1.5
PAIRS_PER_COMBINE = 1.0


@triton.jit
def _load_rows(base, row_offset, FIRST: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr):
    """Dims FIRST .. FIRST + DIMS of some rows, [rows, BLOCK]; columns past them are 0."""
    dim = tl.arange(0, BLOCK)
    ptrs = base + FIRST + row_offset[:, None] + dim[None, :]
    if BLOCK == DIMS:
        rows = tl.load(ptrs)
    else:
        rows = tl.load(ptrs, mask=(dim < DIMS)[None, :], other=0.0)
    return rows


@triton.jit
def _sees(ancestors_ptr, ancestor_at, token, first_new, num_new, BLOCK_S: tl.constexpr, IS_TREE: tl.constexpr):
    """Which rows of the tile that starts at new token `first_new` (negative: in the context) each query row sees."""
    row = tl.arange(0, BLOCK_S)
    new = first_new + row
    is_new = (new >= 0) & (new < num_new)
    if IS_TREE:
        shifted = first_new + 64  # > 0: bit `shifted - 64` of a query row's words belongs to the tile's first row
        at = shifted // 64
        low = tl.load(ancestors_ptr + ancestor_at + at - 1, mask=at > 0, other=0)
        high = tl.load(ancestors_ptr + ancestor_at + at, mask=at * 64 < num_new, other=0)
        skip = (shifted % 64).to(tl.uint64)
        bits = (low.to(tl.uint64) >> skip) | ((high.to(tl.uint64) << 1) << (63 - skip))
        early, late = bits.to(tl.int32)[:, None], (bits >> 32).to(tl.int32)[:, None]
        bit = (tl.where((row < 32)[None, :], early, late) >> (row % 32)[None, :]) & 1
        sees = is_new[None, :] & (bit != 0)
    else:
        sees = is_new[None, :] & (new[None, :] <= token[:, None])
    return (new < 0)[None, :] | sees


@triton.jit(
    do_not_specialize=["stride_qb", "stride_qn", "stride_qh", "stride_lb", "num_new", "num_words", "num_splits"]
)
def _mla_tree_attention_kernel(
    q_ptr,  # [B, N, H, R+Dr]
    latent_ptr,  # [B, S, R+Dr]
    lengths_ptr,  # [B] int64
    ancestors_ptr,  # [B, N, W] int64, None where not IS_TREE
    out_ptr,  # [B, N, H, R], where not IS_SPLIT
    partial_ptr,  # [B, splits, N*H, R] fp32, None where not IS_SPLIT
    stats_ptr,  # [2, B, splits, N*H] fp32: highest score, sum of weights
    scale_log2,
    stride_qb,
    stride_qn,
    stride_qh,
    stride_lb,
    num_new,
    num_words,
    num_splits,
    NUM_HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    STRIDE: tl.constexpr,  # from one cache row to the next: known here, it costs no registers
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_TREE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRET: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (tile of query rows, split of the context, request)."""
    tile, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch = tl.num_programs(2)
    num_query_rows = num_new * NUM_HEADS
    wait_for_launch_before(IS_DEPENDENT)
    length = tl.load(lengths_ptr + b).to(tl.int32)
    blocks = tl.where(length < 0, 0, tl.cdiv(length + num_new, BLOCK_S))
    per_split = tl.cdiv(blocks, num_splits)
    first = split * per_split
    last = tl.minimum(first + per_split, blocks)
    if IS_SPLIT and first >= last:
        return

    query_row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    is_query = query_row < num_query_rows
    query_row = tl.minimum(query_row, num_query_rows - 1)  # past the last: the last once more, not stored
    token = query_row // NUM_HEADS
    q_base = q_ptr + b.to(tl.int64) * stride_qb
    q_offset = token * stride_qn + (query_row % NUM_HEADS) * stride_qh
    latent_base = latent_ptr + b.to(tl.int64) * stride_lb
    if IS_ALIGNED:
        q_base = tl.multiple_of(q_base, 16)
        q_offset = tl.multiple_of(q_offset, 8)
    q_rope = _load_rows(q_base, q_offset, RANK, ROPE, BLOCK_D)
    q_latent = _load_rows(q_base, q_offset, 0, RANK, BLOCK_R)
    if INTERPRET:
        q_rope = q_rope.to(tl.float32)
        q_latent = q_latent.to(tl.float32)
    ancestor_at = (b * num_new + token) * num_words

    acc = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    highest = tl.full([BLOCK_M], -1e30, dtype=tl.float32)  # finite: a row that sees nothing yet gets weights of 0
    row = tl.arange(0, BLOCK_S)
    for block in tl.range(first, last, num_stages=STAGES):
        start = block * BLOCK_S
        tile_base = latent_base + start.to(tl.int64) * STRIDE
        row_offset = tl.minimum(row, length + num_new - 1 - start) * STRIDE  # rows past the last: the last, weight 0
        if IS_ALIGNED:
            tile_base = tl.multiple_of(tile_base, 16)
            row_offset = tl.multiple_of(row_offset, 8)
        rope = _load_rows(tile_base, row_offset, RANK, ROPE, BLOCK_D)
        latent = _load_rows(tile_base, row_offset, 0, RANK, BLOCK_R)
        if INTERPRET:  # the interpreter multiplies bf16 wrongly
            rope = rope.to(tl.float32)
            latent = latent.to(tl.float32)
        rope_scores = tl.dot(q_rope, tl.trans(rope), input_precision="ieee")
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee") * scale_log2 + rope_scores * scale_log2
        if start + BLOCK_S > length:
            sees = _sees(ancestors_ptr, ancestor_at, token, start - length, num_new, BLOCK_S, IS_TREE)
            scores = tl.where(sees, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(highest - higher)
        total = total * fade + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(latent.dtype), latent, acc=acc * fade[:, None], input_precision="ieee")
        highest = higher

    if IS_SPLIT:
        before = (b.to(tl.int64) * num_splits + split) * num_query_rows
        tl.store(stats_ptr + before + query_row, highest, mask=is_query)
        second = batch.to(tl.int64) * num_splits * num_query_rows
        tl.store(stats_ptr + second + before + query_row, total, mask=is_query)
        base = partial_ptr + before * RANK
    else:
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        base = out_ptr + b.to(tl.int64) * num_query_rows * RANK
    offset = query_row * RANK
    if IS_ALIGNED:
        base = tl.multiple_of(base, 16)
        offset = tl.multiple_of(offset, 8)
    dim = tl.arange(0, BLOCK_R)
    mask = is_query[:, None]
    if BLOCK_R != RANK:
        mask = mask & (dim < RANK)[None, :]
    tl.store(base + offset[:, None] + dim[None, :], acc.to(base.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_new", "num_query_rows", "num_splits"])
def _mla_combine_kernel(
    partial_ptr,  # [B, splits, N*H, R]
    stats_ptr,  # [2, B, splits, N*H] fp32
    lengths_ptr,  # [B] int64
    out_ptr,  # [B, N, H, R]
    num_new,
    num_query_rows,
    num_splits,
    RANK: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_R: tl.constexpr,
    CHUNK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,  # launched while the partial sums are still being written
):
    """Program (query row, request): weigh the splits that have something by their softmax sums, CHUNK at a time."""
    query_row, b = tl.program_id(0), tl.program_id(1)
    batch = tl.num_programs(1)
    # Not of the launch before, which is this launcher's.
    length = tl.load(lengths_ptr + b).to(tl.int32)
    blocks = tl.where(length < 0, 0, tl.cdiv(length + num_new, BLOCK_S))
    per_split = tl.maximum(tl.cdiv(blocks, num_splits), 1)
    active = tl.cdiv(blocks, per_split)
    stats_at = b.to(tl.int64) * num_splits * num_query_rows + query_row
    totals_at = stats_at + batch.to(tl.int64) * num_splits * num_query_rows
    dim = tl.arange(0, BLOCK_R)
    acc = tl.zeros([BLOCK_R], dtype=tl.float32)
    top = tl.full([], -1e30, dtype=tl.float32)
    total = tl.full([], 0.0, dtype=tl.float32)
    wait_for_launch_before(IS_DEPENDENT)
    for start in tl.range(0, active, CHUNK):
        split = start + tl.arange(0, CHUNK)
        peaks = tl.load(stats_ptr + stats_at + split * num_query_rows, mask=split < active, other=-1e30)
        totals = tl.load(stats_ptr + totals_at + split * num_query_rows, mask=split < active, other=0.0)
        at = (stats_at + split.to(tl.int64) * num_query_rows)[:, None] * RANK + dim[None, :]
        part = tl.load(partial_ptr + at, mask=(split < active)[:, None] & (dim < RANK)[None, :], other=0.0)
        higher = tl.maximum(top, tl.max(peaks, axis=0))
        share = tl.exp2(peaks - higher)
        keep = tl.exp2(top - higher)
        total = total * keep + tl.sum(totals * share, axis=0)
        acc = acc * keep + tl.sum(part.to(tl.float32) * share[:, None], axis=0)
        top = higher
    acc = acc / tl.where(total > 0, total, 1.0)
    out_at = out_ptr + (b.to(tl.int64) * num_query_rows + query_row) * RANK + dim
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=dim < RANK)


@triton.jit(do_not_specialize=["stride_vb", "stride_vi", "stride_vj", "num_new", "num_words"])
def _pack_ancestors_kernel(
    visible_ptr,  # [B, N, N] uint8
    words_ptr,  # [B, N, W] int64
    stride_vb,
    stride_vi,
    stride_vj,
    num_new,
    num_words,
    BLOCK_W: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (new token, request): bit j % 64 of word j // 64 says whether the token sees new token j."""
    i, b = tl.program_id(0), tl.program_id(1)
    word = tl.arange(0, BLOCK_W)
    bit = tl.arange(0, 64)
    j = word[:, None] * 64 + bit[None, :]
    row = visible_ptr + b.to(tl.int64) * stride_vb + i * stride_vi
    wait_for_launch_before(IS_DEPENDENT)
    sees = tl.load(row + j * stride_vj, mask=j < num_new, other=0).to(tl.int32)
    packed = tl.sum((sees != 0).to(tl.int64) << bit.to(tl.int64)[None, :], axis=1)
    tl.store(words_ptr + (b * num_new + i) * num_words + word, packed, mask=word < num_words)


def num_context_splits(batch: int, tiles: int, blocks: int, num_sms: int = NUM_SMS) -> int:
    """Over how many programs to split a context of `blocks` tiles: the fewest pairs one after another, all told."""

    def cost(splits: int) -> float:
        programs = batch * tiles * splits
        waves = -(-programs // num_sms)
        combine = PAIRS_PER_COMBINE + programs / 250 + 0.2 * -(-splits // MAX_CHUNK) if splits > 1 else 0.0
        return waves * (triton.cdiv(triton.cdiv(blocks, splits), 2) + PAIRS_PER_PROGRAM) + combine

    return min(range(1, min(max(blocks, 1), MAX_SPLITS) + 1), key=cost)


def pack_ancestors(visible: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """[B, N, N] bool -> [B, N, W] int64, one launch; once per round, for all layers."""
    batch, num_new, _ = visible.shape
    num_words = -(-num_new // 64)
    _check_device(visible)
    if out is None:
        out = torch.empty(batch, num_new, num_words, dtype=torch.int64, device=visible.device)
    _pack_ancestors_kernel[(num_new, batch)](
        visible.view(torch.uint8), out, *visible.stride(), num_new, num_words, triton.next_power_of_2(num_words),
        **dependence(visible),
    )  # fmt: skip
    return out


def workspace_numel(q: torch.Tensor, rank: int, context_bound: int, num_splits: int | None = None) -> int:
    """How many fp32 numbers a call with these arguments wants as `workspace`; 0 where it does not split."""
    splits = num_splits or _planned_splits(q, rank, context_bound)
    return 0 if splits == 1 else splits * q.shape[0] * q.shape[1] * q.shape[2] * (rank + 2)


def mla_tree_attention_triton(
    q: torch.Tensor,  # [B, N, H, R+Dr]
    latent: torch.Tensor,  # [B, S, R+Dr]
    rank: int,
    lengths: torch.Tensor,  # [B] int64, context rows; negative: idle
    visible: torch.Tensor | None,  # [B, N, N] bool, or its words [B, N, W] int64 from `pack_ancestors`; None: causal
    scale: float,
    context_bound: int | None = None,  # host integer >= lengths.max(); None: all that the cache can hold
    *,
    out: torch.Tensor | None = None,  # [B, N, H, R], contiguous
    workspace: torch.Tensor | None = None,  # fp32, `workspace_numel` numbers at least
    num_splits: int | None = None,
) -> torch.Tensor:
    """-> [B, N, H, R]. No host sync, no size that depends on data."""
    batch, num_new, num_heads, width = q.shape
    _check(q, latent, rank, out, workspace)
    room = latent.shape[1] - num_new
    assert room >= 0, f"{num_new} new rows do not fit into a cache of {latent.shape[1]}"
    bound = room if context_bound is None else context_bound
    splits = num_splits or _planned_splits(q, rank, bound)
    if out is None:
        out = torch.empty(batch, num_new, num_heads, rank, dtype=q.dtype, device=q.device)
    if visible is not None and visible.dtype == torch.bool:
        visible = pack_ancestors(visible)
    num_rows = num_new * num_heads
    partial = stats = None
    if splits > 1:
        numel = workspace_numel(q, rank, bound, splits)
        if workspace is None:
            workspace = torch.empty(numel, dtype=torch.float32, device=q.device)
        assert workspace.numel() >= numel, f"workspace of {workspace.numel()} numbers, {numel} are needed"
        stats_numel = 2 * splits * batch * num_rows
        partial, stats = workspace[: numel - stats_numel], workspace[numel - stats_numel : numel]
    blocks, launch = _config(q.dtype, rank, width - rank)
    scale_log2 = scale * LOG2_E
    if is_hopper(q) and _gluon().suits(q, latent, rank):
        partial = None if partial is None else partial.view(torch.bfloat16)
        _gluon().launch(q, latent, lengths, visible, scale_log2, splits, out, partial, stats)
    else:
        sizes = (rank, latent.stride(1), latent.stride(0), *q.stride()[:3])
        is_aligned = all(size % 8 == 0 for size in sizes) and all(
            tensor.data_ptr() % 16 == 0 for tensor in (q, latent, out, partial) if tensor is not None
        )
        _mla_tree_attention_kernel[(triton.cdiv(num_rows, blocks["BLOCK_M"]), splits, batch)](
            q, latent, lengths, visible, out, partial, stats, scale_log2, *q.stride()[:3], latent.stride(0),
            num_new, 1 if visible is None else visible.shape[2], splits,
            NUM_HEADS=num_heads, RANK=rank, ROPE=width - rank, STRIDE=latent.stride(1),
            IS_TREE=visible is not None, IS_SPLIT=splits > 1, IS_ALIGNED=is_aligned,
            INTERPRET=triton.knobs.runtime.interpret, **blocks, **launch, **dependence(q),
        )  # fmt: skip
    if splits > 1:
        assert partial is not None
        block_r = triton.next_power_of_2(rank)
        _mla_combine_kernel[(num_rows, batch)](
            partial, stats, lengths, out, num_new, num_rows, splits, RANK=rank, BLOCK_S=blocks["BLOCK_S"],
            BLOCK_R=block_r, CHUNK=min(MAX_CHUNK, triton.next_power_of_2(splits)),
            num_warps=_combine_warps(block_r, partial), **dependence(q),
        )  # fmt: skip
    return out


def _combine_warps(block_r: int, partial: torch.Tensor) -> int:
    """As many as the dims of one partial sum occupy, 16 bytes a thread: with more, sums cross warps, at 3 times the
    time (measured on an H200)."""
    return max(1, block_r * partial.element_size() // (16 * 32))


def _gluon() -> Any:
    """Imported where a GPU of its kind is there."""
    from . import mla_tree_attention_gluon

    return mla_tree_attention_gluon


def _config(dtype: torch.dtype, rank: int, rope: int) -> tuple[dict[str, int], dict[str, int]]:
    """Block sizes and launch options. BLOCK_M is at least the 64 rows of one wgmma; fp32 is multiplied without tensor
    cores, exactly, in small tiles: for tests. Eight warps where four would spill (latent rank above 128)."""
    block_r = max(16, triton.next_power_of_2(rank))
    assert block_r <= 512, f"latent rank {rank}: at most 512 fits into registers"
    block_m, block_s = (16, 16) if dtype == torch.float32 else (64, 64)
    stages = 2 if block_r > 128 else 3
    block_d = max(16, triton.next_power_of_2(rope))
    blocks = {"BLOCK_M": block_m, "BLOCK_S": block_s, "BLOCK_R": block_r, "BLOCK_D": block_d, "STAGES": stages}
    warps = 8 if block_r > 128 and dtype != torch.float32 else 4
    return blocks, {"num_warps": warps, "num_stages": stages}


def _planned_splits(q: torch.Tensor, rank: int, context_bound: int) -> int:
    batch, num_new, num_heads, width = q.shape
    blocks, _ = _config(q.dtype, rank, width - rank)
    tiles = -(-num_new * num_heads // blocks["BLOCK_M"])
    return num_context_splits(batch, tiles, -(-(context_bound + num_new) // blocks["BLOCK_S"]))


def _check_device(tensor: torch.Tensor) -> None:
    if not tensor.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError(
            f"got a tensor on {tensor.device}, expected a CUDA device; on a CPU use the torch implementation"
        )


def _check(
    q: torch.Tensor, latent: torch.Tensor, rank: int, out: torch.Tensor | None, workspace: torch.Tensor | None
) -> None:
    _check_device(q)
    assert q.dtype == latent.dtype, f"q is {q.dtype}, latent {latent.dtype}"
    assert q.shape[-1] == latent.shape[-1] > rank, f"rows of {q.shape[-1]} and {latent.shape[-1]} numbers, rank {rank}"
    assert q.stride(-1) == latent.stride(-1) == 1, "the numbers of a row must lie side by side"
    assert out is None or out.is_contiguous(), "out must be contiguous"
    assert workspace is None or (workspace.dtype == torch.float32 and workspace.is_contiguous())


def _aot(
    name: str, heads: int, rank: int, rope: int, dtype: torch.dtype, is_tree: bool, is_split: bool
) -> dict[str, Any]:
    blocks, launch = _config(dtype, rank, rope)
    row = "*fp32" if dtype == torch.float32 else "*bf16"
    pointers = {"q_ptr": row, "latent_ptr": row, "lengths_ptr": "*i64", "out_ptr": row}
    absent: dict[str, None] = {}
    for pointer, kind, is_there in (
        ("ancestors_ptr", "*i64", is_tree),
        ("partial_ptr", "*fp32", is_split),
        ("stats_ptr", "*fp32", is_split),
    ):
        if is_there:
            pointers[pointer] = kind
        else:
            absent[pointer] = None
    numbers = ("stride_qb", "stride_qn", "stride_qh", "stride_lb", "num_new", "num_words", "num_splits")
    return {
        "name": name,
        "kernel": _mla_tree_attention_kernel,
        "signature": pointers | {"scale_log2": "fp32"} | dict.fromkeys(numbers, "i32"),
        "constexprs": absent
        | {"NUM_HEADS": heads, "RANK": rank, "ROPE": rope, "STRIDE": rank + rope, "IS_TREE": is_tree}
        | {"IS_SPLIT": is_split, "IS_ALIGNED": True, "INTERPRET": False, "IS_DEPENDENT": True}
        | blocks,
        **launch,
    }


AOT = (
    _aot("k2.6 tree split", 64, 512, 64, torch.bfloat16, True, True),
    _aot("k2.6 tree", 64, 512, 64, torch.bfloat16, True, False),
    _aot("k2.6 causal split", 64, 512, 64, torch.bfloat16, False, True),
    _aot("k2.6 causal", 64, 512, 64, torch.bfloat16, False, False),
    _aot("nano-k2 tree split", 8, 64, 16, torch.bfloat16, True, True),
    _aot("nano-k2 tree fp32", 8, 64, 16, torch.float32, True, False),
    {
        "name": "k2.6 combine",
        "kernel": _mla_combine_kernel,
        "signature": {"partial_ptr": "*bf16", "stats_ptr": "*fp32", "lengths_ptr": "*i64", "out_ptr": "*bf16"}
        | dict.fromkeys(("num_new", "num_query_rows", "num_splits"), "i32"),
        "constexprs": {"RANK": 512, "BLOCK_S": 64, "BLOCK_R": 512, "CHUNK": 16, "IS_DEPENDENT": True},
        "num_warps": 2,
        "num_stages": 3,
    },
    {
        "name": "pack 64 nodes",
        "kernel": _pack_ancestors_kernel,
        "signature": {"visible_ptr": "*u8", "words_ptr": "*i64"}
        | dict.fromkeys(("stride_vb", "stride_vi", "stride_vj", "num_new", "num_words"), "i32"),
        "constexprs": {"BLOCK_W": 1, "IS_DEPENDENT": True},
        "num_warps": 4,
        "num_stages": 3,
    },
)
