"""[part] The target's own choice at every node, and the walk along it through the tree.

Sample and walk: at every node the target's token is chosen without looking at the tree; the path follows these choices
as long as they are children in the tree, and the first that is none is the bonus token. What is emitted are the
target's choices themselves, so the output's law is the target's whatever was drafted (DDTree paper, arXiv 2604.12989).
Letters: B batch rows, N tree node slots, P = draft horizon + 1, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.types import Accepted, DraftTree, Drawing, Part, Setting
from ddbench.kernels.accept_walk import sample_posterior


class Sampler(Part, ABC):
    """Base: walk and cut; a rule for sampling says what the target's tokens are."""

    def __init__(self, setting: Setting) -> None:
        self._horizon = setting.facts.block_size - 1
        self._kernels = setting.kernels

    @abstractmethod
    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """The target's tokens for logits [B, N, V] -> [B, N] int64."""

    def posterior(self, tree: DraftTree, logits: torch.Tensor) -> torch.Tensor:
        """[B, N] the target's token after every node."""
        return self.choose(logits)

    def __call__(self, tree: DraftTree, logits: torch.Tensor, batch: Batch) -> Accepted:
        """Walk the trees, cut at stop tokens and length limits."""
        posterior = self.posterior(tree, logits)
        return Accepted(
            *self._kernels.accept(
                tree.tokens, tree.parents, tree.num_nodes, posterior, batch.stop_ids, batch.remaining, self._horizon
            )
        )

    def step(self, logits: torch.Tensor, batch: Batch) -> Accepted:
        """Without a tree, logits [B, 1, V]: one token per request that is not idle."""
        return Accepted(*self._kernels.accept_token(self.choose(logits), batch.stop_ids, batch.remaining))


class GreedySampler(Sampler):
    """The most likely token; of equal logits the lowest id."""

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        return self._kernels.greedy(logits)


class StochasticSampler(Drawing, Sampler):
    """A draw from the target's distribution at `temperature`, with fresh randomness at every node of every round."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._temperature = setting.facts.spec.temperature

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        return sample_posterior(logits, self._temperature, self._generator)


SAMPLERS = {
    "greedy": GreedySampler,
    "stochastic": StochasticSampler,
}
