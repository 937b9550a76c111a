"""The end of a round on the device: emitted tokens behind the anchor, the anchor moved, the host's report.

Where in the flow: COMMIT, after the cache rows were moved. Nothing is read by the host.
Letters: B batch rows, S context length, P = draft horizon + 1, N tree node slots.
"""

from __future__ import annotations

import torch


def advance(
    path: torch.Tensor,  # [B, P] int64
    num_accepted: torch.Tensor,  # [B] int64
    emitted: torch.Tensor,  # [B, P] int64
    num_emitted: torch.Tensor,  # [B] int64
    finished: torch.Tensor,  # [B] bool
    tree: tuple[torch.Tensor, torch.Tensor] | None,  # num_nodes [B] int64, scores [B, N] fp32
    tokens: torch.Tensor,  # [B, S] int64, changed in place as are the next three
    lengths: torch.Tensor,  # [B] int64
    remaining: torch.Tensor,  # [B] int64
    anchors: torch.Tensor,  # [B] int64
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (report [B, 2P+4] fp64, positions [B, P] int64: the old `lengths[b]` + j).

    The report holds path, emitted tokens (fp64 holds every id exactly), accepted, emitted, nodes and the sum of the
    nodes' probabilities; without a tree the last two are accepted and emitted.
    """
    positions = lengths[:, None] + torch.arange(path.shape[1], device=path.device)  # [B, P]
    tokens.scatter_(1, positions + 1, emitted)  # beyond the new anchor anything may stand
    lengths += num_emitted
    remaining -= num_emitted
    remaining.masked_fill_(finished, 0)
    last = emitted.gather(1, (num_emitted[:, None] - 1).clamp_(min=0))[:, 0]
    anchors.copy_(last.where(num_emitted > 0, anchors))
    if tree is None:
        num_nodes, expected = num_accepted, num_emitted
    else:
        num_nodes, expected = tree[0], tree[1].exp().sum(dim=1)  # unused slots: exp(-inf) = 0; the root: 1
    scalars = torch.stack([num_accepted, num_emitted, num_nodes, expected.double()], dim=1)
    return torch.cat([path, emitted, scalars], dim=1), positions
