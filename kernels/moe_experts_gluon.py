"""The two matrix products of INT4 experts on Hopper at the product's shapes, in Gluon.

The launcher of `moe_experts_triton` calls this where the shape fits (`suits`): bf16 tokens, groups of 32, M and I
multiples of 1,024. What `tl` cannot say is said here: which thread holds which word. A lane's word of four in a group
is what `ldmatrix` gives it, and its nibbles are then the pairs (j, j + 4) that the matrix product takes, see
`int4_triton.GROUPS_ASM`: 1.9 instructions a weight in all, 2.8 in `moe_experts_triton`. Tokens and hidden rows hold
every 8 columns in the order 0 4 1 5 2 6 3 7 for it.

A program takes an item at a time: 32 weight rows (16 of gate and the same of up, or 32 of down) of one block. Of a
tile's words, 32 per warp, warp q takes chunks q and WARPS + q of 16; the warps' sums are added at the end, so that a
token's result depends on nothing but its own row. Programs stay: they take items pid, pid + programs, .., and ask for
an item's first weights while they multiply the last of the one before, for its tokens one tile ahead, for its slots one
item ahead and for its block two items ahead, so that no load waits for another. Started before the gate and up products
have ended, the down products ask for their first weights, and only then wait.

Measured on an H200 at Kimi-K2.6's shape on one of 8 ranks (floor: moe_experts_triton.py; in a CUDA graph): gate and up
4.4 us per expert in use (0.88 of the read rate) and 10 more, half of them the last, incomplete round of items. Four
warps: one needs 136 us for 26 experts instead of 122, eight 200, since they wait for each other; two programs an SM
instead of three 139; two tiles of room do as well as four. Down: 82 us with four warps, whose sums cost as much as an
item's two tiles, 65 with one (0.77); in `tl` 157 and 66. Without products the same copies take 64. With four warps in
both, all launches: 1 token 17 us, 8 on 7.4 experts 73 (0.58), 33 on 26 experts 214 (0.70), 64 on 36 289 (0.72).

Where few experts are in use, what counts is not the rate of many programs but how much one asks for at a time: an
expert has 128 items of gate and up, one per multiprocessor, and a tile ahead is 16 KB of the 26 that 0.8 us of latency
at 4.3 TB/s need in flight there. So the plans of `FEW` look further ahead, which also shortens the last round of items
(the only one of three experts or fewer). With stages for a whole item of down, its weights are on the way while gate
and up end. Not yet measured; predicted: 5 us less for a token, 2 for eight. Items of 16 rows would ask for no more at a
time, and an expert's items cover 97 % of the multiprocessors as they are. Down products may also be cut along their
columns (`parts` of the scratch, added in order by the combining launch): twice the items, and twice the sums to write
and read. Every sum then has another order, so it is one number for all calls, and no plan.

Letters: T tokens, M hidden, k chosen per token, I expert width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .int4_triton import GROUPS_ASM, GROUPS_CONSTRAINTS, OFFSETS


class Plan(NamedTuple):
    """Warps of a program, tiles that it has room for (one more than it waits for), and programs that an SM has."""

    warps: int
    stages: int
    residents: int


class Plans(NamedTuple):
    """Of both products. A sum's order depends on the warps: they are the same in all plans, or company would count."""

    gate_up: Plan
    down: Plan


_DEEP = Plan(warps=4, stages=4, residents=3)
FEW = (  # up to so many tokens, for the first that has room
    (2, Plans(gate_up=_DEEP, down=Plan(warps=1, stages=9, residents=5))),
    (4, Plans(gate_up=_DEEP, down=Plan(warps=1, stages=5, residents=9))),
    (8, Plans(gate_up=_DEEP, down=Plan(warps=1, stages=3, residents=14))),
)
MANY = Plans(gate_up=Plan(warps=4, stages=2, residents=3), down=Plan(warps=1, stages=3, residents=14))
ROWS = gl.constexpr(32)  # of weights, of an item


@gluon.constexpr_function
def _layout(warps, shape, registers, lanes, warp_dim, warp_stride):
    """A layout from the strides that registers and lanes have in each dim; `warps` lie along one dim."""
    bases = [[warp_stride * 2**i if dim == warp_dim else 0 for dim in range(len(shape))] for i in range(2)]
    return gl.DistributedLinearLayout(registers, lanes, bases[: {1: 0, 4: 2}[warps]], [], shape)


