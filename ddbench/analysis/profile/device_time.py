"""Who has the device when: busy and idle time of the rounds in the window, and what every gap waits for.

Sums over what `idle.py` says of every GPU: every idle nanosecond has one cause, and busy time and causes add up to the
window. A gap as a whole goes by the cause of most of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.intervals import union
from ddbench.analysis.profile.captured_case import ToolPass, round_steps, texts
from ddbench.analysis.profile.idle import Cause, HostDoings, host_doings, idle_pieces
from ddbench.analysis.values import missing
from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

STAGE_CAUSES: dict[str, str] = {stage.value: f"host in {stage.value.replace('_', ' ')}" for stage in Stage}
HOST_CAUSES: tuple[str, ...] = (Cause.SYNC, Cause.MEMORY, *STAGE_CAUSES.values(), Cause.HOST)  # the host is late
CAUSES: tuple[str, ...] = (Cause.REPLAY, Cause.QUEUE, Cause.LAUNCH, *HOST_CAUSES, Cause.UNKNOWN, Cause.NOTHING)


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
    gaps: pd.DataFrame  # one row per gap: start_ns, end_ns, round, before, after (stages; '' none), cause
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
    window = one.end_ns
    if not (one.ops["round"] != OUTSIDE_ROUNDS).any() or one.capture.window_ns <= 0:
        return missing("no op of the capture's window belongs to a round")
    host = host_doings(one.calls, one.ranges, window)
    tables, busy, idle, empty = [], 0, [], 0
    by_gpu = [rows.sort_values(["start_ns", "end_ns"], kind="stable") for _, rows in one.ops.groupby("gpu", sort=True)]
    for ops in by_gpu:
        steps = ops["round"].to_numpy()
        start, end = (np.clip(ops[name].to_numpy(np.int64), 0, window) for name in ("start_ns", "end_ns"))
        in_rounds = steps != OUTSIDE_ROUNDS
        busy += union(start[in_rounds], end[in_rounds]).total
        own = _gaps(ops, host, window)
        shares, without = _round_idle(one, steps, start, end, own)
        tables.append(own)
        idle.append(shares)
        empty += without
    table = pd.concat(tables, ignore_index=True)
    of_rounds = table[(table["round"] != OUTSIDE_ROUNDS).to_numpy()]
    causes = {cause: int(of_rounds[cause].sum()) for cause in CAUSES}
    return DeviceTime(
        num_rounds=one.num_rounds,
        num_gpus=len(by_gpu),
        window_ns=window * len(by_gpu),
        busy_ns=busy,
        outside_ns=window * len(by_gpu) - busy - sum(causes.values()),
        causes={cause: time for cause, time in causes.items() if time},
        gaps=of_rounds.drop(columns=list(CAUSES)),
        round_idle=np.concatenate(idle),
        num_empty=empty,
    )


def _gaps(ops: pd.DataFrame, host: HostDoings, window: int) -> pd.DataFrame:
    """Every gap of one GPU: its times, its neighbours, nanoseconds by cause, and the cause of most of them."""
    pieces = idle_pieces(ops, host, window)
    first = np.flatnonzero(np.append(True, np.diff(pieces["gap"]) > 0)) if len(pieces) else np.zeros(0, np.int64)
    names = [STAGE_CAUSES.get(stage, cause) for cause, stage in zip(pieces["cause"], _own_stage(pieces), strict=True)]
    took = np.zeros((len(first), len(CAUSES)), np.int64)
    places = (pieces["gap"].to_numpy(), np.array([CAUSES.index(name) for name in names], np.int64))
    np.add.at(took, places, (pieces["end_ns"] - pieces["start_ns"]).to_numpy())
    before, after = (pieces[name].to_numpy()[first] for name in ("before", "after"))
    stage = np.append(texts(ops, "stage"), "")
    return pd.DataFrame(
        {
            "start_ns": pieces["start_ns"].to_numpy()[first],
            "end_ns": pieces["gap_end_ns"].to_numpy()[first],
            "round": np.append(ops["round"].to_numpy(np.int64), OUTSIDE_ROUNDS)[after],
            "before": stage[before],
            "after": stage[after],
            "cause": np.array(CAUSES, dtype=object)[took.argmax(axis=1)],
            **{cause: took[:, place] for place, cause in enumerate(CAUSES)},
        }
    )


def _own_stage(pieces: pd.DataFrame) -> np.ndarray:
    """The stage that is the cause itself; a host that waits does so whatever its stage."""
    return np.where(pieces["cause"] == Cause.STAGE, pieces["stage"], "")


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
