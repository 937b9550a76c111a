"""Was the context read once for all verified tokens? What the counted bytes of `verify` leave room for.

Of the bytes that verify moved, those that it must have moved anyway (its fewest bytes without the context, less what a
cache may have served) are taken away: what is left is room for readings of the context. That bounds their number from
above, whatever else was moved. Room for less than two is a proof that it was read once. Fewest bytes that are only
expected (the routed experts that a uniform router would touch) may not have been moved: they are not taken away. Where
the experts were counted nothing is only expected, but the count is of other rounds: what these may differ by is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddbench.analysis.profile.captured_case import CapturedCase, round_steps
from ddbench.analysis.profile.moved import StageBytes
from ddbench.analysis.values import missing
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

SAMPLED = "sampled DRAM bandwidth"
RESOLUTION = 0.05  # of the fewest bytes: a context that is smaller, even once per token, would not show in the sum


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of the context per round that the bytes of verify have room for."""

    most: float
    width: float  # tokens that could each have read it
    moved: float  # bytes per round
    fewest: float
    context: float
    cached: float  # bytes that may have been in the cache already
    expected: float | NotMeasured  # of the fewest, an expectation and no floor
    error: float  # by which `moved` may be off, and the experts among the fewest
    source: str  # how the bytes were measured
    expert_rounds: int = 0  # in which these were counted; 0: not counted, or there are none

    @property
    def is_contradicted(self) -> bool:
        """Fewer bytes were moved than must have been: of one of the two numbers nothing may be concluded."""
        expected = 0.0 if isinstance(self.expected, NotMeasured) else self.expected
        return self.moved + self.error < self.fewest - expected - self.cached

    @property
    def is_telling(self) -> bool:
        """The bytes show that not every token can have read it for itself."""
        return self.is_visible and self.is_shared and not self.is_contradicted

    @property
    def is_once(self) -> bool:
        return self.most < 2

    @property
    def is_shared(self) -> bool:
        """Not every token can have read it for itself."""
        return self.most < self.width

    @property
    def is_visible(self) -> bool:
        """One reading per token would show in the sum."""
        return self.context * (self.width - 1) >= RESOLUTION * self.fewest


def readings_of(
    case: CapturedCase, stages: Sequence[StageBytes], cache_bytes: int | NotMeasured
) -> Readings | NotMeasured:
    """From counters where there are any, else from samples."""
    found = next((one for one in stages if one.stage == Stage.VERIFY.value), None)
    if found is None:
        return missing("nothing is known of the bytes of verify")
    width = verify_width(case)
    for one in (found.moved, found.fewest, found.context, width):
        if isinstance(one, NotMeasured):
            return one
    if not found.context:
        return missing("verify reads no context")
    cached = _cached(case, found, cache_bytes)
    if isinstance(cached, NotMeasured):
        return missing(f"how much the cache may have kept is not known: {cached.not_measured}")
    assert not isinstance(found.fewest, NotMeasured)
    assert not isinstance(found.context, NotMeasured)
    assert not isinstance(found.moved, NotMeasured)
    assert not isinstance(width, NotMeasured)
    expected = found.expected
    unsure = 0.0 if isinstance(expected, NotMeasured) else expected
    others = max(0.0, found.fewest - unsure - found.context - cached)
    error = found.error + found.expert_error
    most = max(0.0, found.moved + error - others) / found.context
    source = "hardware counters" if found.is_counted else SAMPLED
    bytes_ = (found.moved, found.fewest, float(found.context), float(cached), expected, error)
    return Readings(most, width, *bytes_, source, found.expert_rounds)


def _cached(case: CapturedCase, found: StageBytes, cache_bytes: int | NotMeasured) -> float | NotMeasured:
    """How many of the stage's bytes may have come from a cache, at most.

    As it ran, no more than the cache holds. Counters replay every kernel, which then finds what it read before, unless
    the caches are flushed before each.
    """
    counted = case.counted
    if not found.is_counted or isinstance(counted, NotMeasured):
        return cache_bytes
    return 0.0 if counted.capture.cache == "flushed" else found.fewest


def verify_width(case: CapturedCase) -> float | NotMeasured:
    """Mean tokens per request in the target forward, over the captured rounds as they ran clean."""
    passes = [one for one in (case.counted, case.timeline) if not isinstance(one, NotMeasured)]
    if not passes:
        return missing("no usable capture")
    is_clean = (case.steps["pass_name"] == "clean").to_numpy(dtype=bool)
    steps = case.steps[is_clean & np.isin(case.steps["step"].to_numpy(), list(round_steps(passes[0])))]
    if not len(steps):
        return missing("the captured rounds have no counterpart in the clean pass")
    return float(np.average(steps["verify_width"], weights=np.maximum(1, steps["batch_size"])))
