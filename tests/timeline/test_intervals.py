"""Gaps, rows, tracks and paint against a count of single nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.profile.intervals import union
from ddbench.timeline.intervals import gaps_of, painted, rows_of, tracks_of

END = 24
Spans = list[tuple[int, int]]
spans = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: (min(pair), max(pair))), max_size=10
)


def columns(some: Spans) -> tuple[np.ndarray, np.ndarray]:
    return np.array([low for low, _ in some], np.int64), np.array([high for _, high in some], np.int64)


@given(spans)
def test_gaps_are_the_nanoseconds_that_nothing_covers(some: Spans) -> None:
    covered = {at for low, high in some for at in range(low, high)}
    start, end = gaps_of(union(*columns(some)), 0, END)
    free = [at for low, high in zip(start, end, strict=True) for at in range(low, high)]
    assert free == [at for at in range(END) if at not in covered]
    assert all(left < right for left, right in zip(end[:-1], start[1:], strict=True)), "neighbouring gaps are one"


@given(spans)
def test_nothing_overlaps_in_a_row(some: Spans) -> None:
    start, end = columns(some)
    rows = rows_of(start, end)
    for row in set(rows.tolist()):
        own = np.flatnonzero(rows == row)
        taken = [at for place in own for at in range(start[place], end[place])]
        assert len(taken) == len(set(taken))
    deepest = max((sum(low <= at < high for low, high in some) for at in range(END)), default=0)
    lasting = rows[end > start]
    assert (lasting.max() + 1 if len(lasting) else 0) <= max(deepest, 1) + int((end == start).any())


@given(spans)
def test_what_shares_a_track_nests_or_is_apart(some: Spans) -> None:
    start, end = columns(some)
    tracks = tracks_of(start, end)
    for one in range(len(some)):
        for other in range(one):
            if tracks[one] == tracks[other]:
                (a, b), (c, d) = some[one], some[other]
                assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d), (some[one], some[other])


def test_nested_spans_need_one_track_and_crossing_ones_two() -> None:
    assert tracks_of(*columns([(0, 10), (1, 4), (4, 6), (12, 14)])).tolist() == [0, 0, 0, 0]
    assert tracks_of(*columns([(0, 10), (5, 15)])).tolist() == [0, 1]


@given(spans)
def test_the_last_layer_shows(some: Spans) -> None:
    start, end = columns(some)
    cuts = np.unique(np.concatenate([[0, END], start, end]))
    shown = painted(cuts, start, end, np.arange(len(some)), np.full(len(cuts) - 1, -1))
    for at in range(END):
        expected = max((place for place, (low, high) in enumerate(some) if low <= at < high), default=-1)
        assert shown[np.searchsorted(cuts, at, side="right") - 1] == expected
