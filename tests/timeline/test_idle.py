"""Every idle nanosecond has one cause, and it is the one that a reading of the definition gives for it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.profile.idle import Cause
from ddbench.timeline.idle import idle_of
from ddbench.timeline.rounds import rounds_of
from ddbench.timeline.window import Window

END = 40
MakeWindow = Callable[..., Window]
times = st.tuples(st.integers(0, END - 1), st.integers(0, 6))


@st.composite
def op(draw: st.DrawFn) -> dict[str, Any]:
    start, length = draw(times)
    is_replayed = draw(st.booleans())
    launch = draw(st.one_of(st.just(-1), st.sampled_from([2, 9]) if is_replayed else st.integers(0, start)))
    return {
        "start_ns": start,
        "end_ns": min(END, start + length),
        "launch_ns": min(launch, start),
        "is_replayed": is_replayed,
        "kind": draw(st.sampled_from(["kernel", "copy", "operator"])),
        "stage": draw(st.sampled_from(["verify", "draft", ""])),
    }


@st.composite
def span(draw: st.DrawFn, **choices: list[str]) -> dict[str, Any]:
    start, length = draw(times)
    own = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    return {"start_ns": start, "end_ns": min(END, start + length), **own}


def covers(row: Any, at: int) -> bool:
    return row.start_ns <= at < row.end_ns


def host_at(window: Window, at: int) -> tuple[Cause, str]:
    """What the host does in one nanosecond."""
    stages = [(row.start_ns, -row.end_ns, place, row.name) for place, row in enumerate(window.ranges.itertuples())
              if row.kind == "stage" and covers(row, at)]  # fmt: skip
    stage = max(stages)[-1] if stages else ""
    kinds = {row.kind for row in window.calls.itertuples() if covers(row, at)}
    if kinds & {"sync", "copy"}:
        return Cause.SYNC, stage
    if "memory" in kinds:
        return Cause.MEMORY, stage
    return (Cause.STAGE, stage) if stage else (Cause.HOST, "")


def causes(window: Window) -> dict[int, tuple[Cause, str]]:
    """By the nanosecond, slowly."""
    ops = list(window.ops.itertuples())
    busy = {at for row in ops for at in range(row.start_ns, row.end_ns)}
    found = {}
    for at in range(window.end_ns):
        if at in busy:
            continue
        following = next((row for row in ops if row.start_ns > at and row.end_ns > row.start_ns), None)
        gap_start = max((row.end_ns for row in ops if row.end_ns <= at and row.end_ns > row.start_ns), default=0)
        if following is None:
            found[at] = (Cause.NOTHING, "")
        elif following.kind == "operator":
            found[at] = host_at(window, at)
        elif following.launch_ns < 0:
            found[at] = (Cause.UNKNOWN, "")
        elif at < following.launch_ns:
            found[at] = host_at(window, at)
        else:
            same = [row for row in ops if row.is_replayed and row.launch_ns == following.launch_ns]
            if following.is_replayed and same[0].Index != following.Index:
                found[at] = (Cause.REPLAY, "")
            else:
                found[at] = (Cause.LAUNCH if following.launch_ns > gap_start else Cause.QUEUE, "")
    return found


@settings(max_examples=60)
@given(
    ops=st.lists(op(), max_size=6),
    ranges=st.lists(span(kind=["stage", "round"], name=["verify", "draft"]), max_size=4),
    calls=st.lists(span(kind=["launch", "sync", "copy", "memory"]), max_size=4),
)
def test_causes_are_those_of_every_single_nanosecond(
    make_window: MakeWindow, ops: list[dict[str, Any]], ranges: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> None:
    window = make_window(ops, calls, ranges, end=END)
    idle = idle_of(window, rounds_of(window))
    got = {at: (Cause(row.cause), row.stage) for row in idle.itertuples() for at in range(row.start_ns, row.end_ns)}
    assert got == causes(window)
    assert sum(idle["end_ns"] - idle["start_ns"]) == len(got), "no nanosecond is there twice"


def test_a_late_launch_splits_the_gap_at_the_launch(make_window: MakeWindow) -> None:
    ops = [{"start_ns": 0, "end_ns": 10, "launch_ns": 0}, {"start_ns": 50, "end_ns": 60, "launch_ns": 40}]
    ranges = [{"name": "tree_build", "start_ns": 5, "end_ns": 30}]
    calls = [{"kind": "sync", "start_ns": 20, "end_ns": 25}]
    idle = idle_of(*_with_rounds(make_window(ops, calls, ranges, end=70)))
    pieces = [(row.cause, row.stage, row.start_ns, row.end_ns) for row in idle.itertuples()]
    assert pieces == [
        (Cause.STAGE, "tree_build", 10, 20),
        (Cause.SYNC, "tree_build", 20, 25),
        (Cause.STAGE, "tree_build", 25, 30),
        (Cause.HOST, "", 30, 40),
        (Cause.LAUNCH, "", 40, 50),
        (Cause.NOTHING, "", 60, 70),
    ]


def test_gaps_inside_a_replay_are_the_devices_own(make_window: MakeWindow) -> None:
    """All nodes share one launch, so only the first of them waited for the host."""
    nodes = [{"start_ns": at, "end_ns": at + 5, "launch_ns": 2, "is_replayed": True} for at in (10, 20, 30)]
    idle = idle_of(*_with_rounds(make_window(nodes, end=35)))
    times = Counter()
    for row in idle.itertuples():
        times[row.cause] += row.end_ns - row.start_ns
    assert times == {Cause.HOST: 2, Cause.LAUNCH: 8, Cause.REPLAY: 10}


def test_idle_time_before_a_rounds_first_op_is_between_rounds(make_window: MakeWindow) -> None:
    ops = [
        {"start_ns": start, "end_ns": start + 5, "launch_ns": start, "round": step}
        for start, step in ((0, 3), (8, 3), (30, 4), (37, 4))
    ]
    idle = idle_of(*_with_rounds(make_window(ops, end=50)))
    pieces = [(row.start_ns, row.end_ns, row.place, row.is_between) for row in idle.itertuples()]
    assert pieces == [(5, 8, 0, False), (13, 30, 1, True), (35, 37, 1, False), (42, 50, 2, True)]


def test_a_window_without_ops_is_idle_throughout(make_window: MakeWindow) -> None:
    idle = idle_of(*_with_rounds(make_window([], end=9)))
    assert [(row.start_ns, row.end_ns, row.cause) for row in idle.itertuples()] == [(0, 9, Cause.NOTHING)]


@pytest.mark.parametrize("step", [-1, 0])
def test_operators_of_a_cpu_are_launched_by_nobody(make_window: MakeWindow, step: int) -> None:
    ops = [
        {"kind": "operator", "start_ns": start, "end_ns": start + 5, "launch_ns": -1, "round": step}
        for start in (0, 10)
    ]
    idle = idle_of(*_with_rounds(make_window(ops, [], [{"start_ns": 0, "end_ns": 20}], end=15)))
    assert [(row.cause, row.stage) for row in idle.itertuples()] == [(Cause.STAGE, "verify")]


def _with_rounds(window: Window) -> tuple[Window, Any]:
    return window, rounds_of(window)
