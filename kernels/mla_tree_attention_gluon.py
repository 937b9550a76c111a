"""Absorbed latent attention on Hopper at the product's shape (latent rank 512, 64 rotary dims, bf16), in Gluon.

The same walk as `mla_tree_attention_triton`, whose launcher calls this where the shape fits; what `tl` cannot say is said
here: tiles of the cache come by the tensor copy engine into two slots, and the next one is asked for as soon as the
values of the last but one are multiplied, a whole tile ahead. (The pipeliner of `tl` puts its copies behind the value
product, so that their latency shows: 3.2 us a tile of 64 rows against 2.3 on an H200.) Both warp groups work on one
tile: each has half of the scores' columns and half of the output's dims; the weights go through shared memory, where the
value product reads them. `count` tiles of a program start at tile `first` of its request; rows past the request's last
one come along with its last tile, are zeroed in shared memory before they are multiplied (they may hold NaN) and get
weight 0.
Letters: B batch rows, N new tokens, S cache rows, H heads, R = 512 latent rank, W words of 64 ancestors.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

RANK, ROPE = 512, 64
TILE = 64  # query rows of a program, and cache rows of a step
SHARED = gl.NVMMASharedLayout(128, 16, 2)


@gluon.jit
def _copy_tile(latent_desc, rope_desc, row, latent, rope, barrier, is_wanted):
    """Ask for one tile of rows, 512 + 64 wide; the barrier tells when all its bytes are there."""
    mbarrier.expect(barrier, latent_desc.block_type.nbytes + rope_desc.block_type.nbytes, is_wanted)
    tma.async_copy_global_to_shared(rope_desc, [row, 512], barrier, rope, is_wanted)
    tma.async_copy_global_to_shared(latent_desc, [row, 0], barrier, latent, is_wanted)


@gluon.jit
def _sees(ancestors_ptr, ancestor_at, node, first_new, num_new, LAYOUT: gl.constexpr, IS_TREE: gl.constexpr):
    """As in `mla_tree_attention_triton`: which rows of the tile at new token `first_new` each query row sees."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    new = gl.expand_dims(first_new + row, 0)
    is_new = (new >= 0) & (new < num_new)
    if IS_TREE:
        shifted = first_new + 64
        at = shifted // 64
        low = gl.load(ancestors_ptr + ancestor_at + (at - 1), mask=ancestor_at * 0 + at > 0, other=0)
        high = gl.load(ancestors_ptr + ancestor_at + at, mask=ancestor_at * 0 + at * 64 < num_new, other=0)
        skip = (shifted % 64).to(gl.uint64)
        bits = (low.to(gl.uint64) >> skip) | ((high.to(gl.uint64) << 1) << (63 - skip))
        early, late = gl.expand_dims(bits.to(gl.int32), 1), gl.expand_dims((bits >> 32).to(gl.int32), 1)
        column = gl.expand_dims(row, 0)
        sees = is_new & (((gl.where(column < 32, early, late) >> (column % 32)) & 1) != 0)
    else:
        sees = is_new & (new <= gl.expand_dims(node, 1))
    return (new < 0) | sees


@gluon.jit
def _zero_tail(tile, limit, LAYOUT: gl.constexpr):
    """Rows from `limit` on of a tile in shared memory become 0."""
    row = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT)), 1)
    for piece in gl.static_range(8):
        part = tile.slice(piece * 64, 64, dim=1)
        part.store(gl.where(row < limit, part.load(LAYOUT), 0.0))


