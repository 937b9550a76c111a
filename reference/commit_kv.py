"""Specification of the commit: the accepted nodes' cache rows become the next rows of the context.

Where in the flow: COMMIT, after the walk. The target wrote node i's row at `lengths[b] + i`.
Letters: Y layers, B batch rows, S cache rows, P = draft horizon + 1.

Rules, in place: row `lengths[b] + j` := the old row `lengths[b] + path[b, j]`, j = 0..num_accepted[b]. All rows are
read before any is written (a destination may be another's source). No other row and no other request changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def commit_kv(
    caches: Sequence[torch.Tensor],  # each [Y, B, S, ...]
    lengths: torch.Tensor,  # [B] int64 committed rows before this round
    path: torch.Tensor,  # [B, P] int64 node indices, root first, padded with -1
    num_accepted: torch.Tensor,  # [B] int64
) -> None:
    """Move the accepted rows of every layer of every cache to the front; the root's row is already in place."""
    for cache in caches:
        before = cache.clone()
        for b in range(path.shape[0]):
            start = int(lengths[b])
            for j in range(int(num_accepted[b]) + 1):
                cache[:, b, start + j] = before[:, b, start + int(path[b, j])]


def make_inputs(seed: int, size: str) -> dict[str, object]:
    """Arguments of `commit_kv` for a named size; `adversarial`: overlapping moves, identity and root-only paths."""
    generator = torch.Generator().manual_seed(seed)
    layers, batch, rows, nodes, horizon = {
        "small": (2, 2, 20, 8, 3),
        "odd": (3, 3, 61, 23, 7),
        "degenerate": (1, 2, 9, 1, 1),
        "adversarial": (2, 4, 33, 14, 8),
    }[size]
    shapes = [(layers, batch, rows, 2, 4), (layers, batch, rows, 5)]  # as K or V, and as latent rows
    caches = [torch.randn(shape, generator=generator) for shape in shapes]
    caches.append(caches[0].to(torch.bfloat16))
    path = torch.full((batch, horizon + 1), -1)
    path[:, 0] = 0
    num_accepted = torch.zeros(batch, dtype=torch.int64)
    for b in range(batch):
        num_accepted[b] = torch.randint(min(horizon, nodes - 1) + 1, (), generator=generator)
        chosen = (torch.randperm(nodes - 1, generator=generator)[: num_accepted[b]] + 1).sort().values
        path[b, 1 : 1 + len(chosen)] = chosen
    lengths = torch.randint(rows - nodes + 1, (batch,), generator=generator)
    if size == "adversarial":
        path[0] = torch.tensor([0, 2, 3, 4, 5, 6, 7, 8, 9])  # every destination but one is also a source
        path[1] = torch.arange(horizon + 1)
        path[2] = torch.tensor([0, 13, -1, -1, -1, -1, -1, -1, -1])
        num_accepted[:3] = torch.tensor([horizon, horizon, 1])
        path[3], num_accepted[3], lengths[3] = -1, 0, rows - 1  # root only, in the cache's last row
        path[3, 0] = 0
    return {"caches": caches, "lengths": lengths, "path": path, "num_accepted": num_accepted}


def cost(
    caches: Sequence[torch.Tensor], lengths: torch.Tensor, path: torch.Tensor, num_accepted: torch.Tensor
) -> dict[str, int]:
    """Fewest bytes: every row that must move is read and written once; rows in place cost nothing. No flops."""
    place = torch.arange(path.shape[1], device=path.device)
    moved = int(((place <= num_accepted.unsqueeze(1)) & (path != place)).sum())
    row_bytes = sum(cache[:, 0, 0].numel() * cache.element_size() for cache in caches)
    indices = sum(t.nbytes for t in (lengths, path, num_accepted))
    return {"bytes": 2 * moved * row_bytes + indices, "flops": 0}
