"""Specification of the draft tree: the `node_budget` most probable prefixes of the drafter's independent marginals.

Where in the flow: TREE_BUILD, after the draft's top-k, before the tree is compiled for the target.
Letters: B batch rows, L draft horizon, K candidates a position, N = node_budget + 1 node slots, slot 0 the root.

Rules
- A node is a sequence of candidates, one for each of the first `depth` positions; its score is the sum of their
  log-probabilities, accumulated in fp64 from the root down (hence equal in every implementation), returned as fp32
  and not below the lowest finite fp32, which vocabulary masks like to use.
- The tree holds the first `node_budget` nodes of the canonical order: score descending, then depth ascending, then the
  parent's place in this order ascending, then rank ascending. No log-probability is positive, so a node never precedes
  its parent and every head of the order is prefix-closed; the sum of node probabilities is the largest possible.
- A log-probability of -inf is no candidate: such nodes don't exist, and `num_nodes` may be below the budget.
- The budget does not count the root. Root slot: token -1, parent -1, depth 0, score 0. Unused slots: -1, -1, 0, -inf.
- Candidates must come best first, with distinct tokens (`draft_topk` gives both). NaN or positive values: ValueError.
"""

from __future__ import annotations

import heapq
import math
from itertools import product

import torch

Trees = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Node = tuple[float, int, int, int, int]  # score, depth, parent, rank, token


