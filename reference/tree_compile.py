"""Specification of what the target is given to verify: input ids, positions and the ancestor mask of every tree.

Where in the flow: TREE_COMPILE, between the tree builder and the target's forward.
Letters: B batch rows, N node slots (slot 0 the root = anchor).

Rules
- The root's token is the anchor, at position `lengths[b]` (the number of committed cache rows); a node of depth d has
  position `lengths[b] + d`, so siblings share a position while each node has its own cache row, `lengths[b] + i`.
- `visible[b, i, j]`: node i sees node j, that is, j is i or an ancestor of i. Row i is row `parents[i]` plus i itself.
- Slots above `num_nodes[b]` are unused, whatever they hold: input id 0 (any legal embedding row), position
  `lengths[b]`, visible to themselves only. A row of nothing visible would make its softmax NaN.
"""

from __future__ import annotations

import torch


def tree_compile(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    depths: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    anchors: torch.Tensor,  # [B] int64 token ids
    lengths: torch.Tensor,  # [B] int64 committed rows
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> input_ids [B, N] int64, positions [B, N] int64, visible [B, N, N] bool (true = may attend)."""
    batch, slots = tokens.shape
    input_ids = torch.zeros(batch, slots, dtype=torch.int64)
    positions = lengths.unsqueeze(1).repeat(1, slots)
    visible = torch.eye(slots, dtype=torch.bool).repeat(batch, 1, 1)
    for b in range(batch):
        input_ids[b, 0] = anchors[b]
        for i in range(1, int(num_nodes[b]) + 1):
            parent = int(parents[b, i])
            assert 0 <= parent < i, f"parents must precede children: node {i} has parent {parent}"
            input_ids[b, i] = tokens[b, i]
            positions[b, i] = lengths[b] + depths[b, i]
            visible[b, i] |= visible[b, parent]
    return input_ids, positions, visible


def random_trees(
    generator: torch.Generator, batch: int, slots: int, horizon: int, vocab: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arbitrary prefix-closed trees of unequal sizes: tokens, parents, depths [B, N], num_nodes [B].

    Not canonical: any shape of at most `horizon` levels, parents before children, distinct tokens among siblings.
    """
    tokens, parents = torch.full((batch, slots), -1), torch.full((batch, slots), -1)
    depths = torch.zeros(batch, slots, dtype=torch.int64)
    num_nodes = torch.zeros(batch, dtype=torch.int64)

    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    for b in range(batch):
        taken: set[tuple[int, int]] = set()
        for _ in range(draw(slots)):
            node = int(num_nodes[b]) + 1
            parent, token = draw(node), draw(vocab)
            if depths[b, parent] < horizon and (parent, token) not in taken:
                taken.add((parent, token))
                tokens[b, node], parents[b, node], depths[b, node] = token, parent, depths[b, parent] + 1
                num_nodes[b] = node
    return tokens, parents, depths, num_nodes


def make_inputs(seed: int, size: str) -> dict[str, torch.Tensor]:
    """Arguments of `tree_compile` for a named size; `adversarial`: a chain, a fan and poisoned unused slots."""
    generator = torch.Generator().manual_seed(seed)
    batch, slots, horizon, vocab = {
        "small": (2, 6, 3, 5),
        "odd": (3, 23, 7, 101),
        "degenerate": (2, 1, 1, 3),
        "adversarial": (5, 17, 16, 3),
    }[size]
    tokens, parents, depths, num_nodes = random_trees(generator, batch, slots, horizon, vocab)
    if size == "adversarial":
        index = torch.arange(slots)
        tokens[0], parents[0], depths[0], num_nodes[0] = 0, index - 1, index, slots - 1  # a chain of token 0
        tokens[1], parents[1], depths[1], num_nodes[1] = index - 1, 0, 1, slots - 1  # a fan
        tokens[1, 0], parents[1, 0], depths[1, 0] = -1, -1, 0
        tokens[0, 0] = -1
        unused = index > num_nodes.unsqueeze(1)
        tokens[unused], parents[unused], depths[unused] = 2**40, 2**40, -(2**40)
    return {
        "tokens": tokens,
        "parents": parents,
        "depths": depths,
        "num_nodes": num_nodes,
        "anchors": torch.randint(vocab, (batch,), generator=generator),
        "lengths": torch.randint(1, 50, (batch,), generator=generator),
    }


def cost(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    depths: torch.Tensor,
    num_nodes: torch.Tensor,
    anchors: torch.Tensor,
    lengths: torch.Tensor,
) -> dict[str, int]:
    """Fewest bytes (trees in, ids, positions and a byte mask out); no floating-point work."""
    batch, slots = tokens.shape
    read = sum(t.nbytes for t in (tokens, parents, depths, num_nodes, anchors, lengths))
    return {"bytes": read + batch * slots * (8 + 8 + slots), "flops": 0}
