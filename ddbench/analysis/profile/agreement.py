"""Stage by stage: device time in a capture against the stage's time in the attributed pass, and both within the tax.

Ops of a stage cannot run for longer than the stage takes. The two are measured by different clocks in different
processes, so the attributed time is stretched by the capture's tax, and by `TOLERANCE` and `SLACK_NS`, before that is
called a contradiction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddbench.analysis.profile.captured_case import CapturedCase, ToolPass, in_rounds, round_steps, texts
from ddbench.analysis.profile.launches import busy_of
from ddbench.analysis.profile.tax import Tax, tax_of
from ddbench.analysis.values import missing
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured

TOLERANCE = 0.10
SLACK_NS = 5_000.0
WHOLE = "whole round"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One stage, or the whole round, per round of the window."""

    stage: str
    captured_ns: float  # its ops run, in the capture
    other_ns: float  # the attributed pass's stage; for the whole round, the clean pass's round
    limit_ns: float  # what the first may be at most

    @property
    def is_ok(self) -> bool:
        return self.captured_ns <= self.limit_ns


def agreements(case: CapturedCase) -> tuple[Agreement, ...] | NotMeasured:
    """Every stage that both passes know, in the order of a round, then the round as a whole."""
    one = case.timeline
    if isinstance(one, NotMeasured):
        return one
    tax = tax_of(case, one)
    if isinstance(tax, NotMeasured):
        return tax
    ops = in_rounds(one.ops)
    of_ops = texts(ops, "stage")
    attributed = _attributed(case, one)
    found = [
        _agreement(stage.value, busy_of(ops[of_ops == stage.value]) / one.num_rounds, attributed[stage.value], tax)
        for stage in ROUND_STAGES
        if stage.value in attributed and (of_ops == stage.value).any()
    ]
    whole = _agreement(WHOLE, busy_of(ops) / one.num_rounds, tax.clean_ns, tax)
    return (*found, whole) if len(ops) else missing("no op of the capture belongs to a round")


def _agreement(stage: str, captured: float, other: float, tax: Tax) -> Agreement:
    return Agreement(stage, captured, other, other * max(1.0, tax.ratio) * (1 + TOLERANCE) + SLACK_NS)


def _attributed(case: CapturedCase, one: ToolPass) -> dict[str, float]:
    """Stage -> nanoseconds per round in the attributed pass, over the steps of the window."""
    steps = list(round_steps(one))
    own = case.stages[np.isin(case.stages["step"].to_numpy(), steps)]
    sums = own.groupby(texts(own, "stage"))["duration_ns"].sum()
    counted = own["step"].nunique()
    return {str(stage): float(total) / counted for stage, total in sums.items()}