def tree_build(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> Trees:
    """([B, L, K] fp32, [B, L, K] int64) to tokens, parents, depths, scores [B, N] and num_nodes [B]; best-first search.

    Every node but the first has exactly one predecessor, no worse than itself: its previous sibling, or for a first
    child its parent. Popping a heap and pushing both successors of what was popped therefore follows the order.
    """
    _check(log_probs, node_budget)
    rows = zip(log_probs.tolist(), token_ids.tolist(), strict=True)
    return _pack([_best_first(scores, tokens, node_budget) for scores, tokens in rows], node_budget)


def tree_build_brute_force(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> Trees:
    """The same trees by listing all prefixes and sorting them; exponential in L, for tiny L and K only."""
    _check(log_probs, node_budget)
    rows = zip(log_probs.tolist(), token_ids.tolist(), strict=True)
    return _pack([_enumerate(scores, tokens)[:node_budget] for scores, tokens in rows], node_budget)


def tree_build_chain(log_probs: torch.Tensor, token_ids: torch.Tensor) -> Trees:
    """The greedy chain as a tree of L + 1 slots: rank 0 at every position, up to the first without a candidate."""
    return tree_build(log_probs[..., :1], token_ids[..., :1], log_probs.shape[1])


def _check(log_probs: torch.Tensor, node_budget: int) -> None:
    if node_budget < 0:
        raise ValueError(f"node_budget must be 0 or more: got {node_budget}; 0 gives a root-only tree")
    if not bool((log_probs <= 0).all()):
        raise ValueError("log_probs must be <= 0: got NaN or positive values; check the draft logits for NaN or inf")


def _best_first(log_probs: list[list[float]], token_ids: list[list[int]], node_budget: int) -> list[_Node]:
    horizon = len(log_probs)
    nodes: list[_Node] = [(0.0, 0, -1, 0, -1)]  # the root, so that list places are node indices
    heap: list[tuple[float, int, int, int]] = []  # -score, depth, parent, rank: the canonical order itself

    def push(parent: int, rank: int) -> None:
        depth = nodes[parent][1] + 1
        if depth <= horizon and rank < len(log_probs[depth - 1]) and log_probs[depth - 1][rank] > -math.inf:
            heapq.heappush(heap, (-(nodes[parent][0] + log_probs[depth - 1][rank]), depth, parent, rank))

    push(parent=0, rank=0)
    while heap and len(nodes) <= node_budget:
        score, depth, parent, rank = heapq.heappop(heap)
        nodes.append((-score, depth, parent, rank, token_ids[depth - 1][rank]))
        push(parent=parent, rank=rank + 1)
        push(parent=len(nodes) - 1, rank=0)
    return nodes[1:]


def _enumerate(log_probs: list[list[float]], token_ids: list[list[int]]) -> list[_Node]:
    """All existing prefixes in canonical order. A prefix is a tuple of ranks; `place` is its place within its depth."""
    place: dict[tuple[int, ...], int] = {(): 0}
    ordered: list[tuple[float, int, tuple[int, ...]]] = []
    for depth in range(1, len(log_probs) + 1):
        prefixes = product(*(range(len(row)) for row in log_probs[:depth]))
        scored = [(sum((log_probs[i][rank] for i, rank in enumerate(p)), 0.0), p) for p in prefixes]
        level = sorted((-score, place[p[:-1]], p[-1], p) for score, p in scored if score > -math.inf)
        place.update({entry[-1]: i for i, entry in enumerate(level)})
        ordered += [(entry[0], depth, entry[-1]) for entry in level]
    ordered.sort(key=lambda entry: (entry[0], entry[1], place[entry[2]]))
    index = {(): 0} | {p: i for i, (_, _, p) in enumerate(ordered, start=1)}
    return [(-s, depth, index[p[:-1]], p[-1], token_ids[depth - 1][p[-1]]) for s, depth, p in ordered]


def _pack(trees: list[list[_Node]], node_budget: int) -> Trees:
    root, unused = (-1, -1, 0, 0.0), (-1, -1, 0, -math.inf)
    lowest = torch.finfo(torch.float32).min
    slots = []
    for nodes in trees:
        used = [(token, parent, depth, max(score, lowest)) for score, depth, parent, _, token in nodes]
        slots.append([root, *used, *[unused] * (node_budget - len(nodes))])
    columns = [[[slot[field] for slot in tree] for tree in slots] for field in range(4)]  # 4 x [B][N]
    tokens, parents, depths = (torch.tensor(column, dtype=torch.int64) for column in columns[:3])
    scores = torch.tensor(columns[3], dtype=torch.float32)
    return tokens, parents, depths, scores, torch.tensor([len(nodes) for nodes in trees], dtype=torch.int64)


def make_inputs(seed: int, size: str) -> dict[str, object]:
    """Arguments of `tree_build` for a named size; `adversarial`: ties, all equal, saturated, missing candidates."""
    generator = torch.Generator().manual_seed(seed)
    batch, horizon, vocab, k, node_budget = {
        "small": (2, 3, 6, 6, 8),
        "odd": (3, 7, 41, 13, 29),
        "degenerate": (2, 1, 2, 2, 5),
        "adversarial": (6, 5, 9, 9, 23),
    }[size]
    logits = torch.randn(batch, horizon, vocab, generator=generator) * 3  # [B, L, V]
    if size == "adversarial":
        logits[0] = logits[0].round()
        logits[1] = 0.0
        logits[2, :, 4] = 1e4  # log q = 0: children tie with their parents
        logits[3, :, 2:] = -torch.inf
        logits[4, 2] = -torch.inf  # no draft from the third position on
        logits[5] = logits[5].round()
        logits[5, 1, 0] = 1e4
    ordered, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    normaliser = torch.where(ordered[..., :1] == -torch.inf, 0.0, logits.logsumexp(-1, keepdim=True))
    return {
        "log_probs": (ordered - normaliser)[..., :k].clamp(max=0.0),
        "token_ids": token_ids[..., :k],
        "node_budget": node_budget,
    }


def cost(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> dict[str, int]:
    """Fewest bytes (candidates in, trees out) and flops (two successors a node, one addition each)."""
    batch = log_probs.shape[0]
    read = log_probs.nbytes + token_ids.nbytes
    written = batch * (node_budget + 1) * (3 * 8 + 4) + batch * 8
    return {"bytes": read + written, "flops": 2 * batch * node_budget}
