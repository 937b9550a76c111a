"""`Setting`: all cases that differ only in their interleaved repeat, with their rows. `Study`: all settings.

Second step of the analysis (frames -> settings -> metrics). Metrics are functions of one setting; a speedup also needs
the setting's counterpart in another arm, which the study finds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ddbench.analysis.frames import RunFrames, without_context
from ddbench.analysis.series import Stratum
from ddbench.analysis.timing import Rounds, Table, round_costs, rounds_in_order, tpot_by_prompt
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
    "sampling",
    "temperature",
    "seed",
)


def uses_drafter(engine: EngineSpec) -> bool:
    """A drafter model makes the drafts."""
    return engine.draft not in (UNUSED, *MODEL_FREE_DRAFTS)


@dataclass(frozen=True)
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
    requests: pd.DataFrame  # clean pass
    rounds: pd.DataFrame  # clean pass
    steps: pd.DataFrame  # clean pass
    passes: pd.DataFrame  # clean pass
    attributed_steps: pd.DataFrame
    attributed_passes: pd.DataFrame
    stages: pd.DataFrame  # attributed pass by construction

    @cached_property
    def tpot(self) -> Table:
        """Milliseconds per token by process and prompt."""
        return tpot_by_prompt(self.requests)

    @cached_property
    def ordered(self) -> Rounds:
        """The rounds of the clean passes in order."""
        return rounds_in_order(self.steps, self.passes)

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
        return tuple(s for s in self.settings if s.concurrency == concurrency)

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted({s.concurrency for s in self.settings}))

    def counterpart(self, setting: Setting, arm: str) -> Setting | NotMeasured:
        """The setting of `arm` that `setting` is to be compared with: the most similar one that may be compared."""
        if setting.arm == arm:
            return NotMeasured(not_measured=f"this is the {arm} arm itself")
        candidates = [s for s in self.settings if s.arm == arm and s.run == setting.run]
        if not candidates:
            return NotMeasured(not_measured=f"the run has no {arm} arm")
        for name in SAME_FOR_SPEEDUP:
            asked = getattr(setting.engine, name)
            candidates = [s for s in candidates if getattr(s.engine, name) == asked]
            if not candidates:
                return NotMeasured(not_measured=f"no {arm} case with {name}={asked} to compare with")
        candidates = [s for s in candidates if s.workload == setting.workload]
        if not candidates:
            return NotMeasured(not_measured=f"no {arm} case with the same workload (c={setting.concurrency})")
        usable = [s for s in candidates if s.is_ok]
        if not usable:
            return NotMeasured(not_measured=f"the {arm} case has no timings: {candidates[0].reason}")
        return min(usable, key=lambda s: (-_likeness(s, setting), s.label))


def _likeness(one: Setting, other: Setting) -> int:
    return sum(getattr(one.engine, name) == getattr(other.engine, name) for name in EngineSpec.model_fields)


def study_of(frames: RunFrames) -> Study:
    """Group the rows of every table by setting."""
    clean = {name: _only(getattr(frames, name), "clean") for name in ("requests", "rounds", "steps", "passes")}
    attributed = {f"attributed_{name}": _only(getattr(frames, name), "attributed") for name in ("steps", "passes")}
    tables = {**clean, **attributed, "stages": frames.stages}
    parts = {name: _split(table) for name, table in tables.items()}
    tables = {name: without_context(table) for name, table in tables.items()}
    settings = []
    for key, cases in frames.cases.groupby("setting", sort=False, observed=True):
        rows = {name: parts[name].get(str(key), tables[name].iloc[:0]) for name in tables}
        settings.append(_setting(str(key), frames, cases, rows))
    runs = [manifest.run_id for manifest in frames.manifests]
    return Study(settings=tuple(sorted(settings, key=lambda s: (runs.index(s.run), *_reading_order(s)))))


def _reading_order(setting: Setting) -> tuple[int, int, int, int, str]:
    """Baselines first, narrow trees before wide ones; a run's own order is shuffled."""
    engine = setting.engine
    place = list(ARMS).index(setting.arm)
    return (setting.concurrency, place, engine.node_budget, engine.block_size or 0, setting.label)


def _only(table: pd.DataFrame, pass_name: str) -> pd.DataFrame:
    return table[(table["pass_name"] == pass_name).to_numpy(dtype=bool)]


def _split(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    groups = table.groupby("setting", sort=False, observed=True).indices
    lean = without_context(table)
    return {str(key): lean.take(rows) for key, rows in groups.items()}


def _setting(key: str, frames: RunFrames, cases: pd.DataFrame, rows: dict[str, pd.DataFrame]) -> Setting:
    first = cases.iloc[0]
    results = [frames.results[run, case_id] for run, case_id in zip(cases["run"], cases["case_id"], strict=True)]
    ok = tuple(result for result in results if isinstance(result, OkResult))
    case = results[0].case
    return Setting(
        key=key,
        run=str(first["run"]),
        arm=case.arm,
        label=str(first["label"]).removesuffix(f" c={case.workload.concurrency}"),
        engine=case.engine,
        workload=case.workload,
        reason="" if ok else _why_nothing(frames.failures, cases["case_id"]),
        results=ok,
        **rows,
    )


def _why_nothing(failures: pd.DataFrame, case_ids: Iterable[str]) -> str:
    own = failures[failures["case_id"].isin(list(case_ids))].iloc[0]
    return f"{own['outcome']}: {own['reason']}"
