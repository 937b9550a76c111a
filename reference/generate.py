"""Specification of generation: autoregressive decoding, and the speculative loop that must emit the same tokens.

One request, greedy, no K/V cache: every call recomputes its whole text, and every tree node that the walk visits is
evaluated as a plain text of its own. So neither caches nor tree masks take part; the engine is checked against this.
Letters: L draft horizon, V vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

TargetLogits = Callable[[Sequence[int]], torch.Tensor]  # tokens -> logits of every position [n, V]
Target = Callable[[Sequence[int]], tuple[torch.Tensor, torch.Tensor]]  # the same, and captured features [n, ...]
# all tokens so far (the last one is the anchor), features of all but the anchor -> draft logits [L, V]; row i is about
# the token i + 1 places after the anchor
Draft = Callable[[Sequence[int], torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Node:
    """A drafted token. `parent` is an index into the tree (root 0), `score` the log-probability of its prefix."""

    token: int
    parent: int
    depth: int
    score: float


@dataclass(frozen=True, slots=True)
class Round:
    """One speculative round: the tree (root first), the indices of the accepted path (root first), the tokens kept."""

    nodes: tuple[Node, ...]
    path: tuple[int, ...]
    emitted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """All generated tokens (the first one comes from the prompt's own forward) and the rounds that made the rest."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]


def _argmax(row: torch.Tensor) -> int:
    return int((row == row.max()).nonzero()[0])  # the lowest id of equals


def _is_finished(tokens: Sequence[int], max_new_tokens: int, stop_ids: Collection[int]) -> bool:
    return len(tokens) >= max_new_tokens or (bool(tokens) and tokens[-1] in stop_ids)


def decode(
    target_logits: TargetLogits, prompt: Sequence[int], max_new_tokens: int, stop_ids: Collection[int] = ()
) -> list[int]:
    """Greedy decoding, one token per forward. A stop token ends the output and is its last token."""
    new: list[int] = []
    while not _is_finished(new, max_new_tokens, stop_ids):
        new.append(_argmax(target_logits([*prompt, *new])[-1]))
    return new


def best_first_tree(draft_logits: torch.Tensor, node_budget: int) -> list[Node]:
    """The `node_budget` most probable prefixes under the product of the draft's rows, root included as node 0.

    Order: score falling, then depth, parent index and rank rising. Successors of a node are its next sibling and its
    first child, neither better than itself, so that popping a heap yields the nodes in order.
    """
    rows = draft_logits.float()
    log_probs = (rows - rows.logsumexp(dim=-1, keepdim=True)).double()
    order = torch.sort(rows, dim=-1, descending=True, stable=True).indices  # equal logits: lower id first
    ranked = log_probs.gather(1, order)
    nodes = [Node(token=-1, parent=-1, depth=0, score=0.0)]
    heap: list[tuple[float, int, int, int]] = []  # (-score, depth, parent, rank)

    def push(parent: int, rank: int) -> None:
        depth = nodes[parent].depth + 1
        if depth <= ranked.shape[0] and rank < ranked.shape[1]:
            score = nodes[parent].score + float(ranked[depth - 1, rank])
            if score > float("-inf"):  # an impossible token is no candidate
                heapq.heappush(heap, (-score, depth, parent, rank))

    push(0, 0)
    while heap and len(nodes) <= node_budget:
        negated, depth, parent, rank = heapq.heappop(heap)
        nodes.append(Node(token=int(order[depth - 1, rank]), parent=parent, depth=depth, score=-negated))
        push(parent, rank + 1)
        push(len(nodes) - 1, 0)
    return nodes


def _walk(target: Target, tokens: Sequence[int], nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """Follow the target's own tokens down the tree: (visited node indices, emitted tokens, the last one the bonus)."""
    path = [0]
    emitted: list[int] = []
    while True:
        emitted.append(_argmax(target([*tokens, *emitted])[0][-1]))
        children = [i for i, node in enumerate(nodes) if node.parent == path[-1] and node.token == emitted[-1]]
        if not children:
            return path, emitted
        path.append(children[0])


def _cut(emitted: Sequence[int], room: int, stop_ids: Collection[int]) -> list[int]:
    """At most `room` tokens, and nothing after the first stop token."""
    kept: list[int] = []
    for token in emitted:
        if not _is_finished(kept, room, stop_ids):
            kept.append(token)
    return kept


def speculative_decode(
    target: Target,
    draft: Draft,
    prompt: Sequence[int],
    max_new_tokens: int,
    node_budget: int,
    stop_ids: Collection[int] = (),
) -> Generation:
    """DFlash with DDTree: draft a block, build a tree, verify it, keep the accepted path and the bonus token; repeat.

    `node_budget` counts the nodes below the root. Emits exactly the tokens of `decode`.
    """
    new = decode(lambda tokens: target(tokens)[0], prompt, min(1, max_new_tokens), stop_ids)  # the first anchor
    rounds: list[Round] = []
    while not _is_finished(new, max_new_tokens, stop_ids):
        tokens = [*prompt, *new]
        features = target(tokens[:-1])[1]  # the anchor itself has not been through the target yet
        nodes = best_first_tree(draft(tokens, features), node_budget)
        path, emitted = _walk(target, tokens, nodes)
        kept = _cut(emitted, max_new_tokens - len(new), stop_ids)
        rounds.append(Round(nodes=tuple(nodes), path=tuple(path), emitted=tuple(kept)))
        new += kept
    return Generation(tokens=tuple(new), rounds=tuple(rounds))
