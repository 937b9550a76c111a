"""Acceptance in one launch: the walk down the draft tree and the cut; and the greedy posterior that precedes the walk.

Where in the flow: ACCEPT, after the target's forward over all nodes.
Letters: B batch rows, N node slots (slot 0 the root = anchor), L draft horizon, P = L + 1, V vocabulary, Q stop ids.

Walk: one program per request, everything in registers. A node whose token is not its parent's posterior token points at
itself, every other one at its parent; after ceil(log2 L) pointer doublings exactly the visited nodes point at the root.
Siblings differ, so these are one path, in index order, and a running count gives each its place. Unused slots point at
themselves too: what they hold is compared, never followed.
Floor: B = 16, N = 65: 26 KB read, 4 KB written: nothing; the chain launch - loads - shuffles - stores binds.
Measured on an H200 (`bench-ops`, cold, in a graph, cut included): 3.3 us at batch 1, 3.4 us at 16; predicted: 4 us. If
it misses: the four loads of a program must leave together (no load may wait for `num_nodes`), one warp up to 128 slots
(no barrier).

Greedy posterior: argmax over V of every node's logits in one pass, ties to the lower id. A row is split into chunks,
one program each; a second launch merges them (a packed atomic maximum would need a launch to clear it, so saves none).
Floor: every logit once: 65 nodes x 163,840 x 2 B = 21 MB or 4.8 us at 4.4 TB/s, 16 requests 341 MB or 77 us.
Predicted 8 and 85 us, measured there (33 nodes, batch 1 and 16): 7.6 and 89 us: DRAM binds, two launches of 1.5 us.
With `num_nodes` rows of unused slots are not read. If it misses: more bytes in flight (BLOCK_V 8192), then tiles loaded
two steps ahead.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

BLOCK_V = 4096  # logits a program looks at in one step: 16 per thread, two 16-byte loads
PROGRAMS = 1056  # enough to fill 132 multiprocessors with two rounds of four programs


@triton.jit
def _cut(length, until_stop, remaining_ptr, num_emitted_ptr, finished_ptr, request):
    """Write how many of `length` tokens are emitted, up to the first stop token at most, and whether all is done."""
    remaining = tl.load(remaining_ptr + request)
    count = tl.minimum(tl.minimum(length, until_stop).to(tl.int64), tl.maximum(remaining, 0))
    finished = (count == until_stop) | (count >= remaining)
    tl.store(num_emitted_ptr + request, count)
    tl.store(finished_ptr + request, finished.to(tl.uint8))


@triton.jit(do_not_specialize=["slots", "width"])
def _accept_walk_kernel(
    tokens_ptr,  # [B, N]
    parents_ptr,  # [B, N]
    num_nodes_ptr,  # [B]
    posterior_ptr,  # [B, N]
    stop_ids_ptr,  # [B, Q], read with IS_CUT only, as is the next
    remaining_ptr,  # [B]
    path_ptr,  # [B, P]
    num_accepted_ptr,  # [B]
    emitted_ptr,  # [B, P]
    num_emitted_ptr,  # [B]
    finished_ptr,  # [B] uint8, written with IS_CUT only
    slots,
    width,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    NUM_STOPS: tl.constexpr,
    IS_CUT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK_N)
    is_slot = index < slots
    at = request * slots + index
    wait_for_launch_before(IS_DEPENDENT)
    num_nodes = tl.load(num_nodes_ptr + request)
    tokens = tl.load(tokens_ptr + at, mask=is_slot, other=-1)
    parents = tl.load(parents_ptr + at, mask=is_slot, other=-1)
    posterior = tl.load(posterior_ptr + at, mask=is_slot, other=-1)

    used = is_slot & (index > 0) & (index <= num_nodes) & (parents >= 0) & (parents < index)
    parent = tl.where(used, parents, 0).to(tl.int32)
    drawn = tl.gather(posterior, parent, 0)
    jump = tl.where(used & (drawn == tokens), parent, index)
    for _ in tl.static_range(DOUBLINGS):
        jump = tl.gather(jump, jump, 0)
    visited = is_slot & (jump == 0)

    place = tl.cumsum(visited.to(tl.int32), 0) - 1  # of a visited node on the path
    length = tl.sum(visited.to(tl.int32), 0)
    out = request * width
    is_written = visited & (place < width)
    tl.store(path_ptr + out + place, index.to(tl.int64), mask=is_written)
    tl.store(emitted_ptr + out + place, posterior, mask=is_written)
    pad = tl.arange(0, BLOCK_P)
    is_pad = (pad >= length) & (pad < width)
    nothing = tl.full([BLOCK_P], -1, tl.int64)
    tl.store(path_ptr + out + pad, nothing, mask=is_pad)
    tl.store(emitted_ptr + out + pad, nothing, mask=is_pad)
    tl.store(num_accepted_ptr + request, (length - 1).to(tl.int64))
    if IS_CUT:
        is_stop = index < 0
        for q in tl.static_range(NUM_STOPS):
            stop = tl.load(stop_ids_ptr + request * NUM_STOPS + q)
            is_stop = is_stop | ((posterior == stop) & (stop >= 0))
        until_stop = tl.min(tl.where(visited & is_stop, place + 1, width + 1), 0)
        _cut(length, until_stop, remaining_ptr, num_emitted_ptr, finished_ptr, request)
    else:
        tl.store(num_emitted_ptr + request, length.to(tl.int64))


@triton.jit(do_not_specialize=["steps", "num_chunks", "slots"])
def _argmax_chunk_kernel(
    logits_ptr,  # [B*N, V]
    num_nodes_ptr,  # [B], read with HAS_COUNTS only
    value_ptr,  # [B*N, chunks] fp32
    index_ptr,  # [B*N, chunks] int32
    row_stride,
    vocab,
    steps,
    num_chunks,
    slots,
    HAS_COUNTS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    wait_for_launch_before(IS_DEPENDENT)
    if HAS_COUNTS:
        request = row // slots
        if row - request * slots > tl.load(num_nodes_ptr + request):
            return  # an unused slot: nobody reads what stands there
    column = chunk * steps * BLOCK_V + tl.arange(0, BLOCK_V)
    best = tl.full([BLOCK_V], float("-inf"), tl.float32)
    index = column
    for _ in range(steps):
        x = tl.load(logits_ptr + row * row_stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
        x = tl.where(x != x, float("inf"), x)  # a NaN is chosen, as torch does, so that it shows
        is_better = x > best  # of equals the earlier one stays
        best = tl.where(is_better, x, best)
        index = tl.where(is_better, column, index)
        column += BLOCK_V
    highest = tl.max(best, 0)
    out = row * num_chunks + chunk
    tl.store(value_ptr + out, highest)
    tl.store(index_ptr + out, tl.min(tl.where(best == highest, index, 2147483647), 0))


@triton.jit(do_not_specialize=["num_chunks", "slots"])
def _argmax_merge_kernel(
    value_ptr,  # [B*N, chunks] fp32
    index_ptr,  # [B*N, chunks] int32
    num_nodes_ptr,  # [B], read with HAS_COUNTS only
    out_ptr,  # [B*N]
    num_chunks,
    slots,
    HAS_COUNTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, BLOCK_C)
    wait_for_launch_before(IS_DEPENDENT)
    value = tl.load(value_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf"))
    index = tl.load(index_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=2147483647)
    token = tl.min(tl.where(value == tl.max(value, 0), index, 2147483647), 0).to(tl.int64)
    if HAS_COUNTS:
        request = row // slots
        token = tl.where(row - request * slots > tl.load(num_nodes_ptr + request), -1, token)
    tl.store(out_ptr + row, token)


def _check(op: str, **tensors: torch.Tensor) -> None:
    """Refuse what the kernels cannot address."""
    for name, tensor in tensors.items():
        if not (tensor.is_cuda or triton.knobs.runtime.interpret):
            raise ValueError(
                f"{op}: {name} is on {tensor.device}, need a CUDA device; "
                "on a CPU take the torch implementation, or set TRITON_INTERPRET=1 before triton is imported"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{op}: {name} must be contiguous, has strides {tensor.stride()}")


def _num_warps(block: int) -> int:
    return 1 if block <= 128 else 4 if block <= 1024 else 8


def _walk(
    tree: tuple[torch.Tensor, ...],  # tokens, parents, num_nodes, posterior
    cut: tuple[torch.Tensor, torch.Tensor] | None,  # stop_ids, remaining
    horizon: int,
    out: tuple[torch.Tensor, ...] | None,
) -> tuple[torch.Tensor, ...]:
    """Launch the walk; -> path, num_accepted, emitted, num_emitted and, with a cut, finished."""
    tokens, parents, num_nodes, posterior = tree
    batch, slots = tokens.shape
    width = horizon + 1
    if out is None:
        out = (
            *(tokens.new_empty(shape) for shape in ((batch, width), (batch,), (batch, width), (batch,))),
            *(() if cut is None else (tokens.new_empty(batch, dtype=torch.bool),)),
        )
    stop_ids, remaining = cut or (tokens, num_nodes)
    inputs = {"tokens": tokens, "parents": parents, "num_nodes": num_nodes, "posterior": posterior}
    _check("accept_walk_triton", **inputs, stop_ids=stop_ids, remaining=remaining)
    _check("accept_walk_triton", **{f"out[{i}]": tensor for i, tensor in enumerate(out)})
    assert parents.shape == posterior.shape == tokens.shape
    assert num_nodes.shape == remaining.shape == (batch,)
    assert stop_ids.shape[0] == batch
    assert [tuple(tensor.shape) for tensor in out] == [
        *((batch, width), (batch,), (batch, width), (batch,)),
        *([(batch,)] if cut else []),
    ]
    block = max(32, triton.next_power_of_2(slots))
    _accept_walk_kernel[(batch,)](
        tokens, parents, num_nodes, posterior, stop_ids, remaining, *out[:4],
        out[3] if cut is None else out[4].view(torch.uint8), slots, width,
        BLOCK_N=block, BLOCK_P=triton.next_power_of_2(width),
        DOUBLINGS=max(min(horizon, slots - 1) - 1, 0).bit_length(),
        NUM_STOPS=0 if cut is None else stop_ids.shape[1], IS_CUT=cut is not None, num_warps=_num_warps(block),
        **dependence(tokens),
    )  # fmt: skip
    return out


def accept_walk_triton(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    posterior: torch.Tensor,  # [B, N] int64
    horizon: int,  # L, no tree is deeper
    *,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None,  # the results, to be written
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> path [B, P] node indices, root first; num_accepted [B]; emitted [B, P] tokens; num_emitted [B]. Padding: -1.

    `emitted` ends with the bonus token. Unused slots never match and what they hold is never used as an index.
    """
    path, num_accepted, emitted, num_emitted = _walk((tokens, parents, num_nodes, posterior), None, horizon, out)
    return path, num_accepted, emitted, num_emitted


