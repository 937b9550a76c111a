"""One round: a block drafted, a tree verified, a path committed; and the autoregressive step it competes with.

Letters: B batch rows, P block positions, N tree node slots (root included), V vocabulary, K captured layers, M hidden.
"""

from __future__ import annotations

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.commit import advance, commit
from ddbench.engine.launch import Launch
from ddbench.engine.parts import Parts, SpeculativeParts
from ddbench.engine.stages import Stage
from ddbench.models.inputs import VerifyInputs
from ddbench.models.weights import Models


def run_round(models: Models, parts: SpeculativeParts, batch: Batch, launch: Launch) -> torch.Tensor:
    """One speculative round for every running request; -> its report (see outcome.py), still on the device."""
    with launch.stage(Stage.DRAFT):
        logits = parts.draft(batch)  # [B, P-1, V]
    with launch.stage(Stage.TREE_BUILD):
        tree = parts.tree_build(logits, launch)  # B trees of N slots
    with launch.stage(Stage.TREE_COMPILE):
        inputs = parts.tree_compile(tree, batch)  # ids, positions [B, N]
    with launch.stage(Stage.VERIFY):
        # logits [B, N, V], features [B, N, K*M]
        out = models.target(inputs, batch.caches.layers, parts.attention, captures=parts.has_drafter)
    with launch.stage(Stage.ACCEPT):
        accepted = parts.sampling(tree, out.logits, batch)  # path and tokens [B, P]
    with launch.stage(Stage.COMMIT):
        rows, report = commit(batch, tree, accepted, out.features, parts.tree_compile.moves_rows, parts.kernels)
    if parts.materialize is not None:
        with launch.stage(Stage.MATERIALIZE):
            parts.materialize(rows, batch.caches)
    return report


def run_step(models: Models, parts: Parts, batch: Batch, launch: Launch) -> torch.Tensor:
    """One autoregressive step for every running request: the anchor goes in, the next token comes out."""
    positions = batch.lengths[:, None]  # [B, 1]
    inputs = VerifyInputs(batch.anchors[:, None], positions, batch.lengths, None, batch.context_bound)
    with launch.stage(Stage.VERIFY):
        out = models.target(inputs, batch.caches.layers, parts.attention, captures=False)  # logits [B, 1, V]
    with launch.stage(Stage.ACCEPT):
        accepted = parts.sampling.step(out.logits, batch)
    with launch.stage(Stage.COMMIT):
        report, _ = advance(batch, None, accepted, parts.kernels)
    return report