@gluon.constexpr_function
def _step_layout(warps):
    """Dims: warp, 8 weight rows (or tokens), 4 groups, 4 lanes."""
    lanes = [[0, 0, 0, 1], [0, 0, 0, 2], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0]]
    return _layout(warps, [warps, 8, 4, 4], [[0, 0, 1, 0], [0, 0, 2, 0]], lanes, 0, 1)


@gluon.constexpr_function
def _pairs_layout(warps):
    """The same, and 4 pairs of columns."""
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2], [0, 0, 1, 0, 0], [0, 0, 2, 0, 0]]
    lanes = [[0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [0, 4, 0, 0, 0]]
    return _layout(warps, [warps, 8, 4, 4, 4], registers, lanes, 0, 1)


@gluon.constexpr_function
def _chunk_layout(warps):
    """Dims: warp, 8 weight rows, 16 words: 4 groups and 4 lanes in one."""
    lanes = [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return _layout(warps, [warps, 8, 16], [[0, 0, 4], [0, 0, 8]], lanes, 0, 1)


@gluon.constexpr_function
def _scale_layout(warps):
    """Dims: 8 weight rows, the scales of a tile: a lane has those of its row, of its warp's two chunks."""
    registers, lanes = [[0, 1], [0, 2], [0, 4 * warps]], [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]]
    return _layout(warps, [8, 8 * warps], registers, lanes, 1, 4)


@gluon.constexpr_function
def _copied_words(warps):
    """Dims: chunks of a tile, weight rows, words."""
    return gl.BlockedLayout([1, 1, 4], [2, 4, 4], [warps, 1, 1], [2, 0, 1])


@gluon.constexpr_function
def _copied_scales(warps):
    """Dims: weight rows, scales of a tile."""
    return gl.BlockedLayout([1, 8], [32 // warps, warps], [warps, 1], [1, 0])


@gluon.jit
def _ask(w_tiles, s_tiles, stage, w_from, s_from, is_wanted):
    """Copy a tile of words and scales into a stage; an empty group of copies if none is wanted."""
    if is_wanted:
        async_copy.async_copy_global_to_shared(w_tiles.index(stage), w_from)
        async_copy.async_copy_global_to_shared(s_tiles.index(stage), s_from)
    async_copy.commit_group()


@gluon.jit
def _block_of(item, blocks_ptr, ITEMS: gl.constexpr):
    """-> the item's place in its block, the block's expert, first slot, slots."""
    at = blocks_ptr + 1 + 3 * (item // ITEMS)
    return item % ITEMS, gl.load(at), gl.load(at + 1), gl.load(at + 2)


@gluon.jit
def _first_word(place, expert, K: gl.constexpr, ALL_ROWS: gl.constexpr, IS_DOWN: gl.constexpr, PARTS: gl.constexpr):
    row = expert.to(gl.int64) * ALL_ROWS + place // PARTS * (ROWS if IS_DOWN else ROWS // 2)
    return row * K + place % PARTS * (K // PARTS)


@gluon.jit
def _token_rows(
    order_ptr, first, count, place, COLUMNS: gl.constexpr, DIVISOR: gl.constexpr, PARTS: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Where an item's part of its tokens begins, in pairs of columns; where there is none, the last one again."""
    PAIRS: gl.constexpr = _pairs_layout(WARPS)
    t = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, PAIRS)))))
    slot = gl.load(order_ptr + first + gl.minimum(t, count - 1))
    return (slot // DIVISOR * (COLUMNS // 2) + place % PARTS * (COLUMNS // 2 // PARTS))[None, :, None, None, None]


@gluon.jit
def _words(tile, half: gl.constexpr, j: gl.constexpr, WARPS: gl.constexpr):
    """A warp's chunk of 8 weight rows."""
    words = tile.slice(WARPS * half, WARPS, dim=0).slice(8 * j, 8, dim=1).load(_chunk_layout(WARPS))
    return gl.convert_layout(words.reshape([WARPS, 8, 4, 4]), _step_layout(WARPS), assert_trivial=True)


@gluon.jit
def _spread(scales, WARPS: gl.constexpr):
    """[8 rows, warps, 4 groups] -> the lanes that need them."""
    scales = scales.permute([1, 0, 2])
    scales = gl.convert_layout(scales, gl.SliceLayout(3, _step_layout(WARPS)), assert_trivial=True)
    return gl.expand_dims(scales, 3).broadcast_to([WARPS, 8, 4, 4])


@gluon.jit
def _scales(tile, half: gl.constexpr, j: gl.constexpr, WARPS: gl.constexpr):
    """Scales of 8 weight rows, of a warp's chunk."""
    scales = tile.slice(8 * j, 8, dim=0).load(_scale_layout(WARPS))
    both = gl.split(scales.reshape([8, 2, WARPS, 4]).permute([0, 2, 3, 1]))
    return _spread(both[half], WARPS)


@gluon.jit
def _step(low, high, x, tile, scales, offsets, half: gl.constexpr, WARPS: gl.constexpr):
    """Sums of 16 + 16 weight rows times 8 tokens, over a warp's chunk."""
    STEP: gl.constexpr = _step_layout(WARPS)
    even, odd = gl.split(x.reshape([WARPS, 8, 4, 4, 2, 2]))
    x0, x2 = gl.split(even)
    x1, x3 = gl.split(odd)
    operands = [low, high]
    operands += [_words(tile, half, 0, WARPS), _words(tile, half, 1, WARPS)]
    operands += [_words(tile, half, 2, WARPS), _words(tile, half, 3, WARPS)]
    operands += [gl.convert_layout(x0, STEP, assert_trivial=True), gl.convert_layout(x1, STEP, assert_trivial=True)]
    operands += [gl.convert_layout(x2, STEP, assert_trivial=True), gl.convert_layout(x3, STEP, assert_trivial=True)]
    operands += [_scales(scales, half, 0, WARPS), _scales(scales, half, 1, WARPS)]
    operands += [_scales(scales, half, 2, WARPS), _scales(scales, half, 3, WARPS), offsets]
    return gl.inline_asm_elementwise(
        GROUPS_ASM, GROUPS_CONSTRAINTS, operands, dtype=(gl.float32, gl.float32), is_pure=True, pack=4
    )


@gluon.jit
def _put(
    out_ptr, slot, has_token, low, high, place, ALL_ROWS: gl.constexpr, IS_DOWN: gl.constexpr, PARTS: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Store an item's sums: element (g, 2h + e, t) is row 8h + g of its 16, token 2t + e."""
    SUMS: gl.constexpr = gl.SliceLayout(0, _step_layout(WARPS))
    c = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, SUMS)))[None, :, None]
    g = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, SUMS)))[:, None, None]
    mask = has_token & (g >= 0)
    if IS_DOWN:
        row = place // PARTS * ROWS + 8 * (c // 2) + g
        at = out_ptr + slot.to(gl.int64) * (PARTS * ALL_ROWS) + (place % PARTS * ALL_ROWS + row)
        gl.store(at, low, mask=mask)
        gl.store(at + 16, high, mask=mask)
    else:
        column = place * (ROWS // 2) + 8 * (c // 2) + (g % 4 * 2 + g // 4)  # the order of pairs
        value = low / (1.0 + gl.exp(-low)) * high
        at = out_ptr + slot.to(gl.int64) * (ALL_ROWS // 2) + column
        gl.store(at, value.to(gl.bfloat16), mask=mask)


@gluon.jit
def _product_kernel(
    x_ptr,  # [T, M]; down: [T*k, I]
    w_ptr,  # [E, 2I, M/8] int32; down: [E, M, I/8]
    s_ptr,  # [E, 2I, M/32] bf16; down: [E, M, I/32]
    order_ptr,
    blocks_ptr,
    out_ptr,  # [T*k, I] bf16: SwiGLU of both sums; down: [T*k, PARTS, M] fp32
    TOP_K: gl.constexpr,  # down: 1, its rows are slots
    COLUMNS: gl.constexpr,
    ALL_ROWS: gl.constexpr,  # of an expert
    IS_DOWN: gl.constexpr,
    PARTS: gl.constexpr,  # that the columns are cut into, each an item of its own; gate and up: 1
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):
    STEP: gl.constexpr = _step_layout(WARPS)
    COPY_WORDS: gl.constexpr = _copied_words(WARPS)
    COPY_SCALES: gl.constexpr = _copied_scales(WARPS)
    WORDS: gl.constexpr = 32 * WARPS  # of a tile's row
    SCALES: gl.constexpr = 8 * WARPS
    K: gl.constexpr = COLUMNS // 8
    GROUPS: gl.constexpr = COLUMNS // 32
    TILES: gl.constexpr = K // WORDS // PARTS
    ITEMS: gl.constexpr = ALL_ROWS // ROWS * PARTS
    gl.static_assert(STAGES <= TILES + 1)
    gl.static_assert(TILES * WORDS * PARTS == K)
    gl.static_assert(IS_DOWN or PARTS == 1)
    w_tiles = gl.allocate_shared_memory(
        gl.int32, [STAGES, 2 * WARPS, ROWS, 16], gl.SwizzledSharedLayout(4, 2, 4, [2, 1, 0])
    )
    s_tiles = gl.allocate_shared_memory(
        gl.bfloat16, [STAGES, ROWS, SCALES], gl.SwizzledSharedLayout(8, 2 if WARPS > 1 else 1, WARPS, [1, 0])
    )
    # what of a tile a thread copies, and what of the tokens it holds
    w_row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, gl.SliceLayout(2, COPY_WORDS)))
    s_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, COPY_SCALES))
    if not IS_DOWN:  # half of them are rows of up
        w_row = w_row // 16 * (ALL_ROWS // 2) + w_row % 16
        s_row = s_row // 16 * (ALL_ROWS // 2) + s_row % 16
    chunk = gl.arange(0, 2 * WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, COPY_WORDS)))[:, None, None]
    in_chunk = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, COPY_WORDS)))[None, None, :]
    w_in = w_row[None, :, None] * K + (chunk * 16 + in_chunk)
    s_in = s_row[:, None] * GROUPS + gl.arange(0, SCALES, layout=gl.SliceLayout(0, COPY_SCALES))[None, :]
    x_in = gl.set_auto_layout(
        gl.arange(0, WARPS)[:, None, None, None, None] * 64
        + gl.arange(0, 4)[None, None, :, None, None] * 16
        + gl.arange(0, 4)[None, None, None, :, None] * 4
        + gl.arange(0, 4)[None, None, None, None, :],
        _pairs_layout(WARPS),
    )
    x_pairs = x_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    out_token = gl.set_auto_layout(
        gl.arange(0, 4)[None, None, :] * 2 + gl.arange(0, 4)[None, :, None] % 2, gl.SliceLayout(0, STEP)
    )
    if not IS_DOWN:
        gdc_wait()
        gdc_launch_dependents()
    pid, step = gl.program_id(0), gl.num_programs(0)
    num_items = gl.load(blocks_ptr) * ITEMS  # down: of two launches ago, complete since the last one began
    place, expert, first, count = _block_of(pid, blocks_ptr, ITEMS)  # within the table, if maybe past its last block
    # one constant in four registers: were they known to be equal, one would be copied into four for every product
    different = gl.arange(1, 5, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, STEP))))
    offsets = OFFSETS ^ (different & (num_items >> 31))
    offsets = offsets[None, None, :, None].broadcast_to([WARPS, 8, 4, 4])
    if pid < num_items:
        last = num_items - 1  # stands for items that there are not
        following = gl.minimum(pid + step, last)
        next_place, next_expert, next_first, next_count = _block_of(following, blocks_ptr, ITEMS)
        word = _first_word(place, expert, K, ALL_ROWS, IS_DOWN, PARTS)
        for j in gl.static_range(STAGES - 1):
            w_from, s_from = w_ptr + (word + j * WORDS) + w_in, s_ptr + ((word >> 2) + j * SCALES) + s_in
            _ask(w_tiles, s_tiles, j, w_from, s_from, True)
        x_row = _token_rows(order_ptr, first, count, place, COLUMNS, TOP_K, PARTS, WARPS)
        if IS_DOWN:
            gdc_wait()
            gdc_launch_dependents()
        x = gl.load(x_pairs + (x_row + x_in))
        y = gl.load(x_pairs + (x_row + x_in + 64 * WARPS))
        stage = 0
        for item in range(pid, num_items, step):
            has_next = item + step < num_items
            next_word = _first_word(next_place, next_expert, K, ALL_ROWS, IS_DOWN, PARTS)
            next_x_row = _token_rows(order_ptr, next_first, next_count, next_place, COLUMNS, TOP_K, PARTS, WARPS)
            later = _block_of(gl.minimum(item + 2 * step, last), blocks_ptr, ITEMS)
            out_slot = gl.load(order_ptr + first + out_token, mask=out_token < count, other=0)
            low = gl.full([WARPS, 8, 4, 4], 0.0, gl.float32, STEP)
            high = gl.full([WARPS, 8, 4, 4], 0.0, gl.float32, STEP)
            for i in range(TILES):
                async_copy.wait_group(STAGES - 2)
                is_mine = i + STAGES - 1 < TILES
                from_word = gl.where(is_mine, word, next_word)
                from_tile = gl.where(is_mine, i + STAGES - 1, i + STAGES - 1 - TILES)
                w_from = w_ptr + (from_word + from_tile * WORDS) + w_in
                s_from = s_ptr + ((from_word >> 2) + from_tile * SCALES) + s_in
                before = gl.where(stage == 0, STAGES - 1, stage - 1)
                _ask(w_tiles, s_tiles, before, w_from, s_from, is_mine | has_next)
                tile, scales = w_tiles.index(stage), s_tiles.index(stage)
                is_last = i == TILES - 1
                x_from = gl.where(is_last, next_x_row, x_row) + gl.where(is_last, 0, (i + 1) * (128 * WARPS))
                x_from = x_pairs + (x_from + x_in)
                low, high = _step(low, high, x, tile, scales, offsets, 0, WARPS)
                x = gl.load(x_from)
                low, high = _step(low, high, y, tile, scales, offsets, 1, WARPS)
                y = gl.load(x_from + 64 * WARPS)
                stage = gl.where(stage == STAGES - 1, 0, stage + 1)
            low, high = gl.sum(low, 0), gl.sum(high, 0)
            _put(out_ptr, out_slot, out_token < count, low, high, place, ALL_ROWS, IS_DOWN, PARTS, WARPS)
            word, x_row, place, first, count = next_word, next_x_row, next_place, next_first, next_count
            next_place, next_expert, next_first, next_count = later
    elif IS_DOWN:
        gdc_wait()


