"""Sets of time against sets of whole nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.intervals import painted, union

SPAN = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SPANS = st.lists(SPAN, max_size=8)


def arrays(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {moment for low, high in spans for moment in range(low, high)}


@given(SPANS)
def test_a_union_covers_what_its_intervals_cover_once(spans) -> None:
    found = union(*arrays(spans))
    assert points(list(zip(found.start.tolist(), found.end.tolist(), strict=True))) == points(spans)
    assert found.total == len(points(spans))
    assert (found.start[1:] > found.end[:-1]).all(), "touching ones are one"


@given(SPANS, SPANS)
def test_what_lies_within_is_counted_moment_by_moment(spans, windows) -> None:
    found = union(*arrays(spans)).within(*arrays(windows))
    assert found.tolist() == [len(points(spans) & set(range(low, high))) for low, high in windows]


@given(SPANS)
def test_later_paint_covers_earlier_paint(spans) -> None:
    start, end = arrays(spans)
    cuts = np.unique(np.concatenate([[0, 40], start, end]))
    shown = painted(cuts, start, end, np.arange(len(spans)), np.full(len(cuts) - 1, -1))
    for moment in range(40):
        expected = max((place for place, (low, high) in enumerate(spans) if low <= moment < high), default=-1)
        assert shown[np.searchsorted(cuts, moment, side="right") - 1] == expected
