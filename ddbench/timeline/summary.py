"""Window -> the numbers of its timeline: per stage, idle time by cause, launch latencies, copies, syncs, kernels.

Everything that is given per round is a median over rounds, in which a round without it counts as 0. R rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.intervals import union
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.profile.idle import Cause
from ddbench.analysis.profile.latency import launches_of
from ddbench.timeline.idle import idle_of
from ddbench.timeline.rounds import Rounds, rounds_of
from ddbench.timeline.window import Window

_HIGHEST = 3  # kernels of a stage that are named


@dataclass(frozen=True)
class StageLine:
    """One stage ('': none is known) in a median round."""

    stage: str
    busy_ns: float  # of the device: union over streams
    num_ops: float
    wait_ns: float  # the device idle right before the stage's ops
    total_ns: int  # sum over all ops of the window, as in the ledger
    count: int  # of them


@dataclass(frozen=True)
class IdleLine:
    cause: Cause
    stage: str  # that the host was in
    within_ns: float  # median per round
    between_ns: float
    total_ns: int  # in the window
    longest_ns: int


@dataclass(frozen=True)
class LatencyLine:
    """How long after the start of its launch an op started."""

    what: str
    count: int
    quantiles_ns: tuple[float, ...]  # of LATENCY_QUANTILES


@dataclass(frozen=True)
class TrafficLine:
    """Copies in one direction, or calls that wait, in one stage."""

    what: str
    stage: str
    num_per_round: float
    bytes_per_round: float | None  # None: a call
    time_ns: float  # median of one
    total_ns: int  # in the window


@dataclass(frozen=True)
class KernelLine:
    stage: str
    name: str
    num_per_round: float
    median_ns: float
    per_round_ns: float
    share: float  # of the stage's time


LATENCY_QUANTILES: tuple[float, ...] = (0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Summary:
    """The numbers; `idle` holds the pieces that `idle_lines` sum up."""

    window: Window
    rounds: Rounds
    idle: pd.DataFrame
    busy_per_round: np.ndarray  # [R] ns, of the device
    stages: tuple[StageLine, ...]
    idle_lines: tuple[IdleLine, ...]
    latencies: tuple[LatencyLine, ...]
    traffic: tuple[TrafficLine, ...]
    kernels: tuple[KernelLine, ...]

    @property
    def period_ns(self) -> float:
        return float(np.median(self.rounds.period_ns))

    @property
    def busy_ns(self) -> float:
        return float(np.median(self.busy_per_round))

    @property
    def busy_share(self) -> float:
        """Of the rounds' time; 0 to 1 by construction."""
        whole = int(self.rounds.period_ns.sum())
        return float(self.busy_per_round.sum() / whole) if whole else 0.0

    def idle_ns(self, is_between: bool) -> float:
        return float(np.median(self.idle_per_round(is_between)))

    def idle_per_round(self, is_between: bool) -> np.ndarray:
        own = self.idle[(self.idle["is_between"] == is_between).to_numpy()]
        return _per_round(self.rounds, own["place"], own["end_ns"] - own["start_ns"])


def summary_of(window: Window) -> Summary:
    """All numbers of one window."""
    rounds = rounds_of(window)
    idle = idle_of(window, rounds)
    busy = union(window.ops["start_ns"].to_numpy(), window.ops["end_ns"].to_numpy())
    return Summary(
        window=window,
        rounds=rounds,
        idle=idle,
        busy_per_round=busy.within(rounds.begin_ns, rounds.end_ns),
        stages=tuple(_stage_lines(window, rounds, idle)),
        idle_lines=tuple(_idle_lines(rounds, idle)),
        latencies=tuple(_latency_lines(window, idle)),
        traffic=tuple(_traffic_lines(window, rounds)),
        kernels=tuple(_kernel_lines(window, rounds)),
    )


def _per_round(rounds: Rounds, places: pd.Series, amounts: pd.Series | None = None) -> np.ndarray:
    """Sums by round, without amounts the number of rows; what lies after the last round is left out."""
    return np.bincount(places, weights=amounts, minlength=len(rounds.steps) + 1)[: len(rounds.steps)]


def places_of(rounds: Rounds, steps: pd.Series) -> np.ndarray:
    """The place of each row's round; R where it is in none. A window without rounds is one round to all of its rows."""
    if not rounds.is_split:
        return np.zeros(len(steps), np.int64)
    place = np.searchsorted(rounds.steps, steps.to_numpy())
    is_known = rounds.steps[np.minimum(place, len(rounds.steps) - 1)] == steps.to_numpy()
    return np.where(is_known, place, len(rounds.steps))


