"""Tree attention on Hopper for bf16 caches of head dim 128 without a window, in Gluon: the walk of
`tree_attention_triton`, whose launcher calls this where the shape fits and whose combine kernel reads its partials.

One warp asks for blocks of K and of V by the tensor copy engine, up to STAGES ahead; each of GROUPS warp groups owns 64
query rows and works on its own, so that the softmax of one runs beside the products of the other; a group all of whose
rows lie past the last new token does nothing, and no barrier counts it. Within a group the next block's scores are
issued before the softmax of this one's. The stretches of the line of blocks, the masks and the partials are those of
`tree_attention_triton`; a block that crosses the context's end is masked whole. Rows past a request's last one come
along in its last block: their values are zeroed in shared memory (they may hold NaN).
Racecheck's reports of reads at the kernel's entry (a warp's state byte, captured scalars) against the first warps'
writes are how the compiler hands partitions over, and no races: all warps pass a `bar.sync 1` between each two of them.
The combine kernel is launched while this one runs (its launch and prologue go by beside the products), and this one
while the kernel before it ends; alone on the GPU, that changed nothing.
Letters: B batch rows, N new tokens, H query heads, G KV heads, W words of 32 ancestors.

Measured on an H200 (CUDA graph, cold cache, GQA 32/8/128, both launches; in brackets the floor), in us:
tokens                     9           33          64          65
batch 16, context 8192     126 (125)   197 (127)   242 (176)   362 (178)
batch 1, context 8192      16.5 (7.8)  24.4 (7.9)  26.3 (11)   34 (11.1)
batch 1, context 32k       40 (31)     52 (31)     75 (44)     88 (44)
Then the last tile's programs came behind the others', not in turn; repeats at 64 tokens and batch 16: 242, 267, 276.
65 tokens are two tiles of 128 rows and one of 4, at one pace so that they share the L2: see `tree_attention_plan` for
what unequal shares cost. One tile of 192 rows for 33 to 48 tokens in the place of two of 128 took 264 to 197, 67 to 52
and 29.5 to 24.4; at batch 1 and context 2048 it took 14.7 to 16.8, so short calls keep two. At batch 1 and context
8192, 4 to 5 us go by before the first products (launch, lengths, queries, first blocks, each a latency), and 3 to 4 us
into the second launch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
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

from .tree_attention_plan import TILES_HOPPER as TILES
from .tree_attention_plan import Plan

thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # its name from Triton 3.7 on
SHARED = gl.NVMMASharedLayout(128, 16, 2)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _word_pair(packed, is_there, num_words, offset):
    """64 ancestor bits of each row from new token `offset` on (negative: in the context, zeros)."""
    first = offset >> 5
    shift = (offset & 31).to(gl.uint64)
    w0 = gl.load(packed + first, mask=is_there & (first >= 0) & (first < num_words), other=0)
    w1 = gl.load(packed + (first + 1), mask=is_there & (first >= -1) & (first + 1 < num_words), other=0)
    w2 = gl.load(packed + (first + 2), mask=is_there & (first >= -2) & (first + 2 < num_words), other=0)
    u0 = w0.to(gl.uint32, bitcast=True).to(gl.uint64)
    u1 = w1.to(gl.uint32, bitcast=True).to(gl.uint64)
    u2 = w2.to(gl.uint32, bitcast=True).to(gl.uint64)
    return ((u0 | (u1 << 32)) >> shift).to(gl.uint32), ((u1 | (u2 << 32)) >> shift).to(gl.uint32)


@gluon.jit
def _masked(
    scores, offset, packed, first_row, request, num_words, num_new,
    LAYOUT: gl.constexpr, GROUP: gl.constexpr, MODE: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Scores of a block that starts at new token `offset`, -inf where the row does not see."""
    # What is added is 0 here; because it differs elsewhere, the compiler cannot move the rest out of the caller's loop.
    node = (first_row + gl.minimum(offset + BLOCK, 0) + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))) // GROUP
    column = gl.expand_dims(gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT)), 0)
    among = offset + column
    if MODE == 0:
        is_there = node < num_new
        bits = packed + (gl.cast(request, gl.int64) * num_new + node) * num_words
        a, b = _word_pair(bits, is_there, num_words, offset)
        word = gl.where(column < 32, gl.expand_dims(a, 1), gl.expand_dims(b, 1))
        if BLOCK == 128:
            c, d = _word_pair(bits, is_there, num_words, offset + 64)
            word = gl.where(column < 64, word, gl.where(column < 96, gl.expand_dims(c, 1), gl.expand_dims(d, 1)))
        sees = ((word >> (column & 31).to(gl.uint32)) & 1) != 0
    elif MODE == 1:
        sees = (among <= gl.expand_dims(node, 1)) & (among < num_new)
    else:
        sees = (among < num_new) & (gl.expand_dims(node, 1) >= 0)
    return gl.where((among < 0) | sees, scores, float("-inf"))


