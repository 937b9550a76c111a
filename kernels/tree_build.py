"""Draft trees: the `node_budget` most probable prefixes, built on the host by a heap or on the device level by level.

Where in the flow: TREE_BUILD. Both builders and the specification give the same nodes in the same (canonical) order:
score descending, depth ascending, parent's place ascending, rank ascending; scores are summed in fp64 everywhere.
Letters: B batch rows, L draft horizon, K candidates a position, N = node_budget + 1 node slots, W = node_budget.

Inputs are `draft_topk`'s: log_probs [B, L, K] fp32, best first, <= 0, -inf = no candidate; token_ids [B, L, K] int64,
distinct in a row. Outputs: tokens, parents, depths [B, N] int64, scores [B, N] fp32, num_nodes [B] int64 (root not
counted); root: token -1, parent -1, depth 0, score 0; unused slots: -1, -1, 0, -inf.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush, heapreplace

import torch
import torch.nn.functional as F

Trees = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# Vocabulary masks write the lowest fp32 instead of -inf; a sum of those must not turn a node into "no candidate".
LOWEST_SCORE = torch.finfo(torch.float32).min


class HeapSearch:
    """Best-first search on the host in three steps, for one batch size: copy out, search, copy back.

    The copies are one packed one each way, between the device and buffers that stay where they are (pinned, where the
    device is another one), so that a CUDA graph can hold them; `search` must wait for what `fetch` began.
    """

    def __init__(self, batch: int, horizon: int, k: int, node_budget: int, device: torch.device) -> None:
        _check_budget(node_budget)
        is_pinned = device.type == "cuda"
        self._node_budget = node_budget
        self._device = device
        self._candidates = torch.empty(2, batch, horizon, k, dtype=torch.int32, pin_memory=is_pinned)
        self._trees = torch.empty(batch, 4, node_budget + 1, dtype=torch.int32, pin_memory=is_pinned)

    def fetch(self, log_probs: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Candidates [B, L, K] of the device into the host's buffer."""
        packed = torch.stack([log_probs.float().view(torch.int32), token_ids.to(torch.int32)])  # [2, B, L, K]
        self._candidates.copy_(packed, non_blocking=True)

    def search(self) -> None:
        """Buffer to buffer. NaN or positive values: ValueError."""
        scores = self._candidates[0].view(torch.float32)
        if not bool((scores <= 0).all()):
            raise ValueError(
                "log_probs must be <= 0: got NaN or positive values; check the draft logits for NaN or inf"
            )
        counts = (scores > -torch.inf).sum(-1).tolist()
        rows = zip((-scores).tolist(), self._candidates[1].tolist(), counts, strict=True)
        trees = [_best_first(*row, self._node_budget) for row in rows]
        self._trees[:, :3] = torch.tensor([tree[:3] for tree in trees], dtype=torch.int32)  # [B, 3, N]
        self._trees[:, 3] = torch.tensor([tree[3] for tree in trees], dtype=torch.float32).view(torch.int32)

    def send(self) -> Trees:
        """The trees on the device."""
        back = self._trees.to(self._device, non_blocking=True, copy=True)  # [B, 4, N]
        tokens, parents, depths = back[:, :3].to(torch.int64, memory_format=torch.contiguous_format).unbind(1)
        used = (parents >= 0).sum(-1)
        scores = back[:, 3].view(torch.float32)
        return tokens.contiguous(), parents.contiguous(), depths.contiguous(), scores.contiguous(), used


