"""`Setting`: all cases that differ only in their interleaved repeat, with their rows. `Study`: all settings.

Second step of the analysis (frames -> settings -> metrics). Metrics are functions of one setting; a speedup also needs
the setting's counterpart in another arm, which the study finds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ddbench.analysis.columns import Columns, Whole, pairs
from ddbench.analysis.frames import RunFrames
from ddbench.analysis.series import Stratum
from ddbench.analysis.timing import Rounds, Table, round_costs, rounds_in_order, tpot_by_prompt, ttft_by_prompt
from ddbench.records import NotMeasured, OkResult
from ddbench.spec import ARMS, UNUSED, EngineSpec, WorkloadSpec

MODEL_FREE_DRAFTS: tuple[str, ...] = ("prompt_lookup",)  # drafts that no drafter model makes

# A speedup compares two arms that agree in all of these (and in the whole workload).
SAME_FOR_SPEEDUP: tuple[str, ...] = (
    "target",
    "experts",
    "dtype",
    "device",
    "num_threads",
    "executor",
    "kernels",
    "sampling",
    "temperature",
    "seed",
)


def uses_drafter(engine: EngineSpec) -> bool:
    """A drafter model makes the drafts."""
    return engine.draft not in (UNUSED, *MODEL_FREE_DRAFTS)


@dataclass(frozen=True, eq=False)  # each is itself: comparing tables would be meaningless and slow
class Setting:
    """One thing that was asked for, and what was observed of it. Tables hold ok cases only and may be empty."""

    key: str
    run: str
    arm: str
    label: str  # without the concurrency
    engine: EngineSpec
    workload: WorkloadSpec
    reason: str  # why nothing was measured; empty when at least one case is ok
    results: tuple[OkResult, ...]
    requests: Columns  # clean pass
    rounds: Columns  # clean pass
    steps: Columns  # clean pass
    passes: Columns  # clean pass
    attributed_steps: Columns
    attributed_passes: Columns
    stages: Columns  # attributed pass by construction

    @cached_property
    def tpot(self) -> Table:
        """Milliseconds per token by process and prompt."""
        return tpot_by_prompt(self.requests)

    @cached_property
    def ttft(self) -> Table:
        """Milliseconds from admission to first token by process and prompt."""
        return ttft_by_prompt(self.requests)

    @cached_property
    def ordered(self) -> Rounds:
        """The rounds of the clean passes in order."""
        return rounds_in_order(self.steps, self.passes)

    @cached_property
    def prompts(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Of every round of the clean pass the number of its prompt, and the prompts in order of appearance."""
        rounds = self.rounds
        numbers, units = pd.factorize(rounds.codes("unit"))
        return numbers, tuple(map(str, rounds.categories("unit")[units]))

    @cached_property
    def round_costs(self) -> Stratum:
        return round_costs(self.ordered)

    @property
    def concurrency(self) -> int:
        return self.workload.concurrency

    @property
    def is_ok(self) -> bool:
        return not self.reason

    @property
    def has_draft(self) -> bool:
        return self.engine.draft != UNUSED

    @property
    def has_drafter(self) -> bool:
        return uses_drafter(self.engine)

    @property
    def blocks(self) -> frozenset[int]:
        return frozenset(result.case.block for result in self.results)


@dataclass(frozen=True)
class Study:
    """Every setting, in reading order: by run, concurrency, arm, budget."""

    settings: tuple[Setting, ...]

    def at(self, concurrency: int) -> tuple[Setting, ...]:
        return self._by_concurrency.get(concurrency, ())

    @cached_property
    def _by_concurrency(self) -> Mapping[int, tuple[Setting, ...]]:
        groups: dict[int, list[Setting]] = {}
        for setting in self.settings:
            groups.setdefault(setting.concurrency, []).append(setting)
        return {concurrency: tuple(own) for concurrency, own in groups.items()}

    @cached_property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted(self._by_concurrency))

    @cached_property
    def _by_arm(self) -> Mapping[tuple[str, str], Sequence[Setting]]:
        """(run, arm) -> its settings."""
        groups: dict[tuple[str, str], list[Setting]] = {}
        for setting in self.settings:
            groups.setdefault((setting.run, setting.arm), []).append(setting)
        return groups

    @cached_property
    def _comparable(self) -> Mapping[Hashable, Sequence[Setting]]:
        """What settings must agree in for a speedup -> the settings of each arm that do."""
        groups: dict[Hashable, list[Setting]] = {}
        for setting in self.settings:
            groups.setdefault(_conditions(setting, setting.arm), []).append(setting)
        return groups

    def counterpart(self, setting: Setting, arm: str) -> Setting | NotMeasured:
        """The setting of `arm` that `setting` is to be compared with: the most similar one that may be compared."""
        if setting.arm == arm:
            return NotMeasured(not_measured=f"this is the {arm} arm itself")
        candidates = self._comparable.get(_conditions(setting, arm), ())
        if not candidates:
            return NotMeasured(not_measured=self._why_no_counterpart(setting, arm))
        usable = [s for s in candidates if s.is_ok]
        if not usable:
            return NotMeasured(not_measured=f"the {arm} case has no timings: {candidates[0].reason}")
        return min(usable, key=lambda s: (-likeness(s, setting), s.label))

    def _why_no_counterpart(self, setting: Setting, arm: str) -> str:
        """The first condition that leaves none."""
        candidates = self._by_arm.get((setting.run, arm), ())
        if not candidates:
            return f"the run has no {arm} arm"
        for name in SAME_FOR_SPEEDUP:
            asked = getattr(setting.engine, name)
            candidates = [s for s in candidates if getattr(s.engine, name) == asked]
            if not candidates:
                return f"no {arm} case with {name}={asked} to compare with"
        return f"no {arm} case with the same workload (c={setting.concurrency})"


