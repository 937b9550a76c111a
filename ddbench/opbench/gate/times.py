"""Times of ops against the baseline's: worse by more than threshold and noise floor, and by more than the machine is.

Part of the gate over ops. A run has one time where the baseline has several; floors are bounds for just that, made for
all times together. Where the machine has drifted, a time counts as worse only if it is so both as it stands and
against the drift of its group: neither a slow clock is blamed on a kernel, nor a slow kernel excused by a fast one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddbench import units
from ddbench.analysis.gate.policies import Policy
from ddbench.analysis.gate.rows import Row, Timing, Verdict
from ddbench.opbench.gate.baseline import HeldRow, Key
from ddbench.opbench.gate.machine import Machine
from ddbench.records import NotMeasured
from ddbench.report.cells import percent

METRIC = "time_us"
POLICY = Policy(0.03, 0.2)
RULE = (
    "A time is worse when it exceeds the baseline's by more than both the threshold and the noise floor, and by more "
    f"than {POLICY.absolute_floor:g} us; where the machine has changed, it must do so against the machine as well."
)
NS_PER_US = 1e3


@dataclass(frozen=True)
class Measured:
    """One run: its times in nanoseconds, and its machine."""

    times_ns: Mapping[Key, float]
    machine: Machine

    def shift(self, row: HeldRow) -> float:
        return math.log(self.times_ns[row.key] / row.typical_ns)

    def drift(self, row: HeldRow) -> float:
        return self.machine.drift_of(row)


def time_rows(
    rows: Mapping[Key, HeldRow], policy: Policy, run: Measured, confirming: Measured | None = None
) -> Iterator[Row]:
    """Every time that both have."""
    for key, row in rows.items():
        if key in run.times_ns:
            verdict, reason = _verdict(row, policy, run)
            if verdict == "regression" and confirming is not None:
                verdict, reason = _confirmed(row, policy, confirming, reason)
            yield _row(row, policy, run.times_ns[key], verdict, reason)


def shown_rows(rows: Mapping[Key, HeldRow], policy: Policy, times_ns: Mapping[Key, float], why: str) -> Iterator[Row]:
    """Of another place: as context only."""
    for key, row in rows.items():
        if key in times_ns:
            yield _row(row, policy, times_ns[key], "incomparable", f"shown as context only: {why}")


def _row(row: HeldRow, policy: Policy, time_ns: float, verdict: Verdict, reason: str) -> Row:
    timing = Timing(
        ratio=time_ns / row.typical_ns,
        low=None,
        high=None,
        num_pairs=0,
        is_interleaved=False,
        floor=row.floor,
        threshold=policy.threshold,
        absolute_floor=policy.absolute_floor,
        q_value=None,
    )
    before, now = row.typical_ns / NS_PER_US, time_ns / NS_PER_US
    return Row(
        kind="timing",
        shape=row.label,
        name=METRIC,
        verdict=verdict,
        before=before,
        now=now,
        unit="us",
        reason=reason,
        timing=timing,
    )


def _verdict(row: HeldRow, policy: Policy, run: Measured) -> tuple[Verdict, str]:
    if isinstance(row.floor, NotMeasured):
        return "undecided", f"the baseline has no noise floor for it: {row.floor.not_measured}"
    shift, drift = run.shift(row), run.drift(row)
    limit = max(policy.threshold, row.floor)
    is_worse, is_worse_than_machine = (_is_beyond(one, limit, row, policy) for one in (shift, shift - drift))
    name = "noise floor" if row.floor > policy.threshold else "threshold"
    against = f", and {signed_shift(shift - drift)} against the machine ({signed_shift(drift)})" if drift else ""
    if is_worse and is_worse_than_machine:
        return "regression", f"worse by more than the {name} of {percent(limit)}{against}"
    if is_worse:
        return "not_gated", f"slower as the machine is: {signed_shift(drift)}"
    if is_worse_than_machine:
        return "undecided", f"as the baseline, on a machine that got faster: {signed_shift(shift - drift)} against it"
    if _is_beyond(-shift, limit, row, policy) and _is_beyond(drift - shift, limit, row, policy):
        return "improved", f"better by more than the {name} of {percent(limit)}{against}"
    if math.expm1(shift) > policy.threshold:
        felt = math.expm1(shift) * row.typical_ns / NS_PER_US > policy.absolute_floor
        within = f"the noise floor of {percent(row.floor)}" if felt else f"{policy.absolute_floor:g} us"
        return "same", f"above the threshold, within {within}"
    return "same", ""


def least_seen(row: HeldRow, policy: Policy) -> float:
    """The smallest relative slowdown that is more than everything that must be exceeded."""
    if isinstance(row.floor, NotMeasured):
        return math.inf
    return max(policy.threshold, row.floor, policy.absolute_floor * NS_PER_US / row.typical_ns)


def _is_beyond(shift: float, limit: float, row: HeldRow, policy: Policy) -> bool:
    change_us = row.typical_ns / NS_PER_US * math.expm1(abs(shift))
    return shift > math.log1p(limit) and change_us > policy.absolute_floor


def _confirmed(row: HeldRow, policy: Policy, confirming: Measured, reason: str) -> tuple[Verdict, str]:
    if row.key not in confirming.times_ns:
        return "undecided", f"{reason}; the run that is to confirm does not have it"
    change = signed_shift(confirming.shift(row))
    if _verdict(row, policy, confirming)[0] == "regression":
        return "regression", f"{reason}; confirmed by the second run ({change})"
    return "undecided", f"{reason}; not confirmed by the second run ({change})"


def signed_shift(shift: float) -> str:
    """A log of now / baseline as a reader has it."""
    return units.signed_percent(math.expm1(shift))
