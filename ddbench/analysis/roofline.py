"""How far every stage is from the least time that this machine could do its work in.

After the settings, beside `breakdown.py`. The fewest bytes and flops of a stage come from its case (`StageCost`: from
the shapes, routed experts as the case counted them), what the machine can do from the run's own `Ceilings`, both for
the same dtype and thread count. A stage's floor is the longest of three times: its bytes at the read ceiling, its flops
at the matmul ceiling, one launch. Of its bytes as many as fit the last-level cache are taken to be there already (hot
ceiling), the rest comes from memory (cold one): nothing can be faster, and how much slower a cold start is stands
beside it. A stage timed by the device is held against the least time of any kernel there (`replay`), since its host may
run ahead; one timed by the host against a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ddbench.analysis import stats
from ddbench.analysis.breakdown import Breakdown
from ddbench.analysis.settings import Setting
from ddbench.analysis.timing import MILLISECOND
from ddbench.analysis.values import missing
from ddbench.records import Ceilings, CeilingSample, NotMeasured

Bound = Literal["bytes", "flops", "launch"]
Cache = Literal["hot", "cold"]
LARGE_DRIFT = 0.10  # between a ceiling before and after the cases, from which on a reader is warned


@dataclass(frozen=True, slots=True)
class Floor:
    """What was measured against the least time that the machine could do it in."""

    milliseconds: float  # mean per round of the attributed pass; of a whole round with its host gaps
    floor_ms: float
    low: float  # of the distance: lower quartile of the time over rounds / floor by the slower quartile of the ceilings
    high: float
    cold_floor_ms: float  # if all bytes came from memory: the same as `floor_ms` where that makes no difference

    @property
    def distance(self) -> float:
        """Measured time / floor: 1 is perfect."""
        return self.milliseconds / self.floor_ms

    @property
    def is_too_fast(self) -> bool:
        """Faster than its floor, which nothing is: the cost model or the ceiling is wrong."""
        return self.distance < 1


@dataclass(frozen=True, slots=True)
class StageFloor(Floor):
    """One stage of a setting."""

    stage: str
    bound: Bound  # what the floor consists of
    cache: Cache  # hot: the fewest bytes fit the last-level cache
    intensity: float | NotMeasured  # flops per byte
    bytes_per_s: float  # fewest bytes / time
    flops_per_s: float
    share_of_read: float  # time that the bytes need at the read ceiling / time
    share_of_matmul: float  # time that the flops need at the matmul ceiling / time
    num_bytes: float
    num_flops: float
    basis: str  # what round the cost is for


@dataclass(frozen=True, slots=True)
class RoundFloor(Floor):
    """A whole round: its floor is the sum of its stages'."""

    without: tuple[str, ...]  # timed stages that have no floor and count as 0


@dataclass(frozen=True, slots=True)
class Roofline:
    """The stages that were timed and have work of known cost, in the order of a round, and the round they make up."""

    stages: tuple[StageFloor, ...]
    whole: RoundFloor


@dataclass(frozen=True, slots=True)
class Drift:
    """One ceiling before and after the cases."""

    before: CeilingSample
    after: CeilingSample

    @property
    def change(self) -> float:
        return self.after.amount / self.before.amount - 1

    @property
    def is_large(self) -> bool:
        return abs(self.change) > LARGE_DRIFT