def _conditions(setting: Setting, arm: str) -> Hashable:
    same = tuple(getattr(setting.engine, name) for name in SAME_FOR_SPEEDUP)
    return (setting.run, arm, same, setting.workload)


def likeness(one: Setting, other: Setting) -> int:
    """In how many of the things that were asked for two settings agree."""
    sides = ((one.engine, other.engine), (one.workload, other.workload))
    return sum(getattr(a, name) == getattr(b, name) for a, b in sides for name in type(a).model_fields)


def study_of(frames: RunFrames) -> Study:
    """Group the rows of every table by setting."""
    clean = {name: (name, "clean") for name in ("requests", "rounds", "steps", "passes")}
    attributed = {f"attributed_{name}": (name, "attributed") for name in ("steps", "passes")}
    sources: dict[str, tuple[str, str | None]] = {**clean, **attributed, "stages": ("stages", None)}
    parts = {name: _by_setting(getattr(frames, table), only) for name, (table, only) in sources.items()}
    cases: dict[str, list[int]] = {}
    for place, key in enumerate(frames.cases["setting"]):
        cases.setdefault(str(key), []).append(place)
    settings = []
    for key, places in cases.items():
        rows = {name: own.get(key, own[""]) for name, own in parts.items()}
        settings.append(_setting(key, frames, places, rows))
    runs = [manifest.run_id for manifest in frames.manifests]
    return Study(settings=tuple(sorted(settings, key=lambda s: (runs.index(s.run), *_reading_order(s)))))


def _reading_order(setting: Setting) -> tuple[int, int, int, int, str]:
    """Baselines first, narrow trees before wide ones; a run's own order is shuffled."""
    engine = setting.engine
    place = list(ARMS).index(setting.arm)
    return (setting.concurrency, place, engine.node_budget, engine.block_size or 0, setting.label)


def _by_setting(table: pd.DataFrame, pass_name: str | None) -> dict[str, Columns]:
    """Setting key -> its rows of one pass, in their own order; '' -> no rows.

    All rows are put in the order of settings once, so that those of each setting are a slice and not a copy.
    """
    codes, keys = pd.factorize(table["setting"])
    if pass_name is None:
        rows = np.argsort(codes, kind="stable")
    else:
        rows = np.flatnonzero((table["pass_name"] == pass_name).to_numpy(dtype=bool))
        rows = rows[np.argsort(codes[rows], kind="stable")]
    whole = Whole(table, rows)
    starts = np.searchsorted(codes[rows], np.arange(len(keys) + 1))
    parts = {str(key): Columns(whole, *bounds) for key, bounds in zip(keys, pairs(starts), strict=True)}
    return {"": Columns(whole, 0, 0), **parts}


def _setting(key: str, frames: RunFrames, places: list[int], rows: Mapping[str, Columns]) -> Setting:
    cases = frames.cases
    runs, case_ids = (cases[name].array[places] for name in ("run", "case_id"))
    results = [frames.results[run, case_id] for run, case_id in zip(runs, case_ids, strict=True)]
    ok = tuple(result for result in results if isinstance(result, OkResult))
    case = results[0].case
    return Setting(
        key=key,
        run=str(runs[0]),
        arm=case.arm,
        label=str(cases["label"].array[places[0]]).removesuffix(f" c={case.workload.concurrency}"),
        engine=case.engine,
        workload=case.workload,
        reason="" if ok else _why_nothing(frames.failures, case_ids),
        results=ok,
        **rows,
    )


def _why_nothing(failures: pd.DataFrame, case_ids: Iterable[str]) -> str:
    own = failures[failures["case_id"].isin(list(case_ids))].iloc[0]
    return f"{own['outcome']}: {own['reason']}"
