"""The whole draft tree of one request in one program, one launch for the batch (Triton; semantics of `tree_build`).

Where in the flow: TREE_BUILD. Letters: B batch rows, L draft horizon, K candidates a position, N = node_budget + 1 node
slots. Nodes come in the canonical order: score descending, depth, parent's place and rank ascending.

Best-first search without a heap. Every node in the tree offers one candidate, its best child not yet in the tree, so
the frontier is a register vector with a slot for each node. A step takes the best candidate of all slots as the next
node; its parent's slot moves on to the next rank, the new node's slot opens with rank 0. `node_budget` steps make the
tree.

The order is compared as integers. A cost (negated score, fp64, never below +0.0) has bits that sort like the cost;
depth, parent and rank share one int32, `place`, that sorts like the rest of the canonical order. The best of a warp is
then three 32-bit integer minima (upper half, lower half among equals, place among equals), each a single `redux`
instruction where a 64-bit minimum with a tie-break takes five shuffle rounds of three registers.

Why not level by level: a level has 280 candidates at a budget of 64, with keys of more than 64 bits (score and a
tie-break). That costs a sort of two tensors, or 512 x 512 comparisons, 5-7 us a level by the issue rate; for 7 levels
and a sort over all of them about 50 us. A best-first step is about 95 instructions of one warp, 300-450 cycles.

Floor at L = 7, K = 64, budget 64: 7.3 KB a request; nothing but latency binds. On an H200 (`bench-ops`, cold) 13.7 us
at batch 1, 14.3 us at 16; predicted 12-18 us at any batch up to 132 (a step: three reductions of 40-50 cycles, one pair
of L1 loads, 40, an fp64 subtraction, selects; then the first touches of 14 cache lines). 256 nodes: about 100 us. If it
misses: load `log_probs` once as a tile in front of the loop, so that no step waits for the L2 cache; then two
candidates a step where the second stays the best.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .dependent_launch_triton import dependence, wait_for_launch_before

Trees = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# `place`: depth << 20 | parent << 10 | rank.
MAX_NODE_BUDGET = 1024
MAX_HORIZON = 1023

_PARENT_SHIFT = tl.constexpr(10)
_DEPTH_SHIFT = tl.constexpr(20)
_FIRST_PLACE = tl.constexpr(1 << 20)  # depth 1, parent 0, rank 0
_FIELD = tl.constexpr(1023)
_LARGEST = tl.constexpr(2**31 - 1)
_INFINITE_HIGH = tl.constexpr(0x7FF00000)  # upper half of fp64 +inf
# Vocabulary masks write the lowest fp32 instead of -inf; a sum of those must not turn a node into "no candidate".
_LOWEST_SCORE = tl.constexpr(-3.4028234663852886e38)
_MARK_CHUNK = tl.constexpr(512)  # log-probabilities looked at at once


@triton.jit
def _added(cost, log_prob):
    """fp64 cost of a child; infinite, so no candidate, for an fp32 log-probability of -inf or NaN."""
    return cost - tl.where(log_prob > -float("inf"), log_prob, -float("inf")).to(tl.float64)


@triton.jit
def _tree_build_kernel(
    log_probs,  # [B, L, K] fp32
    token_ids,  # [B, L, K] int64
    tokens,  # [B, N] int64
    parents,  # [B, N] int64
    depths,  # [B, N] int64
    scores,  # [B, N] fp32
    num_nodes,  # [B] int64
    horizon,
    width,  # K
    node_budget,
    SLOTS: tl.constexpr,  # node_budget up to a power of two, 32 at least
    MARKS_NAN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    log_probs += request * horizon * width
    token_ids += request * horizon * width
    slot = tl.arange(0, SLOTS)
    wait_for_launch_before(IS_DEPENDENT)
    infinite = tl.full([SLOTS], float("inf"), tl.float64)

    root_score = 0.0
    if MARKS_NAN:  # and brings the cache lines, so that no step waits for one
        num_nan = 0
        for start in range(0, horizon * width, _MARK_CHUNK):
            at = start + tl.arange(0, _MARK_CHUNK)
            value = tl.load(log_probs + at, mask=at < horizon * width, other=0.0)
            num_nan += tl.sum((value != value).to(tl.int32), axis=0)
        root_score = tl.where(num_nan > 0, float("nan"), 0.0)

    # The frontier: slot i is node i (0 the root), its own cost, and the cost and place of the child it offers.
    first = tl.load(log_probs, mask=horizon * width > 0, other=-float("inf"))
    own = tl.zeros([SLOTS], tl.float64)
    offer = tl.where(slot == 0, _added(own, first), infinite)
    place = tl.where(slot == 0, _FIRST_PLACE, _LARGEST)
    # The tree: entry i is node i + 1.
    node_cost = infinite
    node_place = tl.full([SLOTS], 0, tl.int32)

    for step in range(node_budget):
        bits = offer.to(tl.int64, bitcast=True)
        high = (bits >> 32).to(tl.int32)
        low = bits.to(tl.int32) ^ -0x80000000  # unsigned order as signed order
        best_high = tl.min(high, axis=0)
        best_low = tl.min(tl.where(high == best_high, low, _LARGEST), axis=0)
        is_best = (high == best_high) & (low == best_low)
        best_place = tl.min(tl.where(is_best, place, _LARGEST), axis=0)

        is_node = best_high < _INFINITE_HIGH  # otherwise the frontier is empty, for good
        depth = best_place >> 20
        parent = (best_place >> 10) & 1023
        rank = best_place & 1023
        siblings = log_probs + (depth - 1) * width
        sibling = tl.load(siblings + rank + 1, mask=is_node & (rank + 1 < width), other=-float("inf"))
        child = tl.load(siblings + width, mask=is_node & (depth < horizon), other=-float("inf"))

        lower = (best_low ^ -0x80000000).to(tl.int64) & 0xFFFFFFFF
        cost = ((best_high.to(tl.int64) << 32) | lower).to(tl.float64, bitcast=True)
        is_entry = is_node & (slot == step)
        node_cost = tl.where(is_entry, cost, node_cost)
        node_place = tl.where(is_entry, best_place, node_place)

        is_parent = is_node & (slot == parent)
        is_new = is_node & (slot == step + 1)
        own = tl.where(is_new, cost, own)
        offer = tl.where(is_parent, _added(own, sibling), tl.where(is_new, _added(cost, child), offer))
        opened = ((depth + 1) << 20) | ((step + 1) << 10)
        place = tl.where(is_parent, place + 1, tl.where(is_new, opened, place))

    is_used = node_place > 0
    depth = node_place >> 20
    parent = (node_place >> 10) & 1023
    rank = node_place & 1023
    token = tl.load(token_ids + (depth - 1) * width + rank, mask=is_used, other=-1)
    score = tl.maximum(0.0 - node_cost, _LOWEST_SCORE).to(tl.float32)
    is_slot = slot < node_budget
    root = request * (node_budget + 1)
    node = root + 1 + slot
    tl.store(tokens + node, token, mask=is_slot)
    tl.store(parents + node, tl.where(is_used, parent, -1).to(tl.int64), mask=is_slot)
    tl.store(depths + node, tl.where(is_used, depth, 0).to(tl.int64), mask=is_slot)
    tl.store(scores + node, tl.where(is_used, score, -float("inf")), mask=is_slot)
    nothing = tl.full([], -1, tl.int64)
    tl.store(tokens + root, nothing)
    tl.store(parents + root, nothing)
    tl.store(depths + root, nothing + 1)
    tl.store(scores + root, root_score)
    tl.store(num_nodes + request, tl.sum(is_used.to(tl.int32), axis=0).to(tl.int64))


def tree_build_triton(
    log_probs: torch.Tensor,  # [B, L, K] fp32
    token_ids: torch.Tensor,  # [B, L, K] int64
    node_budget: int,
    *,
    out: Trees | None = None,
    marks_nan: bool = False,  # a root's score is NaN where one of the request's log-probabilities is
) -> Trees:
    """-> tokens, parents, depths, scores [B, N] and num_nodes [B], on the device.

    -inf and NaN end the candidates of a position; mark NaN, or check `draft_topk.has_nan` when the host next looks.
    Nothing is read on the host and nothing but `out` (contiguous; may be passed in) is allocated when the inputs are
    contiguous. A node_budget above 1024 or a horizon above 1023: ValueError.
    """
    batch, horizon, width = log_probs.shape
    _check(log_probs, token_ids, node_budget)
    if out is None:
        out = _empty_trees(batch, node_budget, log_probs.device)
    _check_out(out, batch, node_budget)
    if batch:
        slots = max(32, triton.next_power_of_2(node_budget))
        _tree_build_kernel[(batch,)](
            log_probs.contiguous(),
            token_ids.contiguous(),
            *out,
            horizon,
            width,
            node_budget,
            SLOTS=slots,
            MARKS_NAN=marks_nan,
            num_warps=_num_warps(slots),
            **dependence(log_probs),
        )
    return out


def _num_warps(slots: int) -> int:
    """One warp as long as its registers hold the frontier: a reduction then needs no barrier."""
    return 1 if slots <= 256 else 4


def _empty_trees(batch: int, node_budget: int, device: torch.device) -> Trees:
    ints = torch.empty(3, batch, node_budget + 1, dtype=torch.int64, device=device)
    scores = torch.empty(batch, node_budget + 1, dtype=torch.float32, device=device)
    return ints[0], ints[1], ints[2], scores, torch.empty(batch, dtype=torch.int64, device=device)


def _check(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> None:
    if node_budget < 0:
        raise ValueError(f"node_budget must be 0 or more: got {node_budget}; 0 gives a root-only tree")
    if node_budget > MAX_NODE_BUDGET or log_probs.shape[1] > MAX_HORIZON:
        raise ValueError(
            f"tree_build_triton builds {MAX_NODE_BUDGET} nodes over {MAX_HORIZON} positions at most: "
            f"got {node_budget} over {log_probs.shape[1]}; use tree_build_levelwise (torch)"
        )
    if log_probs.shape != token_ids.shape or log_probs.dtype != torch.float32 or token_ids.dtype != torch.int64:
        raise ValueError(
            f"log_probs must be fp32 and token_ids int64 of one shape [B, L, K]: got {log_probs.dtype} "
            f"{tuple(log_probs.shape)} and {token_ids.dtype} {tuple(token_ids.shape)}; pass draft_topk's two results"
        )
    if not (log_probs.is_cuda or triton.knobs.runtime.interpret):
        raise ValueError(
            f"tree_build_triton runs on a GPU: got log_probs on {log_probs.device}; use tree_build_heap there"
        )


def _check_out(out: Trees, batch: int, node_budget: int) -> None:
    nodes = (batch, node_budget + 1)
    expected = [(nodes, torch.int64)] * 3 + [(nodes, torch.float32), ((batch,), torch.int64)]
    for tensor, (shape, dtype) in zip(out, expected, strict=True):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"out must be contiguous tokens, parents, depths int64, scores fp32 {nodes} and num_nodes int64 "
                f"{(batch,)}: got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            )


AOT = tuple(
    {
        "name": f"tree_build budget {slots}",
        "kernel": _tree_build_kernel,
        "signature": {
            "log_probs": "*fp32",
            "token_ids": "*i64",
            "tokens": "*i64",
            "parents": "*i64",
            "depths": "*i64",
            "scores": "*fp32",
            "num_nodes": "*i64",
            "horizon": "i32",
            "width": "i32",
            "node_budget": "i32",
        },
        "divisible_by_16": ("log_probs", "token_ids", "tokens", "parents", "depths", "scores", "num_nodes"),
        "constexprs": {"SLOTS": slots, "MARKS_NAN": True, "IS_DEPENDENT": True},
        "num_warps": _num_warps(slots),
        "num_stages": 3,
    }
    for slots in (32, 64, 256, 1024)
)
