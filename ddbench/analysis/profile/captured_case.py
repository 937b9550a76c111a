"""`CapturedCase`: one ok case with the passes that profilers made over it, and its own clean rounds beside them.

First step of what is derived from captures: `RunFrames` -> cases. A pass that failed, or of which totals are withheld,
is there with its reason, and nothing is read from its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddbench.analysis.frames import RunFrames
from ddbench.analysis.values import missing
from ddbench.captured import OUTSIDE_ROUNDS, Capture
from ddbench.records import NotMeasured, OkResult
from ddbench.spec import Tool

FRAMES: tuple[str, ...] = ("device_ops", "host_calls", "host_ranges", "stage_samples", "kernel_counters")
CLEAN_FRAMES: tuple[str, ...] = ("steps", "stages", "requests", "rounds")
KERNEL_TIME = "time"  # among the counters: of a kernel, alone on the device
TIMELINES: tuple[Tool, ...] = ("nsys", "torch")  # tools that record ops and calls, the better one first
_OVERFLOW = "Sampling buffer overflow"  # in nsys's own words

Key = tuple[str, str]  # run, case id


@dataclass(frozen=True, eq=False)  # each is itself: comparing tables would be meaningless
class ToolPass:
    """One tool's pass over a case with its rows."""

    capture: Capture
    ops: pd.DataFrame  # rows of `DeviceOp`
    calls: pd.DataFrame  # `HostCall`
    ranges: pd.DataFrame  # `HostRange`
    samples: pd.DataFrame  # `StageSamples`
    counters: pd.DataFrame  # `KernelCounter`

    @property
    def tool(self) -> Tool:
        return self.capture.tool

    @property
    def num_rounds(self) -> int:
        return len(self.capture.round_ns)

    @property
    def why_not_sampled(self) -> str:
        """Where there are no samples of GPU metrics: what it takes."""
        if any(_OVERFLOW in note for note in self.capture.notes):
            return "nsys lost its samples of GPU metrics, their buffer overflowed: set capture.samples_per_s lower"
        return "nsys needs to sample GPU metrics, as a user who may read counters"

    @property
    def end_ns(self) -> int:
        return window_end(self.capture, self.ops)

    @property
    def num_ops(self) -> int:
        """Device ops of the window: of the timeline, or kernels under the counters."""
        return int(self.counters["index"].nunique()) if self.tool == "ncu" else len(self.ops)

    @property
    def device_ns(self) -> int:
        """Their times, summed."""
        if self.tool != "ncu":
            return int((self.ops["end_ns"] - self.ops["start_ns"]).sum())
        return int(self.counters["value"][texts(self.counters, "metric") == KERNEL_TIME].round().sum())

    @property
    def unusable(self) -> str:
        """Why no number may be read from the rows; empty: they may."""
        if self.capture.fault is not None:
            return f"{self.tool} pass: {self.capture.fault.what}"
        if self.capture.withheld:
            return f"{self.tool} pass withheld: {self.capture.withheld}"
        return "" if self.num_rounds else f"{self.tool} pass: no round lies in its window"


@dataclass(frozen=True, eq=False)
class CapturedCase:
    """An ok case of which at least one tool made, or tried, a pass."""

    run: str
    case_id: str
    setting: str  # key of its setting
    result: OkResult
    passes: Mapping[Tool, ToolPass]
    steps: pd.DataFrame  # rounds of its clean and attributed passes
    stages: pd.DataFrame  # stage times of its attributed pass
    requests: pd.DataFrame  # of the same passes as the steps
    rounds: pd.DataFrame

    @property
    def timeline(self) -> ToolPass | NotMeasured:
        """The pass that device ops and host calls are read from."""
        return self._usable(TIMELINES, "device ops", "nsys")

    @property
    def counted(self) -> ToolPass | NotMeasured:
        """The pass that hardware counters are read from."""
        return self._usable(("ncu",), "hardware counters", "ncu")

    def _usable(self, tools: tuple[Tool, ...], what: str, cure: Tool) -> ToolPass | NotMeasured:
        tried = [self.passes[tool] for tool in tools if tool in self.passes]
        if not tried:
            return missing(f"no pass recorded {what}: capture with {cure}")
        usable = next((one for one in tried if not one.unusable), None)
        return usable or missing("; ".join(one.unusable for one in tried))


@dataclass(frozen=True)
class _Split:
    """A frame with the rows of every case."""

    frame: pd.DataFrame
    rows: Mapping[Any, np.ndarray] = field(default_factory=dict)

    def of(self, key: tuple[str, ...]) -> pd.DataFrame:
        return self.frame.iloc[self.rows.get(key, np.empty(0, np.int64))]


def captured_cases(frames: RunFrames) -> Mapping[Key, CapturedCase]:
    """(run, case) -> its captures, in the order of the cases; ok cases with captures only."""
    by_tool = [_split(getattr(frames, name), ["run", "case_id", "tool"]) for name in FRAMES]
    by_case = {name: _split(getattr(frames, name), ["run", "case_id"]) for name in CLEAN_FRAMES}
    found = {}
    cases = frames.cases
    for run, case_id, setting in zip(cases["run"], cases["case_id"], cases["setting"], strict=True):
        result, captures = frames.results[run, case_id], frames.captures.get((run, case_id), {})
        if captures and isinstance(result, OkResult):
            passes: dict[Tool, ToolPass] = {
                tool: ToolPass(capture, *(split.of((run, case_id, tool)) for split in by_tool))
                for tool, capture in captures.items()
            }
            key = (str(run), str(case_id))
            own = {name: split.of(key) for name, split in by_case.items()}
            found[key] = CapturedCase(*key, str(setting), result, passes, **own)
    return found


def _split(frame: pd.DataFrame, keys: list[str]) -> _Split:
    return _Split(frame, frame.groupby(keys, sort=False, observed=True).indices) if len(frame) else _Split(frame)


def window_end(capture: Capture, ops: pd.DataFrame) -> int:
    """Of the window, and of what of its ops reaches beyond it by the inaccuracy of two clocks."""
    return max(capture.window_ns, int(ops["end_ns"].max()) if len(ops) else 0)


def texts(frame: pd.DataFrame, name: str) -> np.ndarray:
    """A column of text as plain strings, whether or not it is stored as categories."""
    return frame[name].astype(object).to_numpy()


def in_rounds(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that belong to a round."""
    return frame[(frame["round"] != OUTSIDE_ROUNDS).to_numpy(dtype=bool)]


def round_steps(one: ToolPass) -> range:
    """Steps of the rounds in the window."""
    return range(one.capture.first_round, one.capture.first_round + one.num_rounds)
