"""Verdicts of a couple of settings, metric by metric: which values are paired, and what needs no pairing.

Between matching and comparisons. Times are compared in pairs of interleaved repeats and decided together with every
other cell of the comparison (`paired`); tau is exact under greedy decoding; what cannot be told says why.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ddbench.analysis import blocks, paired
from ddbench.analysis.compare import exact
from ddbench.analysis.compare.comparability import Reason
from ddbench.analysis.compare.matching import Couple
from ddbench.analysis.conditions import throttled_blocks
from ddbench.analysis.effects import Effect, Pair
from ddbench.analysis.gate.baseline import shape_key
from ddbench.analysis.metrics import METRICS, Metric
from ddbench.analysis.paired import Cell, Decision, Limits
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import missing

MIN_EFFECT = 0.02  # relative; smaller differences are of no consequence however sure they are
COMPARED: tuple[str, ...] = tuple(name for name, metric in METRICS.items() if metric.is_comparable)
TAU, COST = "acceptance_length", "round_cost_ms"

# What the codes of a decision say: those of `paired`, and those given here.
REASON_TEXTS: dict[str, str] = {
    paired.NO_PAIRS: "no interleaved repeat was measured on both sides",
    paired.UNUSABLE_VALUES: "a value is not positive: the clock is too coarse or broken",
    paired.TOO_FEW_BLOCKS: "too few interleaved repeats: measure with --blocks 10",
    paired.ONE_ORDER_ONLY: "the same side always ran first",
    paired.SPREAD_TOO_WIDE: "the repeats spread too widely: a quieter machine, or more work per repeat",
    paired.INTERVAL_SPANS_BOTH: "the interval holds both no difference and one that would count: more repeats",
    paired.NOT_SIGNIFICANT_AFTER_FDR: "not significant among so many comparisons: more repeats, or fewer comparisons",
    paired.BELOW_MIN_EFFECT: "smaller than the minimum effect",
    paired.BELOW_NOISE_FLOOR: "smaller than what the same code against itself shows",
    paired.BELOW_ABSOLUTE_FLOOR: "smaller in absolute terms than what counts",
    paired.NOT_CONFIRMED: "the earlier and the later half of the repeats do not agree",
    paired.IDENTICAL: "the same value in every repeat",
    paired.NO_SPREAD: "the same ratio in every repeat",
    "not_interleaved": "the runs were not interleaved: a difference of hours or machine states looks the same",
    "no_shared_block": "no interleaved repeat was measured on both sides",
    "no_shared_prompt": "no prompt has rounds on both sides",
    "no_rounds": "the clean pass recorded no rounds",
    "exact": "exact: greedy decoding repeats itself",
}

Basis = Literal["blocks", "exact", "prompts", "none"]
Floors = Mapping[tuple[str, str], float]  # (baseline.shape_key, metric) -> relative noise floor of a qualified machine
Judged = dict[str, tuple[Decision, Basis]]  # by metric


@dataclass(frozen=True)
class Trial:
    """A couple with what stands against comparing it, before anything is judged."""

    couple: Couple
    obstacles: tuple[Reason, ...]
    allowed: tuple[Reason, ...]
    is_interleaved: bool
    min_effect: float

    @cached_property
    def throttled(self) -> dict[int, tuple[str, ...]]:
        a, b = self.couple
        return throttled_blocks(a) | throttled_blocks(b)

    def pairs(self, metric: Metric) -> tuple[Pair, ...]:
        """Blocks that both sides measured, those on a throttled device left out."""
        assert metric.per_block is not None, "only metrics with a value per block are compared"
        a, b = self.couple
        ours, theirs = metric.per_block(a), metric.per_block(b)
        starts = (blocks.started_at(a), blocks.started_at(b)) if self.is_interleaved else ({}, {})
        shared = [n for n in sorted(ours) if n in theirs and n not in self.throttled and min(ours[n], theirs[n]) > 0]
        return tuple(Pair(n, ours[n], theirs[n], _is_first(starts[0].get(n), starts[1].get(n))) for n in shared)


def _is_first(one: str | None, other: str | None) -> bool | None:
    return None if one is None or other is None or one == other else one < other


def judge(trials: Sequence[Trial], floors: Floors) -> list[Judged]:
    """Every metric of every couple; all statistical cells are decided together."""
    settled: list[Judged] = [{} for _ in trials]
    cells: list[tuple[Cell, Basis]] = []
    for place, trial in enumerate(trials):
        for name in _metrics_of(trial):
            outcome = _prepare((place, name), trial, METRICS[name], floors)
            if isinstance(outcome, Decision):
                settled[place][name] = (outcome, "exact" if "exact" in outcome.reasons else "none")
            else:
                cells.append(outcome)
    decided = paired.decide([cell for cell, _ in cells])
    for decision, (cell, basis) in zip(decided, cells, strict=True):
        place, name = cell.key  # type: ignore[misc]
        if basis == "prompts":
            decision = exact.pooled(decision, *trials[place].couple)
        settled[place][name] = (decision, basis)
    return settled


def _metrics_of(trial: Trial) -> Iterator[str]:
    for name in COMPARED:
        if name != TAU or any(setting.has_draft for setting in trial.couple):
            yield name


def _prepare(key: tuple[int, str], trial: Trial, metric: Metric, floors: Floors) -> Decision | tuple[Cell, Basis]:
    """A decision that needs no statistics, or the cell that they are to decide."""
    a, b = trial.couple
    if trial.obstacles:
        codes = tuple(reason.code for reason in trial.obstacles)
        return Decision(key, "incomparable", codes, missing(trial.obstacles[0].text), None)
    if metric.name == TAU:
        return _prepare_tau(key, trial)
    pairs = trial.pairs(metric)
    floor = floors.get((shape_key(b.results[0].case), metric.name))
    if not pairs:
        return _undecided(key, "no_shared_block")
    if not trial.is_interleaved and floor is None:
        return Decision(key, "undecided", ("not_interleaved",), _unpaired_effect(pairs), None)
    assert metric.direction != "neither", "only comparable metrics are judged"
    limits = Limits(trial.min_effect, _absolute_floor(metric.name, pairs, a), floor or 0.0)
    return Cell(key, pairs, metric.direction, limits), "blocks"


def _prepare_tau(key: tuple[int, str], trial: Trial) -> Decision | tuple[Cell, Basis]:
    """Exact where decoding is greedy and repeats itself; in pairs of prompts elsewhere."""
    a, b = trial.couple
    if not len(a.rounds) or not len(b.rounds):
        return _undecided(key, "no_rounds")
    if exact.is_exact(a) and exact.is_exact(b):
        return exact.decide_length(key, a, b, trial.min_effect)
    pairs = exact.pairs_of_prompts(a, b)
    if not pairs:
        return _undecided(key, "no_shared_prompt")
    return Cell(key, pairs, "higher", Limits(trial.min_effect, METRICS[TAU].absolute_floor, 0.0)), "prompts"


def _undecided(key: Hashable, code: str) -> Decision:
    return Decision(key, "undecided", (code,), missing(REASON_TEXTS[code]), None)


def _absolute_floor(metric: str, pairs: Sequence[Pair], setting: Setting) -> float:
    """The metric's own; that of a rate follows from that of a token's time."""
    if metric != "output_tok_per_s":
        return METRICS[metric].absolute_floor
    rate = float(np.median([pair.a for pair in pairs]))
    token_ms = setting.concurrency * 1e3 / rate  # what a token takes a request, all told
    floor = METRICS["tpot_ms"].absolute_floor
    return rate * floor / (token_ms + floor)


def _unpaired_effect(pairs: Sequence[Pair]) -> Effect:
    """The ratio alone: repeats of different hours are no pairs, and nothing tells their difference from the code's."""
    ratio = math.exp(float(np.mean([math.log(pair.b / pair.a) for pair in pairs])))
    note = "not interleaved: no interval"
    return Effect(ratio, None, None, None, len(pairs), None, None, note)
