"""Top-k of the draft logits with log-probabilities, in two launches (Triton; semantics of `draft_topk`).

Where in the flow: the last step of DRAFT. Letters: B batch rows, L draft horizon, V vocabulary, K = min(k, V).

1. `_partial_kernel`, one program per (chunk of the vocabulary, position, request), reads its logits once: maximum, sum
   of exponentials, and the maximum of every block of 64 consecutive tokens.
2. `_merge_kernel`, one program per row: the K best blocks by their maxima, the K best of their K * 64 logits (read
   again, from the L2 cache), their order by counting, and the log-normaliser.
A token outside the K best blocks (maximum descending, equal maxima by lower block) is beaten by the maxima of K other
blocks, equal ones having lower ids; so both selections are exact, and none ever sees the whole vocabulary.

Selecting needs no sort. Values become order-preserving int32; a bisection that counts in registers finds the K-th
largest (it starts at the previous selection's, which leaves few steps for the second); one scan gives what is above it,
and as many as are missing of its equals in order of id, consecutive places. Only the K survivors are ranked, by 64-bit
keys: the ordered value above the complement of the token id, distinct, hence one result on every device. (A bitonic
top-k of 2,048 such keys has 3,000 instructions a thread in 8 warps: 12,000 cycles for two of them, by issue alone.)

Broken rows: maxima ignore a NaN, sums of exponentials do not, and +inf makes inf - inf; either way the normaliser is
NaN and so are all K log-probabilities of the row. The ids stay legal: padding orders below every value, NaN included.

Floor at V = 163,840, L = 7, K = 64, bf16: 2.3 MB a request (1.15 M exponentials): 0.5 us at batch 1, 8.5 us at batch 16
at 4.4 TB/s (fp32 logits: twice that). On an H200 (`bench-ops`, cold) 15.0 us at batch 1, 26.3 us at batch 16;
predicted 8-14 and 18-30. The first launch is memory-bound at batch 16 (10-18 us) and 3 us of latency at batch 1. The
merge is latency of one program a row, the same at any batch up to 18 (132 rows at once): two scans, three trips to the
L2 cache, and counting steps of about 200 cycles (compare, warp sum, one barrier). On normal logits 8-13 steps select
the blocks, 0 the tokens (7-12 where some of the best share a block); 32 and 32 are the most: 5-9 us. If it misses:
count at four thresholds a step (half the barriers), then fewer warps (`MERGE_WARPS`), then `BLOCK`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

CHUNK = 4096  # tokens a program reads
BLOCK = 64  # tokens whose maximum is kept; balances the two selections: 2,560 blocks, 4,096 tokens
PARTIAL_WARPS = 4
MERGE_WARPS = 16
ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13}  # low bits that are never set in fp32, of either sign's order
MAX_WIDTH = 256  # a wider selection does not stay in registers
MAX_BLOCKS = 16384  # likewise; the scan counts in 16 bits

_PADDING = tl.constexpr(-(2**31))  # below every ordered value, NaN of either sign included
_LARGEST = tl.constexpr(2**31 - 1)
_NO_KEY = tl.constexpr(-(2**63))


@triton.jit
def _ordered(values, ZERO_BITS: tl.constexpr):
    """fp32 to int32 that sorts like it: sign-magnitude to two's complement, -0.0 meets 0.0."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, (bits ^ 0x7FFFFFFF) + 1, bits) >> ZERO_BITS


@triton.jit
def _value(ordered, ZERO_BITS: tl.constexpr):
    ordered = ordered << ZERO_BITS
    bits = tl.where(ordered < 0, (ordered - 1) ^ 0x7FFFFFFF, ordered)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _count(flags):
    return tl.sum(flags.to(tl.int32), axis=0)


@triton.jit
def _kth_largest(ordered, target, guess):
    """A threshold t with count(> t) < target <= count(>= t), or count(>= t) = target; `guess` if that is a lower bound.

    At least `target` of the values are no padding.
    """
    high = tl.max(ordered, axis=0)
    num_high = _count(ordered >= high)
    num_guess = _count(ordered >= guess)
    is_bound = num_guess >= target
    low = tl.where(is_bound, guess, _PADDING + 1)
    num_low = tl.where(is_bound, num_guess, _count(ordered > _PADDING))
    low = tl.where(num_high >= target, high, low)  # K = 1, or all equal: no bisection at all
    while (low < high) & (num_low != target):
        middle = (low | high) - ((low ^ high) >> 1)  # the average, rounded up, without overflow
        num_middle = _count(ordered >= middle)
        is_bound = num_middle >= target
        low = tl.where(is_bound, middle, low)
        num_low = tl.where(is_bound, num_middle, num_low)
        high = tl.where(is_bound, high, middle - 1)
    return low


