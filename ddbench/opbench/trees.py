"""Random draft trees for inputs: parents before children, at most `HORIZON` deep, every slot used.

Letters: B batch rows, N node slots (slot 0 the root), L draft horizon.
"""

from __future__ import annotations

import random

import torch

HORIZON = 7  # of the Kimi-K2.6 drafter


def random_parents(seed: int, batch: int, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> parents, depths [B, N] int64 on the CPU; the root has parent -1, and a node prefers parents near the root."""
    draw = random.Random(seed)
    parents = [[-1] * slots for _ in range(batch)]
    depths = [[0] * slots for _ in range(batch)]
    for b in range(batch):
        for i in range(1, slots):
            chain = i if i <= min(HORIZON, slots - 1) else 0  # the first nodes make a chain of full depth
            parent = chain - 1 if chain else draw.choice([j for j in range(i) if depths[b][j] < HORIZON])
            parents[b][i], depths[b][i] = parent, depths[b][parent] + 1
    return torch.tensor(parents), torch.tensor(depths)


def ancestor_masks(parents: torch.Tensor) -> torch.Tensor:
    """[B, N, N] bool: which nodes a node sees, itself and its ancestors."""
    batch, slots = parents.shape
    visible = torch.eye(slots, dtype=torch.bool).repeat(batch, 1, 1)
    for b, row in enumerate(parents.tolist()):
        for i in range(1, slots):
            visible[b, i] |= visible[b, row[i]]
    return visible


def random_visible(seed: int, batch: int, slots: int, device: str) -> torch.Tensor:
    """Ancestor masks of random trees, on the device."""
    return ancestor_masks(random_parents(seed, batch, slots)[0]).to(device)
