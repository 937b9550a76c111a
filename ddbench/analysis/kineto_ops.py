"""Events of a torch trace -> the ops and calls of a window, each with the stage and the round of its launch.

Below `kineto`, which finds the window and its ranges and checks what adds up. Rows keep the columns of the trace's
events beside those of the record that they become.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from ddbench.analysis.chrome_trace import CALLS, DEVICE_OPS, OPERATOR
from ddbench.analysis.nsys.calls import call_kind, outermost
from ddbench.analysis.nsys.enclosing import NONE, around, spans_of, taken
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.captured import OUTSIDE_ROUNDS

NOT_RECORDED = -1
_MEMORY = re.compile(r"Memcpy ([HDAP])to([HDAP])")
_PLACES = {"H": "host", "D": "device", "A": "array", "P": "peer"}
_OP_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}


def is_within(frame: pd.DataFrame, window: pd.Series) -> np.ndarray:
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    return (start >= window["start_ns"]) & (end <= window["end_ns"])


def placed(inner: pd.DataFrame, ranges: pd.DataFrame) -> pd.DataFrame:
    """With the code of the stage and the step of the round around each row."""
    is_round = (ranges["kind"] == "round").to_numpy()
    code = around(ranges[~is_round], "code", inner)
    step = around(ranges[is_round], "step", inner, OUTSIDE_ROUNDS)
    return inner.assign(code=code, round=step, stage=_stage_names(code))


def _stage_names(code: np.ndarray) -> np.ndarray:
    return np.array([*STAGE_NAMES, ""], dtype=object)[code]


# ------------------------------------------------------------------------------------------------- calls of the host


def host_calls(events: pd.DataFrame, ranges: pd.DataFrame, window: pd.Series) -> pd.DataFrame:
    """Calls into CUDA, each with the outermost call around it: a driver call within a runtime call is the same call."""
    own = placed(events[events["category"].isin(CALLS).to_numpy()], ranges)
    kinds = pd.Series([call_kind(name) for name in own["name"]], index=own.index, dtype=object)
    return own.assign(kind=kinds, outer=own["row"].to_numpy()[outermost(own)], is_inside=is_within(own, window))


# --------------------------------------------------------------------------------------------------------------- ops


def operators(events: pd.DataFrame, ranges: pd.DataFrame, window: pd.Series) -> tuple[pd.DataFrame, list[str]]:
    """The operators that no other one called, each with the time of all that it called."""
    own = events[(events["category"] == OPERATOR).to_numpy()]
    own = own[is_within(own, window)]
    start, end, reached = own["start_ns"].to_numpy(), own["end_ns"].to_numpy(), _reached(own)
    is_outer = start >= reached
    is_cut = ~is_outer & (end > reached)  # what nests in nothing and follows nothing
    kept = own.assign(start_ns=np.where(is_cut, reached, start))[is_outer | is_cut]
    found = placed(kept, ranges).assign(kind="operator", gpu=0, num_bytes=0, direction="", is_replayed=False)
    notes = [f"{is_cut.sum()} operators reach beyond the one that called them: cut, so that no time counts twice"]
    return _with_basis(found.assign(launch_ns=found["start_ns"])), notes if is_cut.any() else []


def _reached(spans: pd.DataFrame) -> np.ndarray:
    """Per row: how far the events of its thread that began before it reach, be they over or not."""
    start, end, thread = spans_of(spans)
    order = np.lexsort((-end, start, thread))  # stable: of equal ones the caller is written first
    ends = pd.Series(end[order])
    highest = ends.groupby(thread[order]).cummax().groupby(thread[order]).shift(fill_value=-(1 << 62))
    reached = np.empty(len(order), np.int64)
    reached[order] = highest.to_numpy(dtype=np.int64)
    return reached


def device_ops(events: pd.DataFrame, calls: pd.DataFrame, window: pd.Series) -> tuple[pd.DataFrame, list[str]]:
    """Kernels, copies and memsets that the window launched; without a known launch: that started in it."""
    own = events[events["category"].isin(DEVICE_OPS).to_numpy()]
    place, num_shared = _launches(own, calls)
    category = own["category"].to_numpy(dtype=object)
    names = [_named(*one) for one in zip(category, own["name"], strict=True)]
    code = taken(calls["code"], place, NONE)
    ops = own.assign(
        kind=own["category"].map(_OP_KINDS),
        name=[name for name, _ in names],
        direction=[direction for _, direction in names],
        code=code,
        stage=_stage_names(code),
        round=taken(calls["round"], place, OUTSIDE_ROUNDS),
        launch_ns=taken(calls["start_ns"], place, NOT_RECORDED),
        is_replayed=taken(calls["kind"] == "graph_launch", place, False) | (own["node"] > 0).to_numpy(),
        num_bytes=np.where(category == "kernel", 0, np.maximum(0, own["num_bytes"])),
        outer=taken(calls["row"], place, NONE),
    )
    started = ((own["start_ns"] >= window["start_ns"]) & (own["start_ns"] <= window["end_ns"])).to_numpy()
    is_inside = np.where(place == NONE, started, taken(calls["is_inside"], place, False))
    notes = [f"{num_shared} ops have a correlation id that several calls share: their launch is unknown"]
    return _with_basis(ops[is_inside]), notes if num_shared else []


def _launches(ops: pd.DataFrame, calls: pd.DataFrame) -> tuple[np.ndarray, int]:
    """Place in `calls` of the outermost call that launched each op, or NONE; and of how many it cannot be said."""
    known = calls[(calls["correlation"] > 0).to_numpy()].drop_duplicates(["correlation", "outer"])
    is_shared = known["correlation"].duplicated(keep=False).to_numpy()
    sure = known[~is_shared]
    found = pd.Index(sure["correlation"]).get_indexer(ops["correlation"])
    outer = taken(sure["outer"], found, NONE)
    return pd.Index(calls["row"]).get_indexer(outer), int(
        ops["correlation"].isin(known["correlation"][is_shared]).sum()
    )


def _named(category: str, name: str) -> tuple[str, str]:
    """Name and direction of an op."""
    if category != "gpu_memcpy":
        return ("memset" if category == "gpu_memset" else name), ""
    found = _MEMORY.match(name)
    direction = f"{_PLACES[found[1]]} to {_PLACES[found[2]]}" if found else "other"
    return f"copy {direction}", direction


def _with_basis(ops: pd.DataFrame) -> pd.DataFrame:
    basis = np.where(ops["code"] == NONE, "unattributed", "launch").astype(object)
    return ops.assign(launch_stage=ops["stage"], basis=basis)
