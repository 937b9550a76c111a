"""Busy and idle time against a count of single nanoseconds, and gaps whose cause is plain."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddbench.analysis.profile.captured_case import ToolPass
from ddbench.analysis.profile.device_time import STAGE_CAUSES, DeviceTime, device_time
from ddbench.analysis.profile.idle import Cause
from ddbench.analysis.profile.latency import launch_latency
from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.records import NotMeasured

WINDOW = 60
MOMENT = st.integers(0, WINDOW - 1)


@st.composite
def spans(draw: Any) -> dict[str, int]:
    start = draw(MOMENT)
    return {"start_ns": start, "end_ns": min(WINDOW, start + draw(st.integers(1, 15)))}


@st.composite
def ops(draw: Any) -> dict[str, Any]:
    span = draw(spans())
    launch = draw(st.one_of(st.just(-1), st.integers(0, span["start_ns"])))
    about = {"round": draw(st.sampled_from([OUTSIDE_ROUNDS, 0, 1])), "gpu": draw(st.sampled_from([0, 0, 1]))}
    kind = draw(st.sampled_from(["kernel", "kernel", "copy", "operator"]))
    return {**span, **about, "launch_ns": launch, "kind": kind, "is_replayed": draw(st.booleans())}


@st.composite
def calls(draw: Any) -> dict[str, Any]:
    return {**draw(spans()), "kind": draw(st.sampled_from(["sync", "copy", "memory", "launch"]))}


@st.composite
def ranges(draw: Any) -> dict[str, Any]:
    return {**draw(spans()), "name": draw(st.sampled_from(["verify", "draft"]))}


def by_hand(one: ToolPass) -> tuple[Counter, int]:
    """(idle nanoseconds of rounds by cause, busy ones of rounds), moment by moment."""
    causes: Counter = Counter()
    busy = 0
    for gpu in sorted(set(one.ops["gpu"])):
        own = [op for op in one.ops.to_dict("records") if op["gpu"] == gpu]
        own.sort(key=lambda op: (op["start_ns"], op["end_ns"]))
        begun = Counter(op["launch_ns"] for op in own)
        for moment in range(WINDOW):
            running = [op for op in own if op["start_ns"] <= moment < op["end_ns"]]
            if running:
                busy += any(op["round"] != OUTSIDE_ROUNDS for op in running)
                continue
            after = next((op for op in own if op["start_ns"] > moment), None)
            if after is not None and after["round"] != OUTSIDE_ROUNDS:
                came_before = [op for op in own if op["end_ns"] <= moment]
                gap_start = max((op["end_ns"] for op in came_before), default=0)
                causes[_cause(one, own, after, gap_start, moment)] += 1
        assert sum(begun.values()) == len(own)
    return causes, busy


def _cause(one: ToolPass, own: list[dict[str, Any]], after: dict[str, Any], gap_start: int, moment: int) -> str:
    launch = after["launch_ns"]
    if after["kind"] != "operator":
        if launch < 0:
            return Cause.UNKNOWN
        if moment >= launch:
            place = own.index(after)
            if after["is_replayed"] and any(o["is_replayed"] and o["launch_ns"] == launch for o in own[:place]):
                return Cause.REPLAY
            return Cause.QUEUE if launch <= gap_start else Cause.LAUNCH
    for kinds, cause in ((("sync", "copy"), Cause.SYNC), (("memory",), Cause.MEMORY)):
        for call in one.calls.to_dict("records"):
            if call["kind"] in kinds and call["start_ns"] <= moment < call["end_ns"]:
                return cause
    around = [r for r in one.ranges.to_dict("records") if r["start_ns"] <= moment < r["end_ns"]]
    if around:
        latest = max(range_["start_ns"] for range_ in around)
        names = {range_["name"] for range_ in around if range_["start_ns"] == latest}
        return STAGE_CAUSES[names.pop()] if len(names) == 1 else "either"
    return Cause.HOST


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ops(), min_size=1, max_size=7), st.lists(calls(), max_size=4), st.lists(ranges(), max_size=4))
def test_every_idle_nanosecond_has_the_cause_that_it_has_by_hand(make_pass, ops, calls, ranges) -> None:
    """H12: several ops at once are one busy time; utilisation never passes 100 %."""
    one = make_pass(ops, calls, ranges, round_ns=(30, 30), window_ns=WINDOW)
    found = device_time(one)
    causes, busy = by_hand(one)
    if all(op["round"] == OUTSIDE_ROUNDS for op in ops):
        assert isinstance(found, NotMeasured)
        return
    assert isinstance(found, DeviceTime)
    assert found.busy_ns == busy
    either = causes.pop("either", 0)  # two stages that begin at one moment: neither is the inner one
    if either:
        assert sum(found.causes.values()) == sum(causes.values()) + either
    else:
        assert found.causes == dict(causes)
    assert found.busy_ns + sum(found.causes.values()) + found.outside_ns == found.window_ns
    assert 0 <= found.idle_share <= 1
    assert Cause.NOTHING not in found.causes, "what comes after the last op waits for no round"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ops(), min_size=1, max_size=7))
def test_idle_by_round_is_its_own_gaps_over_its_own_time(make_pass, ops) -> None:
    """A mean over the window would hide one empty round among full ones."""
    one = make_pass([{**op, "gpu": 0} for op in ops], round_ns=(30, 30), window_ns=WINDOW)
    found = device_time(one)
    if isinstance(found, NotMeasured):
        return
    shares, empty = [], 0
    for step in (0, 1):
        own = [op for op in ops if op["round"] == step]
        busy = len({moment for op in own for moment in range(op["start_ns"], op["end_ns"])})
        idle = 0
        for moment in range(WINDOW):
            is_idle = not any(op["start_ns"] <= moment < op["end_ns"] for op in ops)
            later = [op for op in ops if op["start_ns"] > moment]
            first = min(later, key=lambda op: (op["start_ns"], op["end_ns"]), default=None)
            idle += is_idle and first is not None and first["round"] == step
        if busy + idle:
            shares.append(idle / (busy + idle))
        else:
            empty += 1
    ties = len({(op["start_ns"], op["end_ns"]) for op in ops}) < len(ops)
    if not ties:
        assert found.round_idle.tolist() == pytest.approx(shares)
        assert found.num_empty == empty


def test_a_round_without_ops_is_counted(make_pass) -> None:
    one = make_pass([{"start_ns": 10, "end_ns": 20, "launch_ns": 4}], round_ns=(50, 50, 50))
    found = device_time(one)
    assert isinstance(found, DeviceTime)
    assert found.num_empty == 2
    assert found.round_idle.tolist() == [0.5]


def test_latency_is_told_apart_for_ops_and_replays(make_pass) -> None:
    replay = {"is_replayed": True, "launch_ns": 30}
    one = make_pass(
        [
            {"start_ns": 9, "end_ns": 12, "launch_ns": 2},
            {"start_ns": 20, "end_ns": 22, "launch_ns": 15},
            {"start_ns": 41, "end_ns": 45, **replay},
            {"start_ns": 46, "end_ns": 50, **replay},
            {"start_ns": 60, "end_ns": 61},  # its launch was not recorded
        ]
    )
    found = launch_latency(one.ops)
    assert (found.num_ops, found.median_op_ns, found.num_replays, found.median_replay_ns) == (2, 6.0, 1, 11.0)


def test_a_timeline_without_rounds_says_so(make_pass) -> None:
    found = device_time(make_pass([{"start_ns": 0, "end_ns": 5, "round": OUTSIDE_ROUNDS}]))
    assert isinstance(found, NotMeasured)
    assert isinstance(device_time(make_pass()), NotMeasured)
    assert launch_latency(make_pass().ops).num_ops == 0
    assert not np.isnan(launch_latency(make_pass().ops).median_op_ns)
