"""Node budgets against each other and against the chain: which is best, which cannot be told from it, what a node buys.

After metrics. Whoever picks the fastest of several budgets picks the luckiest too. So all budgets of a sweep and its
chain are compared with each other at once: the intervals of all pairs are widened until 95 % of the resamples have
every pair inside (the largest studentized deviation of a resample, as in Tukey's and Hsu's comparisons), which holds
whichever is picked afterwards. Letters: R resamples, U prompts, B processes, k settings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddbench.analysis import contests, stats
from ddbench.analysis.contests import Contest
from ddbench.analysis.series import resampled_ratios
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.speed import emitted_and_rounds
from ddbench.analysis.values import Estimate, Value, missing
from ddbench.records import NotMeasured

FEWEST_BUDGETS = 2


@dataclass(frozen=True)
class Sweep:
    """Settings that differ in nothing but the node budget, narrow trees first, and the chain that they may replace."""

    trees: tuple[Setting, ...]
    chain: Setting | NotMeasured

    @property
    def concurrency(self) -> int:
        return self.trees[0].concurrency

    @property
    def everyone(self) -> tuple[Setting, ...]:
        return self.trees if isinstance(self.chain, NotMeasured) else (self.chain, *self.trees)


def place(sweep: Sweep, sweeps: Sequence[Sweep]) -> tuple[str, ...]:
    """What tells a sweep from the others, `prompt_tokens=2048`; nothing where there are no others."""

    def fields(one: Sweep) -> dict[str, object]:
        tree = one.trees[0]
        return {**tree.engine.model_dump(exclude={"node_budget"}), **tree.workload.model_dump(exclude={"concurrency"})}

    own, others = fields(sweep), [fields(one) for one in sweeps]
    return tuple(f"{name}={value}" for name, value in own.items() if any(one[name] != value for one in others))


@dataclass(frozen=True)
class Field:
    """Settings compared with each other at once, by their median time per token."""

    settings: tuple[Setting, ...]
    log_times: np.ndarray  # [k]
    resampled: np.ndarray | None  # [R, k]; None: too few prompts
    width: float  # how many standard deviations an interval reaches to either side, so that all hold together
    n: int  # prompts that all of them ran
    note: str

    def speedup(self, setting: Setting, base: Setting) -> Estimate:
        """Time per token of `base` over that of `setting`; the interval holds together with those of all pairs."""
        own, other = self.settings.index(setting), self.settings.index(base)
        distance = float(self.log_times[other] - self.log_times[own])
        if self.resampled is None:
            return Estimate(math.exp(distance), None, None, self.n, "x", "clean", self.note)
        reach = self.width * float((self.resampled[:, other] - self.resampled[:, own]).std())
        ends = math.exp(distance - reach), math.exp(distance + reach)
        return Estimate(math.exp(distance), *ends, self.n, "x", "clean", self.note)

    def slower_than(self, best: Setting) -> tuple[Setting, ...]:
        """Those that are told apart from `best`."""
        found = ((other, self.speedup(best, other)) for other in self.settings if other is not best)
        return tuple(other for other, value in found if value.low is not None and value.low > 1)


@dataclass(frozen=True)
class Step:
    """From one setting of a sweep to the next wider one."""

    contest: Contest
    nodes: float  # verified per round, more than before
    tau_per_node: Value
    ms_per_node: Value


def sweeps_of(study: Study) -> tuple[Sweep, ...]:
    """Every group of measured settings that differ in the budget only, from two budgets on."""
    groups: dict[tuple[str, ...], list[Setting]] = {}
    for setting in study.settings:
        if setting.engine.node_budget > 0 and setting.is_ok:
            alike = setting.engine.model_copy(update={"node_budget": 1}).model_dump_json()
            groups.setdefault((setting.run, setting.arm, alike, setting.workload.model_dump_json()), []).append(setting)
    found = []
    for own in groups.values():
        trees = tuple(sorted(own, key=lambda s: s.engine.node_budget))
        if len({s.engine.node_budget for s in trees}) >= FEWEST_BUDGETS:
            found.append(Sweep(trees, study.counterpart(trees[0], "chain")))
    return tuple(found)


def field_of(settings: Sequence[Setting]) -> Field | NotMeasured:
    """All settings against each other, over the prompts and interleaved repeats that all of them ran."""
    assert len(settings) > 1, "a comparison takes two"
    blocks = frozenset.intersection(*(setting.blocks for setting in settings))
    units = [unit for unit in settings[0].tpot.units if all(unit in other.tpot.units for other in settings)]
    if not blocks or not units:
        return missing("no prompt was timed in all of them")
    tables = [setting.tpot.of(blocks, units) for setting in settings]
    if len({table.shape for table in tables}) > 1 or min(table.min() for table in tables) <= 0:
        return missing("their times per token cannot be paired")
    medians = np.array([stats.medians(stats.medians(table.T)) for table in tables])
    if len(units) < stats.FEWEST_UNITS:
        note = f"n={len(units)}: too few for an interval"
        return Field(tuple(settings), np.log(medians), None, 0.0, len(units), note)
    resampled = np.log(np.stack([stats.resampled_medians(table) for table in tables], axis=1))
    note = f"widened to hold together with all pairs of {len(settings)} settings"
    if len(units) < stats.FEW_UNITS:
        note += f"; n={len(units)}: an interval from so few is too narrow"
    return Field(tuple(settings), np.log(medians), resampled, _width(resampled), len(units), note)


def _width(resampled: np.ndarray) -> float:
    """The 95 % quantile over resamples of the largest studentized deviation of any pair."""
    largest = np.zeros(len(resampled))
    for place in range(1, resampled.shape[1]):
        differences = resampled[:, :place] - resampled[:, place : place + 1]  # [R, those before]
        deviations, spreads = np.abs(differences - differences.mean(axis=0)), differences.std(axis=0)
        if (is_spread := spreads > 0).any():
            largest = np.maximum(largest, (deviations[:, is_spread] / spreads[is_spread]).max(axis=1))
    return float(np.quantile(largest, stats.CONFIDENCE))


def steps_of(sweep: Sweep) -> tuple[Step, ...]:
    """What every widening brought and cost, from the chain on."""
    found = []
    for narrow, wide in itertools.pairwise(sweep.everyone):
        contest = contests.versus(wide, narrow)
        if isinstance(contest, Contest):
            nodes = _mean_nodes(wide) - _mean_nodes(narrow)
            found.append(Step(contest, nodes, *_per_node(wide, narrow, nodes)))
    return tuple(found)


def _mean_nodes(setting: Setting) -> float:
    return float(setting.rounds["num_nodes"].mean()) if len(setting.rounds) else 0.0


def _per_node(wide: Setting, narrow: Setting, nodes: float) -> tuple[Value, Value]:
    """(tau, milliseconds of round cost) per further node that a round verified."""
    if nodes <= 0:
        nothing = missing("it verified no more nodes")
        return nothing, nothing
    if not all(len(rows) for one in (wide, narrow) for rows in (one.rounds, one.steps)):
        nothing = missing("the clean pass recorded no rounds")
        return nothing, nothing
    return _tau_per_node(wide, narrow, nodes), _ms_per_node(wide, narrow, nodes)


def _tau_per_node(wide: Setting, narrow: Setting, nodes: float) -> Value:
    ours, theirs = emitted_and_rounds(wide), emitted_and_rounds(narrow)
    shared = [unit for unit in ours if unit in theirs]
    if not shared:
        return missing("no prompt has rounds in both")
    sums = np.array([(*ours[unit], *theirs[unit]) for unit in shared]).T  # [4, U]: tokens and rounds of both
    value = float(_gain(sums.sum(axis=1))) / nodes
    if len(shared) < stats.FEWEST_UNITS:
        note = f"n={len(shared)}: too few for an interval"
        return Estimate(value, None, None, len(shared), "tokens", "clean", note)
    ends = stats.around(value, _gain(sums @ stats.resample_counts(len(shared)).T) / nodes)
    return Estimate(value, *ends, len(shared), "tokens", "clean")


def _gain(sums: np.ndarray) -> np.ndarray:
    return sums[0] / sums[1] - sums[2] / sums[3]


def _ms_per_node(wide: Setting, narrow: Setting, nodes: float) -> Value:
    ours, theirs = wide.round_costs, narrow.round_costs
    value, count = (ours.ratio - theirs.ratio) / nodes, min(len(ours.numerators), len(theirs.numerators))
    if min(ours.layout.num_blocks, theirs.layout.num_blocks) < stats.FEWEST_UNITS:
        note = f"n={count} rounds: too few for an interval"
        return Estimate(value, None, None, count, "ms", "clean", note, "rounds")
    resampled = np.subtract(*resampled_ratios(ours, theirs))
    return Estimate(value, *stats.around(value, resampled / nodes), count, "ms", "clean", counted="rounds")