@gluon.jit(do_not_specialize=["request_rows", "num_new", "num_words", "num_splits"])
def _mla_hopper_kernel(
    q_desc,  # [B*N*H, 576], boxes of 64 x 512
    q_rope_desc,  # the same, boxes of 64 x 64
    latent_desc,  # [B*S, 576], boxes of 64 x 512
    rope_desc,
    lengths_ptr,  # [B] int64
    ancestors_ptr,  # [B, N, W] int64; lengths where not IS_TREE
    out_ptr,  # [B, N, H, 512], where not IS_SPLIT
    partial_ptr,  # [B, splits, N*H, 512], where IS_SPLIT
    stats_ptr,  # [2, B, splits, N*H] fp32: highest score, sum of weights
    scale_log2,
    request_rows,  # cache rows from one request to the next
    num_new,
    num_words,
    num_splits,
    NUM_HEADS: gl.constexpr,
    IS_TREE: gl.constexpr,
    IS_SPLIT: gl.constexpr,
):
    """Program (tile of query rows, split of the context, request)."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    VALUES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 256, 16])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    tile, split, b = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    length = gl.load(lengths_ptr + b).to(gl.int32)
    num_query_rows = num_new * NUM_HEADS
    q_latent = gl.allocate_shared_memory(gl.bfloat16, [64, 512], SMEM)
    q_rope = gl.allocate_shared_memory(gl.bfloat16, [64, 64], SMEM)
    latents = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 512], SMEM)
    ropes = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], SMEM)
    weights_smem = gl.allocate_shared_memory(gl.bfloat16, [64, 64], SMEM)
    barriers = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())  # two slots, q
    for i in gl.static_range(3):
        mbarrier.init(barriers.index(i), count=1)
    fence_async_shared()
    gl.thread_barrier()
    _copy_tile(q_desc, q_rope_desc, b * num_query_rows + tile * 64, q_latent, q_rope, barriers.index(2), True)
    gdc_launch_dependents()

    blocks = gl.where(length < 0, 0, (length + num_new + 63) // 64)
    per_split = (blocks + num_splits - 1) // num_splits
    first = split * per_split
    count = gl.maximum(gl.minimum(first + per_split, blocks) - first, 0)
    row0 = b * request_rows + first * 64
    _copy_tile(latent_desc, rope_desc, row0, latents.index(0), ropes.index(0), barriers.index(0), count > 0)
    query_row = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
    node = gl.minimum(query_row, num_query_rows - 1) // NUM_HEADS
    ancestor_at = (b * num_new + node) * num_words
    zero = gl.zeros([64, 64], gl.float32, layout=SCORES)
    highest = gl.full([64], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORES))
    totals = gl.zeros([64, 64], gl.float32, layout=SCORES)  # summed over columns once, at the end
    acc = gl.zeros([64, 512], gl.float32, layout=VALUES)
    mbarrier.wait(barriers.index(2), 0)
    for t in range(count):
        slot = t & 1
        latent, rope = latents.index(slot), ropes.index(slot)
        other = 1 - slot
        gl.thread_barrier()  # both warp groups are through with the other slot, and with the weights
        _copy_tile(
            latent_desc, rope_desc, row0 + (t + 1) * 64, latents.index(other), ropes.index(other),
            barriers.index(other), t + 1 < count,
        )  # fmt: skip
        mbarrier.wait(barriers.index(slot), (t >> 1) & 1)
        token = warpgroup_mma(q_rope, rope.permute((1, 0)), zero, use_acc=False, is_async=True)
        token = warpgroup_mma(q_latent, latent.permute((1, 0)), token, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[token])
        start = (first + t) * 64
        if start + 64 > length:
            sees = _sees(ancestors_ptr, ancestor_at, node, start - length, num_new, SCORES, IS_TREE)
            scores = gl.where(sees, scores, float("-inf"))
            gl.thread_barrier()
            _zero_tail(latent, length + num_new - start, LINES)
        higher = gl.maximum(highest, gl.max(scores, axis=1) * scale_log2)
        weights = gl.exp2(scores * scale_log2 - gl.expand_dims(higher, 1))
        fade = gl.exp2(highest - higher)
        highest = higher
        weights_smem.store(weights.to(gl.bfloat16))
        fence_async_shared()
        gl.thread_barrier()
        acc = acc * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, VALUES)), 1)
        token = warpgroup_mma(weights_smem, latent, acc, is_async=True)
        totals = totals * gl.expand_dims(fade, 1) + weights
        acc = warpgroup_mma_wait(0, deps=[token])

    if IS_SPLIT and count == 0:
        return
    total = gl.sum(totals, axis=1)
    if IS_SPLIT:
        before = (b.to(gl.int64) * num_splits + split) * num_query_rows
        second = gl.num_programs(2).to(gl.int64) * num_splits * num_query_rows
        gl.store(stats_ptr + before + query_row, highest, mask=query_row < num_query_rows)
        gl.store(stats_ptr + second + before + query_row, total, mask=query_row < num_query_rows)
        base = partial_ptr + before * 512
    else:
        inverse = 1.0 / gl.where(total > 0, total, 1.0)
        acc = acc * gl.expand_dims(gl.convert_layout(inverse, gl.SliceLayout(1, VALUES)), 1)
        base = out_ptr + b.to(gl.int64) * num_query_rows * 512
    rows = gl.convert_layout(acc.to(base.dtype.element_ty), WIDE)
    row = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, WIDE))
    at = gl.expand_dims(row, 1) * 512 + gl.expand_dims(gl.arange(0, 512, layout=gl.SliceLayout(0, WIDE)), 0)
    gl.store(base + at, rows, mask=gl.expand_dims(row < num_query_rows, 1))


def mla_attention_hopper(
    q: torch.Tensor,  # [B, N, H, 576] bf16, contiguous
    latent: torch.Tensor,  # [B, S, 576] bf16
    lengths: torch.Tensor,
    words: torch.Tensor | None,  # [B, N, W] int64; None: causal
    scale_log2: float,
    num_splits: int,
    out: torch.Tensor,
    partial: torch.Tensor | None,
    stats: torch.Tensor | None,
) -> None:
    """One launch: `out` where the context is not split, else `partial` and `stats`."""
    batch, num_new, num_heads, width = q.shape
    row = latent.stride(1)
    request_rows = latent.stride(0) // row if batch > 1 else latent.shape[1]
    num_rows = (batch - 1) * request_rows + latent.shape[1]
    boxes = []
    for matrix, rows, stride in ((q, batch * num_new * num_heads, width), (latent, num_rows, row)):
        for columns in (RANK, ROPE):
            boxes.append(TensorDescriptor(matrix, [rows, width], [stride, 1], [TILE, columns], SHARED))
    nothing = out  # pointers that the kernel does not follow
    _mla_hopper_kernel[(-(-num_new * num_heads // TILE), num_splits, batch)](
        *boxes, lengths, lengths if words is None else words, out, nothing if partial is None else partial,
        nothing if stats is None else stats, scale_log2, request_rows, num_new, 1 if words is None else words.shape[2],
        num_splits, NUM_HEADS=num_heads, IS_TREE=words is not None, IS_SPLIT=num_splits > 1, num_warps=8,
    )  # fmt: skip
