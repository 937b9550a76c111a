"""What a metric gives: an `Estimate` with its interval and provenance, or `NotMeasured` with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.stats import Summary
from ddbench.records import NotMeasured, Pass

Unit = Literal["tok/s", "ms", "us", "tokens", "nodes", "requests", "share", "x", "bytes", "count"]
PassName = Pass | Literal["captured"]  # captured: by a profiler, in a process of its own
Counted = Literal["prompts", "rounds", "processes"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value. No interval means that `note` says why, the first words before its colon."""

    value: float
    low: float | None
    high: float | None
    n: int  # how many of `counted` are behind it
    unit: Unit
    pass_name: PassName
    note: str = ""
    counted: Counted = "prompts"

    def __post_init__(self) -> None:
        assert math.isfinite(self.value), "a missing value is NotMeasured, never NaN or infinity"
        assert (self.low is None) == (self.high is None), "an interval has two ends"
        assert self.low is not None or self.note, "an absent interval needs its reason"


Value = Estimate | NotMeasured
Compute = Callable[[Setting, Study], Summary | NotMeasured]


def missing(reason: str) -> NotMeasured:
    return NotMeasured(not_measured=reason)


def or_zero(value: Value) -> float:
    """The number; 0 where there is none, for what is ranked by size."""
    return value.value if isinstance(value, Estimate) else 0.0


def to_estimate(
    summary: Summary | NotMeasured, unit: Unit, pass_name: Pass = "clean", counted: Counted = "prompts"
) -> Value:
    if isinstance(summary, NotMeasured):
        return summary
    return Estimate(summary.value, summary.low, summary.high, summary.n, unit, pass_name, summary.note, counted)
