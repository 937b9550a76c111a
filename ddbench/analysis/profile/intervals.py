"""Sets of time as disjoint, sorted intervals: unions, and how much of one lies in another. Integers, nanoseconds."""

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


def painted(start: np.ndarray, end: np.ndarray, code: np.ndarray) -> dict[int, Intervals]:
    """Code -> its time, where later intervals of the list cover earlier ones."""
    edges = np.unique(np.concatenate([start, end]))
    owner = np.full(max(len(edges) - 1, 0), -1, np.int64)
    for low, high, own in zip(np.searchsorted(edges, start), np.searchsorted(edges, end), code, strict=True):
        owner[low:high] = own
    return {int(own): union(edges[:-1][owner == own], edges[1:][owner == own]) for own in np.unique(owner[owner >= 0])}