@triton.jit
def _places(ordered, target, threshold):
    """Places 0 .. target - 1 of the `target` best, in order of position, -1 elsewhere; equal values by position."""
    above = ordered > threshold
    equal = ordered == threshold
    missing = target - _count(above)
    counts = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), axis=0)
    equal_so_far = counts >> 16
    place = (counts & 0xFFFF) + tl.minimum(equal_so_far, missing) - 1
    return tl.where(above | (equal & (equal_so_far <= missing)), place, -1)


@triton.jit
def _partial_kernel(
    logits,  # [B, L, V], last stride 1
    maxima,  # [B * L, chunks] fp32
    sums,  # [B * L, chunks] fp32: sum of exp(logit - maximum)
    block_maxima,  # [B * L, blocks] fp32
    stride_batch,
    stride_position,
    vocab,
    num_blocks,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    chunk = tl.program_id(0)
    position = tl.program_id(1)
    request = tl.program_id(2)
    row = request.to(tl.int64) * tl.num_programs(1) + position
    row_logits = logits + request.to(tl.int64) * stride_batch + position.to(tl.int64) * stride_position
    blocks = chunk * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    wait_for_launch_before(IS_DEPENDENT)
    values = tl.load(row_logits + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)  # [blocks, BLOCK]
    best = tl.max(values, axis=1)
    tl.store(block_maxima + row * num_blocks + blocks, best, mask=blocks < num_blocks)
    maximum = tl.max(best, axis=0)
    shift = tl.where(maximum == -float("inf"), 0.0, maximum)  # a chunk of nothing but -inf sums to 0, not to NaN
    total = tl.sum(tl.sum(tl.exp(values - shift), axis=1), axis=0)
    tl.store(maxima + row * tl.num_programs(0) + chunk, maximum)
    tl.store(sums + row * tl.num_programs(0) + chunk, total)


@triton.jit
def _merge_kernel(
    logits,  # [B, L, V], last stride 1
    maxima,  # [B * L, chunks] fp32
    sums,  # [B * L, chunks] fp32
    block_maxima,  # [B * L, blocks] fp32
    picks,  # [B * L, 2, K] int64: the blocks, then the keys selected, on their way between threads
    log_probs,  # [B, L, K] fp32
    token_ids,  # [B, L, K] int64
    stride_batch,
    stride_position,
    vocab,
    num_blocks,
    num_chunks,
    width,  # K
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # num_blocks up to a power of two
    CHUNKS: tl.constexpr,  # likewise
    WIDTH: tl.constexpr,  # likewise
    ZERO_BITS: tl.constexpr,  # of a logit's fp32 form; the bisection need not look at them
    IS_DEPENDENT: tl.constexpr,
):
    position = tl.program_id(0)
    request = tl.program_id(1)
    row = request.to(tl.int64) * tl.num_programs(0) + position
    row_logits = logits + request.to(tl.int64) * stride_batch + position.to(tl.int64) * stride_position
    picked_blocks = picks + row * 2 * width
    picked_keys = picked_blocks + width
    rank = tl.arange(0, WIDTH)

    block = tl.arange(0, BLOCKS)
    is_block = block < num_blocks
    wait_for_launch_before(IS_DEPENDENT)
    best = tl.load(block_maxima + row * num_blocks + block, mask=is_block, other=0.0)
    ordered = tl.where(is_block, _ordered(best, ZERO_BITS), _PADDING)
    num_picked = tl.minimum(width, num_blocks)
    lowest = tl.min(tl.where(is_block, ordered, _LARGEST), axis=0)
    threshold = _kth_largest(ordered, num_picked, lowest)
    place = _places(ordered, num_picked, threshold)
    tl.store(picked_blocks + place, block.to(tl.int64), mask=place >= 0)
    tl.debug_barrier()

    blocks = tl.load(picked_blocks + rank, mask=rank < num_picked, other=num_blocks).to(tl.int32)  # ascending
    ids = tl.reshape(blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], [WIDTH * BLOCK])
    is_token = ids < vocab
    values = tl.load(row_logits + ids, mask=is_token, other=0.0).to(tl.float32)
    ordered = tl.where(is_token, _ordered(values, ZERO_BITS), _PADDING)
    # The maxima of the picked blocks are K tokens at or above the blocks' threshold.
    threshold = _kth_largest(ordered, width, threshold)
    place = _places(ordered, width, threshold)
    keys = (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - ids.to(tl.int64))
    tl.store(picked_keys + place, keys, mask=place >= 0)
    tl.debug_barrier()
    keys = tl.load(picked_keys + rank, mask=rank < width, other=_NO_KEY)
    place = tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), axis=1)

    chunk = tl.arange(0, CHUNKS)
    is_chunk = chunk < num_chunks
    chunk_maxima = tl.load(maxima + row * num_chunks + chunk, mask=is_chunk, other=-float("inf"))
    chunk_sums = tl.load(sums + row * num_chunks + chunk, mask=is_chunk, other=0.0)
    maximum = tl.max(chunk_maxima, axis=0)
    shift = tl.where(maximum == -float("inf"), 0.0, maximum)
    total = tl.sum(chunk_sums * tl.exp(chunk_maxima - shift), axis=0)
    # fp64: the best token has a term of exactly 1 in the sum, so no log-probability can round to above zero.
    normaliser = maximum.to(tl.float64) + tl.log(total.to(tl.float64))
    top = _value((keys >> 32).to(tl.int32), ZERO_BITS)
    # A row of nothing but -inf has a normaliser of -inf, and -inf - -inf is NaN.
    scores = tl.where(normaliser == -float("inf"), top, (top.to(tl.float64) - normaliser).to(tl.float32))
    tl.store(log_probs + row * width + place, scores, mask=rank < width)
    tl.store(token_ids + row * width + place, 0xFFFFFFFF - (keys & 0xFFFFFFFF), mask=rank < width)


