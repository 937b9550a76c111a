"""The draft without a model in one launch: the text searched, the logits written (semantics of `prompt_lookup`).

Where in the flow: DRAFT, in place of a drafter. In plain torch it is 32 or 33 launches, 50 to 85 us on an H200.
Letters: B batch rows, L draft horizon, V vocabulary, S tokens a row has room for.

A program writes -inf to its part of a request's L * V logits, which lie together; searches the request's text, as far
as the anchor, for the best match (its length above its position in one integer); and writes 0 where a proposed token
falls into its part. Stores are on their way while the search waits for its loads. So every program of a request
searches the same text. In two launches one program would, but the logits would wait for it and for a launch more, a
microsecond or two, and most of the time that the search takes is waiting, the same for one program as for all. What
it takes besides is bounded by the number of programs, which is that of a single wave whatever the batch: at batch 16
and 2,048 tokens they read 8 MB from the L2 cache, beside 73 MB of logits of Kimi-K2.6 written.

Floor, V = 163,840, L = 7: 4.6 MB a request written, 1.0 us at batch 1 and 16.7 us at batch 16 at 4.4 TB/s; below a
megabyte one launch, about 1.5 us. Measured on an H200 (`bench-ops`, cold, in a graph): 5.3 us at batch 1, 21 us at 16,
nano-k2 (V = 4,096) 3.4 and 3.8 us; predicted 3 to 4 (a chain of three loads: length, text, proposals; then a store), 18
to 22, and 2.5 to 3.5: loads of a cold text take longer (hot, 4.0 us at batch 1, nano-k2 2.3 and 2.6). Predicted, not
measured: another 0.5 us for every BLOCK_S tokens of context beyond the first. Not tried: the first block of the text
asked for ahead of the stores; the search backwards, which may end at the first 3-gram.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

BLOCK_V = 4096  # logits a program writes at a time, 16 KB
BLOCK_S = 2048  # tokens it looks at at a time, 8 a thread
PROGRAMS = 528  # at most, if there are no more requests: one wave of four for each of 132 multiprocessors
NUM_WARPS = 8
MOST_TOKENS = 2**28  # positions that leave room for a match's length in 32 bits
MOST_LOGITS = 2**30  # of a request, counted in 32 bits

_LENGTH_SHIFT = tl.constexpr(28)
_POSITION = tl.constexpr(2**28 - 1)


@triton.jit(do_not_specialize=["horizon", "steps"])
def _prompt_lookup_kernel(
    tokens_ptr,  # [B, S], last stride 1
    lengths_ptr,  # [B]
    logits_ptr,  # [B, L, V]
    row_stride,  # of tokens
    vocab,
    size,  # L * V
    horizon,
    steps,  # of BLOCK_V logits
    BLOCK_V: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_L: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Grid: parts of a request's logits, requests."""
    request = tl.program_id(1).to(tl.int64)
    text = tokens_ptr + request * row_stride
    logits = logits_ptr + request * size
    first = tl.program_id(0) * steps * BLOCK_V
    offset = first + tl.arange(0, BLOCK_V)
    wait_for_launch_before(IS_DEPENDENT)
    length = tl.load(lengths_ptr + request).to(tl.int32)
    for _ in range(steps):
        tl.store(logits + offset, tl.full([BLOCK_V], float("-inf"), tl.float32), mask=offset < size)
        offset += BLOCK_V

    last = tl.load(text + length)
    before = tl.load(text + length - 1, mask=length >= 1, other=-1)
    earliest = tl.load(text + length - 2, mask=length >= 2, other=-1)
    best = tl.full([BLOCK_S], -1, tl.int32)
    start = 0
    while start < length:
        place = start + tl.arange(0, BLOCK_S)  # where an earlier n-gram could end
        one = place < length
        one &= tl.load(text + place, mask=one, other=-1) == last
        two = one & (place >= 1)  # few are left to be looked at
        two &= tl.load(text + place - 1, mask=two, other=-1) == before
        three = two & (place >= 2)
        three &= tl.load(text + place - 2, mask=three, other=-1) == earliest
        matched = one.to(tl.int32) + two.to(tl.int32) + three.to(tl.int32)
        best = tl.maximum(best, tl.where(one, (matched << _LENGTH_SHIFT) | place, -1))  # longer first, then later
        start += BLOCK_S
    found = tl.max(best, 0)

    position = tl.arange(0, BLOCK_L)
    source = (found & _POSITION) + 1 + position
    is_known = (found >= 0) & (position < horizon) & (source <= length)
    target = position * vocab + tl.load(text + source, mask=is_known, other=0).to(tl.int32)
    is_mine = is_known & (target >= first) & (target < first + steps * BLOCK_V)
    tl.debug_barrier()  # every thread has written its part before any thread writes into another's
    tl.store(logits + target, tl.zeros([BLOCK_L], tl.float32), mask=is_mine)


