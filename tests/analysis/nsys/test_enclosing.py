"""The range join against brute force: random nests, overlaps that are no nests, threads and processes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.nsys.enclosing import NONE, innermost

Span = tuple[int, int, int]  # start, end, thread

times = st.integers(0, 30)
spans = st.tuples(times, st.integers(0, 12), st.integers(0, 2)).map(lambda span: (span[0], span[0] + span[1], span[2]))


@st.composite
def nests(draw: st.DrawFn) -> list[Span]:
    """Push/pop as a program does it, several threads at once."""
    found = []
    for thread in range(draw(st.integers(1, 3))):
        clock, open_since = 0, []
        for is_push in draw(st.lists(st.booleans(), max_size=30)):
            clock += draw(st.integers(0, 2))
            if is_push:
                open_since.append(clock)
            elif open_since:
                found.append((open_since.pop(), clock, thread))
        found += [(since, clock + 1, thread) for since in open_since]
    return found


def brute_force(ranges: list[Span], call: Span) -> int:
    """Every range in turn: latest start, then shortest, then the later row."""
    around = [
        (start, -(end - start), row)
        for row, (start, end, thread) in enumerate(ranges)
        if thread == call[2] and start <= call[0] and end >= call[1]
    ]
    return max(around)[2] if around else NONE


def joined(ranges: list[Span], calls: list[Span]) -> list[int]:
    def columns(rows: list[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]

    return innermost(columns(ranges), columns(calls)).tolist()


@given(st.lists(spans, max_size=40), st.lists(spans, max_size=20))
def test_innermost_range_of_any_overlap(ranges: list[Span], calls: list[Span]) -> None:
    assert joined(ranges, calls) == [brute_force(ranges, call) for call in calls]


@given(nests(), st.lists(spans, max_size=20))
def test_innermost_range_of_nests(ranges: list[Span], calls: list[Span]) -> None:
    """H1: nested ranges of one name are several, and a call belongs to the innermost."""
    assert joined(ranges, calls) == [brute_force(ranges, call) for call in calls]


def test_many_ranges_of_every_length() -> None:
    """Every depth of the search tree, complete or not."""
    rng = np.random.default_rng(7)
    for count in (1, 2, 3, 7, 8, 9, 63, 64, 65, 200):
        start = rng.integers(0, 500, count)
        ranges = [(int(low), int(low + span), 0) for low, span in zip(start, rng.integers(0, 200, count), strict=True)]
        calls = [(int(low), int(low) + 3, 0) for low in rng.integers(0, 700, 50)]
        assert joined(ranges, calls) == [brute_force(ranges, call) for call in calls]
