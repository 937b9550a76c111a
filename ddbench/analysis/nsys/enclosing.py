"""Which range encloses a call: the join that attribution rests on.

Among the ranges of a thread that hold the whole call, the innermost is the one that started last; of those that started
together the shortest; of equal ones the later row. Ranges may overlap in any way, as start/end ranges do.

With ranges in that order, the innermost is the last one up to the call's start whose end is not before the call's end:
one search in a tree of maxima, for all calls at once. n ranges and q calls cost O((n + q) log n) in numpy.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

NONE = -1  # no range encloses the call

Spans = tuple[np.ndarray, np.ndarray, np.ndarray]  # start, end, thread


def around(ranges: pd.DataFrame, column: str, calls: pd.DataFrame, missing: int = NONE) -> np.ndarray:
    """`column` of the innermost range around each call on its thread."""
    return taken(ranges[column], innermost(spans_of(ranges), spans_of(calls)), missing)


def spans_of(frame: pd.DataFrame) -> Spans:
    return frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), frame["thread"].to_numpy()


def taken(values: pd.Series, places: np.ndarray, missing: int | bool) -> np.ndarray:
    """The values at these places; where a place is NONE, `missing`."""
    found = values.to_numpy()
    return np.where(places == NONE, missing, found[places]) if len(found) else np.full(len(places), missing)


def innermost(ranges_: Spans, calls_: Spans) -> np.ndarray:
    """Index of the innermost range around each call, or NONE."""
    range_start, range_end, range_thread = ranges_
    call_start, call_end, call_thread = calls_
    found = np.full(len(call_start), NONE, np.int64)
    if not len(range_start) or not len(call_start):
        return found
    ranges = np.lexsort((np.arange(len(range_start)), -range_end, range_start, range_thread))
    calls = np.argsort(call_thread, kind="stable")
    threads, firsts = np.unique(range_thread[ranges], return_index=True)
    lasts = np.append(firsts[1:], len(ranges))
    from_calls = np.searchsorted(call_thread[calls], threads, side="left")
    to_calls = np.searchsorted(call_thread[calls], threads, side="right")
    for first, last, from_call, to_call in zip(firsts, lasts, from_calls, to_calls, strict=True):
        own, asked = ranges[first:last], calls[from_call:to_call]
        if len(asked):
            started = np.searchsorted(range_start[own], call_start[asked], side="right")
            places = _last_reaching(range_end[own], started, call_end[asked])
            found[asked] = np.where(places == NONE, NONE, own[places])
    return found


def _last_reaching(values: np.ndarray, limit: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each query the largest i < limit with values[i] >= wanted, or NONE."""
    levels = [values]
    while len(levels[-1]) > 1:
        below = levels[-1]
        padded = np.append(below, np.iinfo(below.dtype).min) if len(below) % 2 else below
        levels.append(np.maximum(padded[0::2], padded[1::2]))
    # Upwards: blocks that end at what is left of the limit, from the smallest; the first that reaches holds the answer.
    block, level = np.full(len(limit), NONE, np.int64), np.zeros(len(limit), np.int64)
    open_queries, left = np.arange(len(limit)), limit.astype(np.int64)
    for depth, maxima in enumerate(levels):
        is_odd = ((left >> depth) & 1).astype(bool)
        candidate = np.where(is_odd, (left >> depth) - 1, 0)
        reaches = is_odd & (maxima[candidate] >= wanted[open_queries])
        block[open_queries[reaches]], level[open_queries[reaches]] = candidate[reaches], depth
        left = left - (is_odd.astype(np.int64) << depth)
        stays = ~reaches & (left > 0)
        open_queries, left = open_queries[stays], left[stays]
        if not len(open_queries):
            break
    # Downwards: the later half if it reaches, else the earlier one, which then must.
    for depth in range(len(levels) - 1, 0, -1):
        inside = np.flatnonzero((level == depth) & (block != NONE))
        if len(inside):
            maxima, right = levels[depth - 1], 2 * block[inside] + 1
            has_right = right < len(maxima)
            reaches = has_right & (maxima[np.where(has_right, right, 0)] >= wanted[inside])
            block[inside], level[inside] = np.where(reaches, right, right - 1), depth - 1
    return block
