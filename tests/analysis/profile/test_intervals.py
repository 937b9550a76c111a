"""Sets of time against sets of whole nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.profile.intervals import painted, union

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


@given(st.lists(st.tuples(SPAN, st.integers(0, 3)), max_size=8))
def test_later_paint_covers_earlier_paint(layers) -> None:
    spans = [span for span, _ in layers]
    found = painted(*arrays(spans), np.array([code for _, code in layers], dtype=np.int64))
    shown = {moment: code for (low, high), code in layers for moment in range(low, high)}
    for code in range(4):
        own = found.get(code)
        covered = set() if own is None else points(list(zip(own.start.tolist(), own.end.tolist(), strict=True)))
        assert covered == {moment for moment, top in shown.items() if top == code}