@gluon.jit
def _produce(
    k_desc, v_desc, lengths, length, batch, group, request, passed, left, num_new, rows_k, rows_v,
    k_smem, v_smem, barriers, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp. Barriers: K there, V there, K free, V free; one of each per stage."""
    step = 0
    while left > 0:
        num_blocks = (length + num_new + BLOCK - 1) // BLOCK
        high = gl.minimum(passed + left, num_blocks)
        for block in range(passed, high):
            slot, phase = step % STAGES, (step // STAGES) & 1
            there_k, there_v = barriers.index(slot), barriers.index(STAGES + slot)
            mbarrier.wait(barriers.index(2 * STAGES + slot), phase ^ 1)
            mbarrier.expect(there_k, k_desc.block_type.nbytes)
            row = block * BLOCK
            tma.async_copy_global_to_shared(k_desc, [request * rows_k + row, group * 128], there_k, k_smem.index(slot))
            mbarrier.wait(barriers.index(3 * STAGES + slot), phase ^ 1)
            mbarrier.expect(there_v, v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [request * rows_v + row, group * 128], there_v, v_smem.index(slot))
            step += 1
        left -= high - passed
        passed = high * 0
        group += (request + 1) // batch
        request = (request + 1) % batch
        length = gl.load(lengths + request, mask=left > 0, other=0).to(gl.int32)


@gluon.jit
def _consume(
    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks, partial_sums,
    batch, tile, busy, slot_base, group, request, passed, left, num_new, num_words, log2_scale,
    q_smem, k_smem, v_smem, barriers,
    WARP_GROUP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr, GROUP: gl.constexpr,
    HEADS: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """A warp group with 64 query rows."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    VALUES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    PIECES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    step = 0
    cleared = 0  # tiles of V with rows past a request's last one until now, alike in all warp groups
    while left > 0:
        # A zero that the compiler cannot see through, or it works out every address before this loop and spills some.
        zero = gl.minimum(length, 0)
        first_row = tile * ROWS + WARP_GROUP * 64 + zero
        wide = gl.cast(request, gl.int64)
        q_row = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, LINES))
        q_dim = gl.expand_dims(gl.arange(0, 128, layout=gl.SliceLayout(0, LINES)), 0)
        q_at = (q_row // GROUP) * stride_qn + (group * GROUP + q_row % GROUP) * stride_qh
        q_there = gl.expand_dims(q_row // GROUP < num_new, 1)
        q = gl.load(q_ptr + wide * stride_qb + gl.expand_dims(q_at, 1) + q_dim, mask=q_there, other=0.0)
        q_own = q_smem.index(WARP_GROUP + zero)
        q_own.store(q)
        fence_async_shared()
        thread_barrier()
        num_blocks = (length + num_new + BLOCK - 1) // BLOCK
        high = gl.minimum(passed + left, num_blocks)
        values = gl.zeros([64, 128], gl.float32, layout=VALUES)
        nothing = gl.zeros([64, BLOCK], gl.float32, layout=SCORES)
        slot = step % STAGES
        mbarrier.wait(barriers.index(slot), (step // STAGES) & 1)
        token = warpgroup_mma(q_own, k_smem.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[token])
        thread_barrier()
        mbarrier.arrive(barriers.index(2 * STAGES + slot), count=1)
        if passed * BLOCK + BLOCK > length:
            scores = _masked(
                scores, passed * BLOCK - length, packed, first_row, request, num_words, num_new,
                SCORES, GROUP, MODE, BLOCK,
            )  # fmt: skip
        peak = gl.maximum(gl.max(scores, axis=1) * log2_scale, -1e30)  # finite, where a row sees nothing yet
        weights = gl.exp2(scores * log2_scale - gl.expand_dims(peak, 1))
        total = gl.sum(weights, axis=1)
        low_weights = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(0, VALUES, 2))
        for block in range(passed + 1, high):
            ahead = (step + 1) % STAGES
            mbarrier.wait(barriers.index(ahead), ((step + 1) // STAGES) & 1)
            token = warpgroup_mma(q_own, k_smem.index(ahead).permute((1, 0)), nothing, use_acc=False, is_async=True)
            mbarrier.wait(barriers.index(STAGES + slot), (step // STAGES) & 1)
            values_token = warpgroup_mma(low_weights, v_smem.index(slot), values, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[token])
            thread_barrier()
            mbarrier.arrive(barriers.index(2 * STAGES + ahead), count=1)
            if block * BLOCK + BLOCK > length:
                scores = _masked(
                    scores, block * BLOCK - length, packed, first_row, request, num_words, num_new,
                    SCORES, GROUP, MODE, BLOCK,
                )  # fmt: skip
            new_peak = gl.maximum(peak, gl.max(scores, axis=1) * log2_scale)
            weights = gl.exp2(scores * log2_scale - gl.expand_dims(new_peak, 1))
            keep = gl.exp2(peak - new_peak)
            peak = new_peak
            total = total * keep + gl.sum(weights, axis=1)
            values = warpgroup_mma_wait(0, deps=[values_token])
            thread_barrier()
            mbarrier.arrive(barriers.index(3 * STAGES + slot), count=1)
            values = values * gl.expand_dims(gl.convert_layout(keep, gl.SliceLayout(1, VALUES)), 1)
            low_weights = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(0, VALUES, 2))
            slot = ahead
            step += 1
        mbarrier.wait(barriers.index(STAGES + slot), (step // STAGES) & 1)
        limit = length + num_new - (high - 1) * BLOCK
        if limit < BLOCK:
            v_row = gl.expand_dims(gl.arange(0, BLOCK, layout=gl.SliceLayout(1, PIECES)), 1)
            for half in gl.static_range(2):  # busy warp groups share the columns
                if half == WARP_GROUP or (WARP_GROUP == 0 and half >= busy):
                    piece = v_smem.index(slot).slice(half * 64, 64, dim=1)
                    piece.store(gl.where(v_row < limit, piece.load(PIECES), 0.0))
            fence_async_shared()
            thread_barrier()
            if busy > 1:
                # Each multiplies all columns, so they meet first. All come here equally often, as `limit` is the same.
                # The copies that the later one needs are there, since the earlier one has waited for them. No phase is
                # missed: the next one ends only when all warps of the busy groups are past this wait.
                mbarrier.arrive(barriers.index(4 * STAGES), count=1)
                mbarrier.wait(barriers.index(4 * STAGES), cleared & 1)
                cleared += 1
        values_token = warpgroup_mma(low_weights, v_smem.index(slot), values, is_async=True)
        values = warpgroup_mma_wait(0, deps=[values_token])
        thread_barrier()
        mbarrier.arrive(barriers.index(3 * STAGES + slot), count=1)
        step += 1

        dims = gl.expand_dims(gl.arange(0, 128, layout=gl.SliceLayout(0, VALUES)), 0)
        out_row = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, VALUES))
        out_node = out_row // GROUP
        stored = gl.expand_dims(out_node < num_new, 1)
        if high - passed == num_blocks:
            inverse = 1.0 / gl.where(total == 0, 1.0, total)
            values = values * gl.expand_dims(gl.convert_layout(inverse, gl.SliceLayout(1, VALUES)), 1)
            out_at = ((wide * num_new + out_node) * HEADS + group * GROUP + out_row % GROUP) * 128
            gl.store(out + gl.expand_dims(out_at, 1) + dims, values.to(out.dtype.element_ty), mask=stored)
        else:
            place = gl.cast(slot_base + group * batch + request, gl.int64)
            base = (place - tile) * ROWS  # `out_row` counts from the first tile on
            at = gl.expand_dims((base + out_row) * 128, 1) + dims
            gl.store(partial_values + at, values.to(partial_values.dtype.element_ty), mask=stored)
            row = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
            gl.store(partial_peaks + base + row, peak, mask=row // GROUP < num_new)
            gl.store(partial_sums + base + row, total, mask=row // GROUP < num_new)
        left -= high - passed
        passed = high * 0
        group += (request + 1) // batch
        request = (request + 1) % batch
        length = gl.load(lengths + request, mask=left > 0, other=0).to(gl.int32)


@gluon.jit(do_not_specialize=("batch", "num_new", "num_words", "num_tiles", "programs", "rows_k", "rows_v"))
def _tree_attention_hopper_kernel(
    q_ptr,  # [B, N, H, 128]
    k_desc,  # [B*S, G*128], boxes of BLOCK x 128
    v_desc,
    lengths,  # [B]
    packed,  # [B, N, W] int32, where MODE is 0
    out,  # [B, N, H, 128]
    partial_values,  # per tile [programs + G*B - 1, ROWS, 128], tile after tile
    partial_peaks,  # per tile [programs + G*B - 1, ROWS] fp32
    partial_sums,
    stride_qb, stride_qn, stride_qh,
    rows_k, rows_v,  # cache rows from one request to the next
    batch, num_new, num_words, num_tiles, programs,
    log2_scale,
    BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,  # warp groups: 1 to 3
    GROUP: gl.constexpr,  # query heads of a KV head
    HEADS: gl.constexpr,
    MODE: gl.constexpr,  # among new tokens: 0 packed bits, 1 causal, 2 all
    BLOCK_B: gl.constexpr,
):  # fmt: skip
    """Program (stretch of the line, query tile): tiles in turn, so that those that read the same rows run together."""
    SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    REQUESTS: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    ROWS: gl.constexpr = 64 * GROUPS
    KV_HEADS: gl.constexpr = HEADS // GROUP
    gdc_wait()  # by the warps that start the others: see dependent_launch_triton.py
    gdc_launch_dependents()
    index = gl.arange(0, BLOCK_B, layout=REQUESTS)
    if BLOCK_B == 1:
        length = gl.load(lengths).to(gl.int32)
    else:
        every = gl.load(lengths + index, mask=index < batch, other=0).to(gl.int32)
    tile, program = gl.program_id(0) % num_tiles, gl.program_id(0) // num_tiles
    slot_base = tile * (programs + KV_HEADS * batch - 1) + program
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [GROUPS, 64, 128], SMEM)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, 128], SMEM)
    v_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, 128], SMEM)
    barriers = gl.allocate_shared_memory(gl.int64, [4 * STAGES + 1, 1], mbarrier.MBarrierLayout())
    # A group without rows has nothing `left`: it neither waits nor arrives, and no barrier counts it. Every other group
    # walks the same blocks in the same order: for each one it waits once for K and once for V, which the copying warp
    # asks for once each, and arrives once when done with K and once with V, which that warp waits for once per use of
    # a slot: each phase of a "free" barrier takes `busy` arrivals, one per busy group. So does the meeting.
    busy = gl.minimum((num_new * GROUP - tile * ROWS + 63) // 64, GROUPS)
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(barriers.index(i), count=1)
    for count in gl.static_range(1, GROUPS + 1):
        if busy == count:
            for i in gl.static_range(2 * STAGES, 4 * STAGES + 1):
                mbarrier.init(barriers.index(i), count=count)
    fence_async_shared()
    thread_barrier()
    if BLOCK_B == 1:
        line = (length + num_new + BLOCK - 1) // BLOCK
    else:
        blocks = gl.where(index < batch, (every + num_new + BLOCK - 1) // BLOCK, 0)
        line = gl.sum(blocks, axis=0)
    own = gl.minimum(programs, KV_HEADS * line)
    begin = program * (KV_HEADS * line) // own
    left = gl.where(program < own, (program + 1) * (KV_HEADS * line) // own - begin, 0)
    group = begin // line
    begin -= group * line
    if BLOCK_B == 1:
        request = program * 0
        passed = begin
    else:
        ends = gl.associative_scan(blocks, 0, _add)
        request = gl.sum((ends <= begin).to(gl.int32), axis=0)
        passed = begin - gl.sum(gl.where(ends <= begin, blocks, 0), axis=0)
        length = gl.sum(gl.where(index == request, every, 0), axis=0)
    left_1, left_2 = gl.where(busy > 1, left, 0), gl.where(busy > 2, left, 0)
    # The tuples stand here in full: one kept in a name, or a sum of two, loses its compile-time constants.
    if GROUPS == 3:
        gl.warp_specialize(
            [
                (_consume, (
                    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks,
                    partial_sums, batch, tile, busy, slot_base, group, request, passed, left, num_new, num_words,
                    log2_scale, q_smem, k_smem, v_smem, barriers, 0, BLOCK, STAGES, ROWS, GROUP, HEADS, MODE,
                )),
                (_consume, (
                    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks,
                    partial_sums, batch, tile, busy, slot_base, group, request, passed, left_1, num_new, num_words,
                    log2_scale, q_smem, k_smem, v_smem, barriers, 1, BLOCK, STAGES, ROWS, GROUP, HEADS, MODE,
                )),
                (_consume, (
                    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks,
                    partial_sums, batch, tile, busy, slot_base, group, request, passed, left_2, num_new, num_words,
                    log2_scale, q_smem, k_smem, v_smem, barriers, 2, BLOCK, STAGES, ROWS, GROUP, HEADS, MODE,
                )),
                (_produce, (
                    k_desc, v_desc, lengths, length, batch, group, request, passed, left, num_new, rows_k, rows_v,
                    k_smem, v_smem, barriers, BLOCK, STAGES,
                )),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (
                    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks,
                    partial_sums, batch, tile, busy, slot_base, group, request, passed, left, num_new, num_words,
                    log2_scale, q_smem, k_smem, v_smem, barriers, 0, BLOCK, STAGES, ROWS, GROUP, HEADS, MODE,
                )),
                (_consume, (
                    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks,
                    partial_sums, batch, tile, busy, slot_base, group, request, passed, left_1, num_new, num_words,
                    log2_scale, q_smem, k_smem, v_smem, barriers, 1, BLOCK, STAGES, ROWS, GROUP, HEADS, MODE,
                )),
                (_produce, (
                    k_desc, v_desc, lengths, length, batch, group, request, passed, left, num_new, rows_k, rows_v,
                    k_smem, v_smem, barriers, BLOCK, STAGES,
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (
                    q_ptr, stride_qb, stride_qn, stride_qh, lengths, length, packed, out, partial_values, partial_peaks,
                    partial_sums, batch, tile, busy, slot_base, group, request, passed, left, num_new, num_words,
                    log2_scale, q_smem, k_smem, v_smem, barriers, 0, BLOCK, STAGES, ROWS, GROUP, HEADS, MODE,
                )),
                (_produce, (
                    k_desc, v_desc, lengths, length, batch, group, request, passed, left, num_new, rows_k, rows_v,
                    k_smem, v_smem, barriers, BLOCK, STAGES,
                )),
            ],
            [1], [24],
        )  # fmt: skip


def suits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None) -> bool:
    """Whether the caches are matrices of bf16 rows, G * 128 wide, that lie whole rows apart."""
    return (
        window is None
        and q.dtype == torch.bfloat16
        and q.shape[3] == 128
        and q.data_ptr() % 16 == 0
        and all(stride % 8 == 0 for stride in q.stride()[:3])
        and all(
            cache.stride(2) == 128
            and cache.stride(1) % 8 == 0
            and (q.shape[0] == 1 or cache.stride(0) % cache.stride(1) == 0)
            and cache.data_ptr() % 16 == 0
            for cache in (k, v)
        )
    )


def launch(
    q: torch.Tensor,  # [B, N, H, 128] bf16
    k: torch.Tensor,  # [B, S, G, 128]
    v: torch.Tensor,
    lengths: torch.Tensor,
    packed: torch.Tensor | None,
    out: torch.Tensor,
    partials: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: Plan,
    mode: int,
    scale_log2: float,
) -> None:
    """One launch: what a stretch holds whole goes to `out`, else to `partials`."""
    (batch, num_new, num_heads, dim), num_kv = q.shape, k.shape[2]
    boxes, rows = [], []
    for cache in (k, v):
        row = cache.stride(1)
        rows.append(cache.stride(0) // row if batch > 1 else cache.shape[1])
        matrix = [(batch - 1) * rows[-1] + cache.shape[1], num_kv * dim]
        boxes.append(TensorDescriptor(cache, matrix, [row, 1], [plan.tile.block, dim], SHARED))
    _tree_attention_hopper_kernel[(plan.grid,)](
        q, *boxes, lengths, lengths if packed is None else packed, out, *partials, *q.stride()[:3], *rows,
        batch, num_new, triton.cdiv(num_new, 32), plan.num_tiles, plan.programs, scale_log2,
        BLOCK=plan.tile.block, STAGES=plan.tile.stages, GROUPS=plan.tile.rows // 64, GROUP=num_heads // num_kv,
        HEADS=num_heads, MODE=mode, BLOCK_B=triton.next_power_of_2(batch), num_warps=4, launch_pdl=True,
    )  # fmt: skip


def _aot(name: str, tile: tuple[int, ...], heads: int, group: int, mode: int, batch: int) -> dict[str, Any]:
    rows, block, _, stages, _ = tile
    tensors = {"q_ptr": "*bf16", "lengths": "*i64", "packed": "*i32", "out": "*bf16"}
    tensors |= dict.fromkeys(("partial_values", "partial_peaks", "partial_sums"), "*fp32")
    boxes = dict.fromkeys(("k_desc", "v_desc"), f"tensordesc<bf16[{block}, 128],{SHARED!r}>")
    strides = ("stride_qb", "stride_qn", "stride_qh")
    numbers = (*strides, "rows_k", "rows_v", "batch", "num_new", "num_words", "num_tiles", "programs")
    return {
        "name": name,
        "kernel": _tree_attention_hopper_kernel,
        "signature": tensors | boxes | dict.fromkeys(numbers, "i32") | {"log2_scale": "fp32"},
        "divisible_by_16": (*tensors, *strides),
        "constexprs": {"BLOCK": block, "STAGES": stages, "GROUPS": rows // 64, "GROUP": group, "HEADS": heads}
        | {"MODE": mode, "BLOCK_B": batch},
        "num_warps": 4,
    }


AOT = (
    _aot("verify, GQA 32/8/128, up to 16 nodes, batch 1", TILES["narrow"], 32, 4, 0, 1),
    _aot("verify, GQA 32/8/128, 17-64 nodes, short, batch 1", TILES["wide"], 32, 4, 0, 1),
    _aot("verify, GQA 32/8/128, 17-64 nodes, batch 16", TILES["long"], 32, 4, 0, 16),
    _aot("verify, GQA 32/8/128, 33-48 nodes, batch 16", TILES["tall"], 32, 4, 0, 16),
    _aot("draft block, GQA 64/8/128", TILES["narrow"], 64, 8, 2, 1),
)
