"""Bytes that each stage moved through device memory, against the fewest that its work needs.

Two sources that know nothing of each other: hardware counters of every kernel (plus the copies and memsets of the
timeline, which the counters do not see), and the DRAM's share of its peak, sampled while the case ran. Both per round
of the whole batch. The fewest bytes are those of the case's cost model, with routed experts as the case counted them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ddbench.analysis.profile.captured_case import KERNEL_TIME, CapturedCase, ToolPass, in_rounds, texts
from ddbench.analysis.profile.copies import moved_by_copies
from ddbench.analysis.profile.launches import busy_of, stages_among
from ddbench.analysis.values import missing
from ddbench.engine.stages import ROUND_STAGES, Stage
from ddbench.records import ExpertUse, NotMeasured, StageCost

Bytes = float | NotMeasured
READ, WRITTEN = "dram_read", "dram_write"  # of counters (bytes) and of sampled metrics (% of the peak)
MOST_HOMELESS = 0.01  # of the counted kernels: with more of them no stage's sum is the stage's
DEVIATIONS = 2.0  # standard ones, by which rounds may differ from those in which experts were counted
ROUNDING = 0.5  # nsys samples whole percents of the DRAM's peak
STAGES = frozenset(stage.value for stage in ROUND_STAGES)


@dataclass(frozen=True)
class StageBytes:
    """One stage's traffic; bytes and nanoseconds per round of the whole batch."""

    stage: str  # '': what no stage is known of
    fewest: Bytes  # by the cost model
    context: Bytes  # of these, one reading of the context
    expected: Bytes  # of these, an expectation and no floor
    counted: Bytes  # of its kernels, by hardware counters
    copied: Bytes  # by copies and memsets
    sampled: Bytes  # DRAM share x peak x time
    num_samples: int  # that lie wholly within the stage; 0: the share is blurred by its neighbours
    sampled_error: float  # by which whole percents may put the sampled bytes off
    busy_ns: float | NotMeasured  # at least one of its ops runs, in the timeline
    expert_rounds: int = 0  # in which the routed experts of `fewest` were counted; 0: not counted, or there are none
    expert_error: float = 0.0  # by which the captured rounds may have touched more or less than those

    @property
    def moved(self) -> Bytes:
        """By counters and copies where there are any, else sampled."""
        if isinstance(self.counted, NotMeasured):
            if isinstance(self.sampled, NotMeasured):
                return missing(f"{self.counted.not_measured}; {self.sampled.not_measured}")
            return self.sampled
        return self.counted + (0.0 if isinstance(self.copied, NotMeasured) else self.copied)

    @property
    def error(self) -> float:
        """By which `moved` may be off."""
        return 0.0 if self.is_counted else self.sampled_error

    @property
    def is_counted(self) -> bool:
        return not isinstance(self.counted, NotMeasured)

    @property
    def waste(self) -> float | NotMeasured:
        """Bytes moved / fewest bytes."""
        return _ratio(self.moved, self.fewest, "the stage has nothing to move")

    @property
    def agreement(self) -> float | NotMeasured:
        """Sampled bytes / counted ones."""
        return _ratio(self.sampled, self.moved if self.is_counted else self.counted, "the counters saw no byte")

    @property
    def bytes_per_s(self) -> float | NotMeasured:
        rate = _ratio(self.moved, self.busy_ns, "nothing of the stage ran in the timeline's rounds")
        return rate if isinstance(rate, NotMeasured) else rate * 1e9


def _ratio(part: Bytes, whole: Bytes, why_none: str) -> float | NotMeasured:
    if isinstance(part, NotMeasured):
        return part
    if isinstance(whole, NotMeasured):
        return whole
    return part / whole if whole else missing(why_none)


@dataclass(frozen=True)
class KernelBytes:
    """One kernel of one stage by its counters; per round."""

    stage: str
    name: str
    num_launches: float
    read: float
    written: float
    time_ns: float | NotMeasured  # alone on the device, as counters need it

    @property
    def moved(self) -> float:
        return self.read + self.written

    @property
    def bytes_per_s(self) -> float | NotMeasured:
        if isinstance(self.time_ns, NotMeasured):
            return self.time_ns
        if not self.time_ns or not self.moved:
            return missing("a kernel of no time or no bytes has no bandwidth")
        return self.moved / self.time_ns * 1e9


