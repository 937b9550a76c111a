"""[part] Draft logits -> the tree of drafted tokens to verify.

Thin adapters over `kernels/draft_topk.py` and `kernels/tree_build.py`. Trees are built at temperature 1 whatever the
sampling temperature is. Letters: B batch rows, L draft horizon, V vocabulary, N tree node slots, the root included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from ddbench.engine.launch import AT_ONCE, Launch
from ddbench.engine.types import CaseFacts, DraftTree, Part, Setting
from ddbench.kernels import tree_build
from ddbench.kernels.draft_topk import draft_topk, has_nan

MOST_TRITON_NODES = 1024  # that `tree_build_triton` builds
MOST_TRITON_CANDIDATES = 256  # per position, that `draft_topk_triton` keeps; plain torch keeps more, without a sync


class ChainBuilder(Part):
    """The first choice at every position: a tree of width one. The node budget plays no role."""

    def __init__(self, setting: Setting) -> None:
        self.num_slots = setting.facts.block_size  # N
        self._kernels = setting.kernels

    def __call__(self, logits: torch.Tensor, launch: Launch = AT_ONCE) -> DraftTree:
        return DraftTree(*self._kernels.tree_build_chain(*self._kernels.draft_topk(logits, 1)))


class BestFirstBuilder(Part, ABC):
    """Base: the `node_budget` most probable prefixes."""

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        budget = facts.spec.node_budget
        if facts.spec.kernels == "triton" and budget > MOST_TRITON_NODES:
            return (
                f"kernels 'triton' build trees of {MOST_TRITON_NODES} nodes at most: node_budget is {budget}; "
                "lower it, or take kernels 'torch'"
            )
        return None

    def __init__(self, setting: Setting) -> None:
        self._node_budget = setting.facts.spec.node_budget
        self.num_slots = 1 + self._node_budget  # N
        self._kernels = setting.kernels
        self._draft_topk = setting.kernels.draft_topk
        if self._draft_topk is not draft_topk and self._node_budget > MOST_TRITON_CANDIDATES:
            self._draft_topk, self.plain_ops = draft_topk, ("draft_topk",)

    def __call__(self, logits: torch.Tensor, launch: Launch = AT_ONCE) -> DraftTree:
        # A node of rank r has r siblings before it: with a budget of n no rank beyond the n-th can matter.
        log_probs, token_ids = self._draft_topk(logits, self._node_budget)
        return self._build(log_probs, token_ids, launch)

    @abstractmethod
    def _build(self, log_probs: torch.Tensor, token_ids: torch.Tensor, launch: Launch) -> DraftTree:
        """Trees of candidates [B, L, K], best first; the root's score is NaN where one of the request's is."""


class HeapBuilder(BestFirstBuilder):
    """A heap on the host: one copy out, one copy back, and the device waits in between."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._searches: dict[torch.Size, tree_build.HeapSearch] = {}  # its buffers, by the candidates' shape

    def _build(self, log_probs: torch.Tensor, token_ids: torch.Tensor, launch: Launch) -> DraftTree:
        if log_probs.shape not in self._searches:
            self._searches[log_probs.shape] = tree_build.HeapSearch(
                *log_probs.shape, self._node_budget, log_probs.device
            )
        search = self._searches[log_probs.shape]
        # The search refuses NaN; the mark on the root reports it in the same way for all builders.
        search.fetch(log_probs.masked_fill(log_probs.isnan(), -torch.inf), token_ids)
        launch.on_host(search.search)
        tree = DraftTree(*search.send())
        tree.scores[:, 0].masked_fill_(has_nan(log_probs), torch.nan)
        return tree


class DeviceBuilder(BestFirstBuilder):
    """Level by level on the device, no host synchronisation."""

    def _build(self, log_probs: torch.Tensor, token_ids: torch.Tensor, launch: Launch) -> DraftTree:
        return DraftTree(*self._kernels.tree_build(log_probs, token_ids, self._node_budget))


TREE_BUILDERS = {
    "chain": ChainBuilder,
    "heap": HeapBuilder,
    "device": DeviceBuilder,
}
