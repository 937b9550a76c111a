"""[part] Draft logits -> the tree of drafted tokens to verify.

Thin adapters over `kernels/draft_topk.py` and `kernels/tree_build.py`. Trees are built at temperature 1 whatever the
sampling temperature is. Letters: B batch rows, L draft horizon, V vocabulary, N tree node slots, the root included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from ddbench.engine.types import DraftTree, Part, Setting
from ddbench.kernels import tree_build
from ddbench.kernels.draft_topk import draft_topk, has_nan


class ChainBuilder(Part):
    """The first choice at every position: a tree of width one. The node budget plays no role."""

    def __init__(self, setting: Setting) -> None:
        self.num_slots = setting.facts.block_size  # N

    def __call__(self, logits: torch.Tensor) -> DraftTree:
        log_probs, token_ids = draft_topk(logits, 1)
        return _marked(DraftTree(*tree_build.tree_build_chain(log_probs, token_ids)), log_probs)


class BestFirstBuilder(Part, ABC):
    """Base: the `node_budget` most probable prefixes."""

    def __init__(self, setting: Setting) -> None:
        self._node_budget = setting.facts.spec.node_budget
        self.num_slots = 1 + self._node_budget  # N

    def __call__(self, logits: torch.Tensor) -> DraftTree:
        # A node of rank r has r siblings before it: with a budget of n no rank beyond the n-th can matter.
        log_probs, token_ids = draft_topk(logits, self._node_budget)
        return _marked(DraftTree(*self._build(log_probs, token_ids)), log_probs)

    @abstractmethod
    def _build(self, log_probs: torch.Tensor, token_ids: torch.Tensor) -> tree_build.Trees:
        """Candidates [B, L, K], best first -> tokens, parents, depths, scores [B, N] and num_nodes [B]."""


class HeapBuilder(BestFirstBuilder):
    """A heap on the host: one copy out, one copy back, and the device waits in between."""

    def _build(self, log_probs: torch.Tensor, token_ids: torch.Tensor) -> tree_build.Trees:
        # The kernel refuses NaN; the mark on the root reports it in the same way for all builders.
        log_probs = log_probs.masked_fill(log_probs.isnan(), -torch.inf)
        return tree_build.tree_build_heap(log_probs, token_ids, self._node_budget)


class DeviceBuilder(BestFirstBuilder):
    """Level by level on the device, no host synchronisation."""

    def _build(self, log_probs: torch.Tensor, token_ids: torch.Tensor) -> tree_build.Trees:
        return tree_build.tree_build_levelwise(log_probs, token_ids, self._node_budget)


def _marked(tree: DraftTree, log_probs: torch.Tensor) -> DraftTree:
    """Give trees built from NaN a root score of NaN: the host learns of it when it reads the round."""
    tree.scores[:, 0].masked_fill_(has_nan(log_probs), torch.nan)
    return tree


TREE_BUILDERS = {
    "chain": ChainBuilder,
    "heap": HeapBuilder,
    "device": DeviceBuilder,
}
