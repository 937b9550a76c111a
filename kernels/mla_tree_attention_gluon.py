"""Absorbed latent attention on Hopper at the product's shape (latent rank 512, 64 rotary dims, bf16), in Gluon.

The same walk as `mla_tree_attention_triton`, whose launcher calls this where the shape fits; what `tl` cannot say is
said here. Tiles of the cache come in pairs, a and b, by the tensor copy engine. The upper warp group has the scores of
a, the lower one those of b, whole, at the full rate of the tensor cores; the upper one has the left half of the dims of
the output, the lower one the right half, for both tiles. While one is at its softmax, the other one multiplies:

    upper: scores a, peaks a -> | weights a x left a   | <- weights b, peaks b: left b  |
    lower: scores b            | -> weights b: right b |    <- weights a:       right a |

Weights of b count from the peaks over both tiles; those of a do so once the lower group has told them, and what was
summed before is faded. Weights cross in shared memory, in the place of their tile's rotary part, which has served by
then. A half of a tile that is through is asked for anew at once, by a third group of one warp. Where the tiles of a
program are odd in number, the last b is the last a once more, of weight 0. Rows past a request's last one come along
with its last tile, are zeroed in shared memory before they are multiplied (they may hold NaN) and get weight 0.
Letters: B batch rows, N new tokens, S cache rows, H heads, R = 512 latent rank, W words of 64 ancestors.

Measured on an H200 (CUDA graph, cold cache, this launch alone): a pair of tiles takes 3.4 us where its products take
3.0 at 786 TFLOP/s; start and end cost 4 to 5 us, half of it the partial sums. Context 8192, batch 1: 111 us for 64
nodes (84 % of the flops' floor), 61 us for 32, 22.6 us for 8; batch 16: 1,849 and 227 us (81 %). Its forerunner, in
which both groups worked on one tile and copies went a tile ahead, took 2.35 us a tile: 160, 83 and 27 us.
"""

from __future__ import annotations

from typing import Any

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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # its name from Triton 3.7 on
HALF_RANK, ROPE = 256, 64
TILE = 64  # query rows of a program, and cache rows of a step
SHARED = gl.NVMMASharedLayout(128, 16, 2)
# Barriers: halves of tiles a and b that are there (rotary parts come with the second half of a tile that is asked for),
# that may be overwritten, and what the warp groups tell one another.
LEFT_A, RIGHT_B, RIGHT_A, LEFT_B = (gl.constexpr(i) for i in range(4))
FREE_LEFT_A, FREE_RIGHT_B, FREE_RIGHT_A, FREE_LEFT_B = (gl.constexpr(i) for i in range(4, 8))
PEAKS_A, WEIGHTS_B, WEIGHTS_A, QUERY, TOTAL_UPPER, TOTAL_LOWER = (gl.constexpr(i) for i in range(8, 14))


@gluon.jit
def _sees(
    ancestors_ptr, ancestor_at, node, first_new, num_new, is_there, LAYOUT: gl.constexpr, IS_TREE: gl.constexpr
):  # fmt: skip
    """As in `mla_tree_attention_triton`: which rows of the tile at new token `first_new` each query row sees; none, and
    no word of ancestors is read, where there is no such tile (`first_new` may then lie anywhere)."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    new = gl.expand_dims(first_new + row, 0)
    is_new = (new >= 0) & (new < num_new)
    if IS_TREE:
        shifted = first_new + 64
        at = shifted // 64
        low = gl.load(ancestors_ptr + ancestor_at + (at - 1), mask=(ancestor_at * 0 + at > 0) & is_there, other=0)
        has_high = (ancestor_at * 0 + at * 64 < num_new) & is_there
        high = gl.load(ancestors_ptr + ancestor_at + at, mask=has_high, other=0)
        skip = (shifted % 64).to(gl.uint64)
        bits = (low.to(gl.uint64) >> skip) | ((high.to(gl.uint64) << 1) << (63 - skip))
        early, late = gl.expand_dims(bits.to(gl.int32), 1), gl.expand_dims((bits >> 32).to(gl.int32), 1)
        column = gl.expand_dims(row, 0)
        sees = is_new & (((gl.where(column < 32, early, late) >> (column % 32)) & 1) != 0)
    else:
        sees = is_new & (new <= gl.expand_dims(node, 1))
    return ((new < 0) | sees) & is_there


@gluon.jit
def _zero_tail(half, limit, LAYOUT: gl.constexpr):
    """Rows from `limit` on of a half tile in shared memory become 0; the copy engine's order of writes is kept."""
    if limit < 64:
        row = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT)), 1)
        for piece in gl.static_range(4):
            part = half.slice(piece * 64, 64, dim=1)
            part.store(gl.where(row < limit, part.load(LAYOUT), 0.0))
        fence_async_shared()
        thread_barrier()


