"""The ledger of an attribution: device time by what its attribution rests on, adding up to all of it.

All of what was recorded: whether that is all there was, `recording.py` asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

Basis = Literal["launch", "capture", "approximate", "unattributed"]
BASES: tuple[Basis, ...] = ("launch", "capture", "approximate", "unattributed")


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Kernels, copies and memsets whose stage is known in one way."""

    basis: Basis
    count: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """One line per basis, in the order of `BASES`; count and time are those of every op that was recorded."""

    lines: tuple[LedgerLine, ...]
    count: int
    time_ns: int

    def __post_init__(self) -> None:
        assert tuple(line.basis for line in self.lines) == BASES, "one line per basis"
        assert sum(line.count for line in self.lines) == self.count, "an op that is in no line, or in two"
        assert sum(line.time_ns for line in self.lines) == self.time_ns, "device time that is in no line, or in two"

    def share(self, basis: Basis) -> float:
        """Part of the device time; nothing recorded is nothing of it."""
        own = self.lines[BASES.index(basis)].time_ns
        return own / self.time_ns if self.time_ns else 0.0


def make_ledger(ops: pd.DataFrame) -> Ledger:
    """Sum the ops by basis, and all of them apart from that, so that the two can disagree."""
    duration = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    codes = ops["basis"].cat.codes.to_numpy()
    lines = tuple(
        LedgerLine(basis, int(np.count_nonzero(codes == code)), int(duration[codes == code].sum()))
        for code, basis in enumerate(BASES)
    )
    return Ledger(lines, len(ops), int(duration.sum()))