def stage_bytes(case: CapturedCase) -> tuple[StageBytes, ...]:
    """Every stage that moved something or has a cost, in the order of a round, then what has no stage."""
    costs = {cost.stage: cost for cost in case.result.stage_costs}
    counted, busy, copied = _counted(case.counted), _busy(case.timeline), _copied(case.timeline)
    sampled = _sampled(case.timeline)
    known = [own for own in (counted, busy, copied, sampled) if not isinstance(own, NotMeasured)]
    source = case.timeline if isinstance(counted, NotMeasured) else case.counted
    use, num_rounds = case.result.expert_use, 1 if isinstance(source, NotMeasured) else source.num_rounds
    return tuple(
        replace(
            _stage(stage, costs.get(stage), counted, copied, sampled, busy),
            **_experts(costs.get(stage), use, num_rounds),
        )
        for stage in stages_among(list(costs), *(list(own) for own in known))
        if stage != Stage.PREFILL.value  # no part of a round
    )


def _stage(
    stage: str,
    cost: StageCost | None,
    counted: Mapping[str, float] | NotMeasured,
    copied: Mapping[str, float] | NotMeasured,
    sampled: Mapping[str, tuple[float, int, float]] | NotMeasured,
    busy: Mapping[str, float] | NotMeasured,
) -> StageBytes:
    no_cost = missing("nothing says what this stage has to move")
    share: Bytes = sampled if isinstance(sampled, NotMeasured) else missing("no sample of the DRAM touches the stage")
    num_samples, error = 0, 0.0
    if not isinstance(sampled, NotMeasured) and stage in sampled:
        share, num_samples, error = sampled[stage]
    return StageBytes(
        stage=stage,
        fewest=no_cost if cost is None else float(cost.fewest_bytes),
        context=no_cost if cost is None else cost.context_bytes,
        expected=no_cost if cost is None else cost.unsure_bytes,
        counted=counted if isinstance(counted, NotMeasured) else counted.get(stage, 0.0),
        copied=copied if isinstance(copied, NotMeasured) else copied.get(stage, 0.0),
        sampled=share,
        num_samples=num_samples,
        sampled_error=error,
        busy_ns=busy if isinstance(busy, NotMeasured) else busy.get(stage, 0.0),
    )


def _experts(cost: StageCost | None, use: ExpertUse | NotMeasured, num_rounds: int) -> dict[str, Any]:
    """What a stage's count of experts rests on, and how far the mean of `num_rounds` other rounds may lie from it."""
    if cost is None or isinstance(cost.counted_bytes, NotMeasured) or isinstance(use, NotMeasured):
        return {}
    by_chance = DEVIATIONS * use.spread * (1 / num_rounds + 1 / use.num_rounds) ** 0.5
    return {"expert_rounds": use.num_rounds, "expert_error": by_chance * cost.counted_bytes}


# --- counters ---------------------------------------------------------------------------------------------------------


def wide_counters(one: ToolPass) -> pd.DataFrame:
    """One row per profiled kernel: index, name, stage, and its counters as columns, NaN where it has none."""
    rows = one.counters
    plain = pd.DataFrame(
        {
            "index": rows["index"].to_numpy(np.int64),
            "name": texts(rows, "name"),
            "stage": texts(rows, "stage"),
            "metric": texts(rows, "metric"),
            "value": rows["value"].to_numpy(np.float64),
        }
    )
    return plain.pivot_table(
        index=["index", "name", "stage"], columns="metric", values="value", aggfunc="first", sort=True
    ).reset_index()