@gluon.jit
def _signal(barrier):
    """Tell, once all warps of the group are here."""
    thread_barrier()
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def _produce(half_desc, rope_desc, halves, ropes, barriers, row0, pairs, count):
    """The copying warp: each half of a tile as soon as its place is free."""
    for pair in range(pairs):
        phase = (pair & 1) ^ 1
        row_a = row0 + 2 * pair * 64
        row_b = row0 + gl.minimum(2 * pair + 1, count - 1) * 64
        mbarrier.wait(barriers.index(FREE_LEFT_A), phase)
        mbarrier.expect(barriers.index(LEFT_A), half_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(half_desc, [row_a, 0], barriers.index(LEFT_A), halves.index(0))
        mbarrier.wait(barriers.index(FREE_RIGHT_B), phase)
        mbarrier.expect(barriers.index(RIGHT_B), half_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(half_desc, [row_b, 256], barriers.index(RIGHT_B), halves.index(3))
        mbarrier.wait(barriers.index(FREE_RIGHT_A), phase)
        mbarrier.expect(barriers.index(RIGHT_A), half_desc.block_type.nbytes + rope_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(half_desc, [row_a, 256], barriers.index(RIGHT_A), halves.index(1))
        tma.async_copy_global_to_shared(rope_desc, [row_a, 512], barriers.index(RIGHT_A), ropes.index(0))
        mbarrier.wait(barriers.index(FREE_LEFT_B), phase)
        mbarrier.expect(barriers.index(LEFT_B), half_desc.block_type.nbytes + rope_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(half_desc, [row_b, 0], barriers.index(LEFT_B), halves.index(2))
        tma.async_copy_global_to_shared(rope_desc, [row_b, 512], barriers.index(LEFT_B), ropes.index(1))


@gluon.jit
def _consume(
    q_halves, q_rope, halves, ropes, vectors, barriers,
    ancestors_ptr, out_ptr, partial_ptr, stats_ptr, scale_log2, length, num_new, num_words, num_splits,
    first, pairs, count,
    IS_UPPER: gl.constexpr, NUM_HEADS: gl.constexpr, IS_TREE: gl.constexpr, IS_SPLIT: gl.constexpr,
):  # fmt: skip
    """A warp group: the scores of every other tile, half of the output's dims."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    VALUES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, VALUES, 2)
    PIECES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    PER_ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    PER_VALUE_ROW: gl.constexpr = gl.SliceLayout(1, VALUES)
    tile, split, b = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    num_query_rows = num_new * NUM_HEADS
    query_row = tile * 64 + gl.arange(0, 64, layout=PER_ROW)
    node = gl.minimum(query_row, num_query_rows - 1) // NUM_HEADS
    ancestor_at = (b * num_new + node) * num_words
    nothing = gl.zeros([64, 64], gl.float32, layout=SCORES)
    highest = gl.full([64], -1e30, gl.float32, layout=PER_ROW)  # finite: a row that sees nothing yet gets weights of 0
    total = gl.zeros([64], gl.float32, layout=PER_ROW)
    acc = gl.zeros([64, 256], gl.float32, layout=VALUES)
    hidden = gl.minimum(length, 0)
    mbarrier.wait(barriers.index(QUERY), 0)
    for pair in range(pairs):
        phase = pair & 1
        # A zero that the compiler cannot see through: or else it keeps 36 matrix descriptors in registers, and spills.
        zero = gl.minimum(pair, hidden)
        if IS_UPPER:
            own = 2 * pair
            mbarrier.wait(barriers.index(LEFT_A), phase)
            token = warpgroup_mma(
                q_halves.index(zero), halves.index(zero).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            mbarrier.wait(barriers.index(RIGHT_A), phase)
            token = warpgroup_mma(
                q_halves.index(zero + 1), halves.index(zero + 1).permute((1, 0)), token, is_async=True
            )
            token = warpgroup_mma(q_rope, ropes.index(zero).permute((1, 0)), token, is_async=True)
        else:
            own = 2 * pair + 1
            mbarrier.wait(barriers.index(RIGHT_B), phase)
            token = warpgroup_mma(
                q_halves.index(zero + 1), halves.index(zero + 3).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            mbarrier.wait(barriers.index(LEFT_B), phase)
            token = warpgroup_mma(q_halves.index(zero), halves.index(zero + 2).permute((1, 0)), token, is_async=True)
            token = warpgroup_mma(q_rope, ropes.index(zero + 1).permute((1, 0)), token, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[token])
        start = (first + own) * 64
        if (start + 64 > length) | (own >= count):
            sees = _sees(ancestors_ptr, ancestor_at, node, start - length, num_new, own < count, SCORES, IS_TREE)
            scores = gl.where(sees, scores, float("-inf"))
        peaks = gl.max(scores, axis=1) * scale_log2
        limit_a = length + num_new - (first + 2 * pair) * 64
        limit_b = length + num_new - (first + gl.minimum(2 * pair + 1, count - 1)) * 64
        if IS_UPPER:
            higher = gl.maximum(highest, peaks)
            vectors.index(0).store(higher)
            _signal(barriers.index(PEAKS_A))
            weights = gl.exp2(scores * scale_log2 - gl.expand_dims(higher, 1))
            fade = gl.exp2(highest - higher)
            total = total * fade + gl.sum(weights, axis=1)
            acc = acc * gl.expand_dims(gl.convert_layout(fade, PER_VALUE_ROW), 1)
            _zero_tail(halves.index(0), limit_a, PIECES)
            operand = gl.convert_layout(weights.to(gl.bfloat16), WEIGHTS)
            token = warpgroup_mma(operand, halves.index(0), acc, is_async=True)
            mbarrier.wait(barriers.index(WEIGHTS_B), phase)
            highest = vectors.index(1).load(PER_ROW)
            fade = gl.exp2(higher - highest)
            total = total * fade
            ropes.index(0).store((weights * gl.expand_dims(fade, 1)).to(gl.bfloat16))
            fence_async_shared()
            _signal(barriers.index(WEIGHTS_A))
            _zero_tail(halves.index(2), limit_b, PIECES)
            acc = warpgroup_mma_wait(0, deps=[token])
            _signal(barriers.index(FREE_LEFT_A))
            acc = acc * gl.expand_dims(gl.convert_layout(fade, PER_VALUE_ROW), 1)
            token = warpgroup_mma(ropes.index(1), halves.index(2), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[token])
            _signal(barriers.index(FREE_LEFT_B))
        else:
            mbarrier.wait(barriers.index(PEAKS_A), phase)
            higher = gl.maximum(vectors.index(0).load(PER_ROW), peaks)
            weights = gl.exp2(scores * scale_log2 - gl.expand_dims(higher, 1))
            low_weights = weights.to(gl.bfloat16)
            vectors.index(1).store(higher)
            ropes.index(1).store(low_weights)
            fence_async_shared()
            _signal(barriers.index(WEIGHTS_B))
            fade = gl.exp2(highest - higher)
            highest = higher
            total = total * fade + gl.sum(weights, axis=1)
            acc = acc * gl.expand_dims(gl.convert_layout(fade, PER_VALUE_ROW), 1)
            _zero_tail(halves.index(3), limit_b, PIECES)
            token = warpgroup_mma(gl.convert_layout(low_weights, WEIGHTS), halves.index(3), acc, is_async=True)
            mbarrier.wait(barriers.index(WEIGHTS_A), phase)
            _zero_tail(halves.index(1), limit_a, PIECES)
            acc = warpgroup_mma_wait(0, deps=[token])
            _signal(barriers.index(FREE_RIGHT_B))
            token = warpgroup_mma(ropes.index(0), halves.index(1), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[token])
            _signal(barriers.index(FREE_RIGHT_A))

    if IS_UPPER:
        vectors.index(2).store(total)
        _signal(barriers.index(TOTAL_UPPER))
        mbarrier.wait(barriers.index(TOTAL_LOWER), 0)
        total += vectors.index(3).load(PER_ROW)
    else:
        vectors.index(3).store(total)
        _signal(barriers.index(TOTAL_LOWER))
        mbarrier.wait(barriers.index(TOTAL_UPPER), 0)
        total += vectors.index(2).load(PER_ROW)
    HALF: gl.constexpr = 0 if IS_UPPER else 1
    if IS_SPLIT:
        before = (b.to(gl.int64) * num_splits + split) * num_query_rows
        second = gl.num_programs(2).to(gl.int64) * num_splits * num_query_rows
        if IS_UPPER:
            has_stats = (query_row < num_query_rows) & (count > 0)
            gl.store(stats_ptr + before + query_row, highest, mask=has_stats)
            gl.store(stats_ptr + second + before + query_row, total, mask=has_stats)
        base = partial_ptr + before * 512
        last_row = gl.where(count > 0, num_query_rows, 0)
    else:
        inverse = 1.0 / gl.where(total > 0, total, 1.0)
        acc = acc * gl.expand_dims(gl.convert_layout(inverse, PER_VALUE_ROW), 1)
        base = out_ptr + b.to(gl.int64) * num_query_rows * 512
        last_row = num_query_rows
    stage = halves.index(3 * HALF)  # of this group alone, and through
    stage.store(acc.to(gl.bfloat16))
    thread_barrier()
    row = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LINES))
    dim = HALF * 256 + gl.arange(0, 256, layout=gl.SliceLayout(0, LINES))
    at = gl.expand_dims(row, 1) * 512 + gl.expand_dims(dim, 0)
    gl.store(base + at, stage.load(LINES), mask=gl.expand_dims(row < last_row, 1))


@gluon.jit(do_not_specialize=["request_rows", "num_new", "num_words", "num_splits"])
def _mla_hopper_kernel(
    q_desc,  # [B*N*H, 576], boxes of 64 x 256
    q_rope_desc,  # the same, boxes of 64 x 64
    half_desc,  # [B*S, 576], boxes of 64 x 256
    rope_desc,
    lengths_ptr,  # [B] int64
    ancestors_ptr,  # [B, N, W] int64, where IS_TREE
    out_ptr,  # [B, N, H, 512] bf16, where not IS_SPLIT
    partial_ptr,  # [B, splits, N*H, 512] bf16, where IS_SPLIT
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
    SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    tile, split, b = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    gdc_wait()  # by the warps that start the others: see dependent_launch_triton.py
    gdc_launch_dependents()
    length = gl.load(lengths_ptr + b).to(gl.int32)
    q_halves = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], SMEM)
    q_rope = gl.allocate_shared_memory(gl.bfloat16, [64, 64], SMEM)
    halves = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 256], SMEM)  # left a, right a, left b, right b
    ropes = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], SMEM)  # of a and b, then their weights
    vectors = gl.allocate_shared_memory(gl.float32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    barriers = gl.allocate_shared_memory(gl.int64, [14, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(14):
        mbarrier.init(barriers.index(i), count=1)
    fence_async_shared()
    thread_barrier()
    q_row = b * num_new * NUM_HEADS + tile * 64
    query = barriers.index(QUERY)
    mbarrier.expect(query, 2 * q_desc.block_type.nbytes + q_rope_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [q_row, 0], query, q_halves.index(0))
    tma.async_copy_global_to_shared(q_desc, [q_row, 256], query, q_halves.index(1))
    tma.async_copy_global_to_shared(q_rope_desc, [q_row, 512], query, q_rope)
    num_seen = num_new
    if not IS_TREE and not IS_SPLIT:  # a prefill: no row of this tile sees what stands behind its last token
        num_seen = gl.minimum(num_new, (tile * 64 + 63) // NUM_HEADS + 1)
    blocks = gl.where(length < 0, 0, (length + num_seen + 63) // 64)
    per_split = (blocks + num_splits - 1) // num_splits
    first = split * per_split
    count = gl.maximum(gl.minimum(first + per_split, blocks) - first, 0)
    pairs = (count + 1) // 2
    row0 = b * request_rows + first * 64
    # The tuples stand here in full: one kept in a name, or a sum of two, loses its compile-time constants.
    gl.warp_specialize(
        [
            (_consume, (
                q_halves, q_rope, halves, ropes, vectors, barriers,
                ancestors_ptr, out_ptr, partial_ptr, stats_ptr, scale_log2, length, num_new, num_words, num_splits,
                first, pairs, count, True, NUM_HEADS, IS_TREE, IS_SPLIT,
            )),
            (_consume, (
                q_halves, q_rope, halves, ropes, vectors, barriers,
                ancestors_ptr, out_ptr, partial_ptr, stats_ptr, scale_log2, length, num_new, num_words, num_splits,
                first, pairs, count, False, NUM_HEADS, IS_TREE, IS_SPLIT,
            )),
            (_produce, (half_desc, rope_desc, halves, ropes, barriers, row0, pairs, count)),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


def suits(q: torch.Tensor, latent: torch.Tensor, rank: int) -> bool:
    """Whether q is one matrix of 576-wide bf16 rows and the requests' caches lie whole rows apart."""
    row = latent.stride(1)
    return (
        q.dtype == torch.bfloat16
        and (rank, q.shape[3]) == (512, 576)
        and q.is_contiguous()
        and row % 8 == 0
        and (q.shape[0] == 1 or latent.stride(0) % row == 0)
        and q.data_ptr() % 16 == latent.data_ptr() % 16 == 0
    )


def launch(
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
        for columns in (HALF_RANK, ROPE):
            boxes.append(TensorDescriptor(matrix, [rows, width], [stride, 1], [TILE, columns], SHARED))
    nothing = out  # pointers that the kernel does not follow
    _mla_hopper_kernel[(-(-num_new * num_heads // TILE), num_splits, batch)](
        *boxes, lengths, lengths if words is None else words, out, nothing if partial is None else partial,
        nothing if stats is None else stats, scale_log2, request_rows, num_new, 1 if words is None else words.shape[2],
        num_splits, NUM_HEADS=num_heads, IS_TREE=words is not None, IS_SPLIT=num_splits > 1, num_warps=4,
        launch_pdl=True,
    )  # fmt: skip


def _aot(name: str, heads: int, is_tree: bool, is_split: bool) -> dict[str, Any]:
    boxes = {
        name: f"tensordesc<bf16[{TILE}, {columns}],{SHARED!r}>"
        for name, columns in (("q_desc", 256), ("q_rope_desc", 64), ("half_desc", 256), ("rope_desc", 64))
    }
    pointers = {"lengths_ptr": "*i64", "ancestors_ptr": "*i64", "out_ptr": "*bf16", "partial_ptr": "*bf16"}
    numbers = dict.fromkeys(("request_rows", "num_new", "num_words", "num_splits"), "i32")
    return {
        "name": name,
        "kernel": _mla_hopper_kernel,
        "signature": boxes | pointers | {"stats_ptr": "*fp32", "scale_log2": "fp32"} | numbers,
        "divisible_by_16": (*pointers, "stats_ptr"),
        "constexprs": {"NUM_HEADS": heads, "IS_TREE": is_tree, "IS_SPLIT": is_split},
        "num_warps": 4,
    }


AOT = (
    _aot("k2.6 tree split", 64, True, True),
    _aot("k2.6 tree", 64, True, False),
    _aot("k2.6 causal split", 64, False, True),
)
