"""Sets of time as disjoint, sorted intervals: unions, how much of one lies in another, what covers what.

Integers, nanoseconds. N intervals, C cuts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in their order; none is empty."""

    start: np.ndarray  # [N]
    end: np.ndarray  # [N]

    @property
    def total(self) -> int:
        return int((self.end - self.start).sum())

    def within(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """How much of them lies in each span from `low` to `high`; one that ends before it starts has none."""
        return np.maximum(0, self._until(np.maximum(low, high)) - self._until(low))

    def _until(self, moments: np.ndarray) -> np.ndarray:
        """How much of them lies before each moment."""
        if not len(self.start):
            return np.zeros(len(moments), np.int64)
        total = np.concatenate([[0], np.cumsum(self.end - self.start)])
        count = np.searchsorted(self.start, moments, side="right")
        overshoot = np.where(count > 0, self.end[np.maximum(count, 1) - 1] - moments, 0)
        return total[count] - np.maximum(0, overshoot)


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """The time in which at least one of the given intervals runs."""
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    if not len(order):
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    start, reached = start[order], np.maximum.accumulate(end[order])
    is_first = np.append(True, start[1:] > reached[:-1])
    return Intervals(start[is_first], reached[np.append(is_first[1:], True)])


def painted(cuts: np.ndarray, start: np.ndarray, end: np.ndarray, codes: np.ndarray, ground: np.ndarray) -> np.ndarray:
    """What each piece between two cuts shows once the intervals are painted over `ground`, one after the other.

    `cuts` [C] holds every start and end; `ground` [C - 1] is what the pieces show before. Later paint covers.
    """
    shown = ground.copy()
    for low, high, code in zip(np.searchsorted(cuts, start), np.searchsorted(cuts, end), codes, strict=True):
        shown[low:high] = code
    return shown
