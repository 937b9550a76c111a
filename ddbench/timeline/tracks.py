"""Intervals of time laid out side by side: rows in which none overlap, tracks in which all nest. N intervals."""

from __future__ import annotations

import numpy as np


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