def accept_and_cut_triton(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    posterior: torch.Tensor,  # [B, N] int64
    stop_ids: torch.Tensor,  # [B, Q] int64, padded with -1; a pad never matches
    remaining: torch.Tensor,  # [B] int64 tokens the request may still emit
    horizon: int,  # L, no tree is deeper
    *,
    out: tuple[torch.Tensor, ...] | None = None,  # the results, to be written
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`accept_walk` and `truncate` in one launch: -> path, num_accepted, emitted, num_emitted after the cut, finished.

    `path`, `num_accepted` and `emitted` are those of the whole walk, as when the two ops run one after the other.
    """
    outputs = _walk((tokens, parents, num_nodes, posterior), (stop_ids, remaining), horizon, out)
    path, num_accepted, emitted, num_emitted, finished = outputs
    return path, num_accepted, emitted, num_emitted, finished


def accept_token_triton(
    tokens: torch.Tensor,  # [B, 1] int64 the target's choices
    stop_ids: torch.Tensor,  # [B, Q] int64, padded with -1; a pad never matches
    remaining: torch.Tensor,  # [B] int64 tokens the request may still emit
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`accept_and_cut_triton` of trees that are roots alone, as an autoregressive step has them."""
    # A root's own token, parent and number of nodes are not looked at: what has their shapes stands in.
    return accept_and_cut_triton(tokens, tokens, remaining, tokens, stop_ids, remaining, 0)


def posterior_chunks(num_rows: int, vocab: int) -> tuple[int, int]:
    """-> (chunks a row of logits is split into, steps of BLOCK_V in each)."""
    tiles = triton.cdiv(vocab, BLOCK_V)
    steps = triton.cdiv(tiles, max(1, min(tiles, triton.cdiv(PROGRAMS, num_rows))))
    return triton.cdiv(tiles, steps), steps


def greedy_posterior_triton(
    logits: torch.Tensor,  # [B, N, V]
    *,
    num_nodes: torch.Tensor | None = None,  # [B] int64: slots above it are not read and get -1
    out: torch.Tensor | None = None,  # [B, N] int64
    workspace: tuple[torch.Tensor, torch.Tensor] | None = None,  # fp32 and int32, each [B*N, chunks]
) -> torch.Tensor:
    """The target's token at every node, [B, N] int64: the argmax, of equal logits the lowest id. Two launches."""
    batch, slots, vocab = logits.shape
    chunks, steps = posterior_chunks(batch * slots, vocab)
    if out is None:
        out = logits.new_empty((batch, slots), dtype=torch.int64)
    if workspace is None:
        shape = (batch * slots, chunks)
        workspace = (logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32))
    values, indices = workspace
    counts = out if num_nodes is None else num_nodes
    _check("greedy_posterior_triton", logits=logits, out=out, num_nodes=counts, values=values, indices=indices)
    has_counts = num_nodes is not None
    assert out.shape == (batch, slots)
    assert values.shape == indices.shape == (batch * slots, chunks)
    _argmax_chunk_kernel[(batch * slots, chunks)](
        logits, counts, values, indices, vocab, vocab, steps, chunks, slots,
        HAS_COUNTS=has_counts, BLOCK_V=BLOCK_V, num_warps=8, **dependence(logits),
    )  # fmt: skip
    _argmax_merge_kernel[(batch * slots,)](
        values, indices, counts, out, chunks, slots,
        HAS_COUNTS=has_counts, BLOCK_C=triton.next_power_of_2(chunks), num_warps=1, **dependence(logits),
    )  # fmt: skip
    return out