def _stage_lines(window: Window, rounds: Rounds, idle: pd.DataFrame) -> list[StageLine]:
    """Stages in the order of a round, those that ran; then what belongs to none. Their totals are the ledger's."""
    ops = window.ops.assign(place=places_of(rounds, window.ops["round"]))
    lines = []
    names = [*STAGE_NAMES, *sorted(set(ops["stage"]) - {*STAGE_NAMES, ""}), ""]
    for stage in names:
        own = ops[(ops["stage"] == stage).to_numpy()]
        if not len(own):
            continue
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        busy = np.zeros(len(rounds.steps) + 1)
        for one, rows in own.groupby("place").indices.items():
            busy[one] = union(start[rows], end[rows]).total
        waits = idle[(idle["next_stage"] == stage).to_numpy() & (idle["cause"] != Cause.NOTHING).to_numpy()]
        lines.append(
            StageLine(
                stage=stage,
                busy_ns=float(np.median(busy[:-1])),
                num_ops=float(np.median(_per_round(rounds, own["place"]))),
                wait_ns=float(np.median(_per_round(rounds, waits["place"], waits["end_ns"] - waits["start_ns"]))),
                total_ns=int((end - start).sum()),
                count=len(own),
            )
        )
    return lines


def _idle_lines(rounds: Rounds, idle: pd.DataFrame) -> list[IdleLine]:
    lines = []
    timed = idle.assign(time_ns=idle["end_ns"] - idle["start_ns"])
    for (cause, stage), own in timed.groupby(["cause", "stage"], sort=False):
        split = [
            float(np.median(_per_round(rounds, own["place"], own["time_ns"] * (own["is_between"] == is_between))))
            for is_between in (False, True)
        ]
        total, longest = int(own["time_ns"].sum()), int(own["time_ns"].max())
        lines.append(IdleLine(Cause(cause), str(stage), split[0], split[1], total, longest))
    return sorted(lines, key=lambda line: -line.total_ns)


def _latency_lines(window: Window, idle: pd.DataFrame) -> list[LatencyLine]:
    """Apart: onto an idle device, where the launch alone takes time, and behind other ops, where they do."""
    found = launches_of(window.ops)
    waited = idle.loc[(idle["cause"] == Cause.LAUNCH).to_numpy(), "end_ns"].to_numpy()
    is_idle = np.isin(found["start_ns"].to_numpy(), waited)
    lines = []
    for what, words in (("op", "kernel"), ("replay", "graph replay"), ("copy", "copy or memset")):
        for state, is_meant in (("idle", is_idle), ("busy", ~is_idle)):
            own = found["latency_ns"].to_numpy()[(found["what"] == what).to_numpy() & is_meant]
            if len(own):
                quantiles = tuple(np.quantile(own, LATENCY_QUANTILES).tolist())
                lines.append(LatencyLine(f"{words}, device {state}", len(own), quantiles))
    return lines


def _traffic_lines(window: Window, rounds: Rounds) -> list[TrafficLine]:
    """Copies by direction, the host's reads first, and calls that wait; each by stage."""
    copies = window.ops[(window.ops["kind"] == "copy").to_numpy()]
    syncs = window.calls[(window.calls["kind"] == "sync").to_numpy()]
    lines = [
        *_traffic(copies.assign(what="copy " + copies["direction"].astype(object)), rounds),
        *_traffic(syncs.assign(what=syncs["name"], num_bytes=0), rounds, is_call=True),
    ]
    return sorted(lines, key=lambda line: ("device to host" not in line.what, line.bytes_per_round is None))


def _traffic(rows: pd.DataFrame, rounds: Rounds, is_call: bool = False) -> list[TrafficLine]:
    lines = []
    timed = rows.assign(place=places_of(rounds, rows["round"]), time_ns=rows["end_ns"] - rows["start_ns"])
    for (what, stage), own in timed.groupby(["what", "stage"], sort=True):
        num_bytes = _per_round(rounds, own["place"], own["num_bytes"])
        lines.append(
            TrafficLine(
                what=str(what),
                stage=str(stage),
                num_per_round=float(np.median(_per_round(rounds, own["place"]))),
                bytes_per_round=None if is_call else float(np.median(num_bytes)),
                time_ns=float(own["time_ns"].median()),
                total_ns=int(own["time_ns"].sum()),
            )
        )
    return sorted(lines, key=lambda line: -line.total_ns)


def _kernel_lines(window: Window, rounds: Rounds) -> list[KernelLine]:
    """The kernels (on a CPU: operators) of every stage that take longest."""
    kernels = window.ops[window.ops["kind"].isin(["kernel", "graph", "operator"]).to_numpy()]
    timed = kernels.assign(place=places_of(rounds, kernels["round"]), time_ns=kernels["end_ns"] - kernels["start_ns"])
    lines: list[KernelLine] = []
    for stage in (*STAGE_NAMES, ""):
        own = timed[(timed["stage"] == stage).to_numpy()]
        whole = int(own["time_ns"].sum())
        sums = own.groupby("name")["time_ns"].sum().sort_values(ascending=False, kind="stable")
        for name, total in sums.head(_HIGHEST).items():
            rows = own[(own["name"] == name).to_numpy()]
            lines.append(
                KernelLine(
                    stage=stage,
                    name=str(name),
                    num_per_round=float(np.median(_per_round(rounds, rows["place"]))),
                    median_ns=float(rows["time_ns"].median()),
                    per_round_ns=float(np.median(_per_round(rounds, rows["place"], rows["time_ns"]))),
                    share=total / whole if whole else 0.0,
                )
            )
    return lines
