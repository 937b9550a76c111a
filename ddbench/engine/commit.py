"""Keep what was accepted: cache rows in path order, tokens, lengths, anchors; pick the features to materialize.

Everything is written in place on the device; nothing is read by the host.
Letters: B batch rows, N tree node slots, P = draft horizon + 1, K captured layers, M hidden.
"""

from __future__ import annotations

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.types import Accepted, CommittedRows, DraftTree
from ddbench.models.kernel_set import KernelSet


def commit(
    batch: Batch,
    tree: DraftTree,
    accepted: Accepted,
    features: torch.Tensor,
    moves_rows: bool,
    kernels: KernelSet,
) -> tuple[CommittedRows, torch.Tensor]:
    """Commit one round; -> the features of the kept rows (root first) and where they belong, and the round's report.

    `features` [B, N, K*M]. The kept rows are the root and the accepted nodes whose tokens survived the cut:
    `num_emitted` rows in all, because the last emitted token becomes the anchor and has no row yet.
    `moves_rows` False: the path is 0, 1, 2, ..., so that rows and features already stand in its order.
    """
    if moves_rows:
        kernels.commit_rows(batch.caches.target, batch.lengths, accepted.path, accepted.num_emitted)
        index = accepted.path.clamp(min=0)[..., None].expand(-1, -1, features.shape[-1])  # [B, P, K*M]
        features = features.gather(1, index)
    report, positions = advance(batch, tree, accepted, kernels)
    bound = batch.context_bound + accepted.path.shape[1]
    return CommittedRows(features, positions, accepted.num_emitted, bound), report


def advance(
    batch: Batch, tree: DraftTree | None, accepted: Accepted, kernels: KernelSet
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the emitted tokens behind the anchors and move those. No tree: an autoregressive step.

    -> the report for the host (see outcome.py) [B, 2P+4], and positions [B, P] from the old anchors on.
    """
    return kernels.advance(
        accepted.path,
        accepted.num_accepted,
        accepted.tokens,
        accepted.num_emitted,
        accepted.finished,
        None if tree is None else (tree.num_nodes, tree.scores),
        batch.tokens,
        batch.lengths,
        batch.remaining,
        batch.anchors,
    )
