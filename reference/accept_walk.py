"""Specification of acceptance: the walk down the draft tree along the target's own tokens, and the cut at a stop token.

Where in the flow: ACCEPT, after the target's forward over all nodes.
Letters: B batch rows, N node slots (slot 0 the root = anchor), L draft horizon, P = L + 1, V vocabulary, Q stop ids.

Rules
- `posterior[b, i]` is the target's next token after node i: the argmax, or one draw from the target's distribution with
  randomness of its own at every node. Greedy and sampled decoding share the walk. The emitted tokens are the draws
  themselves, so their law is the target's whatever the tree is, as long as the tree doesn't depend on the draws.
- From the root: while a child of the current node carries the current node's posterior token, move there.
- Emitted: the tokens of the visited non-root nodes, then the bonus token: the posterior of the last visited node.
- Slots above `num_nodes[b]` never match; a tree of the root alone emits the root's posterior token. Token 0 is a token.
"""

from __future__ import annotations

import torch

from .tree_compile import random_trees


def accept_walk(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    posterior: torch.Tensor,  # [B, N] int64
    horizon: int,  # L, no tree is deeper
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> path [B, P] node indices, root first; num_accepted [B]; emitted [B, P] tokens; num_emitted [B]. Pad: -1."""
    batch = tokens.shape[0]
    path = torch.full((batch, horizon + 1), -1)
    emitted = torch.full((batch, horizon + 1), -1)
    num_accepted = torch.zeros(batch, dtype=torch.int64)
    for b in range(batch):
        visited, current = [0], 0
        drawn = [int(posterior[b, 0])]
        while True:
            nodes = range(1, int(num_nodes[b]) + 1)
            children = [i for i in nodes if parents[b, i] == current and tokens[b, i] == drawn[-1]]
            if not children:
                break
            assert len(children) == 1, f"siblings must carry distinct tokens: node {current} has {children}"
            current = children[0]
            visited.append(current)
            drawn.append(int(posterior[b, current]))
        assert len(visited) <= horizon + 1, f"the tree is deeper than the horizon {horizon}"
        path[b, : len(visited)] = torch.tensor(visited)
        emitted[b, : len(drawn)] = torch.tensor(drawn)
        num_accepted[b] = len(visited) - 1
    return path, num_accepted, emitted, num_accepted + 1


def truncate(
    emitted: torch.Tensor,  # [B, P] int64
    num_emitted: torch.Tensor,  # [B] int64
    stop_ids: torch.Tensor,  # [B, Q] int64, padded with -1; a pad never matches
    remaining: torch.Tensor,  # [B] int64 tokens the request may still emit
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (num_emitted [B], finished [B] bool) after the cut.

    The first stop token is emitted and ends the request: the rest of the path and the bonus are dropped. `remaining`
    limits the count, and reaching it ends the request. After a cut to c tokens, c nodes of the path stay committed.
    """
    counts, finished = [], []
    for b in range(emitted.shape[0]):
        stops = {stop for stop in stop_ids[b].tolist() if stop >= 0}
        count, done = 0, int(remaining[b]) <= 0
        for token in emitted[b, : int(num_emitted[b])].tolist():
            if done:
                break
            count += 1
            done = token in stops or count >= int(remaining[b])
        counts.append(count)
        finished.append(done)
    return torch.tensor(counts, dtype=torch.int64), torch.tensor(finished)


def sample_posterior(
    logits: torch.Tensor,  # [B, N, V]
    temperature: float,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """The target's token at every node, [B, N] int64: the argmax (ties: lower id) at temperature 0, else a draw."""
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (greedy) or more: got {temperature}")
    batch, slots, vocab = logits.shape
    if temperature == 0:
        return logits.float().sort(dim=-1, descending=True, stable=True).indices[..., 0]
    probabilities = (logits.double() / temperature).softmax(-1).reshape(-1, vocab)
    return torch.multinomial(probabilities, 1, generator=generator).reshape(batch, slots)


def make_inputs(seed: int, size: str) -> dict[str, object]:
    """Arguments of `accept_walk` for a named size, with posteriors that follow the tree more often than not.

    `adversarial`: token 0 everywhere it can be, posteriors of -1 and 0, poisoned unused slots.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, slots, horizon, vocab = {
        "small": (3, 7, 3, 3),
        "odd": (5, 31, 7, 4),
        "degenerate": (2, 1, 1, 2),
        "adversarial": (6, 19, 6, 2),
    }[size]
    tokens, parents, _, num_nodes = random_trees(generator, batch, slots, horizon, vocab)
    posterior = torch.randint(vocab, (batch, slots), generator=generator)
    for b in range(batch):
        for i in range(1, int(num_nodes[b]) + 1):
            if torch.rand((), generator=generator) < 0.7:
                posterior[b, parents[b, i]] = tokens[b, i]
    if size == "adversarial":
        posterior[0] = -1
        posterior[1] = 0
        unused = torch.arange(slots) > num_nodes.unsqueeze(1)
        posterior[unused] = 0
        tokens[unused], parents[unused] = 0, 0  # would match at the root, were they read
        posterior[2, unused[2]], tokens[2, unused[2]], parents[2, unused[2]] = 2**40, -1, 2**40
    return {"tokens": tokens, "parents": parents, "num_nodes": num_nodes, "posterior": posterior, "horizon": horizon}


def cost(
    tokens: torch.Tensor, parents: torch.Tensor, num_nodes: torch.Tensor, posterior: torch.Tensor, horizon: int
) -> dict[str, int]:
    """Fewest bytes (trees and posteriors in, paths and tokens out); no floating-point work."""
    batch = tokens.shape[0]
    read = sum(t.nbytes for t in (tokens, parents, num_nodes, posterior))
    return {"bytes": read + batch * (2 * (horizon + 1) + 2) * 8, "flops": 0}
