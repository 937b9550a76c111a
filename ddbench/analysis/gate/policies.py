"""What is asked of a gate: which numbers it holds, how much worse a time may get, and why others are shown only.

In front of `gate`. Few metrics are gated, so that chance has few chances to raise an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddbench.analysis.gate.baseline import Baseline
from ddbench.analysis.gate.rows import Ungated
from ddbench.analysis.metrics import METRICS, Metric
from ddbench.analysis.values import Unit
from ddbench.errors import UserError, did_you_mean, shown
from ddbench.records import NotMeasured

Only = Literal["counters", "timings"]
EXACT_UNITS: tuple[Unit, ...] = ("tokens", "nodes", "share", "requests")  # of what is counted and not timed


@dataclass(frozen=True, slots=True)
class Policy:
    """How much worse a metric may get before it counts."""

    threshold: float  # relative
    absolute_floor: float  # in the metric's unit: what nobody would feel


POLICIES: dict[str, Policy] = {
    "tpot_ms": Policy(0.02, 0.02),
    "ttft_ms": Policy(0.05, 0.1),
    "output_tok_per_s": Policy(0.02, 0.0),
}


@dataclass(frozen=True)
class Request:
    """What a command line may say about how to gate."""

    only: Only | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)  # metric -> relative
    is_undecided_passing: bool = False
    ops: tuple[str, ...] = ()  # of single ops: hold only these

    def __post_init__(self) -> None:
        if self.only == "counters" and self.thresholds:
            raise UserError("--threshold is about times, --only counters leaves them out: keep one of them")


def request_of(
    only: Only | None, thresholds: Sequence[str], is_undecided_passing: bool, ops: Sequence[str] = ()
) -> Request:
    """The request as a command line writes it: thresholds are `METRIC=PCT`."""
    found = {}
    for text in thresholds:
        name, equals, percentage = text.partition("=")
        try:
            value = float(percentage.strip().removesuffix("%"))
        except ValueError:
            value = math.nan
        if not (equals and math.isfinite(value) and value > 0):
            raise UserError(f"--threshold: expected METRIC=PCT such as tpot_ms=5, got {shown(text)}")
        found[name.strip()] = value / 100
    return Request(only, found, is_undecided_passing, tuple(ops))


def policies_of(thresholds: Mapping[str, float]) -> dict[str, Policy]:
    """The gated metrics; a threshold of the command line replaces one, or adds a metric."""
    known = [name for name, metric in METRICS.items() if metric.is_comparable]
    given = {}
    for name, value in thresholds.items():
        if name not in known:
            raise UserError(f"--threshold: no timing is called '{name}': {did_you_mean(name, known)}")
        floor = POLICIES[name].absolute_floor if name in POLICIES else METRICS[name].absolute_floor
        given[name] = Policy(value, floor)
    return {**POLICIES, **given}


def check_thresholds(baseline: Baseline, thresholds: Mapping[str, float]) -> None:
    """A threshold that the same code already crosses would only raise false alarms. For runs that took no turns."""
    for name, threshold in thresholds.items():
        floors = []
        for shape in baseline.shapes:
            floor = shape.metrics[name].floor if name in shape.metrics else None
            if floor is not None and not isinstance(floor, NotMeasured):
                floors.append((floor.value, shape.label))
        value, label = max(floors, default=(0.0, ""))
        if threshold < value:
            enough = math.ceil(1e4 * value) / 100
            raise UserError(
                f"--threshold {name}={100 * threshold:.3g}: under the noise floor of {enough:.2f} % that the same code "
                f"shows for '{label}': give at least {name}={enough:.2f}, or qualify with more repeats"
            )


def ungated(policies: Mapping[str, Policy]) -> tuple[Ungated, ...]:
    return tuple(Ungated(metric=name, reason=_why_ungated(METRICS[name])) for name in METRICS if name not in policies)


def _why_ungated(metric: Metric) -> str:
    if metric.unit in EXACT_UNITS:
        return "made of exact counts, which are gated as counters"
    if metric.unit == "x":
        return "a ratio of two values that each stand for themselves"
    if metric.per_block is None:
        return "has no value per repeat that could be paired"
    return f"explains the gated times; --threshold {metric.name}=PCT gates it too"
