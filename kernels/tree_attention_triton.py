"""Tree attention on the GPU: N new tokens over a K/V cache, the context split over the whole chip.

What a verify and a draft block run per layer. Query heads that share a KV head and the new tokens together are the rows
of one matrix product (row = token * R + head), so a context row is read once for all nodes and heads. Work is counted
in blocks of `Tile.block` cache rows: the blocks of all KV heads and requests (context and new rows, from the first row
that a window leaves) stand in one line, and each of P programs per query tile takes an equal stretch of it, whatever
the lengths are: no length is read on the host. A stretch may end one request and begin another. Where it holds all of a
request, the result is final; otherwise an fp32 partial (max, sum, values) goes to the workspace, slot `program +
request + B * KV head` of its tile, and a second launch combines. `tree_attention_plan` says how many programs.
Whole blocks below `lengths` are not masked at all; the rest goes in sub-blocks of at most 64 rows, masked by length,
window, and each node's row of ancestor bits, packed in 32-bit words. Rows that no token can see (from lengths + N on,
and before the window) are not read and may hold NaN; the new rows must be finite, as for the torch version. A token
that sees nothing gets zeros. Which blocks meet in one partial depends on the other requests' lengths: company changes
rounding, nothing else. Repeated calls agree bit for bit. All N new rows are visited for every query tile: right for a
prefill, but it wastes half of the work among the new rows.
Letters: B batch rows, N new tokens, S cache rows, H query heads, G KV heads, R = H/G, D head dim, P programs, W words.

Floor, GQA 32/8/128 in bf16: 4,096 bytes of K/V per context row and request, 16,384 N flops. At context 8192 and batch 1
33.5 MB = 7.8 us (4.3 TB/s) whatever N; 1.1 GFLOP = 1.4 us for 8 nodes, 8.6 GFLOP = 11 us for 64 (786 TFLOP/s): memory
binds below 45 nodes, tensor cores above. Batch and context scale both.
Measured on an H200 (CUDA graph, cold cache), this kernel alone: context 8192, batch 16: 133 us for 8 nodes (94 % of the
byte floor), 342 us for 64 (51 % of the flops); batch 1: 14.8 us and 28.5 us. `tree_attention_gluon` serves bf16 of head
dim 128 without a window there: 126, 242, 16.5 and 26.3 us with the combine kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, is_hopper, wait_for_launch_before
from .tree_attention_plan import TILE_32_BIT, TILES_16_BIT, Plan, Tile, tree_attention_plan

WORD = 32  # ancestor bits in one packed word
MAX_PARTS, ROWS_AT_ONCE = 32, 4096  # partials that a combine program has in flight; rows that an H200 combines at once


def pack_visible_triton(visible: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """[B, N, N] bool -> [B, N, ceil(N/32)] int32: bit c of word w of row i says that token i sees token 32w + c.

    Once per forward: all its layers share the result.
    """
    batch, num_new, width = visible.shape
    _require(visible.dtype == torch.bool, f"visible is {visible.dtype}, expected bool")
    _require(num_new == width, f"visible has shape {tuple(visible.shape)}, expected [B, N, N]")
    _check_device(visible, "visible")
    num_words = triton.cdiv(num_new, WORD)
    if out is None:
        out = torch.empty(batch, num_new, num_words, dtype=torch.int32, device=visible.device)
    _check_output(out, (batch, num_new, num_words), torch.int32, "out")
    block_words = triton.next_power_of_2(num_words)
    raw = visible.view(torch.uint8)
    _pack_visible_kernel[(batch * num_new,)](
        raw, out, *raw.stride(), num_new, num_words, BLOCK_W=block_words, num_warps=1, **dependence(visible)
    )
    return out


def tree_attention_triton(
    q: torch.Tensor,  # [B, N, H, D] bf16, fp16 or fp32
    k: torch.Tensor,  # [B, S, G, D]
    v: torch.Tensor,  # [B, S, G, D]
    lengths: torch.Tensor,  # [B] int64 or int32
    visible: torch.Tensor | None,  # [B, N, N] bool
    scale: float,
    window: int | None = None,
    *,
    causal: bool = True,  # of the new tokens among themselves, where neither `visible` nor `packed` is given
    packed: torch.Tensor | None = None,  # `pack_visible_triton(visible)`, or with more words; then `visible` is ignored
    context_bound: int | None = None,  # host integer >= lengths.max(); only the grid depends on it
    out: torch.Tensor | None = None,  # [B, N, H, D], contiguous
    workspace: torch.Tensor | None = None,  # fp32, `workspace_elements` or more
    tile: Tile | None = None,
    programs: int | None = None,
    plan: Plan | None = None,  # takes the place of `tile` and `programs`
) -> torch.Tensor:
    """Attention over exactly the cache rows that the specification names, -> [B, N, H, D] in q's dtype.

    Reads nothing on the host. One launch where no stretch cuts a request, else two; one more to pack `visible` where
    `packed` is missing.
    """
    _check_operands(q, k, v, lengths, scale, window)
    batch, num_new, num_heads, dim = q.shape
    num_kv = k.shape[2]
    if packed is None and visible is not None:
        shape = (batch, num_new, num_new)
        _require(visible.shape == shape, f"visible has shape {tuple(visible.shape)}, expected {shape}")
        packed = pack_visible_triton(visible)
    num_words = triton.cdiv(num_new, WORD) if packed is None else packed.shape[2]
    if packed is not None:
        _require(num_words * WORD >= num_new, f"packed has {num_words} words for {num_new} new tokens")
        _check_output(packed, (batch, num_new, num_words), torch.int32, "packed")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    _check_output(out, q.shape, q.dtype, "out")
    bound = k.shape[1] - num_new if context_bound is None else context_bound
    in_gluon = is_hopper(q) and tile is None and _gluon().suits(q, k, v, window)
    sizes = (batch, num_new, num_heads, num_kv, dim, bound, q.element_size(), _num_sms(q))
    plan = tree_attention_plan(*sizes, tile, programs, in_gluon) if plan is None else plan
    values, peaks, sums = _carve(workspace, plan.partial_rows, dim, q.device)
    mode = 0 if packed is not None else (1 if causal else 2)
    shared: dict[str, Any] = {
        "BLOCK": plan.tile.block,
        "BLOCK_B": triton.next_power_of_2(batch),
        "BLOCK_D": max(16, triton.next_power_of_2(dim)),
        "ROWS": plan.tile.rows,
        "GROUP": num_heads // num_kv,
        "DIM": dim,
        "HEADS": num_heads,
        "WINDOWED": window is not None,
    }
    scale_log2 = scale * math.log2(math.e)
    if in_gluon:
        _gluon().launch(q, k, v, lengths, packed, out, (values, peaks, sums), plan, mode, scale_log2)
    else:
        _tree_attention_kernel[(plan.grid,)](
            *(q, k, v, lengths, q if packed is None else packed, out, values, peaks, sums),
            *(q.stride(0), k.stride(0), v.stride(0)),
            *(batch, num_new, num_words, plan.num_tiles, plan.programs, window or 0, scale_log2),
            *(*q.stride()[1:3], *k.stride()[1:3], *v.stride()[1:3]),
            MODE=mode, SUB=min(plan.tile.block, 64), INTERPRET=triton.knobs.runtime.interpret,
            num_warps=plan.tile.warps, num_stages=plan.tile.stages, **shared, **dependence(q),
        )  # fmt: skip
    if plan.partial_rows > 0:
        # One warp a row: with more, sums over partials cross warps, at twice the time (measured on an H200). Where not
        # all rows are there at once, fewer programs count for more.
        chunk = 1 if num_new * num_heads * batch <= ROWS_AT_ONCE else 4
        parts = triton.next_power_of_2(triton.cdiv(plan.programs, num_kv))
        _tree_attention_combine_kernel[(triton.cdiv(num_new * num_heads, chunk), batch)](
            *(lengths, values, peaks, sums, out, batch, num_new, plan.programs, window or 0),
            CHUNK=chunk, PARTS=min(MAX_PARTS // chunk, parts), num_warps=chunk, **shared, **dependence(q),
        )  # fmt: skip
    return out


def workspace_elements(plan: Plan, dim: int) -> int:
    """fp32 elements that a call with this plan needs; contents need not survive between calls, nor be initialised."""
    return plan.partial_rows * (dim + 2)


def _carve(
    workspace: torch.Tensor | None, partial_rows: int, dim: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values [rows, D], max [rows] and sum [rows] of the partials."""
    size = partial_rows * (dim + 2)
    if workspace is None:
        workspace = torch.empty(max(size, 1), dtype=torch.float32, device=device)
    _require(workspace.dtype == torch.float32, f"workspace is {workspace.dtype}, expected float32")
    _require(workspace.is_contiguous(), "workspace must be contiguous")
    _require(workspace.numel() >= size, f"workspace has {workspace.numel()} elements, this call needs {size}")
    flat, split = workspace.view(-1), partial_rows * dim
    return flat[:split], flat[split : split + partial_rows], flat[split + partial_rows : size]