# --------------------------------------------------------------------------------------------------- what it can do


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine does in a second, and how long one op takes at least (0 where that is not known)."""

    hot: float  # bytes/s
    cold: float  # bytes/s
    matmul: float  # flops/s
    op_ms: float

    def times(self, num_bytes: float, num_flops: float, num_cached: float) -> dict[Bound, float]:
        """Milliseconds that each of the three takes; `num_cached` bytes are in the cache."""
        in_cache = min(num_bytes, num_cached)
        by_bytes = in_cache / self.hot + (num_bytes - in_cache) / self.cold
        return {"bytes": 1e3 * by_bytes, "flops": 1e3 * num_flops / self.matmul, "launch": self.op_ms}

    def floor_ms(self, num_bytes: float, num_flops: float, num_cached: float) -> float:
        return max(self.times(num_bytes, num_flops, num_cached).values())


@dataclass(frozen=True, slots=True)
class Machine:
    """Ceilings of one dtype and thread count: the better ones of before and after with their quartiles."""

    typical: Rates
    slow: Rates
    fast: Rates
    cache_bytes: int | NotMeasured

    @property
    def num_cached(self) -> int:
        return 0 if isinstance(self.cache_bytes, NotMeasured) else self.cache_bytes


def machine_of(
    ceilings: Ceilings | NotMeasured,
    dtype: str,
    num_threads: int | None,
    clock: str = "host",
) -> Machine | NotMeasured:
    """The ceilings that belong to a dtype and a thread count (None: there is only one)."""
    if isinstance(ceilings, NotMeasured):
        return ceilings
    own = [sample for sample in ceilings.samples if sample.dtype == dtype]
    threads = {sample.num_threads for sample in own}
    if num_threads is None and len(threads) > 1:
        return missing("ceilings were measured for several thread counts and the case does not say which is its own")
    own = [sample for sample in own if num_threads in (None, sample.num_threads)]
    found = {(s.kind, s.cache): [o for o in own if (o.kind, o.cache) == (s.kind, s.cache)] for s in own}
    cold, matmul = found.get(("read", "cold")), found.get(("matmul", "none"))
    if cold is None or matmul is None:
        what = "read" if cold is None else "matmul"
        place = dtype + (f" with {num_threads} thread{'s' * (num_threads > 1)}" if num_threads else "")
        return missing(f"no {what} ceiling was measured for {place}" + "".join(f"; {f}" for f in ceilings.faults))
    op = found.get(("launch" if clock == "host" else "replay", "none"))
    levels = (
        _rate_level(found.get(("read", "hot"), cold)),
        _rate_level(cold),
        _rate_level(matmul),
        (0.0, 0.0, 0.0) if op is None else _time_level(op),
    )
    typical, slow, fast = (_rates(*level) for level in zip(*levels, strict=True))
    return Machine(typical, slow, fast, ceilings.last_level_cache_bytes)


def _rate_level(samples: Sequence[CeilingSample]) -> tuple[float, float, float]:
    """(typical, slow, fast) of the better of before and after."""
    best = max(samples, key=lambda sample: sample.amount)
    return best.amount, best.low, best.high


def _time_level(samples: Sequence[CeilingSample]) -> tuple[float, float, float]:
    best = min(samples, key=lambda sample: sample.amount)
    return best.amount, best.high, best.low


def _rates(hot: float, cold: float, matmul: float, op_ns: float) -> Rates:
    """A cache that reads slower than memory was disturbed while it was measured."""
    return Rates(max(hot, cold), cold, matmul, op_ns / MILLISECOND)


def drifts(ceilings: Ceilings) -> tuple[Drift, ...]:
    """Ceilings that were measured before and after the cases."""
    before = {identity(sample): sample for sample in ceilings.samples if sample.when == "before"}
    after = {identity(sample): sample for sample in ceilings.samples if sample.when == "after"}
    return tuple(Drift(before[key], after[key]) for key in before if key in after)


def identity(sample: CeilingSample) -> tuple[str, str, str, int]:
    """Which ceiling it is a sample of, whenever it was taken."""
    return (sample.kind, sample.cache, sample.dtype, sample.num_threads)


# ----------------------------------------------------------------------------------------------------------- floors


def roofline_of(
    setting: Setting,
    found: Breakdown | NotMeasured,
    ceilings: Ceilings | NotMeasured,
    default_threads: int | None = None,
) -> Roofline | NotMeasured:
    """The stages and the whole round of a setting with this breakdown.

    `default_threads` is what `num_threads=None` stood for (the manifest's environment says it); it is only needed where
    ceilings were measured for several thread counts.
    """
    if isinstance(found, NotMeasured):
        return found
    machine = machine_of(ceilings, setting.engine.dtype, setting.engine.num_threads or default_threads, found.clock)
    if isinstance(machine, NotMeasured):
        return machine
    floors = [_stage_floor(setting, found, machine, stage) for stage in found.stage_ms]
    known = tuple(floor for floor in floors if floor is not None)
    if not known:
        return missing("no stage that was timed has work of known cost")
    return Roofline(known, _round_floor(setting, found, machine, known))


def _stage_floor(setting: Setting, found: Breakdown, machine: Machine, stage: str) -> StageFloor | None:
    """None: the stage's cost is not known, it has nothing to do, or its clock cannot tell its time."""
    costs = [cost for result in setting.results for cost in result.stage_costs if cost.stage == stage]
    num_bytes = sum(cost.fewest_bytes for cost in costs) / max(len(costs), 1)
    num_flops = sum(cost.num_flops for cost in costs) / max(len(costs), 1)
    milliseconds = found.stage_ms[stage]
    if milliseconds <= 0 or not (num_bytes or num_flops):
        return None
    work = (num_bytes, num_flops, machine.num_cached)
    times = machine.typical.times(*work)
    bound = max(times, key=lambda name: times[name])
    low, high = _stage_quartiles(setting, stage)
    distance = milliseconds / times[bound]
    return StageFloor(
        stage=stage,
        milliseconds=milliseconds,
        floor_ms=times[bound],
        low=min(low / machine.slow.floor_ms(*work), distance),
        high=max(high / machine.fast.floor_ms(*work), distance),
        bound=bound,
        cache="hot" if num_bytes <= machine.num_cached else "cold",
        intensity=num_flops / num_bytes if num_bytes else missing("the stage has nothing to move"),
        bytes_per_s=num_bytes / (milliseconds / 1e3),
        flops_per_s=num_flops / (milliseconds / 1e3),
        share_of_read=times["bytes"] / milliseconds,
        share_of_matmul=times["flops"] / milliseconds,
        num_bytes=num_bytes,
        num_flops=num_flops,
        cold_floor_ms=machine.typical.floor_ms(num_bytes, num_flops, 0),
        basis=costs[0].basis,
    )


def _stage_quartiles(setting: Setting, stage: str) -> tuple[float, float]:
    """Milliseconds per round; a round in which the stage did not run counts with 0."""
    rows = setting.stages
    own = rows["duration_ns"][(rows["step"] >= 0) & (rows.codes("stage") == rows.numbers("stage").get(stage, -1))]
    idle = max(0, len(setting.attributed_steps) - len(own))
    return _quartiles(np.concatenate((own, np.zeros(idle))))


def _quartiles(nanoseconds: np.ndarray) -> tuple[float, float]:
    low, high = stats.quantiles(nanoseconds, (0.25, 0.75))
    return low / MILLISECOND, high / MILLISECOND


def _round_floor(setting: Setting, found: Breakdown, machine: Machine, floors: Sequence[StageFloor]) -> RoundFloor:
    """Stages without a floor count as 0, so that the sum stays a floor."""
    slow, fast = (
        sum(rates.floor_ms(floor.num_bytes, floor.num_flops, machine.num_cached) for floor in floors)
        for rates in (machine.slow, machine.fast)
    )
    steps = setting.attributed_steps
    low, high = _quartiles((steps["end_ns"] - steps["start_ns"]).astype(np.float64))
    floor_ms = sum(floor.floor_ms for floor in floors)
    distance = found.round_ms / floor_ms
    known = {floor.stage for floor in floors}
    return RoundFloor(
        milliseconds=found.round_ms,
        floor_ms=floor_ms,
        low=min(low / slow, distance),
        high=max(high / fast, distance),
        cold_floor_ms=sum(floor.cold_floor_ms for floor in floors),
        without=tuple(stage for stage in found.stage_ms if stage not in known),
    )