def _counted(one: ToolPass | NotMeasured) -> dict[str, float] | NotMeasured:
    """Stage -> bytes read and written per round by its kernels."""
    kernels = _with_bytes(one)
    if isinstance(one, NotMeasured) or isinstance(kernels, NotMeasured):
        return kernels
    if one.capture.counted_kernels:
        return missing("only some kernels were counted, by choice: their bytes are no stage's")
    homeless = int((kernels["stage"] == "").sum())
    if homeless > MOST_HOMELESS * len(kernels):
        return missing(f"{homeless} of {len(kernels)} counted kernels have no stage")
    moved = (kernels[READ] + kernels[WRITTEN]).groupby(kernels["stage"]).sum() / one.num_rounds
    return {str(stage): float(value) for stage, value in moved.items()}


def _with_bytes(one: ToolPass | NotMeasured) -> pd.DataFrame | NotMeasured:
    """`wide_counters` with both counters of bytes: a sum over kernels of which some were not counted is too small."""
    if isinstance(one, NotMeasured):
        return one
    kernels = wide_counters(one)
    absent = [name for name in (READ, WRITTEN) if name not in kernels]
    if absent:
        return missing(f"the counters lack {' and '.join(absent)}: this chip or this ncu does not give them")
    lost = int(kernels[[READ, WRITTEN]].isna().any(axis=1).sum())
    return missing(f"{lost} of {len(kernels)} kernels have no count of their bytes") if lost else kernels


def kernel_bytes(case: CapturedCase) -> tuple[KernelBytes, ...] | NotMeasured:
    """Every kernel of every stage, the most bytes first."""
    one, kernels = case.counted, _with_bytes(case.counted)
    if isinstance(one, NotMeasured) or isinstance(kernels, NotMeasured):
        return kernels
    found = []
    for (stage, name), rows in kernels.groupby(["stage", "name"], sort=True):
        took = kernel_time(rows, one)
        read, written = (float(rows[column].sum()) / one.num_rounds for column in (READ, WRITTEN))
        found.append(KernelBytes(str(stage), str(name), len(rows) / one.num_rounds, read, written, took))
    return tuple(sorted(found, key=lambda own: (-own.moved, own.stage, own.name)))


def kernel_time(rows: pd.DataFrame, one: ToolPass) -> float | NotMeasured:
    """Nanoseconds per round of a kernel, alone on the device; `rows` are its launches in `wide_counters`."""
    if KERNEL_TIME not in rows or rows[KERNEL_TIME].isna().any():
        return missing("the counters have no time of the kernel")
    return float(rows[KERNEL_TIME].sum()) / one.num_rounds


# --- timeline ---------------------------------------------------------------------------------------------------------


def _busy(one: ToolPass | NotMeasured) -> dict[str, float] | NotMeasured:
    """Stage -> nanoseconds per round in which its ops run."""
    if isinstance(one, NotMeasured):
        return one
    ops = in_rounds(one.ops)
    of_ops = texts(ops, "stage")
    return {stage: busy_of(ops[of_ops == stage]) / one.num_rounds for stage in stages_among(of_ops)}


def _copied(one: ToolPass | NotMeasured) -> dict[str, float] | NotMeasured:
    return one if isinstance(one, NotMeasured) else moved_by_copies(one)


def _sampled(one: ToolPass | NotMeasured) -> dict[str, tuple[float, int, float]] | NotMeasured:
    """Stage -> (bytes per round, samples wholly within it, bytes by which that may be off)."""
    if isinstance(one, NotMeasured):
        return one
    peak = one.capture.dram_peak_bytes_per_s
    if isinstance(peak, NotMeasured):
        return peak
    found: dict[str, tuple[float, int, float]] = {}
    for row in one.samples.itertuples(index=False):
        if row.metric in (READ, WRITTEN):
            # Over all samples, by overlap, and the time that they cover: so that the labels add up to all that moved.
            point = peak / 100 * row.time_ns / 1e9 / one.num_rounds  # bytes that one percent stands for
            before, count, error = found.get(str(row.label), (0.0, int(row.num_whole), 0.0))
            whole = min(count, int(row.num_whole))
            found[str(row.label)] = (before + row.blended * point, whole, error + ROUNDING * point)
    if not found:
        return missing(f"the DRAM was not sampled: {one.why_not_sampled}")
    return {stage: own for stage, own in found.items() if stage in STAGES}
