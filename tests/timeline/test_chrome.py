"""The trace file keeps the rules of the trace event format, and loses nothing of the window."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.timeline.chrome import trace_json
from ddbench.timeline.summary import summary_of
from ddbench.timeline.window import Tokens, Window

MakeWindow = Callable[..., Window]
HOSTILE = '</script><b>"quoted" | , \u202e\x1b[31m' + "t<" * 2000
Events = list[dict[str, Any]]


def window(make_window: MakeWindow, name: str = "k") -> Window:
    """Two rounds: an eager kernel, a replay of three nodes, a copy back, host calls that hold each other."""
    node = {"is_replayed": True, "basis": "capture", "launch_ns": 2_000, "round": 1, "name": name}
    ops = [
        {"start_ns": 1_500, "end_ns": 1_900, "launch_ns": 1_000, "round": 0, "name": name},
        *({**node, "start_ns": at, "end_ns": at + 200, "stream": 7 + at % 3} for at in (2_500, 2_601, 2_900)),
        {"kind": "copy", "direction": "device to host", "num_bytes": 64, "start_ns": 4_000, "end_ns": 4_100,
         "launch_ns": 3_500, "round": 1, "name": "copy device to host"},
        {"start_ns": 4_500, "end_ns": 4_600, "launch_ns": 3_999, "round": 1},
    ]  # fmt: skip
    calls = [
        {"start_ns": 1_000, "end_ns": 1_200},
        {"kind": "graph_launch", "name": "cudaGraphLaunch", "start_ns": 2_000, "end_ns": 2_400, "round": 1},
        {"kind": "copy", "name": "cudaMemcpyAsync", "start_ns": 3_500, "end_ns": 4_200, "round": 1},
    ]
    ranges = [
        {"kind": "round", "name": "", "start_ns": 900, "end_ns": 3_000, "round": 0},
        {"kind": "round", "name": "", "start_ns": 1_900, "end_ns": 4_700, "round": 1},
        {"name": "verify", "start_ns": 950, "end_ns": 1_400},
    ]
    tokens = {0: Tokens(2, 3, 31, 1), 1: Tokens(0, 1, 31, 1)}
    return make_window(ops, calls, ranges, end=5_000, tokens=tokens)


def events_of(*windows: Window) -> Events:
    return json.loads(trace_json([summary_of(one) for one in windows]))["traceEvents"]


def assert_rules(events: Events) -> None:
    for event in events:
        assert event["ph"] in "XMsfC"
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["ts"] >= 0
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
    slices = [event for event in events if event["ph"] == "X"]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} <= named
    assert_nested(slices)
    assert_paired(events)


def assert_nested(slices: Events) -> None:
    """What shares a thread holds each other or is apart: a viewer drops the rest."""
    for thread in {(event["pid"], event["tid"]) for event in slices}:
        own = [event for event in slices if (event["pid"], event["tid"]) == thread]
        own.sort(key=lambda event: (event["ts"], -event["dur"]))
        ends: list[float] = []
        for event in own:
            while ends and ends[-1] <= event["ts"] + 1e-9:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-9
            ends.append(event["ts"] + event["dur"])


def assert_paired(events: Events) -> None:
    """Every arrow has one tail and one head, each in a slice of its thread, and points forward in time."""
    tails = {event["id"]: event for event in events if event["ph"] == "s"}
    heads = {event["id"]: event for event in events if event["ph"] == "f"}
    assert Counter(event["ph"] for event in events)["s"] == len(tails)
    assert tails.keys() == heads.keys()
    slices = [event for event in events if event["ph"] == "X"]
    for key, tail in tails.items():
        head = heads[key]
        assert head["bp"] == "e"
        assert tail["ts"] <= head["ts"]
        assert (tail["name"], tail["cat"]) == (head["name"], head["cat"])
        for end in (tail, head):
            assert any(
                (one["pid"], one["tid"]) == (end["pid"], end["tid"])
                and one["ts"] <= end["ts"] <= one["ts"] + one["dur"]
                for one in slices
            )


def test_the_formats_rules_are_kept(make_window: MakeWindow) -> None:
    events = events_of(window(make_window))
    assert_rules(events)
    assert sum(event["ph"] == "s" for event in events) == 3, "the eager kernel, the replay's first node, the copy"


def test_every_op_and_call_is_a_slice(make_window: MakeWindow) -> None:
    one = window(make_window)
    slices = [event for event in events_of(one) if event["ph"] == "X"]
    times = Counter((event["ts"], event["dur"]) for event in slices if "basis" in event["args"])
    rows = zip(one.ops["start_ns"], one.ops["end_ns"] - one.ops["start_ns"], strict=True)
    assert times == Counter((start / 1e3, dur / 1e3) for start, dur in rows)
    assert sum("kind" in event["args"] and "basis" not in event["args"] for event in slices) == len(one.calls)


def test_stage_round_and_tokens_travel_along(make_window: MakeWindow) -> None:
    events = events_of(window(make_window))
    copy = next(event for event in events if event["name"] == "copy device to host")
    assert copy["cat"] == "verify"
    assert (
        copy["args"] | {"round": 1, "bytes": 64, "direction": "device to host", "launch_to_start_us": 0.5}
        == copy["args"]
    )
    rounds = [event for event in events if event["ph"] == "X" and "emitted" in event["args"]]
    assert [(event["args"]["round"], event["args"]["emitted"]) for event in rounds] == [(0, 3), (1, 1)]


def test_two_cases_do_not_share_a_process_or_an_arrow(make_window: MakeWindow) -> None:
    events = events_of(window(make_window), window(make_window))
    assert_rules(events)
    assert {event["pid"] for event in events} == {1, 2, 3, 4}


def test_hostile_names_stay_names(make_window: MakeWindow) -> None:
    """H30."""
    events = events_of(window(make_window, HOSTILE))
    assert_rules(events)
    assert sum(event["name"] == HOSTILE for event in events) == 4


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(-1, 40)), max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=6),
)
def test_any_overlap_still_nests(
    make_window: MakeWindow, ops: list[tuple[int, int, int]], calls: list[tuple[int, int]]
) -> None:
    rows = [{"start_ns": at, "end_ns": at + length, "launch_ns": launch} for at, length, launch in ops]
    host = [{"start_ns": at, "end_ns": at + length} for at, length in calls]
    ranges = [{"start_ns": at + 1, "end_ns": at + length + 3} for at, length in calls]
    assert_rules(events_of(make_window(rows, host, ranges)))


def test_no_path_and_no_host_is_in_the_file(make_window: MakeWindow) -> None:
    data = json.loads(trace_json([summary_of(window(make_window))]))
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert set(data["otherData"]) == {"ddbench", "cases"}
