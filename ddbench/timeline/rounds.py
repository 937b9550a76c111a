"""The rounds of a window on the device's clock: periods that follow each other without a hole.

A round's period reaches from where the last op of the round before ended to where its own last op ends, so that busy
and idle time of all periods, with what comes after the last one, add up to the window. R rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.timeline.window import Tokens, Window


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds in order; where no op belongs to one, the window as a whole with the step `OUTSIDE_ROUNDS`."""

    steps: np.ndarray  # [R]
    first_ns: np.ndarray  # [R] its first op starts
    begin_ns: np.ndarray  # [R] of the period
    end_ns: np.ndarray  # [R]
    tokens: tuple[Tokens | None, ...]  # None: the clean pass has no such round

    @property
    def is_split(self) -> bool:
        """The window is made of rounds."""
        return bool(len(self.steps)) and int(self.steps[0]) != OUTSIDE_ROUNDS

    @property
    def period_ns(self) -> np.ndarray:
        return self.end_ns - self.begin_ns

    def at(self, time: np.ndarray) -> np.ndarray:
        """Place of the round in whose period each time lies, its end included; R after the last one."""
        return np.searchsorted(self.end_ns, time, side="left")


def rounds_of(window: Window) -> Rounds:
    """By the round that each op was launched for; ops without length bound none."""
    number, start, end = (window.ops[name].to_numpy() for name in ("round", "start_ns", "end_ns"))
    number = np.where(end > start, number, OUTSIDE_ROUNDS)
    is_inside = number != OUTSIDE_ROUNDS
    if not is_inside.any():
        return _whole_window(window)
    steps, place = np.unique(number[is_inside], return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, place, start[is_inside])
    last = np.zeros(len(steps), np.int64)
    np.maximum.at(last, place, end[is_inside])
    last = np.maximum.accumulate(last)
    return Rounds(
        steps=steps,
        first_ns=first,
        begin_ns=np.concatenate([[0], last[:-1]]),
        end_ns=last,
        tokens=tuple(window.tokens.get(int(step)) for step in steps),
    )


def _whole_window(window: Window) -> Rounds:
    start = window.ops["start_ns"].to_numpy()[:1] if len(window.ops) else np.zeros(1, np.int64)
    return Rounds(
        steps=np.array([OUTSIDE_ROUNDS], np.int64),
        first_ns=start,
        begin_ns=np.zeros(1, np.int64),
        end_ns=np.array([window.end_ns], np.int64),
        tokens=(None,),
    )
