"""Does sampled output follow the target's distribution? Many short continuations against exact probabilities.

A tiny target with a handful of tokens makes the law of the first three tokens enumerable. The same experiment with the
popular but wrong acceptance rule min(1, p / q) has to fail: a test that cannot fail proves nothing.
Letters: B batch rows, N tree node slots, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ddbench.engine.batch import Batch, Running
from ddbench.engine.engine import Engine, setting_of
from ddbench.engine.parts import build_parts
from ddbench.engine.sampling import StochasticSampler
from ddbench.engine.types import DraftTree, Request
from ddbench.models.inputs import VerifyInputs
from ddbench.models.shapes import DRAFTERS, TARGETS
from ddbench.models.weights import Models, random_models_of
from ddbench.spec import ARMS, EngineSpec

NUM_TOKENS = 3  # of each continuation
_VOCAB = 6
_PROMPT = (1, 4, 2, 0, 3)
_MIN_EXPECTED = 5.0  # draws per cell
_MAX_Z = 4.0  # standard deviations of a chi-square statistic: one false alarm in 30,000


@dataclass(frozen=True, slots=True)
class DistributionCheck:
    """Chi-square of the joint of the first NUM_TOKENS tokens against the target's exact probabilities."""

    num_draws: int
    num_cells: int  # rare triples pooled into one
    chi_square: float
    total_variation: float
    acceptance_length: float  # tokens per round: 1.0 would mean that no drafted token was ever put to the test

    @property
    def z(self) -> float:
        """The statistic in standard deviations (Wilson-Hilferty)."""
        k = self.num_cells - 1
        return ((self.chi_square / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))

    @property
    def is_consistent(self) -> bool:
        return self.z < _MAX_Z


class MinRatioSampler(StochasticSampler):
    """The wrong rule, as a positive control: a drafted child is taken with probability min(1, p / q).

    It would be right if the drafted token had been drawn from q; here it is the k-th best, so that likely drafts are
    emitted too often.
    """

    def posterior(self, tree: DraftTree, logits: torch.Tensor) -> torch.Tensor:
        chosen = self.choose(logits)  # [B, N] where no child is taken
        target = (logits / self._temperature).softmax(-1)
        rows = torch.arange(logits.shape[0], device=logits.device)
        is_taken = torch.zeros_like(chosen, dtype=torch.bool)
        coins = torch.rand(chosen.shape, generator=self._generator, device=logits.device)
        for node in range(1, chosen.shape[1]):
            parent, token = tree.parents[:, node].clamp(min=0), tree.tokens[:, node].clamp(min=0)
            draft = (tree.scores[:, node] - tree.scores[rows, parent]).exp()
            takes = (coins[:, node] * draft < target[rows, parent, token]) & (node <= tree.num_nodes)
            takes = takes & ~is_taken[rows, parent]
            chosen[rows[takes], parent[takes]] = token[takes]
            is_taken[rows[takes], parent[takes]] = True
        return chosen


def tiny_vocabulary_models(seed: int = 0) -> Models:
    """A random pair over six tokens."""
    target = TARGETS["tiny-gqa"].model_copy(update={"name": "tiny-vocabulary", "vocab": _VOCAB})
    drafter = DRAFTERS["tiny-gqa"].model_copy(update={"mask_token_id": _VOCAB - 1})
    return random_models_of(target, drafter, seed=seed)


