"""Why nothing ran on the device: every idle nanosecond of a window gets one cause, and all of them add up.

A gap is cut at the moment at which the host launched the op that ends it. Before that the host was late, and what it
did then is the cause: it waited in a sync or a blocking copy, it allocated memory, it was in a stage or between stages.
After that the launch was on its way to the device. Where the op had been launched before the gap began, the device
itself took its time: between nodes of a replayed graph, or between ops of a queue.

Between rounds and summary. G gaps, C cuts, P pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.profile.intervals import union
from ddbench.timeline.intervals import gaps_of, painted
from ddbench.timeline.rounds import Rounds
from ddbench.timeline.window import Window


class Cause(StrEnum):
    """In the order in which they are shown."""

    SYNC = "sync"
    MEMORY = "memory"
    STAGE = "stage"
    HOST = "host"
    LAUNCH = "launch"
    REPLAY = "replay"
    QUEUE = "queue"
    UNKNOWN = "unknown"
    NOTHING = "nothing"


CAUSE_TEXTS: dict[Cause, str] = {
    Cause.SYNC: "host late: in a sync or copy",
    Cause.MEMORY: "host late: allocating memory",
    Cause.STAGE: "host late: in a stage",
    Cause.HOST: "host late: between stages",
    Cause.LAUNCH: "launched, not started yet",
    Cause.REPLAY: "between nodes of a replay",
    Cause.QUEUE: "between queued ops",
    Cause.UNKNOWN: "launch not recorded",
    Cause.NOTHING: "queue empty until the end",
}
_CAUSES: tuple[Cause, ...] = tuple(Cause)
_NO_STAGE = len(STAGE_NAMES)
_STAGES = (*STAGE_NAMES, "")
_HOST_CAUSES = (Cause.HOST, Cause.STAGE, Cause.MEMORY, Cause.SYNC)  # later ones win where several apply
_BLOCKING = {"sync": Cause.SYNC, "copy": Cause.SYNC, "memory": Cause.MEMORY}  # kinds of calls


@dataclass(frozen=True, eq=False)
class _HostState:
    """What the host did between any two cuts of time."""

    cuts: np.ndarray  # [C]
    causes: np.ndarray  # [C - 1] place in _CAUSES
    stages: np.ndarray  # [C - 1] place in _STAGES


def idle_of(window: Window, rounds: Rounds) -> pd.DataFrame:
    """Pieces in order: start_ns, end_ns, cause, stage (of the host, where it was late), next_stage, place (of the
    round), is_between (the round had not begun on the device)."""
    ops = window.ops
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    gap_start, gap_end = gaps_of(union(start, end), 0, window.end_ns)
    lasting = np.flatnonzero(end > start)  # an op without length ends no gap
    after = np.append(lasting, len(ops))[np.searchsorted(start[lasting], gap_end, side="left")]
    launched, device_cause = _launched(window, gap_start, gap_end, after)
    host = _host_state(window)
    pieces = np.unique(np.concatenate([gap_start, gap_end, launched, host.cuts]))
    low, high = pieces[:-1], pieces[1:]
    gap = np.searchsorted(gap_start, low, side="right") - 1
    is_idle = (gap >= 0) & (low < gap_end[np.maximum(gap, 0)]) if len(gap_start) else np.zeros(len(low), bool)
    low, high, gap = low[is_idle], high[is_idle], gap[is_idle]
    is_host = low < launched[gap]
    state = np.clip(np.searchsorted(host.cuts, low, side="right") - 1, 0, len(host.causes) - 1)
    causes = np.where(is_host, host.causes[state], device_cause[gap])
    is_tail = after[gap] == len(ops)
    causes[is_tail] = _CAUSES.index(Cause.NOTHING)
    stages = np.where(is_host & ~is_tail, host.stages[state], _NO_STAGE)
    return _joined(window, rounds, after, gap_end, (low, high, gap, causes, stages))


def _launched(
    window: Window, gap_start: np.ndarray, gap_end: np.ndarray, after: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """When the op after each gap was launched, within the gap; and the cause of what is left of the gap then."""
    ops = window.ops
    launch = np.append(ops["launch_ns"].to_numpy(), -1)[after]
    is_operator = np.append((ops["kind"] == "operator").to_numpy(), False)[after]
    is_node = np.append((ops["is_replayed"] & ~first_of_replay(ops)).to_numpy(), False)[after]
    launch = np.where(is_operator, gap_end, launch)  # an operator is run by the host itself
    launch = np.where(after == len(ops), gap_end, launch)
    cause = np.full(len(after), _CAUSES.index(Cause.LAUNCH))
    cause[launch <= gap_start] = _CAUSES.index(Cause.QUEUE)
    cause[is_node] = _CAUSES.index(Cause.REPLAY)
    cause[launch < 0] = _CAUSES.index(Cause.UNKNOWN)
    return np.clip(launch, gap_start, gap_end), cause


def first_of_replay(ops: pd.DataFrame) -> pd.Series:
    """Ops that began a replay, as all that were launched by one call are one; ops without a launch begin none."""
    is_known = ops["is_replayed"] & (ops["launch_ns"] >= 0)
    return is_known & ~ops["launch_ns"].where(is_known, other=-1).duplicated()


def _host_state(window: Window) -> _HostState:
    """Painted in layers: nothing, stages (the innermost last), calls that make the host wait."""
    stage_ranges = window.ranges[(window.ranges["kind"] == "stage").to_numpy()]
    blocking = window.calls[window.calls["kind"].isin(list(_BLOCKING)).to_numpy()]
    ends = [table[name].to_numpy() for table in (stage_ranges, blocking) for name in ("start_ns", "end_ns")]
    cuts = np.unique(np.concatenate([[0, max(1, window.end_ns)], *ends]))
    ground = np.full(len(cuts) - 1, _NO_STAGE)
    order = np.lexsort((-stage_ranges["end_ns"].to_numpy(), stage_ranges["start_ns"].to_numpy()))
    begin, stop = (stage_ranges[name].to_numpy()[order] for name in ("start_ns", "end_ns"))
    codes = np.array([_STAGES.index(name) if name in _STAGES else _NO_STAGE for name in stage_ranges["name"]], np.int64)
    stages = painted(cuts, begin, stop, codes[order], ground)
    working = np.where(stages == _NO_STAGE, _CAUSES.index(Cause.HOST), _CAUSES.index(Cause.STAGE))
    weights = np.array([_HOST_CAUSES.index(_BLOCKING[kind]) for kind in blocking["kind"]], np.int64)
    order = np.argsort(weights, kind="stable")
    begin, stop = (blocking[name].to_numpy()[order] for name in ("start_ns", "end_ns"))
    as_causes = np.array([_CAUSES.index(cause) for cause in _HOST_CAUSES], np.int64)
    causes = painted(cuts, begin, stop, as_causes[weights[order]], working)
    return _HostState(cuts, causes, stages)


def _joined(
    window: Window,
    rounds: Rounds,
    after: np.ndarray,
    gap_end: np.ndarray,
    pieces: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> pd.DataFrame:
    """Neighbouring pieces of one gap that agree become one."""
    low, high, gap, causes, stages = pieces
    same = (gap[1:] == gap[:-1]) & (causes[1:] == causes[:-1]) & (stages[1:] == stages[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~same])) if len(low) else np.zeros(0, np.int64)
    last = np.append(first[1:], len(low))[: len(first)] - 1
    gap = gap[first]
    place = rounds.at(gap_end[gap])
    begins = np.append(rounds.first_ns, np.iinfo(np.int64).max)[place]
    next_stage = np.append(window.ops["stage"].to_numpy(dtype=object), "")[after[gap]]
    return pd.DataFrame(
        {
            "start_ns": low[first],
            "end_ns": high[last],
            "cause": np.array([cause.value for cause in _CAUSES], dtype=object)[causes[first]],
            "stage": np.array(_STAGES, dtype=object)[stages[first]],
            "next_stage": next_stage,
            "place": place,
            "is_between": gap_end[gap] <= begins,
        }
    )