_WALK = {
    **dict.fromkeys(("tokens_ptr", "parents_ptr", "num_nodes_ptr", "posterior_ptr"), "*i64"),
    **dict.fromkeys(("stop_ids_ptr", "remaining_ptr", "path_ptr", "num_accepted_ptr"), "*i64"),
    "emitted_ptr": "*i64",
    "num_emitted_ptr": "*i64",
    "finished_ptr": "*u8",
    "slots": "i32",
    "width": "i32",
}
_CHUNK = {
    "logits_ptr": "*bf16",
    "num_nodes_ptr": "*i64",
    "value_ptr": "*fp32",
    "index_ptr": "*i32",
    **dict.fromkeys(("row_stride", "vocab", "steps", "num_chunks", "slots"), "i32"),
}
_MERGE = {
    "value_ptr": "*fp32",
    "index_ptr": "*i32",
    "num_nodes_ptr": "*i64",
    "out_ptr": "*i64",
    "num_chunks": "i32",
    "slots": "i32",
}


def _entry(
    name: str,
    kernel: object,
    signature: dict[str, str],
    num_warps: int,
    multiples: tuple[str, ...] = (),
    **constexprs: Any,
) -> dict[str, Any]:
    return {
        "name": name,
        "kernel": kernel,
        "signature": signature,
        "constexprs": constexprs | {"IS_DEPENDENT": True},
        "num_warps": num_warps,
        "num_stages": 3,
        "divisible_by_16": (*(arg for arg, kind in signature.items() if kind.startswith("*")), *multiples),
    }


AOT = (
    _entry("walk-64-h7", _accept_walk_kernel, _WALK, 1, BLOCK_N=64, BLOCK_P=8, DOUBLINGS=3, NUM_STOPS=2, IS_CUT=True),
    _entry("walk-128-h7", _accept_walk_kernel, _WALK, 1, BLOCK_N=128, BLOCK_P=8, DOUBLINGS=3, NUM_STOPS=2, IS_CUT=True),
    _entry(
        "walk-1024-h15", _accept_walk_kernel, _WALK, 4, BLOCK_N=1024, BLOCK_P=16, DOUBLINGS=4, NUM_STOPS=2, IS_CUT=False
    ),
    _entry("argmax", _argmax_chunk_kernel, _CHUNK, 8, ("row_stride", "vocab"), HAS_COUNTS=True, BLOCK_V=BLOCK_V),
    _entry("argmax-merge", _argmax_merge_kernel, _MERGE, 1, HAS_COUNTS=True, BLOCK_C=64),
)