@torch.inference_mode()
def check_distribution(
    arm: str = "ddtree",
    *,
    sampler: type[StochasticSampler] = StochasticSampler,
    num_draws: int = 6_000,
    batch_size: int = 2_000,
    temperature: float = 1.0,
    seed: int = 0,
) -> DistributionCheck:
    """Draw `num_draws` continuations of one prompt with the engine of `arm` and compare their law with the target's."""
    spec = EngineSpec(sampling="stochastic", temperature=temperature, seed=seed, **{"node_budget": 5, **ARMS[arm]})
    models = tiny_vocabulary_models(seed)
    setting = setting_of(spec, models)
    engine = Engine(spec, models, parts=replace(build_parts(setting), sampling=sampler(setting)))
    batch = _forked_batch(engine, batch_size)
    counts = torch.zeros(_VOCAB**NUM_TOKENS, dtype=torch.float64)
    num_rounds = num_emitted = 0
    for _ in range(max(1, num_draws // batch_size)):
        _rewind(batch)
        while min(len(running.tokens) for running in batch.running) <= NUM_TOKENS:
            outcome = engine.step(batch)
            num_rounds += batch.size
            num_emitted += sum(len(tokens) for tokens in outcome.tokens)
        drawn = torch.tensor([running.tokens[1 : NUM_TOKENS + 1] for running in batch.running])  # after the anchor
        cells = (drawn * _VOCAB ** torch.arange(NUM_TOKENS - 1, -1, -1)).sum(1)
        counts += torch.bincount(cells, minlength=len(counts))
    counts, expected = _pool_rare(counts, _exact_probabilities(engine, temperature) * counts.sum())
    return DistributionCheck(
        num_draws=int(counts.sum()),
        num_cells=len(counts),
        chi_square=float(((counts - expected) ** 2 / expected).sum()),
        total_variation=float((counts - expected).abs().sum() / counts.sum() / 2),
        acceptance_length=num_emitted / num_rounds,
    )


def _pool_rare(counts: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cells that expect too few draws for a chi-square become one."""
    is_rare = expected < _MIN_EXPECTED
    rest = [torch.cat([cells[~is_rare], cells[is_rare].sum()[None]]) for cells in (counts, expected)]
    return (rest[0], rest[1]) if bool(is_rare.any()) else (counts, expected)


def _forked_batch(engine: Engine, size: int) -> Batch:
    """`size` rows with the same context: all of the prompt but its last token, which is the anchor."""
    longest = NUM_TOKENS * (engine.setting.facts.block_size + 1)
    requests = [Request(row, _PROMPT[:-1], max_new_tokens=longest) for row in range(size)]
    batch = engine.new_batch(requests, size)
    prefilled = engine.prefill(batch, 0, requests[0])
    for row, request in enumerate(requests):
        batch.admit(row, Running(request, [_PROMPT[-1]], prompt_rows=prefilled.prompt_rows if row == 0 else None))
    engine.materialize_prompts(batch)
    for row in range(1, size):
        batch.cache.copy_row(0, row, len(_PROMPT) - 1)
    return batch


def _rewind(batch: Batch) -> None:
    """Back to the anchor: what was committed behind it is forgotten, what stands before it was never touched."""
    for running in batch.running:
        del running.tokens[1:]
    batch.lengths.fill_(len(_PROMPT) - 1)
    batch.anchors.fill_(_PROMPT[-1])
    batch.remaining.fill_(batch.running[0].request.max_new_tokens)


def _exact_probabilities(engine: Engine, temperature: float) -> torch.Tensor:
    """[V^NUM_TOKENS] float64, the first token's id as the highest digit: plain causal forwards over all prefixes."""
    prefixes = torch.cartesian_prod(*[torch.arange(_VOCAB)] * (NUM_TOKENS - 1))  # [V^2, 2]
    ids = torch.cat([torch.tensor(_PROMPT).expand(len(prefixes), -1), prefixes], dim=1)  # [V^2, T]
    zeros = torch.zeros(len(ids), dtype=torch.int64)
    inputs = VerifyInputs(ids, torch.arange(ids.shape[1]).expand(len(ids), -1), zeros, None, 0)
    batch = engine.new_batch([Request(0, tuple(ids[0].tolist()), 1)], len(ids))
    layers = batch.cache.view(slice(0, len(ids))).layers
    logits = engine.models.target(inputs, layers, engine.parts.attention).logits[:, -NUM_TOKENS:]  # [V^2, 3, V]
    probabilities = (logits.double() / temperature).softmax(-1)
    joint = probabilities[:, -1]  # [V^2, V] of the last token
    for place in range(NUM_TOKENS - 1):
        joint = joint * probabilities[:, place].gather(1, prefixes[:, place : place + 1])
    return joint.flatten()