Workspace = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def draft_topk_workspace(logits: torch.Tensor, k: int, *, chunk: int = CHUNK, block: int = BLOCK) -> Workspace:
    """Maxima and sums [B * L, chunks], block maxima [B * L, V / block] fp32, picks [B * L, 2, K] int64."""
    batch, horizon, vocab = logits.shape
    rows, device = batch * horizon, logits.device
    chunk = _chunk(vocab, chunk, block)
    maxima = torch.empty(rows, triton.cdiv(vocab, chunk), dtype=torch.float32, device=device)
    block_maxima = torch.empty(rows, triton.cdiv(vocab, block), dtype=torch.float32, device=device)
    picks = torch.empty(rows, 2, min(k, vocab), dtype=torch.int64, device=device)
    return maxima, torch.empty_like(maxima), block_maxima, picks


def draft_topk_triton(
    logits: torch.Tensor,
    k: int,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: Workspace | None = None,
    chunk: int = CHUNK,
    block: int = BLOCK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, L, V] of any float dtype to (log_probs [B, L, K] fp32, token_ids [B, L, K] int64), best first.

    Equal logits rank by lower token id; -inf stays -inf ("no candidate"); a NaN or +inf logit makes its whole row of
    log-probabilities NaN (`draft_topk.has_nan` tells). `out` (contiguous) and `workspace` (`draft_topk_workspace`
    with the same arguments) may be passed in; nothing is read on the host. k above 256: ValueError.
    """
    _check(logits, k, block)
    batch, horizon, vocab = logits.shape
    width = min(k, vocab)
    if out is None:
        log_probs = torch.empty(batch, horizon, width, dtype=torch.float32, device=logits.device)
        out = log_probs, torch.empty_like(log_probs, dtype=torch.int64)
    _check_out(out, (batch, horizon, width))
    if batch * horizon * width == 0:
        return out
    if workspace is None:
        workspace = draft_topk_workspace(logits, k, chunk=chunk, block=block)
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    strides = logits.stride(0), logits.stride(1)
    chunk = _chunk(vocab, chunk, block)
    num_chunks, num_blocks = triton.cdiv(vocab, chunk), triton.cdiv(vocab, block)
    _partial_kernel[num_chunks, horizon, batch](
        logits, *workspace[:3], *strides, vocab, num_blocks, CHUNK=chunk, BLOCK=block, num_warps=PARTIAL_WARPS,
        **dependence(logits),
    )  # fmt: skip
    _merge_kernel[horizon, batch](
        logits,
        *workspace,
        *out,
        *strides,
        vocab,
        num_blocks,
        num_chunks,
        width,
        BLOCK=block,
        BLOCKS=triton.next_power_of_2(num_blocks),
        CHUNKS=triton.next_power_of_2(num_chunks),
        WIDTH=triton.next_power_of_2(width),
        ZERO_BITS=ZERO_BITS.get(logits.dtype, 0),
        num_warps=MERGE_WARPS,
        **dependence(logits),
    )
    return out


def _chunk(vocab: int, chunk: int, block: int) -> int:
    """Tokens a chunk: a short vocabulary is one shorter chunk."""
    return min(chunk, max(block, triton.next_power_of_2(vocab)))


def _check(logits: torch.Tensor, k: int, block: int) -> None:
    if k < 0:
        raise ValueError(f"k must not be negative: got {k}; pass the node budget or a smaller width")
    vocab = logits.shape[-1]
    if min(k, vocab) > MAX_WIDTH or vocab > MAX_BLOCKS * block:
        raise ValueError(
            f"draft_topk_triton keeps {MAX_WIDTH} of {MAX_BLOCKS * block} tokens at most: got k = {k} of {vocab}; "
            "use draft_topk (torch)"
        )
    if not (logits.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(f"draft_topk_triton runs on a GPU: got logits on {logits.device}; use draft_topk (torch)")


def _check_out(out: tuple[torch.Tensor, torch.Tensor], shape: tuple[int, int, int]) -> None:
    for tensor, dtype in zip(out, (torch.float32, torch.int64), strict=True):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"out must be contiguous log_probs fp32 and token_ids int64 of shape {shape}: "
                f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            )


def _aot_pair(name: str, logits: str, vocab: int, width: int) -> tuple[dict[str, object], ...]:
    """Both kernels of one product shape, as `triton.compile` wants them."""
    chunk = _chunk(vocab, CHUNK, BLOCK)
    given = {"logits": logits, "maxima": "*fp32", "sums": "*fp32", "block_maxima": "*fp32"}
    results = {"picks": "*i64", "log_probs": "*fp32", "token_ids": "*i64"}
    sizes = {"stride_batch": "i32", "stride_position": "i32", "vocab": "i32", "num_blocks": "i32"}
    padded = {
        "BLOCKS": triton.next_power_of_2(triton.cdiv(vocab, BLOCK)),
        "CHUNKS": triton.next_power_of_2(triton.cdiv(vocab, chunk)),
        "WIDTH": width,
        "ZERO_BITS": 16 if logits == "*bf16" else 0,
    }
    return (
        {
            "name": f"draft_topk partial {name}",
            "kernel": _partial_kernel,
            "signature": given | sizes,
            "divisible_by_16": (*given, *sizes),
            "constexprs": {"CHUNK": chunk, "BLOCK": BLOCK, "IS_DEPENDENT": True},
            "num_warps": PARTIAL_WARPS,
            "num_stages": 3,
        },
        {
            "name": f"draft_topk merge {name}",
            "kernel": _merge_kernel,
            "signature": given | results | sizes | {"num_chunks": "i32", "width": "i32"},
            "divisible_by_16": (*given, *results, *sizes),
            "constexprs": {"BLOCK": BLOCK, "IS_DEPENDENT": True} | padded,
            "num_warps": MERGE_WARPS,
            "num_stages": 3,
        },
    )


AOT = (
    *_aot_pair("bf16 V=163840 K=64", "*bf16", 163840, 64),
    *_aot_pair("fp32 V=163840 K=64", "*fp32", 163840, 64),
    *_aot_pair("bf16 V=163840 K=1", "*bf16", 163840, 1),
    *_aot_pair("fp32 V=4096 K=64", "*fp32", 4096, 64),
)