def _gluon() -> Any:
    """Imported where a GPU of its kind is there."""
    from . import tree_attention_gluon

    return tree_attention_gluon


def _num_sms(tensor: torch.Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 4


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"tree_attention_triton: {what}")


def _check_device(tensor: torch.Tensor, name: str) -> None:
    _require(
        tensor.is_cuda or triton.knobs.runtime.interpret,
        f"{name} is on '{tensor.device}', and Triton kernels need a CUDA tensor (or TRITON_INTERPRET=1, set before "
        "triton is imported); use the torch implementation on a CPU",
    )


def _check_output(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    _require(tensor.shape == shape, f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    _require(tensor.dtype == dtype, f"{name} is {tensor.dtype}, expected {dtype}")
    _require(tensor.is_contiguous(), f"{name} must be contiguous")


def _check_operands(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, scale: float, window: int | None
) -> None:
    _check_device(q, "q")
    batch, num_new, num_heads, dim = q.shape
    types, cache = (torch.bfloat16, torch.float16, torch.float32), (batch, *k.shape[1:3], dim)
    _require(q.dtype in types, f"q is {q.dtype}, expected bfloat16, float16 or float32")
    _require(k.dtype == v.dtype == q.dtype, f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}, expected one type")
    shapes = f"{tuple(k.shape)} and {tuple(v.shape)}"
    _require(k.shape == v.shape == cache, f"k and v have shapes {shapes}, expected {cache}")
    _require(dim <= 128, f"head dim is {dim}, at most 128 fits; use the torch implementation")
    _require(num_heads % k.shape[2] == 0, f"{num_heads} query heads do not divide among {k.shape[2]} KV heads")
    _require(k.shape[1] >= num_new > 0, f"cache has {k.shape[1]} rows, and {num_new} new tokens stand in it")
    _require(q.stride(3) == k.stride(3) == v.stride(3) == 1, "q, k and v must have unit stride along the head dim")
    _require(k.shape[1] * max(k.stride(1), v.stride(1)) < 2**31, "a request's cache spans 2^31 elements or more")
    _require(lengths.shape == (batch,), f"lengths has shape {tuple(lengths.shape)}, expected [{batch}]")
    _require(lengths.is_contiguous(), "lengths must be contiguous")
    _require(scale > 0, f"scale is {scale}, expected a positive number")
    _require(window is None or window > 0, f"window is {window}, expected a positive number or None")


@triton.jit(do_not_specialize=("stride_b", "stride_n", "num_new", "num_words"))
def _pack_visible_kernel(
    visible, packed, stride_b, stride_n, stride_c, num_new, num_words, BLOCK_W: tl.constexpr, IS_DEPENDENT: tl.constexpr
):  # fmt: skip
    """One program per (request, token): 32 bytes make one word."""
    request, token = tl.program_id(0) // num_new, tl.program_id(0) % num_new
    words, bits = tl.arange(0, BLOCK_W), tl.arange(0, 32)
    column = words[:, None] * 32 + bits[None, :]
    row = visible + tl.cast(request, tl.int64) * stride_b + token * stride_n
    wait_for_launch_before(IS_DEPENDENT)
    seen = tl.load(row + column * stride_c, mask=column < num_new, other=0) != 0
    word = tl.sum(tl.where(seen, tl.full([1, 1], 1, tl.int64) << bits[None, :].to(tl.int64), 0), axis=1)
    tl.store(packed + tl.program_id(0) * num_words + words, word.to(tl.int32), mask=words < num_words)


@triton.jit
def _line_of_blocks(
    lengths, batch, num_new, window, BLOCK: tl.constexpr, BLOCK_B: tl.constexpr, WINDOWED: tl.constexpr
):  # fmt: skip
    """-> blocks [BLOCK_B] of each request for one KV head, their running sum, and their number."""
    index = tl.arange(0, BLOCK_B)
    length = tl.load(lengths + index, mask=index < batch, other=0).to(tl.int32)
    blocks = (length + num_new + BLOCK - 1) // BLOCK
    if WINDOWED:
        blocks -= tl.maximum(length - window + 1, 0) // BLOCK
    blocks = tl.where(index < batch, blocks, 0)
    return blocks, tl.cumsum(blocks, axis=0), tl.sum(blocks, axis=0)


@triton.jit
def _product(a, b, INTERPRET: tl.constexpr):
    if INTERPRET:  # the interpreter's bf16 products are wrong
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _fold(
    q, k, v, sees, values, peak, total, log2_scale, MASKED: tl.constexpr, INTERPRET: tl.constexpr
):  # fmt: skip
    """One step of the online softmax, in powers of two. `peak` is -inf for rows that have seen nothing yet."""
    scores = _product(q, tl.trans(k), INTERPRET)
    if MASKED:
        scores = tl.where(sees, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1) * log2_scale)
    if MASKED:
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    else:
        shift = new_peak
    weights = tl.exp2(scores * log2_scale - shift[:, None])
    keep = tl.exp2(peak - shift)
    total = total * keep + tl.sum(weights, axis=1)
    values = values * keep[:, None]
    if INTERPRET:
        values += tl.dot(weights, v.to(tl.float32), input_precision="ieee")
    else:
        values = tl.dot(weights.to(v.dtype), v, values, input_precision="ieee")
    return values, new_peak, total


@triton.jit
def _ancestor_bits(packed, row_valid, num_words, offset):
    """The 64 bits of each row that start at new token `offset` (negative in the context: zeros), as two words."""
    first = offset >> 5
    shift = (offset & 31).to(tl.uint64)
    w0 = tl.load(packed + first, mask=row_valid & (first >= 0) & (first < num_words), other=0)
    w1 = tl.load(packed + first + 1, mask=row_valid & (first >= -1) & (first + 1 < num_words), other=0)
    w2 = tl.load(packed + first + 2, mask=row_valid & (first >= -2) & (first + 2 < num_words), other=0)
    u0 = w0.to(tl.uint32, bitcast=True).to(tl.uint64)
    u1 = w1.to(tl.uint32, bitcast=True).to(tl.uint64)
    u2 = w2.to(tl.uint32, bitcast=True).to(tl.uint64)
    low = ((u0 | (u1 << 32)) >> shift).to(tl.uint32)
    high = ((u1 | (u2 << 32)) >> shift).to(tl.uint32)
    return low, high


@triton.jit(do_not_specialize=("batch", "num_new", "num_words", "num_tiles", "programs", "window"))
def _tree_attention_kernel(
    q_ptr,  # [B, N, H, D]
    k_ptr,  # [B, S, G, D]
    v_ptr,
    lengths,  # [B]
    packed,  # [B, N, W] int32, where MODE is 0
    out,  # [B, N, H, D]
    partial_values,  # per tile [programs + G*B - 1, ROWS, D] fp32, tile after tile
    partial_peaks,  # per tile [programs + G*B - 1, ROWS]
    partial_sums,
    stride_qb, stride_kb, stride_vb,
    batch, num_new, num_words, num_tiles, programs, window,
    log2_scale,  # scale * log2(e)
    # A model's strides, compiled in: addresses of a tile are then one register and immediates.
    STRIDE_QN: tl.constexpr, STRIDE_QH: tl.constexpr,
    STRIDE_KS: tl.constexpr, STRIDE_KG: tl.constexpr,
    STRIDE_VS: tl.constexpr, STRIDE_VG: tl.constexpr,
    HEADS: tl.constexpr,
    MODE: tl.constexpr,  # among new tokens: 0 packed bits, 1 causal, 2 all
    SUB: tl.constexpr,  # cache rows of a masked step, divides BLOCK, at most 64
    INTERPRET: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WINDOWED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (stretch of the line, query tile): tiles in turn, so that those that read the same rows run together."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    tile, program = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    slot_base = tile * (programs + KV_HEADS * batch - 1) + program
    wait_for_launch_before(IS_DEPENDENT)
    blocks, ends, line = _line_of_blocks(lengths, batch, num_new, window, BLOCK, BLOCK_B, WINDOWED)
    own = tl.minimum(programs, KV_HEADS * line)
    begin = program * (KV_HEADS * line) // own
    left = tl.where(program < own, (program + 1) * (KV_HEADS * line) // own - begin, 0)
    group = begin // line
    begin -= group * line
    request = tl.sum((ends <= begin).to(tl.int32), axis=0)
    passed = begin - tl.sum(tl.where(ends <= begin, blocks, 0), axis=0)  # blocks of the request before the stretch

    while left > 0:
        wide = tl.cast(request, tl.int64)
        length = tl.load(lengths + request).to(tl.int32)
        # A zero that the compiler cannot see through: or else it works out the addresses of q, out and the partials
        # once, before this loop, keeps them in registers through the products, and spills (ptxas, sm_90).
        zero = tl.minimum(length, 0)
        row = tile * ROWS + zero + tl.arange(0, ROWS)
        node, head = row // GROUP, group * GROUP + row % GROUP
        row_valid = node < num_new
        dims = tl.arange(0, BLOCK_D)
        dim_valid = dims < DIM
        q_row = q_ptr + node[:, None] * STRIDE_QN + head[:, None] * STRIDE_QH + dims[None, :]
        skipped = 0
        unmasked = 0  # first block that no window masks
        if WINDOWED:
            skipped = tl.maximum(length - window + 1, 0) // BLOCK
            unmasked = (tl.maximum(length + num_new - window, 0) + BLOCK - 1) // BLOCK
        num_blocks = (length + num_new + BLOCK - 1) // BLOCK - skipped
        low = skipped + passed
        high = skipped + tl.minimum(passed + left, num_blocks)
        full_low = tl.minimum(tl.maximum(low, unmasked), high)
        full_high = tl.maximum(tl.minimum(high, length // BLOCK), full_low)

        q = tl.load(q_row + wide * stride_qb, mask=row_valid[:, None] & dim_valid[None, :], other=0.0)
        k_base = k_ptr + wide * stride_kb + group * STRIDE_KG
        v_base = v_ptr + wide * stride_vb + group * STRIDE_VG
        values = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
        peak = tl.full([ROWS], float("-inf"), dtype=tl.float32)
        total = tl.zeros([ROWS], dtype=tl.float32)

        columns = tl.arange(0, BLOCK)
        for block in range(full_low, full_high):
            k_tile = k_base + block * BLOCK * STRIDE_KS + columns[:, None] * STRIDE_KS + dims[None, :]
            v_tile = v_base + block * BLOCK * STRIDE_VS + columns[:, None] * STRIDE_VS + dims[None, :]
            if BLOCK_D == DIM:
                k = tl.load(k_tile)
                v = tl.load(v_tile)
            else:
                k = tl.load(k_tile, mask=dim_valid[None, :], other=0.0)
                v = tl.load(v_tile, mask=dim_valid[None, :], other=0.0)
            values, peak, total = _fold(q, k, v, None, values, peak, total, log2_scale, False, INTERPRET)

        # What is left: sub-blocks [low, full_low) that a window cuts, then those from the context's last rows on.
        cuts: tl.constexpr = BLOCK // SUB
        num_head = (full_low - low) * cuts
        num_tail = tl.minimum(high * cuts, (length + num_new + SUB - 1) // SUB) - full_high * cuts
        part = tl.arange(0, SUB)
        for step in tl.range(0, num_head + tl.maximum(num_tail, 0), num_stages=2):
            sub = tl.where(step < num_head, low * cuts + step, full_high * cuts + step - num_head)
            start = sub * SUB
            offset = start - length
            among = offset + part  # index among the new tokens; negative in the context
            inside = among < num_new
            k_tile = k_base + start * STRIDE_KS + part[:, None] * STRIDE_KS + dims[None, :]
            v_tile = v_base + start * STRIDE_VS + part[:, None] * STRIDE_VS + dims[None, :]
            there = inside[:, None]  # what nobody sees is not read
            if WINDOWED:
                there &= (among > -window)[:, None]
            if BLOCK_D != DIM:
                there &= dim_valid[None, :]
            k = tl.load(k_tile, mask=there, other=0.0)
            v = tl.load(v_tile, mask=there, other=0.0)
            if MODE == 0:
                bits_row = packed + (wide * num_new + node) * num_words
                word_low, word_high = _ancestor_bits(bits_row, row_valid, num_words, offset)
                word = tl.where(part[None, :] < 32, word_low[:, None], word_high[:, None])
                sees = ((word >> (part[None, :] & 31).to(tl.uint32)) & 1) != 0
            elif MODE == 1:
                sees = (among[None, :] <= node[:, None]) & inside[None, :]
            else:
                sees = inside[None, :]
            if WINDOWED:
                sees = tl.where(among[None, :] < 0, node[:, None] - among[None, :] < window, sees)
            else:
                sees = (among[None, :] < 0) | sees
            values, peak, total = _fold(q, k, v, sees, values, peak, total, log2_scale, True, INTERPRET)

        stored = row_valid[:, None] & dim_valid[None, :]
        if high - low == num_blocks:
            values = values / tl.where(total == 0, 1.0, total)[:, None]
            out_row = out + ((wide * num_new + node) * HEADS + head)[:, None] * DIM + dims[None, :]
            tl.store(out_row, values.to(out.dtype.element_ty), mask=stored)
        else:
            slot_row = (tl.cast(slot_base + group * batch + request, tl.int64) - tile) * ROWS + row
            tl.store(partial_values + slot_row[:, None] * DIM + dims[None, :], values, mask=stored)
            tl.store(partial_peaks + slot_row, peak, mask=row_valid)
            tl.store(partial_sums + slot_row, total, mask=row_valid)
        left -= high - low
        passed = 0
        group += (request + 1) // batch
        request = (request + 1) % batch


@triton.jit(do_not_specialize=("batch", "num_new", "programs", "window"))
def _tree_attention_combine_kernel(
    lengths,
    partial_values,
    partial_peaks,
    partial_sums,
    out,  # [B, N, H, D]
    batch, num_new, programs, window,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WINDOWED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,  # launched while the partials are still being written
):  # fmt: skip
    """Program (CHUNK of the N * H rows of out, request): the partials of a request that lies in several stretches."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    request = tl.program_id(1)  # lengths are not of the launch before, which is this launcher's
    flat = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    node, head = flat // HEADS, flat % HEADS
    tile_row = node * GROUP + head % GROUP
    tile, group = tile_row // ROWS, head // GROUP
    blocks, _, line = _line_of_blocks(lengths, batch, num_new, window, BLOCK, BLOCK_B, WINDOWED)
    index = tl.arange(0, BLOCK_B)
    begin = group * line + tl.sum(tl.where(index < request, blocks, 0), axis=0)
    end = group * line + tl.sum(tl.where(index <= request, blocks, 0), axis=0)
    # Program p has blocks p*T//P up to (p+1)*T//P: the one that has block s is the largest p with p*T < (s+1)*P.
    own = tl.minimum(programs, KV_HEADS * line)
    first = ((begin + 1) * own - 1) // (KV_HEADS * line)
    last = (end * own - 1) // (KV_HEADS * line)
    is_cut = (last > first) & (node < num_new)
    longest = tl.max(tl.where(is_cut, last - first + 1, 0), axis=0)
    slot_base = tl.cast(tile * (programs + KV_HEADS * batch - 1) + group * batch + request, tl.int64)
    row_base = slot_base * ROWS + tile_row % ROWS
    wait_for_launch_before(IS_DEPENDENT)
    if longest > 0:
        dims = tl.arange(0, BLOCK_D)
        dim_valid = dims < DIM
        values = tl.zeros([CHUNK, BLOCK_D], dtype=tl.float32)
        peak = tl.full([CHUNK], float("-inf"), dtype=tl.float32)
        total = tl.zeros([CHUNK], dtype=tl.float32)
        for base in range(0, longest, PARTS):
            program = first[:, None] + base + tl.arange(0, PARTS)[None, :]  # [CHUNK, PARTS]
            slot_row = row_base[:, None] + program * ROWS
            there = (program <= last[:, None]) & is_cut[:, None]
            peaks = tl.load(partial_peaks + slot_row, mask=there, other=float("-inf"))
            sums = tl.load(partial_sums + slot_row, mask=there, other=0.0)
            parts = tl.load(
                partial_values + slot_row[:, :, None] * DIM + dims[None, None, :],
                mask=there[:, :, None] & dim_valid[None, None, :],
                other=0.0,
            )
            new_peak = tl.maximum(peak, tl.max(peaks, axis=1))
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weights = tl.exp2(peaks - shift[:, None])
            keep = tl.exp2(peak - shift)
            total = total * keep + tl.sum(weights * sums, axis=1)
            values = values * keep[:, None] + tl.sum(weights[:, :, None] * parts, axis=1)
            peak = new_peak
        values = values / tl.where(total == 0, 1.0, total)[:, None]
        out_row = out + (tl.cast(request, tl.int64) * num_new * HEADS + flat)[:, None] * DIM + dims[None, :]
        tl.store(out_row, values.to(out.dtype.element_ty), mask=is_cut[:, None] & dim_valid[None, :])


_STRIDES = ("stride_qb", "stride_kb", "stride_vb")
_COUNTS = ("batch", "num_new", "num_words", "num_tiles", "programs", "window")
_PARTIALS = ("partial_values", "partial_peaks", "partial_sums")


def _attention_entry(
    name: str, tile: Tile, heads: int, group: int, dim: int, mode: int, dtype: str, windowed: bool
) -> dict:
    tensors = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), f"*{dtype}") | {"lengths": "*i64", "packed": "*i32"}
    tensors |= {"out": f"*{dtype}"} | dict.fromkeys(_PARTIALS, "*fp32")
    constexprs = {"MODE": mode, "SUB": min(tile.block, 64), "INTERPRET": False, "BLOCK": tile.block, "BLOCK_B": 16}
    constexprs |= {"BLOCK_D": dim, "ROWS": tile.rows, "GROUP": group, "DIM": dim, "WINDOWED": windowed}
    constexprs |= {"IS_DEPENDENT": True, "STRIDE_QN": heads * dim, "HEADS": heads} | dict.fromkeys(
        ("STRIDE_QH", "STRIDE_KG", "STRIDE_VG"), dim
    )
    constexprs |= dict.fromkeys(("STRIDE_KS", "STRIDE_VS"), heads // group * dim)
    return {
        "name": name,
        "kernel": _tree_attention_kernel,
        "signature": tensors | dict.fromkeys((*_STRIDES, *_COUNTS), "i32") | {"log2_scale": "fp32"},
        "divisible_by_16": (*tensors, *_STRIDES),  # as at run time: wide, asynchronous loads
        "constexprs": constexprs,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


AOT = (
    _attention_entry("verify, GQA 32/8/128, up to 16 nodes", TILES_16_BIT["narrow"], 32, 4, 128, 0, "bf16", False),
    _attention_entry("verify, GQA 32/8/128, 17-64 nodes", TILES_16_BIT["wide"], 32, 4, 128, 0, "bf16", False),
    _attention_entry("verify, GQA 9/3/64, few requests", TILES_16_BIT["narrow"], 9, 3, 64, 0, "bf16", False),
    _attention_entry("draft block, GQA 64/8/128, windowed", TILES_16_BIT["narrow"], 64, 8, 128, 2, "bf16", True),
    _attention_entry("nano-k2 draft block, GQA 8/4/32, fp32", TILE_32_BIT, 8, 2, 32, 2, "fp32", True),
    {
        "name": "combine, GQA 32/8/128",
        "kernel": _tree_attention_combine_kernel,
        "signature": {"lengths": "*i64"}
        | dict.fromkeys(_PARTIALS, "*fp32")
        | {"out": "*bf16"}
        | dict.fromkeys(("batch", "num_new", "programs", "window"), "i32"),
        "divisible_by_16": ("lengths", *_PARTIALS, "out"),
        "constexprs": {"CHUNK": 1, "PARTS": 32, "BLOCK": 64, "BLOCK_B": 16, "BLOCK_D": 128, "IS_DEPENDENT": True}
        | {"ROWS": 64, "GROUP": 4, "DIM": 128, "HEADS": 32, "WINDOWED": False},
        "num_warps": 1,
        "num_stages": 3,
    },
    {
        "name": "pack visible, up to 64 nodes",
        "kernel": _pack_visible_kernel,
        "signature": {"visible": "*u8", "packed": "*i32"}
        | dict.fromkeys(("stride_b", "stride_n", "stride_c", "num_new", "num_words"), "i32"),
        "divisible_by_16": (),
        "constexprs": {"BLOCK_W": 2, "IS_DEPENDENT": True},
        "num_warps": 1,
        "num_stages": 3,
    },
)
