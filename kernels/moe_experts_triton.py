"""The routed experts of a MoE layer on a GPU: four launches, no host sync, every weight in use read once.

    _route_kernel    token slots grouped by expert (counts, offsets, a list of blocks), tokens permuted for INT4
    _gate_up_kernel  a block's tokens times a tile of its expert's gate and up rows, SwiGLU in the epilogue
    _down_kernel     the same with the down rows: one fp32 row per slot
    _combine_kernel  a token's slots weighted and summed in slot order: deterministic, and independent of company

Letters: T tokens, M hidden, E experts held here, k chosen per token, I expert width. A slot is a (token, choice) pair,
a block at most BLOCK_T slots of one expert. Programs without a block return at once (a loop over blocks would cost 40
to 90 registers). Experts held here are `first_expert ..`; slots of others, or of id -1, are skipped.

INT4: the weights are operand A of the matrix product and never leave registers after unpacking (int4_triton.py).
Nibble j of word i is column 8i + j, so nibble j of all words of a tile is a tile of its own, multiplied with columns j,
8+j, .. of the tokens: hence their permutation to [T, 8, M/8]. 2.7-2.8 instructions a weight in all, compiled for sm_90.
Few tokens: a segment of M is a program of its own and _swiglu_kernel, a fifth launch, adds them up. With more tokens a
program adds the same sums in the same order, so that a token's result never depends on how many there are.

Floor, Kimi-K2.6 on one of 8 ranks (E 48 of 384, k 8, M 7168, I 2048): 24.8 MB per expert in use, 5.8 us at 4.3 TB/s;
1 token 1 expert, 8 tokens 7.4 experts 43 us, 64 tokens 35 experts 0.88 GB 200 us. Flops 88 M per slot: nothing.
Prediction on an H200 (not yet run): 60-75 % of the read rate from 8 tokens on. Memory binds: 60 % of 4.3 TB/s is 20
weights per SM and clock, 44 % of the issue slots at 2.8 instructions a weight, with 10 warps an SM and 80 KB in flight.
At 1-4 tokens less, since five launches in a graph cost 5-7 us: 15 us for one expert, 30 for four.
If it misses: (1) TILES (stages, 16 rows a warp rather than 32), FEW_TOKENS, a smaller grid of blocks (64 tokens: 106
for 35 in use); (2) issue-bound: scale the fp32 sums of groups, not the weights: one product per pair less; (3) few
tokens: programmatic dependent launch; (4) the asynchronous copies ignore evict_first: bulk copies with a cache hint.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .int4_triton import unpack_planes


class Tile(NamedTuple):
    """How a program of a matrix product is cut: weight rows, packed words (or 1/8 of the columns), warps, stages."""

    rows: int
    words: int
    num_warps: int
    num_stages: int


class Workspace(NamedTuple):
    """Scratch of one call, contents irrelevant before and after; see `moe_workspace`."""

    order: torch.Tensor  # [T*k] int32: local slots by expert
    blocks: torch.Tensor  # [3*max_blocks + 1] int32: expert, first, count of each block; then how many blocks
    tokens: torch.Tensor  # [T, 8, M/8] x.dtype, INT4 only; else empty
    hidden: torch.Tensor  # [T*k, I] x.dtype; INT4: [T*k, 8, I/8]
    partial: torch.Tensor  # [segments, T*k, 2I] fp32 where the hidden columns are split over programs; else empty
    by_slot: torch.Tensor  # [T*k, M] fp32


# By product and kind of operands: int4 weights with bf16 or fp32 tokens, or both of one float type. Products of fp32
# run outside of the tensor cores: correct, not fast. "few": tokens, where the tiles must be many.
TILES = {
    ("gate_up", "int4"): Tile(rows=32, words=32, num_warps=2, num_stages=4),  # rows of gate, and as many of up
    ("down", "int4"): Tile(rows=64, words=32, num_warps=2, num_stages=4),
    ("down_few", "int4"): Tile(rows=32, words=32, num_warps=2, num_stages=5),
    ("gate_up", "bf16"): Tile(rows=32, words=16, num_warps=2, num_stages=4),
    ("down", "bf16"): Tile(rows=64, words=16, num_warps=2, num_stages=4),
    ("down_few", "bf16"): Tile(rows=32, words=16, num_warps=2, num_stages=5),
    **{(product, "int4_fp32"): Tile(32, 32, 4, 2) for product in ("gate_up", "down", "down_few")},
    **{(product, "fp32"): Tile(32, 4, 4, 3) for product in ("gate_up", "down", "down_few")},
}
SLOTS_AT_ONCE = 512  # of the routing programs
WORDS_AT_ONCE = 128  # of the permuting programs
COLUMNS_AT_ONCE = 1024  # of the combining programs
FEW_TOKENS = 4  # up to here a segment of the hidden columns is a program of its own
MAX_GROUP = 256  # of columns under one int4 scale: those of a tile


@triton.jit
def _dot(a, b, acc, INTERPRET: tl.constexpr):
    if INTERPRET:  # the interpreter's bf16 product is wrong
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def _load_tile(ptr, has_row, has_column, EVEN: tl.constexpr, POLICY: tl.constexpr):
    if EVEN:  # no tile reaches over the edge
        return tl.load(ptr, eviction_policy=POLICY)
    return tl.load(ptr, mask=has_row & has_column[None, :], other=0, eviction_policy=POLICY)


@triton.jit
def _load_block(block, blocks_ptr, order_ptr, BLOCK_T: tl.constexpr):
    """-> its expert (int64), slots [1, BLOCK_T] (int64), which of them there are."""
    t = tl.arange(0, BLOCK_T)[None, :]
    first = tl.load(blocks_ptr + 3 * block + 1)
    has_token = t < tl.load(blocks_ptr + 3 * block + 2)
    slot = tl.load(order_ptr + first + t, mask=has_token, other=0)
    return tl.load(blocks_ptr + 3 * block).to(tl.int64), slot.to(tl.int64), has_token


@triton.jit(do_not_specialize=["num_slots", "first_expert", "num_experts", "max_blocks", "num_words"])
def _route_kernel(
    ids_ptr,  # [T*k] int64
    x_ptr,  # [T, M]
    order_ptr,  # [T*k] int32 out
    blocks_ptr,  # [3*max_blocks + 1] int32 out
    tokens_ptr,  # [T, 8, M/8] out
    num_slots,
    first_expert,
    num_experts,  # held here
    max_blocks,
    num_words,  # T * M/8, or 0: nothing to permute
    ROW_WORDS: tl.constexpr,  # M/8
    BINS: tl.constexpr,  # a power of two > num_experts
    BLOCK_T: tl.constexpr,
    SLOTS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """One program per expert: counts all, so that no program waits for another. The rest permute tokens."""
    pid = tl.program_id(0)
    if pid >= num_experts:
        word = (pid - num_experts) * WORDS + tl.arange(0, WORDS)
        j = tl.arange(0, 8)
        mask = (word < num_words)[:, None] & (j >= 0)[None, :]
        value = tl.load(x_ptr + word.to(tl.int64)[:, None] * 8 + j[None, :], mask=mask)
        target = (word // ROW_WORDS).to(tl.int64)[:, None] * (8 * ROW_WORDS) + (word % ROW_WORDS)[:, None]
        tl.store(tokens_ptr + target + j[None, :] * ROW_WORDS, value, mask=mask)
    else:
        counts = tl.zeros((BINS,), tl.int32)
        for start in range(0, num_slots, SLOTS):
            slot = start + tl.arange(0, SLOTS)
            expert = tl.load(ids_ptr + slot, mask=slot < num_slots, other=-1) - first_expert
            is_here = (slot < num_slots) & (expert >= 0) & (expert < num_experts)
            counts += tl.histogram(tl.where(is_here, expert, BINS - 1).to(tl.int32), BINS)
        bins = tl.arange(0, BINS)
        counts = tl.where(bins < num_experts, counts, 0)
        num_blocks = (counts + BLOCK_T - 1) // BLOCK_T
        position = tl.sum(tl.where(bins < pid, counts, 0), 0)
        block = tl.sum(tl.where(bins < pid, num_blocks, 0), 0)
        end = position + tl.sum(tl.where(bins == pid, counts, 0), 0)
        if pid == 0:
            tl.store(blocks_ptr + 3 * max_blocks, tl.sum(num_blocks, 0))
        for first in range(position, end, BLOCK_T):
            tl.store(blocks_ptr + 3 * block, pid)
            tl.store(blocks_ptr + 3 * block + 1, first)
            tl.store(blocks_ptr + 3 * block + 2, tl.minimum(end - first, BLOCK_T))
            block += 1
        for start in range(0, num_slots, SLOTS):
            slot = start + tl.arange(0, SLOTS)
            expert = tl.load(ids_ptr + slot, mask=slot < num_slots, other=-1) - first_expert
            is_mine = ((slot < num_slots) & (expert == pid)).to(tl.int32)
            rank = tl.cumsum(is_mine, 0) - is_mine
            tl.store(order_ptr + position + rank, slot, mask=is_mine != 0)
            position += tl.sum(is_mine, 0)


@triton.jit
def _swiglu(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _end_segment(total, acc, tile, SEGMENT: tl.constexpr):
    """After a segment's last tile its sum is added to the total; between them nothing changes."""
    is_last = (tile + 1) % SEGMENT == 0
    return total + tl.where(is_last, acc, 0.0), tl.where(is_last, 0.0, acc)


