"""What a capture cost: its rounds against the rounds of the same steps in the case's clean passes.

A capture is never a source of speed; its tax says how far what it shows is from what ran clean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddbench.analysis.profile.captured_case import CapturedCase, ToolPass, round_steps
from ddbench.analysis.values import missing
from ddbench.records import NotMeasured


@dataclass(frozen=True, slots=True)
class Tax:
    """Mean round under the tool and clean, over the same steps."""

    captured_ns: float
    clean_ns: float

    @property
    def ratio(self) -> float:
        """1: the tool cost nothing."""
        return self.captured_ns / self.clean_ns


def tax_of(case: CapturedCase, one: ToolPass) -> Tax | NotMeasured:
    """The tax of one tool's pass."""
    if one.capture.fault is not None:
        return missing(f"{one.tool} pass: {one.capture.fault.what}")
    if not one.num_rounds:
        return missing(one.unusable)
    clean = clean_rounds(case)
    wanted = [step for step in round_steps(one) if step in clean]
    if len(wanted) < one.num_rounds:
        return missing(f"{one.num_rounds - len(wanted)} rounds of the {one.tool} pass are not in the clean one")
    mean = float(np.mean([clean[step] for step in wanted]))
    if mean <= 0:
        return missing("the clean pass's rounds of these steps took no time")
    tax = Tax(float(np.mean(one.capture.round_ns)), mean)
    if one.tool == "ncu" and tax.ratio < 1:
        return missing("the clock of this round began when its kernels had been counted already")
    return tax


def clean_rounds(case: CapturedCase) -> dict[int, float]:
    """Step -> nanoseconds of that round, mean over the clean passes.

    Where reads are late a round is only committed after the next one has started: its share of the time is then the
    difference of neighbouring ends.
    """
    rows = case.steps[(case.steps["pass_name"] == "clean").to_numpy(dtype=bool)]
    found: dict[int, list[float]] = {}
    for _, own in rows.groupby("pass_index", sort=True):
        ordered = own.sort_values("step", kind="stable")
        step, start, end = (ordered[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
        took = end - start
        is_late = np.append(False, start[1:] < end[:-1])
        took = np.where(is_late, np.diff(end, prepend=0), took)
        for place, nanoseconds in zip(step.tolist(), took.tolist(), strict=True):
            found.setdefault(place, []).append(float(nanoseconds))
    return {step: float(np.mean(values)) for step, values in found.items()}
