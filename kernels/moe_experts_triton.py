"""The routed experts of a MoE layer on a GPU: four launches, no host sync, every weight in use read once.

    _route_kernel    token slots grouped by expert (counts, offsets, a list of blocks), tokens reordered for INT4
    _gate_up_kernel  a block's tokens times a tile of its expert's gate and up rows, SwiGLU in the epilogue
    _down_kernel     the same with the down rows: one fp32 row per slot
    _combine_kernel  a token's slots weighted and summed in slot order: deterministic, and independent of company

INT4 experts of the product's shape are multiplied by moe_experts_gluon.py on Hopper instead. Small float experts take
one launch for all but the combining: launches are what costs where a layer's experts are a few MB, so a program finds
its expert's slots itself. On Hopper a launch begins while the one before ends.

Letters: T tokens, M hidden, E experts held here, k chosen per token, I expert width. A slot is a (token, choice) pair,
a block at most BLOCK_T slots of one expert. Programs without a block return at once (a loop would cost 40 registers).
Experts held here are `first_expert ..`; slots of others, or of id -1, are skipped.

INT4 in `tl`: the weights are operand A of the matrix product and never leave registers after unpacking
(int4_triton.py). Nibble j of word i is column 8i + j, so nibble j of all words of a tile is a tile of its own,
multiplied with columns j, 8+j, .. of the tokens: hence their order [8, M/8]. 2.7-2.8 instructions a weight.

Floor, Kimi-K2.6 on one of 8 ranks (E 48 of 384, k 8, M 7168, I 2048): 24.8 MB per expert in use, 5.8 us at 4.3 TB/s;
1 token 1 expert, 8 tokens 7.4 experts 43 us, 64 tokens 35 experts 0.88 GB 200 us. Flops 88 M per slot: nothing.
Measured on an H200 in a CUDA graph, in `tl` alone: 8 tokens 90 us (0.47 of the read rate), 33 tokens on 26 experts 230
(0.65), routing and combining 3 each; 1 token 26. nano-k2's float experts (16 of 147 KB): 4.4 us for 1, 4.9 for 33.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before
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
    blocks: torch.Tensor  # [1 + 3*max_blocks] int32: how many blocks; expert, first, count of each
    tokens: torch.Tensor  # [T, M] x.dtype, columns reordered, INT4 only; else empty
    hidden: torch.Tensor  # [T*k, I] x.dtype, INT4: columns reordered
    by_slot: torch.Tensor  # [T*k, parts of I, M] fp32, to be added; more than one: small experts, and moe_experts_gluon


# By product and kind of operands: int4 weights with bf16 or fp32 tokens, or both of one float type. Products of fp32
# run outside of the tensor cores: correct, not fast.
TILES = {
    ("gate_up", "int4"): Tile(rows=32, words=32, num_warps=2, num_stages=4),  # rows of gate, and as many of up
    ("down", "int4"): Tile(rows=64, words=32, num_warps=2, num_stages=4),
    ("gate_up", "bf16"): Tile(rows=32, words=16, num_warps=2, num_stages=4),
    ("down", "bf16"): Tile(rows=64, words=16, num_warps=2, num_stages=4),
    **{(product, "int4_fp32"): Tile(32, 32, 4, 2) for product in ("gate_up", "down")},
    **{(product, "fp32"): Tile(32, 4, 4, 3) for product in ("gate_up", "down")},
}
SLOTS_AT_ONCE, WORDS_AT_ONCE = 512, 128  # of the routing programs, of the permuting ones
COLUMNS_AT_ONCE = 1024  # of the combining programs
MAX_SMALL = 256  # hidden columns and width of small experts
SMALL_ROWS, SMALL_SLOTS = 32, 256  # that one of their programs takes
MAX_GROUP = 256  # of columns under one int4 scale: those of a tile


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    if INTERPRET:  # the interpreter's bf16 product is wrong
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def swiglu(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _load_tile(ptr, has_row, has_column, EVEN: tl.constexpr, POLICY: tl.constexpr):
    if EVEN:  # no tile reaches over the edge
        return tl.load(ptr, eviction_policy=POLICY)
    return tl.load(ptr, mask=has_row & has_column[None, :], other=0, eviction_policy=POLICY)


@triton.jit
def _load_block(block, blocks_ptr, order_ptr, BLOCK_T: tl.constexpr):
    """-> its expert (int64), slots [1, BLOCK_T] (int64), which of them there are."""
    t = tl.arange(0, BLOCK_T)[None, :]
    first = tl.load(blocks_ptr + 3 * block + 2)
    has_token = t < tl.load(blocks_ptr + 3 * block + 3)
    slot = tl.load(order_ptr + first + t, mask=has_token, other=0)
    return tl.load(blocks_ptr + 3 * block + 1).to(tl.int64), slot.to(tl.int64), has_token


@triton.jit
def _slots_at(start, ids_ptr, num_slots, first_expert, num_experts, BINS: tl.constexpr, SLOTS: tl.constexpr):
    """-> slots, their experts among those held here, or the last bin (int32)."""
    slot = start + tl.arange(0, SLOTS)
    expert = tl.load(ids_ptr + slot, mask=slot < num_slots, other=-1) - first_expert
    is_here = (slot < num_slots) & (expert >= 0) & (expert < num_experts)
    return slot, tl.where(is_here, expert, BINS - 1).to(tl.int32)


@triton.jit
def _append(order_ptr, position, slot, is_mine):
    """Write the slots that are mine from `position` on; -> where the next one goes."""
    one = is_mine.to(tl.int32)
    tl.store(order_ptr + position + tl.cumsum(one, 0) - one, slot, mask=is_mine)
    return position + tl.sum(one, 0)


@triton.jit(do_not_specialize=["num_slots", "first_expert", "num_experts", "num_words"])
def _route_kernel(
    ids_ptr,  # [T*k] int64
    x_ptr,  # [T, M]
    order_ptr,  # [T*k] int32 out
    blocks_ptr,  # [1 + 3*max_blocks] int32 out
    tokens_ptr,  # [T, M] out
    num_slots, first_expert, num_experts,  # held here
    num_words,  # T * M/8, or 0: nothing to permute
    ROW_WORDS: tl.constexpr, BINS: tl.constexpr,  # M/8; a power of two > num_experts
    BLOCK_T: tl.constexpr, SLOTS: tl.constexpr, WORDS: tl.constexpr,
    IS_PAIRED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program per expert: counts all, so that no program waits for another. The rest reorder tokens."""
    pid = tl.program_id(0)
    wait_for_launch_before(IS_DEPENDENT)
    if pid >= num_experts:
        word = (pid - num_experts) * WORDS + tl.arange(0, WORDS)
        j = tl.arange(0, 8)
        mask = (word < num_words)[:, None] & (j >= 0)[None, :]
        value = tl.load(x_ptr + word.to(tl.int64)[:, None] * 8 + j[None, :], mask=mask)
        if IS_PAIRED:  # columns 0 4 1 5 2 6 3 7
            target = word.to(tl.int64)[:, None] * 8 + (j % 4 * 2 + j // 4)[None, :]
        else:  # columns j of all words
            target = (word // ROW_WORDS).to(tl.int64)[:, None] * (8 * ROW_WORDS) + (word % ROW_WORDS)[:, None]
            target += j[None, :] * ROW_WORDS
        tl.store(tokens_ptr + target, value, mask=mask)
    else:
        slot, expert = _slots_at(0, ids_ptr, num_slots, first_expert, num_experts, BINS, SLOTS)  # most often all
        counts = tl.histogram(expert, BINS)
        for start in range(SLOTS, num_slots, SLOTS):
            more = _slots_at(start, ids_ptr, num_slots, first_expert, num_experts, BINS, SLOTS)[1]
            counts += tl.histogram(more, BINS)
        bins = tl.arange(0, BINS)
        counts = tl.where(bins < num_experts, counts, 0)
        num_blocks = (counts + BLOCK_T - 1) // BLOCK_T
        position = tl.sum(tl.where(bins < pid, counts, 0), 0)
        block = tl.sum(tl.where(bins < pid, num_blocks, 0), 0)
        end = position + tl.sum(tl.where(bins == pid, counts, 0), 0)
        tl.store(blocks_ptr, tl.sum(num_blocks, 0), mask=pid == 0)
        for first in range(position, end, BLOCK_T):
            tl.store(blocks_ptr + 3 * block + 1, pid)
            tl.store(blocks_ptr + 3 * block + 2, first)
            tl.store(blocks_ptr + 3 * block + 3, tl.minimum(end - first, BLOCK_T))
            block += 1
        position = _append(order_ptr, position, slot, expert == pid)
        for start in range(SLOTS, num_slots, SLOTS):
            slot, expert = _slots_at(start, ids_ptr, num_slots, first_expert, num_experts, BINS, SLOTS)
            position = _append(order_ptr, position, slot, expert == pid)


@triton.jit
def _gate_up_kernel(
    x_ptr,  # [T, M], INT4: [T, 8, M/8]
    w_ptr,  # [E, 2I, M], INT4: [E, 2I, M/8] int32
    s_ptr,  # INT4: [E, 2I, M/group] bf16
    order_ptr, blocks_ptr,
    hidden_ptr,  # [T*k, I], INT4: [T*k, 8, I/8] out
    TOP_K: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,  # k, M, I
    GROUP: tl.constexpr,  # 0: float weights
    BLOCK_T: tl.constexpr,
    ROWS: tl.constexpr,  # of gate, and as many of up
    WORDS: tl.constexpr, INTERPRET: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A block's tokens times ROWS gate and up rows of its expert: SwiGLU. Grid: tiles of I, blocks."""
    wait_for_launch_before(IS_DEPENDENT)
    block = tl.program_id(1)
    if block < tl.load(blocks_ptr):
        dtype: tl.constexpr = x_ptr.dtype.element_ty
        expert, slot, has_token = _load_block(block, blocks_ptr, order_ptr, BLOCK_T)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        has_row = (row < WIDTH)[:, None]
        gate_row = (expert * (2 * WIDTH) + row)[:, None]  # [R, 1]
        x_row = x_ptr + slot // TOP_K * COLUMNS
        gate = tl.zeros((ROWS, BLOCK_T), tl.float32)
        up = tl.zeros((ROWS, BLOCK_T), tl.float32)
        EVEN: tl.constexpr = COLUMNS % (WORDS * 8) == 0 and WIDTH % ROWS == 0
        if GROUP:
            K: tl.constexpr = COLUMNS // 8
            GROUPS: tl.constexpr = COLUMNS // GROUP
            word = tl.arange(0, WORDS)
            scale = tl.arange(0, WORDS * 8 // GROUP)
            gate_w = w_ptr + gate_row * K + word[None, :]
            gate_s = s_ptr + gate_row * GROUPS + scale[None, :]
            x_word = x_row + word[:, None]
            for k in range(0, K, WORDS):
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
                    gate = dot(gate_planes[j], x, gate, INTERPRET)
                    up = dot(up_planes[j], x, up, INTERPRET)
            column = (row % 8) * (WIDTH // 8) + row // 8  # as the down product wants it
        else:
            column_in = tl.arange(0, WORDS * 8)
            gate_w = w_ptr + gate_row * COLUMNS + column_in[None, :]
            x_in = x_row + column_in[:, None]
            for k in range(0, COLUMNS, WORDS * 8):
                has_column = k + column_in < COLUMNS
                gate_w_tile = _load_tile(gate_w + k, has_row, has_column, EVEN, "evict_first")
                up_w_tile = _load_tile(gate_w + (WIDTH * COLUMNS + k), has_row, has_column, EVEN, "evict_first")
                x_mask = has_token if EVEN else has_token & has_column[:, None]
                x = tl.load(x_in + k, mask=x_mask, other=0.0)
                gate = dot(gate_w_tile, x, gate, INTERPRET)
                up = dot(up_w_tile, x, up, INTERPRET)
            column = row
        value = swiglu(gate, up).to(dtype)
        tl.store(hidden_ptr + slot * WIDTH + column[:, None], value, mask=has_row & has_token)


@triton.jit
def _down_kernel(
    hidden_ptr,  # [T*k, I], INT4: [T*k, 8, I/8]
    w_ptr,  # [E, M, I], INT4: [E, M, I/8] int32
    s_ptr,  # INT4: [E, M, I/group] bf16
    order_ptr, blocks_ptr,
    by_slot_ptr,  # [T*k, M] fp32 out
    COLUMNS: tl.constexpr, HIDDEN: tl.constexpr,  # I, M
    GROUP: tl.constexpr, BLOCK_T: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, INTERPRET: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A block's hidden rows times ROWS down rows of its expert. Grid: tiles of M, blocks."""
    wait_for_launch_before(IS_DEPENDENT)
    block = tl.program_id(1)
    if block < tl.load(blocks_ptr):
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
                    acc = dot(planes[j], x, acc, INTERPRET)
        else:
            column = tl.arange(0, WORDS * 8)
            w_in = w_ptr + w_row * COLUMNS + column[None, :]
            x_in = x_row + column[:, None]
            for k in range(0, COLUMNS, WORDS * 8):
                has_column = k + column < COLUMNS
                w_tile = _load_tile(w_in + k, has_row, has_column, EVEN, "evict_first")
                x_mask = has_token if EVEN else has_token & has_column[:, None]
                acc = dot(w_tile, tl.load(x_in + k, mask=x_mask, other=0.0), acc, INTERPRET)
        tl.store(by_slot_ptr + slot * HIDDEN + row[:, None], acc, mask=has_row & has_token)


@triton.jit(do_not_specialize=["num_slots", "first_expert"])
def _small_kernel(
    ids_ptr,  # [T*k] int64
    x_ptr,  # [T, M]
    gate_up_ptr,  # [E, 2I, M]
    down_ptr,  # [E, M, I]
    parts_ptr,  # [T*k, PARTS, M] fp32 out
    num_slots, first_expert, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,  # of gate, of up, and columns of down
    STEP: tl.constexpr,  # columns at once
    BLOCK_M: tl.constexpr,  # a power of two >= M
    BLOCK_T: tl.constexpr, SLOTS: tl.constexpr, INTERPRET: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Routing and both products, a part of I: for experts small beside a launch. Grid: experts, parts, slots."""
    wait_for_launch_before(IS_DEPENDENT)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    expert, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slots = tl.program_id(2) * SLOTS + tl.arange(0, SLOTS)
    is_here = slots < num_slots
    is_mine = (is_here & (tl.load(ids_ptr + slots, mask=is_here, other=-1) - first_expert == expert)).to(tl.int32)
    rank = tl.where(is_mine != 0, tl.cumsum(is_mine, 0) - 1, -1)
    count = tl.sum(is_mine, 0)
    row = part * ROWS + tl.arange(0, ROWS)
    has_row = row < WIDTH
    column = tl.arange(0, STEP)
    m = tl.arange(0, BLOCK_M)
    gate_w = gate_up_ptr + (expert * (2 * WIDTH) + row)[:, None] * HIDDEN + column[None, :]
    for first in range(0, count, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        has_token = (t < count)[None, :]
        slot = tl.sum(tl.where(rank[:, None] == t[None, :], slots[:, None], 0), 0)[None, :].to(tl.int64)
        x_in = x_ptr + slot // TOP_K * HIDDEN + column[:, None]
        gate = tl.zeros((ROWS, BLOCK_T), tl.float32)
        up = tl.zeros((ROWS, BLOCK_T), tl.float32)
        for k in range(0, HIDDEN, STEP):
            has_column = k + column < HIDDEN
            has_weight = has_row[:, None] & has_column[None, :]
            x = tl.load(x_in + k, mask=has_column[:, None] & has_token, other=0.0)
            gate = dot(tl.load(gate_w + k, mask=has_weight, other=0.0), x, gate, INTERPRET)
            up = dot(tl.load(gate_w + (WIDTH * HIDDEN + k), mask=has_weight, other=0.0), x, up, INTERPRET)
        hidden = swiglu(gate, up).to(dtype)
        down_w = down_ptr + (expert * HIDDEN + m)[:, None] * WIDTH + row[None, :]
        down_w = tl.load(down_w, mask=(m < HIDDEN)[:, None] & has_row[None, :], other=0.0)
        out = dot(down_w, hidden, tl.zeros((BLOCK_M, BLOCK_T), tl.float32), INTERPRET)
        target = parts_ptr + (slot * tl.num_programs(1) + part) * HIDDEN + m[:, None]
        tl.store(target, out, mask=(m < HIDDEN)[:, None] & has_token)


@triton.jit(do_not_specialize=["first_expert", "num_experts"])
def _combine_kernel(
    ids_ptr,  # [T, k] int64
    weights_ptr,  # [T, k] fp32
    by_slot_ptr,  # [T*k, PARTS, M] fp32
    out_ptr,  # [T, M] out
    first_expert, num_experts, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,  # of a slot's row, to be added first
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A token's slots of experts held here, weighted and summed in slot order. Grid: tokens, tiles of M."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    held, factors = (), ()
    for j in tl.static_range(TOP_K):  # of launches long complete; triton unpacks no tuples
        expert = tl.load(ids_ptr + token * TOP_K + j) - first_expert
        held = held + ((expert >= 0) & (expert < num_experts),)  # type: ignore  # noqa: RUF005
        factors = factors + (tl.load(weights_ptr + token * TOP_K + j),)  # type: ignore  # noqa: RUF005
    wait_for_launch_before(IS_DEPENDENT)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for j in tl.static_range(TOP_K):
        value = tl.zeros((COLUMNS,), tl.float32)
        for part in tl.static_range(PARTS):
            source = by_slot_ptr + ((token * TOP_K + j) * PARTS + part) * HIDDEN + column
            value += tl.load(source, mask=held[j] & (column < HIDDEN), other=0.0)
        acc += tl.where(held[j], factors[j], 0.0) * value
    tl.store(out_ptr + token * HIDDEN + column, acc.to(out_ptr.dtype.element_ty), mask=column < HIDDEN)


def block_tokens(num_tokens: int) -> int:
    """Slots of one expert per program: 8, the narrowest product, while few tokens meet the same expert. 32 spill."""
    return 8 if num_tokens <= 64 else 16


def max_blocks(num_tokens: int, top_k: int, num_experts: int, block_t: int) -> int:
    """The most blocks there can be: every expert has a slot, the other slots fill whole blocks."""
    slots = num_tokens * top_k
    return min(slots, num_experts) + max(slots - num_experts, 0) // block_t


def _kind(dtype: torch.dtype, group: int) -> str:
    is_low = dtype == torch.bfloat16
    return ("int4" if is_low else "int4_fp32") if group else ("bf16" if is_low else "fp32")


def num_parts(hidden: int, width: int, group: int) -> int:
    """Into how many parts a row of I is cut; 0: not a small expert."""
    return triton.cdiv(width, SMALL_ROWS) if not group and max(hidden, width) <= MAX_SMALL else 0


def _small_cut(hidden: int) -> dict[str, int]:
    block_m = max(triton.next_power_of_2(hidden), 16)
    sizes = {"ROWS": SMALL_ROWS, "STEP": min(block_m, 128), "BLOCK_M": block_m}
    return {**sizes, "BLOCK_T": 8, "SLOTS": SMALL_SLOTS}


def moe_workspace(
    num_tokens: int, top_k: int, hidden: int, num_experts: int, width: int,
    dtype: torch.dtype, device: Any, is_int4: bool, down_parts: int = 1,
) -> Workspace:  # fmt: skip
    """Scratch for calls of exactly this shape, to be reused between them; `num_experts` is of those held here."""
    slots, parts = num_tokens * top_k, num_parts(hidden, width, int(is_int4)) or down_parts
    return Workspace(
        order=torch.empty(slots, dtype=torch.int32, device=device),
        blocks=torch.empty(1 + 3 * max_blocks(num_tokens, top_k, num_experts, 8), dtype=torch.int32, device=device),
        tokens=torch.empty(num_tokens if is_int4 else 0, hidden, dtype=dtype, device=device),
        hidden=torch.empty(slots, width, dtype=dtype, device=device),
        by_slot=torch.empty(slots, parts, hidden, dtype=torch.float32, device=device),
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


def _route_and_multiply(
    x: torch.Tensor, expert_ids: torch.Tensor, experts: _Experts, first_expert: int, ws: Workspace, interpret: bool,
    dependent: dict[str, Any],
) -> None:  # fmt: skip
    (num_tokens, hidden), top_k, group = x.shape, expert_ids.shape[1], experts.group
    num_experts, width, kind = experts.gate_up.shape[0], ws.hidden.shape[1], _kind(x.dtype, group)
    in_gluon = False
    if dependent["IS_DEPENDENT"]:  # a GPU of its kind is there
        from . import moe_experts_gluon as gluon

        in_gluon = gluon.suits(x.dtype, group, hidden, width)
    block_t = 8 if in_gluon else block_tokens(num_tokens)
    most = max_blocks(num_tokens, top_k, num_experts, block_t)
    num_words = num_tokens * hidden // 8 if group else 0
    _route_kernel[(num_experts + triton.cdiv(num_words, WORDS_AT_ONCE),)](
        expert_ids, x, ws.order, ws.blocks, ws.tokens, num_tokens * top_k, first_expert, num_experts, num_words,
        ROW_WORDS=max(hidden // 8, 1), BINS=triton.next_power_of_2(num_experts + 1), BLOCK_T=block_t,
        SLOTS=SLOTS_AT_ONCE, WORDS=WORDS_AT_ONCE, IS_PAIRED=in_gluon, **dependent,
    )  # fmt: skip
    if in_gluon:
        gluon.multiply(ws.tokens, *experts[:4], ws.order, ws.blocks, ws.hidden, ws.by_slot, top_k, most)
        return
    assert ws.by_slot.shape[1] == 1, "parts of the down product where it has none"
    options = {"GROUP": group, "BLOCK_T": block_t, "INTERPRET": interpret, **dependent}
    tile = TILES["gate_up", kind]
    _gate_up_kernel[(triton.cdiv(width, tile.rows), most)](
        ws.tokens if group else x, experts.gate_up, experts.gate_up_scales, ws.order, ws.blocks, ws.hidden,
        TOP_K=top_k, COLUMNS=hidden, WIDTH=width, **options, **_cut(tile),
    )  # fmt: skip
    tile = TILES["down", kind]
    _down_kernel[(triton.cdiv(hidden, tile.rows), most)](
        ws.hidden, experts.down, experts.down_scales, ws.order, ws.blocks, ws.by_slot,
        COLUMNS=width, HIDDEN=hidden, **options, **_cut(tile),
    )  # fmt: skip


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
    dependent = dependence(x)
    if parts := num_parts(hidden, width, group):
        _small_kernel[(num_experts, parts, triton.cdiv(num_tokens * top_k, SMALL_SLOTS))](
            expert_ids, x, experts.gate_up, experts.down, ws.by_slot, num_tokens * top_k, first_expert, TOP_K=top_k,
            HIDDEN=hidden, WIDTH=width, INTERPRET=interpret, **_small_cut(hidden), **dependent,
        )  # fmt: skip
    else:
        _route_and_multiply(x, expert_ids, experts, first_expert, ws, interpret, dependent)
    _combine_kernel[(num_tokens, triton.cdiv(hidden, COLUMNS_AT_ONCE))](
        expert_ids, weights, ws.by_slot, out, first_expert, num_experts,
        TOP_K=top_k, HIDDEN=hidden, COLUMNS=COLUMNS_AT_ONCE, PARTS=ws.by_slot.shape[1], **dependent,
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
    return _launch(x, expert_ids, weights, _Experts(gate_up, gate_up, down, down, 0), first_expert, out, workspace)


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
    tile, is_packed = TILES[product, kind], kind.startswith("int4")
    token = "*fp32" if kind.endswith("fp32") else "*bf16"
    tables = {"w_ptr": "*i32" if is_packed else token, "s_ptr": "*bf16" if is_packed else token}
    tables |= {"order_ptr": "*i32", "blocks_ptr": "*i32"}
    constexprs: dict[str, Any] = {"GROUP": 32 if is_packed else 0, "BLOCK_T": block_t, "INTERPRET": False}
    constexprs |= {"ROWS": tile.rows, "WORDS": tile.words, "IS_DEPENDENT": True}
    name = f"{product}_{kind}_m{hidden}_t{block_t}"
    if product == "down":
        pointers = {"hidden_ptr": token, **tables, "by_slot_ptr": "*fp32"}
        return _aot(name, _down_kernel, pointers, (), constexprs | {"COLUMNS": width, "HIDDEN": hidden}, tile)
    pointers = {"x_ptr": token, **tables, "hidden_ptr": token}
    constexprs |= {"TOP_K": top_k, "COLUMNS": hidden, "WIDTH": width}
    return _aot(name, _gate_up_kernel, pointers, (), constexprs, tile)


_K2, _NANO, _PLAIN = (7168, 2048, 8), (256, 96, 2), Tile(0, 0, num_warps=4, num_stages=3)  # hidden, width, top_k
_PRODUCTS = ("gate_up", "down")
# For compilation without a GPU; "divisible_by_16": what may be taken for granted of torch's addresses.
AOT = (
    *(_aot_product(product, kind, 8, *_K2) for product in _PRODUCTS for kind in ("int4", "bf16")),
    *(_aot_product(product, "int4", 16, *_K2) for product in _PRODUCTS),
    *(_aot_product(product, "int4", 8, *_NANO) for product in _PRODUCTS),
    *(_aot_product("gate_up", kind, 8, *_NANO) for kind in ("int4_fp32", "fp32")),
    _aot(
        "route_k2", _route_kernel,
        {"ids_ptr": "*i64", "x_ptr": "*bf16", "order_ptr": "*i32", "blocks_ptr": "*i32", "tokens_ptr": "*bf16"},
        ("num_slots", "first_expert", "num_experts", "num_words"),
        {"ROW_WORDS": 896, "BINS": 64, "BLOCK_T": 8, "SLOTS": SLOTS_AT_ONCE, "WORDS": WORDS_AT_ONCE}
        | {"IS_PAIRED": True, "IS_DEPENDENT": True}, _PLAIN,
    ),
    _aot(
        "combine_k2", _combine_kernel,
        {"ids_ptr": "*i64", "weights_ptr": "*fp32", "by_slot_ptr": "*fp32", "out_ptr": "*bf16"},
        ("first_expert", "num_experts"),
        {"TOP_K": 8, "HIDDEN": 7168, "COLUMNS": COLUMNS_AT_ONCE, "PARTS": 1, "IS_DEPENDENT": True}, _PLAIN,
    ),
    _aot(
        "small_bf16_m256", _small_kernel,
        {"ids_ptr": "*i64", "x_ptr": "*bf16", "gate_up_ptr": "*bf16", "down_ptr": "*bf16", "parts_ptr": "*fp32"},
        ("num_slots", "first_expert"),
        {"TOP_K": 2, "HIDDEN": 256, "WIDTH": 96, "INTERPRET": False, "IS_DEPENDENT": True, **_small_cut(256)}, _PLAIN,
    ),
)  # fmt: skip