def tree_build_heap(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> Trees:
    """The three steps one after the other."""
    batch, horizon, k = log_probs.shape
    search = HeapSearch(batch, horizon, k, node_budget, log_probs.device)
    search.fetch(log_probs, token_ids)
    if log_probs.is_cuda:
        torch.cuda.current_stream().synchronize()
    search.search()
    return search.send()


def tree_build_levelwise(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> Trees:
    """Beams level by level, then one stable sort over all levels; fixed shapes, no host synchronisation.

    Only children (p, r) with p * r <= node_budget (p the parent's place in its level's beam, r the rank, both from 1)
    can be among the best: any other has node_budget candidates of its own level before it.
    NaN counts as no candidate here; check `draft_topk.has_nan` when the host next looks at the device.
    Inside a CUDA graph the table of candidates must exist already: call once with the same sizes before capturing.
    """
    _check_budget(node_budget)
    batch, horizon, k = log_probs.shape
    device, width = log_probs.device, node_budget
    if width == 0 or horizon == 0 or k == 0:
        return _root_only(batch, node_budget, device)
    parent_place, rank = _candidate_table(node_budget, k, device)  # [C] each
    steps = log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf).index_select(2, rank)  # [B, L, C]
    beam = torch.full((batch, width), -torch.inf, dtype=torch.float64, device=device)  # [B, W]; makes all sums fp64
    beam[:, 0].zero_()  # level 0 is the root alone
    beams, picks = [], []
    for depth in range(horizon):
        candidates = beam.index_select(1, parent_place) + steps[:, depth]  # [B, C] in (p, r) order
        ordered, pick = candidates.sort(dim=1, descending=True, stable=True)
        beam = ordered[:, :width]
        beams.append(beam)
        picks.append(pick[:, :width])
    scores, order = torch.cat(beams, dim=1).sort(dim=1, descending=True, stable=True)  # [B, L * W] depth-major
    scores, order = scores[:, :width], order[:, :width]  # [B, W] node i + 1 stands at level and place `order[i]`
    pick = torch.cat(picks, dim=1).gather(1, order)
    level = order.div(width, rounding_mode="floor")  # depth - 1
    # Where each beam place went among the nodes; a block of zeros in front is level 0, the root.
    numbers = torch.arange(1, width + 1, device=device).expand(batch, -1)
    node_of = torch.zeros(batch, (horizon + 1) * width, dtype=torch.int64, device=device)
    node_of.scatter_(1, order + width, numbers)
    parents = node_of.gather(1, level * width + parent_place[pick])
    tokens = token_ids.flatten(1).gather(1, level * k + rank[pick])
    return _with_root(tokens, parents, level + 1, scores)


def tree_build_chain(log_probs: torch.Tensor, token_ids: torch.Tensor) -> Trees:
    """The greedy chain as a tree of L + 1 slots: rank 0 at every position, up to the first without a candidate."""
    batch, horizon, _ = log_probs.shape
    scores = log_probs[:, :, 0].double().cumsum(dim=1)  # [B, L]
    scores = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    index = torch.arange(horizon, device=log_probs.device).expand(batch, -1)
    return _with_root(token_ids[:, :, 0], index, index + 1, scores)


@lru_cache(maxsize=64)
def _candidate_table(node_budget: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and ranks (from 0) of all (p, r) with p * r <= node_budget and r <= k, in (p, r) order: [C] each."""
    pairs = [(p, r) for p in range(node_budget) for r in range(min(k, node_budget // (p + 1)))]
    table = torch.tensor(pairs, dtype=torch.int64, device=device)
    return table[:, 0].contiguous(), table[:, 1].contiguous()


def _best_first(
    costs: list[list[float]],  # [L][K] negated log-probabilities, ascending
    token_ids: list[list[int]],  # [L][K]
    num_candidates: list[int],  # [L] how many of the K are candidates
    node_budget: int,
) -> tuple[list[int], list[int], list[int], list[float]]:
    """Tokens, parents, depths and scores of one tree, padded to N slots."""
    horizon = len(costs)
    tokens, parents, depths, spent = [-1], [-1], [0], [0.0]
    heap: list[tuple[float, int, int, int]] = []  # cost, depth, parent, rank: the canonical order itself
    if horizon and num_candidates[0] and node_budget:
        heap.append((costs[0][0], 1, 0, 0))
    node = 0
    while heap and node < node_budget:
        cost, depth, parent, rank = heap[0]
        node += 1
        tokens.append(token_ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        spent.append(cost)
        if rank + 1 < num_candidates[depth - 1]:  # next sibling
            heapreplace(heap, (spent[parent] + costs[depth - 1][rank + 1], depth, parent, rank + 1))
        else:
            heappop(heap)
        if depth < horizon and num_candidates[depth]:  # first child
            heappush(heap, (cost + costs[depth][0], depth + 1, node, 0))
    unused = node_budget - node
    scores = [max(0.0 - cost, LOWEST_SCORE) for cost in spent] + [-float("inf")] * unused
    return tokens + [-1] * unused, parents + [-1] * unused, depths + [0] * unused, scores


def _check_budget(node_budget: int) -> None:
    if node_budget < 0:
        raise ValueError(f"node_budget must be 0 or more: got {node_budget}; 0 gives a root-only tree")


def _root_only(batch: int, node_budget: int, device: torch.device) -> Trees:
    none = torch.zeros(batch, node_budget, dtype=torch.int64, device=device)
    return _with_root(none, none, none, torch.full_like(none, -torch.inf, dtype=torch.float64))


def _with_root(tokens: torch.Tensor, parents: torch.Tensor, depths: torch.Tensor, scores: torch.Tensor) -> Trees:
    """Put the root in front of [B, W] nodes and blank every slot whose score is -inf."""
    used = scores > -torch.inf
    return (
        F.pad(tokens.where(used, -1), (1, 0), value=-1),
        F.pad(parents.where(used, -1), (1, 0), value=-1),
        F.pad(depths.where(used, 0), (1, 0), value=0),
        F.pad(scores.clamp(min=LOWEST_SCORE).where(used, -torch.inf).float(), (1, 0), value=0.0),
        used.sum(dim=1),
    )
