"""Captures folder -> what the torch profiler (Kineto) saw of a case's window: ops by stage, calls, ranges, ledger.

On a GPU ops are kernels, copies and memsets, found by correlation id from their launch; the stage is that of the range
around the launch. Of a replayed graph Kineto knows the one launch and nothing of its capture: inside no stage's range,
the replay's ops are nobody's. On a CPU ops are the operators that no other operator called, each with all that it
called, so that times add up. Annotations have no domains: `record_function` ranges with our names are taken for ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddbench.analysis.chrome_trace import ANNOTATION, DEVICE_OPS, Trace, read_trace
from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.analysis.kineto_ops import NOT_RECORDED, device_ops, host_calls, is_within, operators
from ddbench.analysis.nsys.enclosing import NONE, around
from ddbench.analysis.nsys.names import STAGE_NAMES, WINDOW, parse_round
from ddbench.captured import OUTSIDE_ROUNDS, DeviceOp, HostCall, HostRange, LedgerLine
from ddbench.records import NotMeasured
from ddbench.spec import Record

FILES = ("torch.json.gz", "torch.json")  # in captures/raw/, the first that is there
_AGAIN = "capture again, with more rounds"


def digest_kineto(captures: Path) -> Digested:
    """Tables `ops`, `calls` and `ranges` of the window. Raises `CaptureProblem`."""
    raw = captures / "raw"
    trace = read_trace(next((raw / name for name in FILES if (raw / name).exists()), raw / FILES[0]))
    return digest_trace(trace)


def digest_trace(trace: Trace) -> Digested:
    """The same for a trace in memory."""
    events = trace.events.assign(row=np.arange(len(trace.events)))
    annotations = events[(events["category"] == ANNOTATION).to_numpy()]
    window = _window(annotations)
    ranges = _ranges(annotations, window)
    calls = host_calls(events, ranges, window)
    if len(calls) or events["category"].isin(DEVICE_OPS).any():
        ops, notes = device_ops(events, calls, window)
    else:
        ops, notes = operators(events, ranges, window)
        if trace.num_gpus:
            notes.append("the machine has a GPU, but nothing of it is in the trace: these are operators of the host")
    if not len(ops):
        raise CaptureProblem("nothing", "nothing ran in the window", _AGAIN)
    calls = calls[(calls["is_inside"] & (calls["outer"] == calls["row"])).to_numpy()]
    fields = {
        "window_ns": int(window["end_ns"] - window["start_ns"]),
        "ledger": _ledger(ops),
        **_completeness(ops, calls),
        "schema_version": trace.schema_version or NotMeasured(not_measured="the trace states none"),
        "notes": tuple(notes),
    }
    threads = _thread_numbers(calls, ranges, ops[(ops["kind"] == "operator").to_numpy()])
    lanes = [threads.get(thread, 0) for thread in ops["thread"]]
    ops = ops.assign(stream=np.where(ops["kind"] == "operator", lanes, ops["stream"]))
    tables: dict[str, tuple[pd.DataFrame, type[Record]]] = {
        "ops": (ops, DeviceOp),
        "calls": (calls, HostCall),
        "ranges": (ranges, HostRange),
    }
    origin = int(window["start_ns"])
    return Digested({name: _rows(frame, record, origin, threads) for name, (frame, record) in tables.items()}, fields)


def _thread_numbers(*frames: pd.DataFrame) -> dict[int, int]:
    """0, 1, ... in the order in which the threads appear in the window."""
    seen = pd.concat([frame[["start_ns", "thread"]] for frame in frames]).sort_values("start_ns", kind="stable")
    return {int(thread): number for number, thread in enumerate(seen["thread"].unique())}


def _rows(frame: pd.DataFrame, record: type[Record], origin: int, threads: dict[int, int]) -> pd.DataFrame:
    """The record's columns, times since the window began, in the order of start."""
    values: dict[str, Any] = {name: frame[name].to_numpy() - origin for name in ("start_ns", "end_ns")}
    if "launch_ns" in frame:
        values["launch_ns"] = np.where(frame["launch_ns"] == NOT_RECORDED, NOT_RECORDED, frame["launch_ns"] - origin)
    if "thread" in record.model_fields:
        values["thread"] = frame["thread"].map(threads).to_numpy(dtype=np.int64)
    ordered = frame.assign(**values).sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)
    return ordered[list(record.model_fields)]


