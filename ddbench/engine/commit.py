"""Keep what was accepted: cache rows in path order, tokens, lengths, anchors; pick the features to materialize.

Everything is written in place on the device; nothing is read by the host.
Letters: B batch rows, N tree node slots, P = draft horizon + 1, K captured layers, M hidden.
"""

from __future__ import annotations

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.types import Accepted, CommittedRows
from ddbench.models.kernel_set import KernelSet


def commit(
    batch: Batch, accepted: Accepted, features: torch.Tensor, moves_rows: bool, kernels: KernelSet
) -> CommittedRows:
    """Commit one round; -> the features of the kept rows (root first) and where they belong.

    `features` [B, N, K*M]. The kept rows are the root and the accepted nodes whose tokens survived the cut:
    `num_emitted` rows in all, because the last emitted token becomes the anchor and has no row yet.
    `moves_rows` False: the path is 0, 1, 2, ..., so that rows and features already stand in its order.
    """
    if moves_rows:
        kernels.commit_rows(batch.caches.target, batch.lengths, accepted.path, accepted.num_emitted)
        index = accepted.path.clamp(min=0)[..., None].expand(-1, -1, features.shape[-1])  # [B, P, K*M]
        features = features.gather(1, index)
    width = accepted.path.shape[1]
    positions = batch.lengths[:, None] + torch.arange(width, device=batch.device)  # [B, P]
    append(batch, accepted, positions)
    return CommittedRows(features, positions, accepted.num_emitted, batch.context_bound + width)


def append(batch: Batch, accepted: Accepted, positions: torch.Tensor) -> None:
    """Write the emitted tokens behind the anchor, whose `positions` [B, P] start with its own; move the anchor."""
    batch.tokens.scatter_(1, positions + 1, accepted.tokens)  # beyond the new anchor anything may stand
    batch.lengths += accepted.num_emitted
    batch.remaining -= accepted.num_emitted
    batch.remaining.masked_fill_(accepted.finished, 0)  # an idle row: later rounds leave it alone
    last = accepted.tokens.gather(1, (accepted.num_emitted[:, None] - 1).clamp_(min=0))[:, 0]
    batch.anchors.copy_(last.where(accepted.num_emitted > 0, batch.anchors))
