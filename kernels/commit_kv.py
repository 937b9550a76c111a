"""Commit of accepted cache rows, all layers of a cache at once; in place, no host synchronisation, fixed shapes.

Where in the flow: COMMIT, after the walk. The target wrote node i's row at `lengths[b] + i`.
Letters: Y layers, B batch rows, S cache rows, L draft horizon, P = L + 1.
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
    """Row `lengths[b] + j` := old row `lengths[b] + path[b, j]` for j = 0..num_accepted[b]; nothing else changes.

    Needs `lengths[b] < S` for every batch row, idle ones too. The root's row is in place and never moves.
    """
    batch, width = path.shape
    place = torch.arange(1, width, device=path.device)  # [L]
    moves = place <= num_accepted.unsqueeze(1)  # [B, L]
    base = lengths.unsqueeze(1)
    # Places beyond the path copy the root's row onto itself: the same write from all of them, and always in bounds.
    source = base + path[:, 1:].where(moves, 0)
    destination = base + place.where(moves, 0)
    rows = torch.arange(batch, device=path.device).unsqueeze(1)  # [B, 1]
    for cache in caches:
        cache[:, rows, destination] = cache[:, rows, source]  # the right side is gathered in full before any write