def plans_of(num_tokens: int) -> Plans:
    return next((plans for most_tokens, plans in FEW if num_tokens <= most_tokens), MANY)


def _launch(plan: Plan, num_sms: int, most: int, *tensors: torch.Tensor, **sizes: int) -> None:
    items = most * (sizes["ALL_ROWS"] // ROWS.value) * sizes["PARTS"]
    stages = min(plan.stages, sizes["COLUMNS"] // (256 * plan.warps * sizes["PARTS"]) + 1)
    _product_kernel[(min(num_sms * plan.residents, items),)](
        *tensors, **sizes, STAGES=stages, WARPS=plan.warps, num_warps=plan.warps, launch_pdl=True
    )


def suits(dtype: torch.dtype, group: int, hidden: int, width: int) -> bool:
    return dtype == torch.bfloat16 and group == 32 and hidden % 1024 == 0 and width % 1024 == 0


def multiply(
    tokens: torch.Tensor,  # [T, M] bf16, columns in the order of pairs
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down: torch.Tensor,
    down_scales: torch.Tensor,
    order: torch.Tensor,
    blocks: torch.Tensor,
    hidden: torch.Tensor,  # [T*k, I] bf16 out, likewise
    by_slot: torch.Tensor,  # [T*k, parts, M] fp32 out; a part is of the columns of hidden, and they are to be added
    top_k: int,
    most: int,  # blocks of at most 8 slots
) -> None:
    """Both products of every block, as two launches."""
    num_sms = torch.cuda.get_device_properties(tokens.device).multi_processor_count
    (num_tokens, columns), width, parts = tokens.shape, hidden.shape[1], by_slot.shape[1]
    plans = plans_of(num_tokens)
    _launch(
        plans.gate_up, num_sms, most, tokens, gate_up, gate_up_scales, order, blocks, hidden,
        TOP_K=top_k, COLUMNS=columns, ALL_ROWS=2 * width, IS_DOWN=False, PARTS=1,
    )  # fmt: skip
    _launch(
        plans.down, num_sms, most, hidden, down, down_scales, order, blocks, by_slot,
        TOP_K=1, COLUMNS=width, ALL_ROWS=columns, IS_DOWN=True, PARTS=parts,
    )  # fmt: skip


_POINTERS = {"x_ptr": "*bf16", "w_ptr": "*i32", "s_ptr": "*bf16", "order_ptr": "*i32", "blocks_ptr": "*i32"}
# For compilation without a GPU, at Kimi-K2.6's shape.
AOT = tuple(
    {
        "name": name,
        "kernel": _product_kernel,
        "signature": _POINTERS | {"out_ptr": out},
        "constexprs": {"TOP_K": top_k, "COLUMNS": columns, "ALL_ROWS": rows, "IS_DOWN": is_down, "PARTS": parts}
        | {"STAGES": plan.stages, "WARPS": plan.warps},
        "divisible_by_16": (*_POINTERS, "out_ptr"),
        "num_warps": plan.warps,
        "num_stages": 1,
        "residents": plan.residents,
    }
    for name, plan, parts in (
        ("gate_up", MANY.gate_up, 1),
        ("gate_up_few", _DEEP, 1),
        ("down", MANY.down, 1),
        ("down_t2", FEW[0][1].down, 1),
        ("down_t4", FEW[1][1].down, 1),
        ("down_parts", MANY.down, 2),
    )
    for out, top_k, columns, rows, is_down in (
        ("*fp32", 1, 2048, 7168, True) if name.startswith("down") else ("*bf16", 8, 7168, 4096, False),
    )
)
