"""Why nothing ran on a device: every idle nanosecond of a window gets one cause, and all of them add up.

A gap is time in which none of the ops runs. It is cut at the moment at which the host launched the op that ends it.
Before that the host was late, and what it did then is the cause: it waited in a sync or a blocking copy, it allocated
memory, it was in a stage or between stages. After that the launch was on its way. Where the op had been launched before
the gap began, the device itself took its time: between nodes of a replayed graph, or between ops of a queue.

The one judgement of idle time: `device_time.py` sums it up for reports and findings, the timeline draws it.
G gaps, C cuts of the host's time, N ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from ddbench.analysis.intervals import painted
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.profile.captured_case import texts
from ddbench.analysis.profile.latency import first_of_replay

NOT_RECORDED = -1  # of a launch


class Cause(StrEnum):
    """In the words of reports: the device's own, the launch's, the host's, and nobody's."""

    REPLAY = "between nodes of a replay"
    QUEUE = "between queued ops"
    LAUNCH = "launch on its way"
    SYNC = "host in a sync or copy"
    MEMORY = "host allocating memory"
    STAGE = "host in a stage"
    HOST = "host between stages"
    UNKNOWN = "launch not recorded"
    NOTHING = "after the last op"


HOST_IS_LATE: tuple[Cause, ...] = (Cause.SYNC, Cause.MEMORY, Cause.STAGE, Cause.HOST)
_CAUSES: tuple[Cause, ...] = tuple(Cause)
_NO_STAGE = len(STAGE_NAMES)
_STAGES = (*STAGE_NAMES, "")
_WAITING: tuple[tuple[Cause, tuple[str, ...]], ...] = (  # kinds of calls; later ones win where several apply
    (Cause.MEMORY, ("memory",)),
    (Cause.SYNC, ("sync", "copy")),
)


@dataclass(frozen=True, eq=False)
class HostDoings:
    """What the host did between any two cuts of time."""

    cuts: np.ndarray  # [C]
    causes: np.ndarray  # [C - 1] place in Cause
    stages: np.ndarray  # [C - 1] place in STAGE_NAMES; behind them all: in none


@dataclass(frozen=True, eq=False)
class _Gaps:
    """Maximal stretches without an op, in order; `before` and `after` are rows of the ops, -1: none."""

    start: np.ndarray  # [G]
    end: np.ndarray  # [G]
    before: np.ndarray  # [G] the op that ended last
    after: np.ndarray  # [G] the op that ends the gap


def idle_pieces(ops: pd.DataFrame, host: HostDoings, end_ns: int) -> pd.DataFrame:
    """Idle time from 0 to `end_ns`, cut wherever its cause changes; `ops` are those of one device, by start and end.

    In order: start_ns, end_ns, cause, stage (of the host, where it was late), gap (number), gap_end_ns, before and
    after (rows of `ops`, -1: none).
    """
    gaps = _gaps_of(ops, end_ns)
    asked, on_device = _asked(ops, gaps)
    edges = np.unique(np.concatenate([gaps.start, gaps.end, asked, host.cuts]))
    low, high = edges[:-1], edges[1:]
    gap = np.searchsorted(gaps.start, low, side="right") - 1
    is_idle = (gap >= 0) & (low < gaps.end[np.maximum(gap, 0)]) if len(gaps.start) else np.zeros(len(low), bool)
    low, high, gap = low[is_idle], high[is_idle], gap[is_idle]
    is_host = (low < asked[gap]) & (gaps.after[gap] >= 0)
    state = np.clip(np.searchsorted(host.cuts, low, side="right") - 1, 0, len(host.causes) - 1)
    causes = np.where(is_host, host.causes[state], on_device[gap])
    stages = np.where(is_host, host.stages[state], _NO_STAGE)
    same = (gap[1:] == gap[:-1]) & (causes[1:] == causes[:-1]) & (stages[1:] == stages[:-1])
    first = np.flatnonzero(np.append(True, ~same)) if len(low) else np.zeros(0, np.int64)
    last = np.append(first[1:], len(low))[: len(first)] - 1
    gap = gap[first]
    return pd.DataFrame(
        {
            "start_ns": low[first],
            "end_ns": high[last],
            "cause": np.array([cause.value for cause in _CAUSES], dtype=object)[causes[first]],
            "stage": np.array(_STAGES, dtype=object)[stages[first]],
            "gap": gap,
            "gap_end_ns": gaps.end[gap],
            "before": gaps.before[gap],
            "after": gaps.after[gap],
        }
    )


def _gaps_of(ops: pd.DataFrame, end_ns: int) -> _Gaps:
    """An op without length neither ends nor begins a gap."""
    start, end = (np.clip(ops[name].to_numpy(np.int64), 0, end_ns) for name in ("start_ns", "end_ns"))
    rows = np.flatnonzero(end > start)
    start, end = start[rows], end[rows]
    reached = np.maximum.accumulate(end)
    is_latest = np.append(True, end[1:] > reached[:-1])[: len(rows)]
    latest = np.maximum.accumulate(np.where(is_latest, np.arange(len(rows)), 0))  # of the ops so far ends last
    low, high = np.append(0, reached), np.append(start, end_ns)
    before, after = np.append(-1, rows[latest]), np.append(rows, -1)
    is_gap = high > low
    return _Gaps(low[is_gap], high[is_gap], before[is_gap], after[is_gap])


def _asked(ops: pd.DataFrame, gaps: _Gaps) -> tuple[np.ndarray, np.ndarray]:
    """When, within each gap, the host asked for the op that ends it; and the cause of what is left of the gap then."""
    launch = np.append(ops["launch_ns"].to_numpy(np.int64), NOT_RECORDED)[gaps.after]
    is_operator = np.append(texts(ops, "kind") == "operator", False)[gaps.after]
    is_replayed = ops["is_replayed"].to_numpy(dtype=bool)
    is_node = np.append(is_replayed & ~first_of_replay(ops), False)[gaps.after]
    cause = np.full(len(gaps.after), _CAUSES.index(Cause.LAUNCH))
    cause[launch <= gaps.start] = _CAUSES.index(Cause.QUEUE)
    cause[is_node] = _CAUSES.index(Cause.REPLAY)
    cause[launch == NOT_RECORDED] = _CAUSES.index(Cause.UNKNOWN)
    cause[gaps.after < 0] = _CAUSES.index(Cause.NOTHING)
    asked = np.where(is_operator, gaps.end, launch)  # an operator is run by the host itself
    return np.clip(asked, gaps.start, gaps.end), cause


def host_doings(calls: pd.DataFrame, ranges: pd.DataFrame, end_ns: int) -> HostDoings:
    """Painted in layers: nothing, stages (the innermost last), calls that make the host wait."""
    stages = ranges[(ranges["kind"] == "stage").to_numpy(dtype=bool)]
    stages = stages.iloc[np.lexsort((-stages["end_ns"].to_numpy(np.int64), stages["start_ns"].to_numpy(np.int64)))]
    kinds = texts(calls, "kind")
    layers = [(cause, calls[np.isin(kinds, own)]) for cause, own in _WAITING]
    edges = [_times(table) for table in (stages, *(table for _, table in layers))]
    cuts = np.unique(np.concatenate([[0, max(1, end_ns)], *(time for pair in edges for time in pair)]))
    codes = np.array(
        [_STAGES.index(name) if name in _STAGES else _NO_STAGE for name in texts(stages, "name")], np.int64
    )
    in_stage = painted(cuts, *edges[0], codes, np.full(len(cuts) - 1, _NO_STAGE))
    causes = np.where(in_stage == _NO_STAGE, _CAUSES.index(Cause.HOST), _CAUSES.index(Cause.STAGE))
    for (cause, table), times in zip(layers, edges[1:], strict=True):
        causes = painted(cuts, *times, np.full(len(table), _CAUSES.index(cause)), causes)
    return HostDoings(cuts, causes, in_stage)


def _times(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
