"""Whether the machine is as it was: what all ops of a kind do together, and whether ceilings and torch's own do it too.

Beside `times`, which must not blame a kernel for a clock. Ops are grouped by the ceiling that their floor consists of,
since a slower memory is not a slower core. A group has drifted where the median of its times moved by more than its
repeats did, and a control moved with it: the ceiling itself, measured in the same run, or torch's own matmul of the
group. Ops that move together without any control are no drift: that is what a change in shared code looks like.
All values are logs of now / baseline, as times: above 0 is slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from ddbench.analysis.gate.noise import FEWEST_REPEATS, prediction
from ddbench.opbench.gate.baseline import HeldRow, Key, OpsBaseline

LEAST_DRIFT = 0.01  # of a log: below, nothing is said to have moved
FEWEST_TIMES, FEWEST_OPS = 5, 2  # whose median tells of a group: an op that is slower must not pass for its machine
FEWEST_CONTROLS = 2
SEEN_BY_CONTROL = 0.5  # share of a group's shift that a control must show
_CONFIDENCE = 0.99
ALL = ""  # the group of every time
OWN_OF_TORCH = "torch's own"
TIMES = ("launch", "replay")  # ceilings that are times; the others are rates


@dataclass(frozen=True, slots=True)
class Group:
    """Times with the same bound."""

    bound: str
    num_times: int
    shift: float  # median
    noise: float  # how far the median of a new repeat may lie from 0
    controls: Mapping[str, float]  # name -> its shift

    @property
    def has_moved(self) -> bool:
        return abs(self.shift) > max(self.noise, LEAST_DRIFT)

    @property
    def witness(self) -> str:
        """The control that moved along; empty: none did."""
        return next((name for name, shift in self.controls.items() if shift / self.shift >= SEEN_BY_CONTROL), "")

    @property
    def drift(self) -> float:
        """What the machine explains of every time in the group."""
        return self.shift if self.has_moved and self.witness else 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Groups by bound, that of all times among them."""

    groups: Mapping[str, Group]
    ceilings: Mapping[str, float]  # shifts

    def group_of(self, row: HeldRow) -> Group | None:
        """What makes no group by itself is held against all."""
        return self.groups.get(row.bound) or self.groups.get(ALL)

    def drift_of(self, row: HeldRow) -> float:
        group = self.group_of(row)
        return 0.0 if group is None else group.drift

    @property
    def drifting(self) -> list[Group]:
        return [group for group in self.groups.values() if group.drift]

    @property
    def unexplained(self) -> list[Group]:
        """Moved, and no control with them."""
        return [group for group in self.groups.values() if group.has_moved and not group.drift]


def machine(baseline: OpsBaseline, now: Mapping[Key, float], ceilings: Mapping[str, float]) -> Machine:
    """`now`: nanoseconds of every time that the run has in common with the baseline."""
    rows = [row for row in baseline.rows if row.key in now]
    shifts = {row.key: math.log(now[row.key] / row.typical_ns) for row in rows}
    moved = dict(_ceiling_shifts(baseline, ceilings))
    bounds = dict.fromkeys([row.bound for row in rows if row.bound] + [ALL])
    groups = (_group(bound, rows, shifts, moved) for bound in bounds)
    return Machine({group.bound: group for group in groups if group is not None}, moved)


def _ceiling_shifts(baseline: OpsBaseline, ceilings: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for label, amounts in baseline.ceilings.items():
        if label in ceilings:
            shift = math.log(ceilings[label] / geometric_mean(amounts))
            yield label, shift if label in TIMES else -shift


def _group(
    bound: str, rows: Sequence[HeldRow], shifts: Mapping[Key, float], ceilings: Mapping[str, float]
) -> Group | None:
    inside = [row for row in rows if bound in (ALL, row.bound)]
    gated = [row for row in inside if not row.is_control]
    if len(gated) < FEWEST_TIMES or len({row.op for row in gated}) < FEWEST_OPS:
        return None
    controls = [shifts[row.key] for row in inside if row.is_control]
    named = {f"{label} ceiling": shift for label, shift in ceilings.items() if bound in (ALL, label)}
    if bound == ALL and named:
        named = {"median of the ceilings": median(named.values())}
    if len(controls) >= FEWEST_CONTROLS:
        named[OWN_OF_TORCH] = median(controls)
    return Group(bound, len(gated), median(shifts[row.key] for row in gated), _noise(gated), named)


def _noise(rows: Sequence[HeldRow]) -> float:
    """Of the median over rows, from the baseline's repeats."""
    count = len(rows[0].times_ns)
    if count < FEWEST_REPEATS:
        return math.inf
    medians = [median(math.log(row.times_ns[i] / row.typical_ns) for row in rows) for i in range(count)]
    return prediction(medians, _CONFIDENCE)