# ------------------------------------------------------------------------------------------------- window and ranges


def _window(annotations: pd.DataFrame) -> pd.Series:
    found = annotations[(annotations["name"] == WINDOW).to_numpy()]
    if not len(found):
        raise CaptureProblem("nothing", f"no range '{WINDOW}' in the trace", _AGAIN)
    if len(found) > 1:
        raise CaptureProblem(
            "unreadable", f"{len(found)} ranges '{WINDOW}' in the trace", "capture one window at a time"
        )
    return found.iloc[0]


def _ranges(annotations: pd.DataFrame, window: pd.Series) -> pd.DataFrame:
    """Stages and rounds that lie in the window, with the columns of `HostRange` and the stage's code."""
    own = annotations[is_within(annotations, window)]
    steps = own["name"].map(lambda name: -1 if (step := parse_round(name)) is None else step).astype(np.int64)
    code = pd.Index(STAGE_NAMES).get_indexer(own["name"]).astype(np.int64)
    is_ours = ((steps >= 0) | (code != NONE)).to_numpy()
    own = own[is_ours].assign(code=code[is_ours], step=steps[is_ours])
    rounds = own[(own["step"] >= 0).to_numpy()]
    if not len(rounds):
        raise CaptureProblem("nothing", "the window holds no round", _AGAIN)
    step = around(rounds, "step", own, OUTSIDE_ROUNDS)
    is_round = (own["step"] >= 0).to_numpy()
    return own.assign(
        kind=np.where(is_round, "round", "stage"),
        name=np.where(is_round, "", own["name"]),
        round=np.where(is_round, own["step"], step),
    )


# ---------------------------------------------------------------------------------------- what adds up, what is missing


def _ledger(ops: pd.DataFrame) -> tuple[LedgerLine, ...]:
    duration = (ops["end_ns"] - ops["start_ns"]).groupby(ops["basis"]).agg(["size", "sum"])
    found = {basis: (int(size), int(total)) for basis, size, total in duration.itertuples()}
    return tuple(
        LedgerLine(basis=basis, count=count, time_ns=time_ns) for basis, (count, time_ns) in sorted(found.items())
    )


def _completeness(ops: pd.DataFrame, calls: pd.DataFrame) -> dict[str, int | str]:
    """Launches against what the device left of them: under replay the profiler may drop records."""
    seen = frozenset(ops["outer"]) if "outer" in ops else frozenset()
    is_seen = calls["row"].isin(seen)
    is_graph, is_launch = calls["kind"] == "graph_launch", calls["kind"] == "launch"
    launches, replays, lost = int(is_graph.sum()), int((is_graph & is_seen).sum()), int((is_launch & ~is_seen).sum())
    missing = ""
    if replays < launches:
        missing = f"{launches} graph launches, {replays} replays found"
    elif partial := _num_partial(ops):
        missing = f"{partial} of {replays} replays lack nodes of their graph"
    elif lost:
        missing = f"{lost} launches of kernels left no record"
    withheld = f"under-recorded: {missing}: capture fewer rounds at a time" if missing else ""
    return {"num_graph_launches": launches, "num_graph_replays": replays, "withheld": withheld}


def _num_partial(ops: pd.DataFrame) -> int:
    """Replays with fewer nodes than the fullest one of the same graph; older traces do not name the graph."""
    if "outer" not in ops:
        return 0
    nodes = ops[((ops["node"] > 0) & (ops["graph"] > 0)).to_numpy()]
    sizes = nodes.groupby(["graph", "correlation"])["node"].nunique()
    return int((sizes < sizes.groupby(level="graph").transform("max")).sum())
