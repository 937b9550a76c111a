"""Rows and tracks: nothing overlaps in the one, everything nests in the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddbench.timeline.tracks import rows_of, tracks_of

END = 24
Spans = list[tuple[int, int]]
spans = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: (min(pair), max(pair))), max_size=10
)


def columns(some: Spans) -> tuple[np.ndarray, np.ndarray]:
    return np.array([low for low, _ in some], np.int64), np.array([high for _, high in some], np.int64)


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
