"""The part of a capture that is told of: the range `window`, with the device idle where it opens and where it closes.

What lies before it (graphs being captured, other rounds) is needed to attribute what lies in it, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.digested import CaptureProblem
from ddbench.analysis.nsys.enclosing import NONE
from ddbench.analysis.nsys.export import LOW_BITS, NsysExport
from ddbench.analysis.nsys.names import DOMAIN, WINDOW
from ddbench.analysis.nsys.ranges import window_ranges


@dataclass(frozen=True, slots=True)
class Window:
    """Its edges on nsys's clock and the process that opened it."""

    start_ns: int
    end_ns: int
    process: int

    def holds(self, frame: pd.DataFrame) -> np.ndarray:
        """Which rows start within it."""
        start = frame["start_ns"].to_numpy()
        return (start >= self.start_ns) & (start <= self.end_ns)

    def holds_own(self, frame: pd.DataFrame) -> np.ndarray:
        """... on a thread of its process."""
        return self.holds(frame) & ((frame["thread"].to_numpy() & ~LOW_BITS) == self.process)


def find_window(export: NsysExport) -> Window:
    """The one window of a capture.

    It is the range that closes last, so that `is_unclosed` says nothing about it; that it was closed, the captured
    process itself tells, which writes its account after that.
    """
    found = window_ranges(export)
    if len(found) != 1:
        what = f"{len(found)} ranges '{WINDOW}' of the domain '{DOMAIN}' are in the capture, expected 1"
        cure = "look at the diagnostics of nsys; `ddbench doctor` shows whether NVTX ranges arrive; capture again"
        raise CaptureProblem("unreadable" if len(found) else "nothing", what, cure)
    row = found.iloc[0]
    return Window(int(row["start_ns"]), int(row["end_ns"]), int(row["thread"]) & ~LOW_BITS)


def ops_within(window: Window, ops: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Ops that were launched in the window or ran in it."""
    rows = ops["launch_call"].to_numpy()
    is_launched = np.append(window.holds(api_calls), False)[rows] & (rows != NONE)
    is_running = ((ops["start_ns"] < window.end_ns) & (ops["end_ns"] > window.start_ns)).to_numpy()
    return ops[is_launched | is_running].reset_index(drop=True)


def strays(window: Window, ops: pd.DataFrame, api_calls: pd.DataFrame) -> int:
    """Ops that ran in the window but were launched outside of it: the device was not idle at its edge."""
    rows = ops["launch_call"].to_numpy()
    return int(np.count_nonzero(~np.append(window.holds(api_calls), False)[rows] & (rows != NONE)))