def prompt_lookup_triton(
    tokens: torch.Tensor,  # [B, S] int64, last stride 1; nothing behind the anchor is read
    lengths: torch.Tensor,  # [B] int64 position of the anchor
    horizon: int,  # L
    vocab: int,  # V
    context_bound: int,  # of no use here: the search ends at the anchor
    *,
    out: torch.Tensor | None = None,  # [B, L, V] fp32, contiguous, to be written
) -> torch.Tensor:
    """-> logits [B, L, V] fp32: 0 at the proposed token of each position, -inf elsewhere."""
    batch = tokens.shape[0]
    if out is None:
        out = torch.empty(batch, horizon, vocab, dtype=torch.float32, device=tokens.device)
    _check(tokens, lengths, out, (batch, horizon, vocab))
    size = horizon * vocab
    if batch * size == 0:
        return out
    programs, steps = _split(size, batch)
    _prompt_lookup_kernel[(programs, batch)](
        tokens, lengths, out, tokens.stride(0), vocab, size, horizon, steps, BLOCK_V=BLOCK_V, BLOCK_S=BLOCK_S,
        BLOCK_L=triton.next_power_of_2(horizon), num_warps=NUM_WARPS, **dependence(tokens),
    )  # fmt: skip
    return out


def _split(size: int, batch: int) -> tuple[int, int]:
    """-> programs of a request, and the steps of BLOCK_V logits that each takes."""
    tiles = triton.cdiv(size, BLOCK_V)
    steps = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // batch)))
    return triton.cdiv(tiles, steps), steps


def _check(tokens: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor, shape: tuple[int, int, int]) -> None:
    if not (tokens.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"prompt_lookup_triton: tokens are on {tokens.device}, need a CUDA device; "
            "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
        )
    if out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(
            f"prompt_lookup_triton: out must be contiguous fp32 of shape {shape}: "
            f"got {out.dtype} {tuple(out.shape)} with strides {out.stride()}"
        )
    if tokens.stride(1) != 1 or not lengths.is_contiguous():
        raise ValueError(f"prompt_lookup_triton: a text must lie together: strides {tokens.stride(), lengths.stride()}")
    assert tokens.dtype == lengths.dtype == torch.int64, f"tokens {tokens.dtype}, lengths {lengths.dtype}"
    assert lengths.shape == shape[:1], f"lengths {tuple(lengths.shape)}, tokens {tuple(tokens.shape)}"
    assert tokens.shape[1] <= MOST_TOKENS, f"{tokens.shape[1]} tokens, {MOST_TOKENS} at most"
    assert shape[1] * shape[2] <= MOST_LOGITS, f"{shape[1]} rows of {shape[2]} logits, {MOST_LOGITS} at most"


_POINTERS = {"tokens_ptr": "*i64", "lengths_ptr": "*i64", "logits_ptr": "*fp32"}
_SIGNATURE = {**_POINTERS, **dict.fromkeys(("row_stride", "vocab", "size", "horizon", "steps"), "i32")}


def _entry(name: str, multiples: tuple[str, ...], block_l: int) -> dict[str, Any]:
    return {
        "name": name,
        "kernel": _prompt_lookup_kernel,
        "signature": _SIGNATURE,
        "constexprs": {"BLOCK_V": BLOCK_V, "BLOCK_S": BLOCK_S, "BLOCK_L": block_l, "IS_DEPENDENT": True},
        "num_warps": NUM_WARPS,
        "num_stages": 3,
        "divisible_by_16": (*_POINTERS, *multiples),
    }


AOT = (
    _entry("h7", ("vocab", "size"), 8),
    _entry("h7 rows of 16 tokens", ("vocab", "size", "row_stride"), 8),
    _entry("h15 odd vocabulary", (), 16),
)
