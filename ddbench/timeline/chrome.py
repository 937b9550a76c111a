"""`Summary` -> trace events for Perfetto and chrome://tracing: the host and the device of every case as two processes.

A thread there may hold only slices that nest, so whatever overlaps otherwise gets a thread of its own. Times are in
microseconds, as the format wants them. An arrow leads from a launch to its op; of a graph replay, to its first node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

import ddbench
from ddbench.analysis.profile.latency import first_of_replay
from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.engine.stages import Stage
from ddbench.timeline.rounds import Rounds
from ddbench.timeline.summary import Summary
from ddbench.timeline.tracks import tracks_of

Event: TypeAlias = dict[str, Any]
# Names of colours that chrome://tracing knows, the nearest to the reports'; Perfetto colours by itself.
COLOR_NAMES: dict[str, str] = {
    Stage.PREFILL.value: "thread_state_iowait",
    Stage.DRAFT.value: "rail_response",
    Stage.TREE_BUILD.value: "rail_animation",
    Stage.TREE_COMPILE.value: "rail_idle",
    Stage.VERIFY.value: "rail_load",
    Stage.ACCEPT.value: "detailed_memory_dump",
    Stage.COMMIT.value: "olive",
    Stage.MATERIALIZE.value: "thread_state_runnable",
    "": "grey",
}
_ROUNDS_LANE, _IDLE_LANE, _FIRST_LANE = 1, 2, 3  # threads of a device's process


@dataclass(frozen=True, eq=False)
class _Slices:
    """What becomes the threads of one lane."""

    title: str
    start_ns: np.ndarray
    end_ns: np.ndarray
    events: list[Event]  # name, cat, cname, args; in the order of the arrays


def trace_json(summaries: Sequence[Summary]) -> str:
    """The whole file."""
    events: list[Event] = []
    for place, summary in enumerate(summaries):
        prefix = f"{'AB'[place]}: " if len(summaries) > 1 else ""
        events += _case_events(summary, 2 * place + 1, prefix)
    cases = [
        {"run": one.window.run, "case": one.window.case_id, "label": one.window.label, "tool": one.window.capture.tool}
        for one in summaries
    ]
    record = {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"ddbench": ddbench.__version__, "cases": json.dumps(cases)},
    }
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def _case_events(summary: Summary, pid: int, prefix: str) -> Iterator[Event]:
    """Host in process `pid`, device in the next one."""
    window = summary.window
    device = "device" if window.has_device else "operators"
    for number, what in ((pid, f"{prefix}host, {window.label}"), (pid + 1, f"{prefix}{device}, {window.label}")):
        yield _meta("process_name", number, 0, name=what)
        yield _meta("process_sort_index", number, 0, sort_index=number)
    call_threads = yield from _host_events(summary, pid)
    yield from _round_events(summary, pid + 1)
    op_threads = yield from _op_events(summary, pid + 1)
    yield from _arrows(summary, pid, call_threads, op_threads)


def _meta(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    return round(ns / 1e3, 3)


# --- lanes ---


def _host_events(summary: Summary, pid: int) -> Any:
    """Rounds, stages and calls of each thread nest in one lane; the threads of the calls come back."""
    window = summary.window
    call_threads = np.zeros(len(window.calls), np.int64)
    first = _FIRST_LANE
    for thread in sorted({*window.calls["thread"], *window.ranges["thread"]}):
        calls = np.flatnonzero((window.calls["thread"] == thread).to_numpy())
        ranges = np.flatnonzero((window.ranges["thread"] == thread).to_numpy())
        own_calls, own_ranges = window.calls.iloc[calls], window.ranges.iloc[ranges]
        slices = _Slices(
            f"host thread {thread}",
            np.concatenate([own_ranges["start_ns"], own_calls["start_ns"]]).astype(np.int64),
            np.concatenate([own_ranges["end_ns"], own_calls["end_ns"]]).astype(np.int64),
            [*map(_range_event, own_ranges.itertuples()), *map(_call_event, own_calls.itertuples())],
        )
        tids = yield from _lane(slices, pid, first)
        call_threads[calls] = tids[len(ranges) :]
        first = int(tids.max()) + 1
    return call_threads


def _range_event(row: Any) -> Event:
    if row.kind == "round":
        return {"name": f"round {row.round}", "cat": "round", "cname": "white", "args": {"round": row.round}}
    return _event(row.name, row.name, row.round, {})


def _call_event(row: Any) -> Event:
    return _event(row.name, row.stage, row.round, {"kind": row.kind})


def _event(name: str, stage: str, step: int, args: Event) -> Event:
    known = {"stage": stage or "none"} | ({} if step == OUTSIDE_ROUNDS else {"round": step})
    color = COLOR_NAMES.get(stage, COLOR_NAMES[""])
    return {"name": name or "<unnamed>", "cat": stage or "none", "cname": color, "args": known | args}


def _op_events(summary: Summary, pid: int) -> Any:
    """One lane per stream; the threads of the ops come back."""
    ops = summary.window.ops
    threads = np.zeros(len(ops), np.int64)
    first = _FIRST_LANE
    for (gpu, stream), rows in sorted(ops.groupby(["gpu", "stream"]).indices.items()):
        own = ops.iloc[rows]
        title = f"GPU {gpu} stream {stream}" if summary.window.has_device else f"operators, thread {stream}"
        events = [_op_event(row) for row in own.itertuples()]
        slices = _Slices(title, own["start_ns"].to_numpy(), own["end_ns"].to_numpy(), events)
        tids = yield from _lane(slices, pid, first)
        threads[rows] = tids
        first = int(tids.max()) + 1
    return threads


def _op_event(row: Any) -> Event:
    args: Event = {"kind": row.kind, "basis": row.basis, "is_replayed": bool(row.is_replayed)}
    if row.launch_ns >= 0:
        args["launch_to_start_us"] = _us(row.start_ns - row.launch_ns)
    if row.kind in ("copy", "memset"):
        args |= {"bytes": row.num_bytes} | ({"direction": row.direction} if row.direction else {})
    return _event(row.name, row.stage, row.round, args)


def _lane(slices: _Slices, pid: int, first: int) -> Any:
    """Complete events on as many threads as it takes; the thread of each slice comes back."""
    tids = first + tracks_of(slices.start_ns, slices.end_ns)
    for tid in sorted(set(tids.tolist())):
        more = f" ({tid - first + 1})" if tid > first else ""
        yield _meta("thread_name", pid, tid, name=slices.title + more)
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)
    times = zip(slices.start_ns.tolist(), slices.end_ns.tolist(), tids.tolist(), slices.events, strict=True)
    for start, end, tid, event in times:
        yield {**event, "ph": "X", "ts": _us(start), "dur": _us(end - start), "pid": pid, "tid": tid}
    return tids if len(tids) else np.full(1, first - 1)


# --- what is derived ---


def _round_events(summary: Summary, pid: int) -> Iterator[Event]:
    """Periods of the rounds with their tokens, and idle time by its cause."""
    yield _meta("thread_name", pid, _ROUNDS_LANE, name="rounds")
    yield _meta("thread_name", pid, _IDLE_LANE, name="idle")
    for lane in (_ROUNDS_LANE, _IDLE_LANE):
        yield _meta("thread_sort_index", pid, lane, sort_index=lane)
    rounds = summary.rounds
    for place in range(len(rounds.steps)) if rounds.is_split else ():
        yield from _one_round(rounds, place, pid)
    for row in summary.idle.itertuples():
        event = {"name": row.cause, "cat": "idle", "cname": "white"}
        args = {"stage": row.stage or "none", "before": row.next_stage or "none"}
        times = {"ts": _us(row.start_ns), "dur": _us(row.end_ns - row.start_ns)}
        yield {**event, "ph": "X", **times, "pid": pid, "tid": _IDLE_LANE, "args": args}


def _one_round(rounds: Rounds, place: int, pid: int) -> Iterator[Event]:
    step, begin, end = (int(column[place]) for column in (rounds.steps, rounds.begin_ns, rounds.end_ns))
    tokens = rounds.tokens[place]
    brought = {} if tokens is None else {"accepted": tokens.num_accepted, "emitted": tokens.num_emitted}
    where = {"pid": pid, "tid": _ROUNDS_LANE}
    more = {} if tokens is None else {"nodes": tokens.num_nodes, "batch_size": tokens.batch_size}
    event = {"name": f"round {step}", "cat": "round", "cname": "white", "ph": "X"}
    yield {**event, "ts": _us(begin), "dur": _us(end - begin), **where, "args": {"round": step, **brought, **more}}
    if brought:
        yield {"name": "tokens", "cat": "round", "ph": "C", "ts": _us(begin), **where, "args": brought}


def _arrows(summary: Summary, pid: int, call_threads: np.ndarray, op_threads: np.ndarray) -> Iterator[Event]:
    """From the host's call to what it launched, both ends or none."""
    calls, ops = summary.window.calls, summary.window.ops
    is_launched = (ops["launch_ns"] >= 0) & (~ops["is_replayed"] | first_of_replay(ops))
    by_start = pd.Series(np.arange(len(calls)), index=calls["start_ns"])
    by_start = by_start[~by_start.index.duplicated(keep="last")]  # of calls that start together the innermost
    rows = np.flatnonzero(is_launched.to_numpy())
    found = by_start.reindex(ops["launch_ns"].to_numpy()[rows]).to_numpy()
    for number, (row, call) in enumerate(zip(rows.tolist(), found.tolist(), strict=True)):
        launch, start = int(ops["launch_ns"].iat[row]), int(ops["start_ns"].iat[row])
        if call != call or start < launch:  # no such call; or clocks that disagree, and arrows do not point back
            continue
        arrow = {"name": "launch", "cat": "launch", "id": 1_000_000 * pid + number}
        yield {**arrow, "ph": "s", "ts": _us(launch), "pid": pid, "tid": int(call_threads[int(call)])}
        yield {**arrow, "ph": "f", "bp": "e", "ts": _us(start), "pid": pid + 1, "tid": int(op_threads[row])}