@triton.jit(do_not_specialize=["num_slots", "max_blocks"])
def _gate_up_kernel(
    x_ptr,  # [T, M], INT4: [T, 8, M/8]
    w_ptr,  # [E, 2I, M], INT4: [E, 2I, M/8] int32
    s_ptr,  # INT4: [E, 2I, M/group] bf16
    order_ptr,
    blocks_ptr,
    hidden_ptr,  # [T*k, I], INT4: [T*k, 8, I/8] out
    partial_ptr,  # SPLIT: [SEGMENTS, T*k, 2I] fp32 out, instead of hidden
    num_slots,
    max_blocks,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,  # M
    WIDTH: tl.constexpr,  # I
    GROUP: tl.constexpr,  # 0: float weights
    BLOCK_T: tl.constexpr,
    ROWS: tl.constexpr,  # of gate, and as many of up
    WORDS: tl.constexpr,
    SEGMENTS: tl.constexpr,  # of the columns of M, each summed by itself
    SPLIT: tl.constexpr,  # a program takes one segment; else all, to the same sums in the same order
    INTERPRET: tl.constexpr,
):
    """A block's tokens times ROWS gate and up rows of its expert: SwiGLU. Grid: tiles of I, blocks, segments."""
    block = tl.program_id(1)
    if block < tl.load(blocks_ptr + 3 * max_blocks):
        dtype: tl.constexpr = x_ptr.dtype.element_ty
        expert, slot, has_token = _load_block(block, blocks_ptr, order_ptr, BLOCK_T)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        has_row = (row < WIDTH)[:, None]
        gate_row = (expert * (2 * WIDTH) + row)[:, None]  # [R, 1]
        x_row = x_ptr + slot // TOP_K * COLUMNS
        gate = tl.zeros((ROWS, BLOCK_T), tl.float32)
        up = tl.zeros((ROWS, BLOCK_T), tl.float32)
        gate_sum = gate
        up_sum = up
        EVEN: tl.constexpr = COLUMNS % (WORDS * 8) == 0 and WIDTH % ROWS == 0
        NUM_TILES: tl.constexpr = (COLUMNS + WORDS * 8 - 1) // (WORDS * 8)
        SEGMENT: tl.constexpr = (NUM_TILES + SEGMENTS - 1) // SEGMENTS  # tiles
        begin = 0
        end = NUM_TILES
        if SPLIT:
            begin = tl.program_id(2) * SEGMENT
            end = tl.minimum(begin + SEGMENT, NUM_TILES)
        if GROUP:
            K: tl.constexpr = COLUMNS // 8
            GROUPS: tl.constexpr = COLUMNS // GROUP
            word = tl.arange(0, WORDS)
            scale = tl.arange(0, WORDS * 8 // GROUP)
            gate_w = w_ptr + gate_row * K + word[None, :]
            gate_s = s_ptr + gate_row * GROUPS + scale[None, :]
            x_word = x_row + word[:, None]
            for tile in range(begin, end):
                k = tile * WORDS
                g = k * 8 // GROUP
                has_word = k + word < K
                has_scale = g + scale < GROUPS
                gate_w_tile = _load_tile(gate_w + k, has_row, has_word, EVEN, "evict_first")
                up_w_tile = _load_tile(gate_w + (WIDTH * K + k), has_row, has_word, EVEN, "evict_first")
                gate_s_tile = _load_tile(gate_s + g, has_row, has_scale, EVEN, "")
                up_s_tile = _load_tile(gate_s + (WIDTH * GROUPS + g), has_row, has_scale, EVEN, "")
                gate_planes = unpack_planes(gate_w_tile, gate_s_tile, dtype, INTERPRET)
                up_planes = unpack_planes(up_w_tile, up_s_tile, dtype, INTERPRET)
                x_mask = has_token if EVEN else has_token & has_word[:, None]
                for j in tl.static_range(8):
                    x = tl.load(x_word + (j * K + k), mask=x_mask, other=0.0)
                    gate = _dot(gate_planes[j], x, gate, INTERPRET)
                    up = _dot(up_planes[j], x, up, INTERPRET)
                if SEGMENTS > 1 and not SPLIT:
                    gate_sum, gate = _end_segment(gate_sum, gate, tile, SEGMENT)
                    up_sum, up = _end_segment(up_sum, up, tile, SEGMENT)
            column = (row % 8) * (WIDTH // 8) + row // 8  # as the down product wants it
        else:
            column_in = tl.arange(0, WORDS * 8)
            gate_w = w_ptr + gate_row * COLUMNS + column_in[None, :]
            x_in = x_row + column_in[:, None]
            for tile in range(begin, end):
                k = tile * (WORDS * 8)
                has_column = k + column_in < COLUMNS
                gate_w_tile = _load_tile(gate_w + k, has_row, has_column, EVEN, "evict_first")
                up_w_tile = _load_tile(gate_w + (WIDTH * COLUMNS + k), has_row, has_column, EVEN, "evict_first")
                x_mask = has_token if EVEN else has_token & has_column[:, None]
                x = tl.load(x_in + k, mask=x_mask, other=0.0)
                gate = _dot(gate_w_tile, x, gate, INTERPRET)
                up = _dot(up_w_tile, x, up, INTERPRET)
                if SEGMENTS > 1 and not SPLIT:
                    gate_sum, gate = _end_segment(gate_sum, gate, tile, SEGMENT)
                    up_sum, up = _end_segment(up_sum, up, tile, SEGMENT)
            column = row
        gate += gate_sum
        up += up_sum
        mask = has_row & has_token
        if SPLIT:
            target = partial_ptr + (tl.program_id(2).to(tl.int64) * num_slots + slot) * (2 * WIDTH) + row[:, None]
            tl.store(target, gate, mask=mask)
            tl.store(target + WIDTH, up, mask=mask)
        else:
            value = _swiglu(gate, up).to(dtype)
            tl.store(hidden_ptr + slot * WIDTH + column[:, None], value, mask=mask)


@triton.jit(do_not_specialize=["num_slots", "first_expert", "num_experts"])
def _swiglu_kernel(
    ids_ptr,  # [T*k] int64
    partial_ptr,  # [SEGMENTS, T*k, 2I] fp32
    hidden_ptr,  # [T*k, I], INT4: [T*k, 8, I/8] out
    num_slots,
    first_expert,
    num_experts,
    WIDTH: tl.constexpr,
    IS_PACKED: tl.constexpr,
    SEGMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What the epilogue of an unsplit product does. Grid: slots, tiles of I."""
    slot = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(ids_ptr + slot) - first_expert
    mask = (expert >= 0) & (expert < num_experts) & (row < WIDTH)
    gate = tl.zeros((COLUMNS,), tl.float32)
    up = tl.zeros((COLUMNS,), tl.float32)
    for segment in tl.static_range(SEGMENTS):
        source = partial_ptr + (segment * num_slots + slot) * (2 * WIDTH) + row
        gate += tl.load(source, mask=mask, other=0.0)
        up += tl.load(source + WIDTH, mask=mask, other=0.0)
    column = (row % 8) * (WIDTH // 8) + row // 8 if IS_PACKED else row
    tl.store(hidden_ptr + slot * WIDTH + column, _swiglu(gate, up).to(hidden_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["max_blocks"])
def _down_kernel(
    hidden_ptr,  # [T*k, I], INT4: [T*k, 8, I/8]
    w_ptr,  # [E, M, I], INT4: [E, M, I/8] int32
    s_ptr,  # INT4: [E, M, I/group] bf16
    order_ptr,
    blocks_ptr,
    by_slot_ptr,  # [T*k, M] fp32 out
    max_blocks,
    COLUMNS: tl.constexpr,  # I
    HIDDEN: tl.constexpr,  # M
    GROUP: tl.constexpr,
    BLOCK_T: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """A block's hidden rows times ROWS down rows of its expert. Grid: tiles of M, blocks."""
    block = tl.program_id(1)
    if block < tl.load(blocks_ptr + 3 * max_blocks):
        dtype: tl.constexpr = hidden_ptr.dtype.element_ty
        expert, slot, has_token = _load_block(block, blocks_ptr, order_ptr, BLOCK_T)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        has_row = (row < HIDDEN)[:, None]
        w_row = (expert * HIDDEN + row)[:, None]  # [R, 1]
        x_row = hidden_ptr + slot * COLUMNS
        acc = tl.zeros((ROWS, BLOCK_T), tl.float32)
        EVEN: tl.constexpr = COLUMNS % (WORDS * 8) == 0 and HIDDEN % ROWS == 0
        if GROUP:
            K: tl.constexpr = COLUMNS // 8
            GROUPS: tl.constexpr = COLUMNS // GROUP
            word = tl.arange(0, WORDS)
            scale = tl.arange(0, WORDS * 8 // GROUP)
            w_word = w_ptr + w_row * K + word[None, :]
            s_word = s_ptr + w_row * GROUPS + scale[None, :]
            x_word = x_row + word[:, None]
            for k in range(0, K, WORDS):
                g = k * 8 // GROUP
                has_word = k + word < K
                w_tile = _load_tile(w_word + k, has_row, has_word, EVEN, "evict_first")
                s_tile = _load_tile(s_word + g, has_row, g + scale < GROUPS, EVEN, "")
                planes = unpack_planes(w_tile, s_tile, dtype, INTERPRET)
                x_mask = has_token if EVEN else has_token & has_word[:, None]
                for j in tl.static_range(8):
                    x = tl.load(x_word + (j * K + k), mask=x_mask, other=0.0)
                    acc = _dot(planes[j], x, acc, INTERPRET)
        else:
            column = tl.arange(0, WORDS * 8)
            w_in = w_ptr + w_row * COLUMNS + column[None, :]
            x_in = x_row + column[:, None]
            for k in range(0, COLUMNS, WORDS * 8):
                has_column = k + column < COLUMNS
                w_tile = _load_tile(w_in + k, has_row, has_column, EVEN, "evict_first")
                x_mask = has_token if EVEN else has_token & has_column[:, None]
                acc = _dot(w_tile, tl.load(x_in + k, mask=x_mask, other=0.0), acc, INTERPRET)
        tl.store(by_slot_ptr + slot * HIDDEN + row[:, None], acc, mask=has_row & has_token)


@triton.jit(do_not_specialize=["first_expert", "num_experts"])
def _combine_kernel(
    ids_ptr,  # [T, k] int64
    weights_ptr,  # [T, k] fp32
    by_slot_ptr,  # [T*k, M] fp32
    out_ptr,  # [T, M] out
    first_expert,
    num_experts,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A token's slots of experts held here, weighted and summed in slot order. Grid: tokens, tiles of M."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for j in range(TOP_K):
        slot = token * TOP_K + j
        expert = tl.load(ids_ptr + slot) - first_expert
        is_here = (expert >= 0) & (expert < num_experts)
        weight = tl.load(weights_ptr + slot, mask=is_here, other=0.0)
        acc += weight * tl.load(by_slot_ptr + slot * HIDDEN + column, mask=is_here & (column < HIDDEN), other=0.0)
    tl.store(out_ptr + token * HIDDEN + column, acc.to(out_ptr.dtype.element_ty), mask=column < HIDDEN)


def block_tokens(num_tokens: int) -> int:
    """Slots of one expert per program: 8, the narrowest product, while few tokens meet the same expert. 32 spill."""
    return 8 if num_tokens <= 64 else 16


def max_blocks(num_tokens: int, top_k: int, num_experts: int) -> int:
    """The most blocks there can be: every expert has a slot, the other slots fill whole blocks."""
    slots = num_tokens * top_k
    return min(slots, num_experts) + max(slots - num_experts, 0) // block_tokens(num_tokens)


def _kind(dtype: torch.dtype, group: int) -> str:
    is_low = dtype == torch.bfloat16
    return ("int4" if is_low else "int4_fp32") if group else ("bf16" if is_low else "fp32")


def _is_few(num_tokens: int, hidden: int, kind: str) -> bool:
    return num_tokens <= FEW_TOKENS and num_segments(hidden, TILES["gate_up", kind]) > 1


def num_segments(columns: int, tile: Tile) -> int:
    """Into how many sums a row of `columns` products is cut: of the shape alone, so that company changes nothing."""
    return 4 if triton.cdiv(columns, 8 * tile.words) >= 16 else 1


def moe_workspace(
    num_tokens: int,
    top_k: int,
    hidden: int,
    num_experts: int,
    width: int,
    dtype: torch.dtype,
    device: Any,
    is_int4: bool,
) -> Workspace:
    """Scratch for calls of exactly this shape, to be reused between them; `num_experts` is of those held here."""
    slots = num_tokens * top_k
    kind = _kind(dtype, int(is_int4))
    segments = num_segments(hidden, TILES["gate_up", kind])
    return Workspace(
        order=torch.empty(slots, dtype=torch.int32, device=device),
        blocks=torch.empty(3 * max_blocks(num_tokens, top_k, num_experts) + 1, dtype=torch.int32, device=device),
        tokens=torch.empty(num_tokens if is_int4 else 0, 8, hidden // 8, dtype=dtype, device=device),
        hidden=torch.empty(slots, width, dtype=dtype, device=device),
        partial=torch.empty(
            segments if _is_few(num_tokens, hidden, kind) else 0, slots, 2 * width, dtype=torch.float32, device=device
        ),
        by_slot=torch.empty(slots, hidden, dtype=torch.float32, device=device),
    )


class _Experts(NamedTuple):
    gate_up: torch.Tensor
    gate_up_scales: torch.Tensor  # float weights: any tensor, never read
    down: torch.Tensor
    down_scales: torch.Tensor
    group: int  # 0: float weights


def _check(x: torch.Tensor, experts: _Experts, interpret: bool) -> None:
    if not interpret and x.device.type != "cuda":
        raise ValueError(f"moe_experts_triton: got tensors on '{x.device}', expected CUDA; use moe_experts on a CPU")
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"moe_experts_triton: got {x.dtype} tokens, expected float32 or bfloat16")
    if not experts.group and experts.gate_up.dtype != x.dtype:
        raise ValueError(f"moe_experts_triton: got {experts.gate_up.dtype} weights for {x.dtype} tokens, expected one")
    if not all(weights.is_contiguous() for weights in experts[:4]):
        raise ValueError("moe_experts_triton: got strided expert weights or scales, expected contiguous ones")
    group = experts.group
    if group and (group < 8 or group > MAX_GROUP or group & (group - 1)):
        raise ValueError(f"moe_experts_triton: got groups of {group}, expected a power of two from 8 to {MAX_GROUP}")


def _cut(tile: Tile) -> dict[str, int]:
    return {"ROWS": tile.rows, "WORDS": tile.words, "num_warps": tile.num_warps, "num_stages": tile.num_stages}


def _launch(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, experts: _Experts, first_expert: int,
    out: torch.Tensor | None, workspace: Workspace | None,
) -> torch.Tensor:  # fmt: skip
    interpret = bool(triton.knobs.runtime.interpret)
    _check(x, experts, interpret)
    (num_tokens, hidden), top_k, group = x.shape, expert_ids.shape[1], experts.group
    num_experts, width = experts.gate_up.shape[0], experts.gate_up.shape[1] // 2
    x, expert_ids, weights = x.contiguous(), expert_ids.contiguous(), weights.contiguous()
    out = torch.empty_like(x) if out is None else out
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(f"moe_experts_triton: got {out.dtype}{list(out.shape)} for out, expected the tokens' own kind")
    if not num_tokens:
        return out
    ws = workspace or moe_workspace(num_tokens, top_k, hidden, num_experts, width, x.dtype, x.device, group > 0)
    most, block_t = max_blocks(num_tokens, top_k, num_experts), block_tokens(num_tokens)
    num_words = num_tokens * hidden // 8 if group else 0
    _route_kernel[(num_experts + triton.cdiv(num_words, WORDS_AT_ONCE),)](
        expert_ids, x, ws.order, ws.blocks, ws.tokens, num_tokens * top_k, first_expert, num_experts, most, num_words,
        ROW_WORDS=max(hidden // 8, 1), BINS=triton.next_power_of_2(num_experts + 1), BLOCK_T=block_t,
        SLOTS=SLOTS_AT_ONCE, WORDS=WORDS_AT_ONCE,
    )  # fmt: skip
    kind, options = _kind(x.dtype, group), {"GROUP": group, "BLOCK_T": block_t, "INTERPRET": interpret}
    tile = TILES["gate_up", kind]
    segments, is_split = num_segments(hidden, tile), _is_few(num_tokens, hidden, kind)
    _gate_up_kernel[(triton.cdiv(width, tile.rows), most, segments if is_split else 1)](
        ws.tokens if group else x, experts.gate_up, experts.gate_up_scales, ws.order, ws.blocks, ws.hidden, ws.partial,
        num_tokens * top_k, most, TOP_K=top_k, COLUMNS=hidden, WIDTH=width, SEGMENTS=segments, SPLIT=is_split,
        **options, **_cut(tile),
    )  # fmt: skip
    if is_split:
        _swiglu_kernel[(num_tokens * top_k, triton.cdiv(width, COLUMNS_AT_ONCE))](
            expert_ids, ws.partial, ws.hidden, num_tokens * top_k, first_expert, num_experts,
            WIDTH=width, IS_PACKED=group > 0, SEGMENTS=segments, COLUMNS=COLUMNS_AT_ONCE,
        )  # fmt: skip
    tile = TILES["down_few" if is_split else "down", kind]
    _down_kernel[(triton.cdiv(hidden, tile.rows), most)](
        ws.hidden, experts.down, experts.down_scales, ws.order, ws.blocks, ws.by_slot, most,
        COLUMNS=width, HIDDEN=hidden, **options, **_cut(tile),
    )  # fmt: skip
    _combine_kernel[(num_tokens, triton.cdiv(hidden, COLUMNS_AT_ONCE))](
        expert_ids, weights, ws.by_slot, out, first_expert, num_experts,
        TOP_K=top_k, HIDDEN=hidden, COLUMNS=COLUMNS_AT_ONCE,
    )  # fmt: skip
    return out


def moe_experts_triton(
    x: torch.Tensor,  # [T, M] fp32 or bf16
    expert_ids: torch.Tensor,  # [T, k] int64, distinct within a token; -1: none
    weights: torch.Tensor,  # [T, k] fp32
    gate_up: torch.Tensor,  # [E, 2I, M] x.dtype, gate rows first
    down: torch.Tensor,  # [E, M, I]
    *,
    first_expert: int = 0,  # the expert id of gate_up[0]; other ranks' experts add nothing
    out: torch.Tensor | None = None,  # [T, M]
    workspace: Workspace | None = None,  # of this shape, from `moe_workspace`
) -> torch.Tensor:
    """-> [T, M]: `moe_experts` over the experts held here. Never waits for the GPU; unused weights are not read."""
    experts = _Experts(gate_up, gate_up, down, down, 0)
    return _launch(x, expert_ids, weights, experts, first_expert, out, workspace)


def moe_experts_int4_triton(
    x: torch.Tensor,  # [T, M] fp32 or bf16
    expert_ids: torch.Tensor,  # [T, k] int64
    weights: torch.Tensor,  # [T, k] fp32
    gate_up_packed: torch.Tensor,  # [E, 2I, M/8] int32
    gate_up_scales: torch.Tensor,  # [E, 2I, M/group] bf16
    down_packed: torch.Tensor,  # [E, M, I/8] int32
    down_scales: torch.Tensor,  # [E, M, I/group] bf16
    group: int,  # a power of two, 8 to MAX_GROUP
    *,
    first_expert: int = 0,
    out: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """`moe_experts_triton` over int4 weights, dequantised to x.dtype in registers."""
    experts = _Experts(gate_up_packed, gate_up_scales, down_packed, down_scales, group)
    return _launch(x, expert_ids, weights, experts, first_expert, out, workspace)


def _aot(
    name: str, kernel: Any, pointers: dict[str, str], sizes: tuple[str, ...], constexprs: dict[str, Any], tile: Tile
) -> dict[str, Any]:
    signature = pointers | dict.fromkeys(sizes, "i32") | dict.fromkeys(constexprs, "constexpr")
    entry = {"name": name, "kernel": kernel, "signature": signature, "constexprs": constexprs}
    return entry | {"divisible_by_16": tuple(pointers), "num_warps": tile.num_warps, "num_stages": tile.num_stages}


def _aot_product(product: str, kind: str, block_t: int, hidden: int, width: int, top_k: int) -> dict[str, Any]:
    tile, is_packed, is_split = TILES[product.replace("_split", ""), kind], kind.startswith("int4"), "split" in product
    token = "*fp32" if kind.endswith("fp32") else "*bf16"
    tables = {"w_ptr": "*i32" if is_packed else token, "s_ptr": "*bf16" if is_packed else token}
    tables |= {"order_ptr": "*i32", "blocks_ptr": "*i32"}
    constexprs: dict[str, Any] = {"GROUP": 32 if is_packed else 0, "BLOCK_T": block_t, "INTERPRET": False}
    constexprs |= {"ROWS": tile.rows, "WORDS": tile.words}
    name = f"{product}_{kind}_m{hidden}_t{block_t}"
    if product.startswith("down"):
        pointers = {"hidden_ptr": token, **tables, "by_slot_ptr": "*fp32"}
        constexprs |= {"COLUMNS": width, "HIDDEN": hidden}
        return _aot(name, _down_kernel, pointers, ("max_blocks",), constexprs, tile)
    pointers = {"x_ptr": token, **tables, "hidden_ptr": token, "partial_ptr": "*fp32"}
    constexprs |= {"TOP_K": top_k, "COLUMNS": hidden, "WIDTH": width, "SPLIT": is_split}
    constexprs["SEGMENTS"] = num_segments(hidden, tile)
    return _aot(name, _gate_up_kernel, pointers, ("num_slots", "max_blocks"), constexprs, tile)


_K2, _NANO, _PLAIN = (7168, 2048, 8), (256, 96, 2), Tile(0, 0, num_warps=4, num_stages=3)  # hidden, width, top_k
_PRODUCTS = ("gate_up", "gate_up_split", "down", "down_few")
_SIZES = ("num_slots", "first_expert", "num_experts", "max_blocks", "num_words")
# For compilation without a GPU; "divisible_by_16": what may be taken for granted of torch's addresses.
AOT = (
    *(_aot_product(product, kind, 8, *_K2) for product in _PRODUCTS for kind in ("int4", "bf16")),
    *(_aot_product(product, "int4", 16, *_K2) for product in ("gate_up", "down")),
    *(_aot_product(product, "int4", 8, *_NANO) for product in ("gate_up", "down")),
    *(_aot_product("gate_up", kind, 8, *_NANO) for kind in ("int4_fp32", "fp32")),
    _aot(
        "route_k2",
        _route_kernel,
        {"ids_ptr": "*i64", "x_ptr": "*bf16", "order_ptr": "*i32", "blocks_ptr": "*i32", "tokens_ptr": "*bf16"},
        _SIZES,
        {"ROW_WORDS": 896, "BINS": 64, "BLOCK_T": 8, "SLOTS": SLOTS_AT_ONCE, "WORDS": WORDS_AT_ONCE},
        _PLAIN,
    ),
    _aot(
        "swiglu_k2",
        _swiglu_kernel,
        {"ids_ptr": "*i64", "partial_ptr": "*fp32", "hidden_ptr": "*bf16"},
        _SIZES[:3],
        {"WIDTH": 2048, "IS_PACKED": True, "SEGMENTS": 4, "COLUMNS": COLUMNS_AT_ONCE},
        _PLAIN,
    ),
    _aot(
        "combine_k2",
        _combine_kernel,
        {"ids_ptr": "*i64", "weights_ptr": "*fp32", "by_slot_ptr": "*fp32", "out_ptr": "*bf16"},
        _SIZES[1:3],
        {"TOP_K": 8, "HIDDEN": 7168, "COLUMNS": COLUMNS_AT_ONCE},
        _PLAIN,
    ),
)
