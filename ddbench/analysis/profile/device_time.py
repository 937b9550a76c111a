"""Who has the device when: busy and idle time of the rounds in the window, and what every gap waits for.

A gap is time in which none of a GPU's ops runs. It is cut at the launch of the op that ends it. Before that call the
host had not asked for anything: it was waiting in a sync or a copy, allocating memory, working in a stage or between
stages. From that call on the launch was on its way. Where the op had been launched before the gap began the device took
its time: between nodes of one replay, or between ops of a queue. After the last op there is nothing to wait for. So
every idle nanosecond has one cause, and busy time and causes add up to the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.profile.captured_case import ToolPass, round_steps, texts
from ddbench.analysis.profile.intervals import Intervals, painted, union
from ddbench.analysis.values import missing
from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

NOT_RECORDED = -1  # of a launch
IN_REPLAY = "between nodes of a replay"
IN_QUEUE = "between queued ops"
LATENCY = "launch on its way"
SYNC = "host in a sync or copy"
MEMORY = "host allocating memory"
BETWEEN = "host between stages"
UNKNOWN = "launch not recorded"
NOTHING = "after the last op"
STAGE_CAUSES: dict[str, str] = {stage.value: f"host in {stage.value.replace('_', ' ')}" for stage in Stage}
HOST_CAUSES: tuple[str, ...] = (SYNC, MEMORY, *STAGE_CAUSES.values(), BETWEEN)  # the host is late
CAUSES: tuple[str, ...] = (IN_REPLAY, IN_QUEUE, LATENCY, *HOST_CAUSES, UNKNOWN, NOTHING)


@dataclass(frozen=True)
class DeviceTime:
    """Where the time of the window's rounds went on the devices, summed over GPUs where there are several.

    A gap belongs to the round of the op that ends it. What belongs to no round (prefills, and what comes after the last
    op) is told apart: with it, busy time and causes add up to the window.
    """

    num_rounds: int
    num_gpus: int
    window_ns: int  # times the number of GPUs
    busy_ns: int  # at least one op of a round runs
    outside_ns: int  # work that belongs to no round, and gaps that such work or the end of the window ends
    causes: Mapping[str, int]  # idle nanoseconds of rounds by cause, in the order of `CAUSES`
    gaps: pd.DataFrame  # one row per gap: start_ns, end_ns, round, before, after (stages; '' none), cause, each cause
    round_idle: np.ndarray  # [rounds with ops] idle share of each
    num_empty: int  # rounds without any device op

    @property
    def rounds_ns(self) -> int:
        """Time of the rounds on the device, never 0."""
        return self.window_ns - self.outside_ns

    @property
    def idle_share(self) -> float:
        """Of the rounds' time."""
        return sum(self.causes.values()) / self.rounds_ns

    def share(self, cause: str) -> float:
        """Of the rounds' time."""
        return self.causes.get(cause, 0) / self.rounds_ns


def device_time(one: ToolPass) -> DeviceTime | NotMeasured:
    """Busy and idle time of a usable timeline."""
    if not (one.ops["round"] != OUTSIDE_ROUNDS).any() or one.capture.window_ns <= 0:
        return missing("no op of the capture's window belongs to a round")
    window, host = one.capture.window_ns, _host_doings(one)
    gaps, busy, idle, empty = [], 0, [], 0
    by_gpu = [rows.sort_values(["start_ns", "end_ns"], kind="stable") for _, rows in one.ops.groupby("gpu", sort=True)]
    for ops in by_gpu:
        start, end = _clipped(ops, window)
        in_rounds = (ops["round"] != OUTSIDE_ROUNDS).to_numpy()
        busy += union(start[in_rounds], end[in_rounds]).total
        own = _gaps(ops, start, end, window, host)
        shares, without = _round_idle(one, ops["round"].to_numpy(), start, end, own)
        gaps.append(own)
        idle.append(shares)
        empty += without
    table = pd.concat(gaps, ignore_index=True)
    of_rounds = table[(table["round"] != OUTSIDE_ROUNDS).to_numpy()]
    causes = {cause: int(of_rounds[cause].sum()) for cause in CAUSES}
    return DeviceTime(
        num_rounds=one.num_rounds,
        num_gpus=len(by_gpu),
        window_ns=window * len(by_gpu),
        busy_ns=busy,
        outside_ns=window * len(by_gpu) - busy - sum(causes.values()),
        causes={cause: time for cause, time in causes.items() if time},
        gaps=of_rounds,
        round_idle=np.concatenate(idle),
        num_empty=empty,
    )


def _clipped(ops: pd.DataFrame, window: int) -> tuple[np.ndarray, np.ndarray]:
    start, end = (np.clip(ops[name].to_numpy(np.int64), 0, window) for name in ("start_ns", "end_ns"))
    return start, end


def _round_idle(
    one: ToolPass, rounds: np.ndarray, start: np.ndarray, end: np.ndarray, gaps: pd.DataFrame
) -> tuple[np.ndarray, int]:
    """(idle share of every round with ops, rounds without any)."""
    took = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    of_gaps = gaps["round"].to_numpy()
    shares = []
    for step in round_steps(one):
        own = rounds == step
        busy, idle = union(start[own], end[own]).total, int(took[of_gaps == step].sum())
        if busy + idle:
            shares.append(idle / (busy + idle))
    return np.array(shares), one.num_rounds - len(shares)


# --- gaps -------------------------------------------------------------------------------------------------------------


