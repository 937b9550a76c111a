"""What follows from a row and the ceilings of its run: rates, the floor, the share of it, and whether targets are met.

No torch. A floor is the longest of three times: fewest bytes at the read ceiling (hot or cold as the row is), flops at
the matmul ceiling, one launch (a node of a replayed graph; for a row of the host's clock, a launch from the host).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddbench.analysis.roofline import Bound, Rates, machine_of
from ddbench.opbench.records import OkRow, OpRow, OpsFile, Target
from ddbench.records import NotMeasured

NS_PER_MS = 1e6
Outcome = Literal["met", "missed", "unknown"]


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time, what it consists of, and how near the measured time comes to it."""

    floor_ns: float
    bound: Bound
    share: float  # floor / time: 1 is perfect
    share_of_read: float  # time of the bytes at the cold read ceiling / time


@dataclass(frozen=True, slots=True)
class TargetResult:
    """One target of a row, and what was reached."""

    target: Target
    value: float | NotMeasured

    @property
    def outcome(self) -> Outcome:
        if isinstance(self.value, NotMeasured):
            return "unknown"
        limit = self.target.limit
        is_met = self.value <= limit if self.target.is_ceiling else self.value >= limit
        return "met" if is_met else "missed"


@dataclass(frozen=True, slots=True)
class Derived:
    """A timed row with what follows from it."""

    row: OkRow
    bytes_per_s: float
    flops_per_s: float
    floor: Floor | NotMeasured
    targets: tuple[TargetResult, ...]


def derive(file: OpsFile) -> tuple[OpRow | Derived, ...]:
    """Every row, in order; timed ones with what follows."""
    clocks: dict[str, Rates | NotMeasured] = {clock: _rates(file, clock) for clock in ("graph", "host")}
    return tuple(_derived(row, clocks[row.clock], file.rows) if isinstance(row, OkRow) else row for row in file.rows)


def _rates(file: OpsFile, clock: str) -> Rates | NotMeasured:
    is_cpu = file.environment.device == "cpu"
    machine = machine_of(file.ceilings, file.dtype, None, "host" if clock == "host" or is_cpu else "device")
    return machine if isinstance(machine, NotMeasured) else machine.typical


def _derived(row: OkRow, rates: Rates | NotMeasured, rows: Sequence[OpRow]) -> Derived:
    seconds = row.time_ns / 1e9
    floor: Floor | NotMeasured = rates if isinstance(rates, NotMeasured) else _floor(row, rates)
    is_held = row.kind == "ours" and row.cache == "cold"
    results = tuple(TargetResult(target, _reached(target, row, floor, rows)) for target in row.targets if is_held)
    return Derived(row, row.num_bytes / seconds, row.num_flops / seconds, floor, results)


def _floor(row: OkRow, rates: Rates) -> Floor:
    times = rates.times(row.num_bytes, row.num_flops, row.num_bytes if row.cache == "hot" else 0)
    bound = max(times, key=lambda name: times[name])
    least = times[bound] * NS_PER_MS
    cold_read = row.num_bytes / rates.cold * 1e9
    return Floor(least, bound, least / row.time_ns, cold_read / row.time_ns)


def _reached(target: Target, row: OkRow, floor: Floor | NotMeasured, rows: Sequence[OpRow]) -> float | NotMeasured:
    if target.metric == "time_us":
        return row.time_ns / 1e3
    if target.metric == "launches":
        return row.launches
    if target.metric == "speedup":
        return _speedup(target, row, rows)
    if isinstance(floor, NotMeasured):
        return floor
    return floor.share if target.metric == "share_of_floor" else floor.share_of_read


def _speedup(target: Target, row: OkRow, rows: Sequence[OpRow]) -> float | NotMeasured:
    """Over the fastest correct one of those that the target names."""
    times = [
        other.time_ns
        for other in rows
        if isinstance(other, OkRow)
        and (other.op, other.shape, other.cache) == (row.op, row.shape, row.cache)
        and other.implementation in target.against
    ]
    if not times:
        return NotMeasured(not_measured=f"none of {', '.join(target.against)} was measured here")
    return min(times) / row.time_ns
