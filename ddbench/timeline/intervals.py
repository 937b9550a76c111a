"""Intervals of time as numpy arrays: what lies between them, rows in which none overlap, what covers what.

Their union is `analysis/profile/intervals.py`. Letters: N intervals, C cuts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddbench.analysis.profile.intervals import Intervals


def gaps_of(taken: Intervals, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """What of [low, high) is not taken: start and end of every gap."""
    start = np.concatenate([[low], np.clip(taken.end, low, high)])
    end = np.concatenate([np.clip(taken.start, low, high), [high]])
    return start[end > start], end[end > start]


def rows_of(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each interval a row in which nothing overlaps it, the first that is free."""
    rows = np.zeros(len(start), np.int64)
    free: list[int] = []  # when each row is free again
    for place in np.lexsort((-end, start)):
        row = next((row for row, time in enumerate(free) if time <= start[place]), len(free))
        if row == len(free):
            free.append(0)
        free[row] = int(end[place])
        rows[place] = row
    return rows


def tracks_of(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each interval a track in which every other one is apart from it, holds it or lies within it."""
    tracks = np.zeros(len(start), np.int64)
    open_ends: list[list[int]] = []  # of each track, the ends of what is open, the outermost first
    for place in np.lexsort((-end, start)):
        for track in range(len(open_ends) + 1):
            if track == len(open_ends):
                open_ends.append([])
            stack = open_ends[track]
            while stack and stack[-1] <= start[place]:
                stack.pop()
            if not stack or stack[-1] >= end[place]:
                stack.append(int(end[place]))
                tracks[place] = track
                break
    return tracks


def painted(cuts: np.ndarray, start: np.ndarray, end: np.ndarray, codes: np.ndarray, ground: np.ndarray) -> np.ndarray:
    """What each piece between two cuts shows once the intervals are painted over `ground`, one after the other.

    `cuts` [C] holds every start and end; `ground` [C - 1] is what the pieces show before. Later paint covers.
    """
    shown = ground.copy()
    for low, high, code in _spans(cuts, start, end, codes):
        shown[low:high] = code
    return shown


def _spans(cuts: np.ndarray, start: np.ndarray, end: np.ndarray, codes: np.ndarray) -> Iterator[tuple[int, int, int]]:
    lows, highs = np.searchsorted(cuts, start), np.searchsorted(cuts, end)
    return zip(lows.tolist(), highs.tolist(), codes.tolist(), strict=True)