def _gaps(
    ops: pd.DataFrame, start: np.ndarray, end: np.ndarray, window: int, host: Mapping[str, Intervals]
) -> pd.DataFrame:
    """Every gap of one GPU with its time by cause; `ops` is in the order of `start`."""
    count = len(ops)
    # What ended last before each op: the op that the device came from.
    reached = np.maximum.accumulate(end)
    holder = np.maximum.accumulate(np.where(np.append(True, end[1:] > reached[:-1]), np.arange(count), 0)[:count])
    low, high = np.append(0, reached), np.append(start, window)
    before, after = np.append(-1, holder), np.append(np.arange(count), -1)
    is_gap = high > low
    low, high, before, after = (part[is_gap] for part in (low, high, before, after))
    launch, is_node, is_operator = (_picked(column, after, absent) for column, absent in _launched(ops))
    is_last = after < 0
    is_known = ~is_last & ((launch != NOT_RECORDED) | is_operator)
    asked = np.clip(np.where(is_operator, high, launch), low, high)  # the host runs an operator itself
    parts = dict.fromkeys(CAUSES, np.zeros(len(low), np.int64))
    parts[NOTHING] = np.where(is_last, high - low, 0)
    parts[UNKNOWN] = np.where(~is_last & ~is_known, high - low, 0)
    on_device = np.where(is_known, high - asked, 0)
    is_queued = asked <= low
    parts[IN_REPLAY] = np.where(is_node, on_device, 0)
    parts[IN_QUEUE] = np.where(~is_node & is_queued, on_device, 0)
    parts[LATENCY] = np.where(~is_node & ~is_queued, on_device, 0)
    left = np.where(is_known, asked - low, 0)
    for cause, times in host.items():
        parts[cause] = np.where(is_known, times.within(low, asked), 0)
        left = left - parts[cause]
    parts[BETWEEN] = left
    stage, steps = texts(ops, "stage"), ops["round"].to_numpy(np.int64)
    largest = np.stack([parts[cause] for cause in CAUSES]).argmax(axis=0) if len(low) else np.empty(0, np.int64)
    return pd.DataFrame(
        {
            "start_ns": low,
            "end_ns": high,
            "round": _picked(steps, after, np.int64(OUTSIDE_ROUNDS)),
            "before": _picked(stage, before, ""),
            "after": _picked(stage, after, ""),
            "cause": np.array(CAUSES, dtype=object)[largest],
            **parts,
        }
    )


def _picked(values: np.ndarray, places: np.ndarray, absent: object) -> np.ndarray:
    """`values[place]`, or `absent` at place -1."""
    return np.append(values, np.array([absent], dtype=values.dtype))[places]


def _launched(ops: pd.DataFrame) -> tuple[tuple[np.ndarray, object], ...]:
    """Of every op, with what holds where there is none: its launch, whether it is a later node of a replay, whether the
    host itself runs it."""
    launch = ops["launch_ns"].to_numpy(np.int64)
    is_replayed = ops["is_replayed"].to_numpy(dtype=bool) & (launch != NOT_RECORDED)
    is_later = pd.Series(np.where(is_replayed, launch, NOT_RECORDED)).duplicated().to_numpy() & is_replayed
    return (launch, np.int64(NOT_RECORDED)), (is_later, False), (texts(ops, "kind") == "operator", False)


def _host_doings(one: ToolPass) -> dict[str, Intervals]:
    """Cause -> when the host did that: in calls that make it wait, else in the innermost stage."""
    ranges = one.ranges[np.isin(texts(one.ranges, "name"), list(STAGE_CAUSES))]
    ranges = ranges[(ranges["kind"] == "stage").to_numpy(dtype=bool)]
    layers = [(ranges.sort_values("start_ns", kind="stable"), STAGE_CAUSES)]
    for cause, kinds in ((MEMORY, ("memory",)), (SYNC, ("sync", "copy"))):
        calls = one.calls[np.isin(texts(one.calls, "kind"), kinds)]
        layers.append((calls, dict.fromkeys(texts(calls, "name"), cause)))
    causes = [causes_of[name] for rows, causes_of in layers for name in texts(rows, "name")]
    start, end = (
        np.concatenate([rows[name].to_numpy(np.int64) for rows, _ in layers]) for name in ("start_ns", "end_ns")
    )
    times = painted(start, end, np.array([CAUSES.index(cause) for cause in causes], np.int64))
    return {CAUSES[place]: own for place, own in times.items()}


# --- latency ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latency:
    """From the host's launch call to the start on the device: of ops launched one by one, and of whole replays."""

    num_ops: int
    median_op_ns: float
    num_replays: int
    median_replay_ns: float  # to the first node


def launch_latency(one: ToolPass) -> Latency:
    """Medians; 0 where there is none of a kind. A launch behind other work waits for that too."""
    launch = one.ops["launch_ns"].to_numpy(np.int64)
    start = one.ops["start_ns"].to_numpy(np.int64)
    is_replayed = one.ops["is_replayed"].to_numpy(dtype=bool)
    known = launch != NOT_RECORDED
    single = (start - launch)[known & ~is_replayed]
    replays = pd.Series(start[known & is_replayed]).groupby(launch[known & is_replayed]).min()
    waits = replays.to_numpy() - replays.index.to_numpy()
    return Latency(
        len(single),
        float(np.median(single)) if len(single) else 0.0,
        len(waits),
        float(np.median(waits)) if len(waits) else 0.0,
    )
