"""Graph node of a replayed op -> the event in which that node was created during capture.

A replay names nodes of the instantiated graph. Those are clones: their event names the node that they come from, which
may be a clone itself; at the root is the node that the capture made. Ids are used again once a graph is destroyed, so
an id means the latest node of that id made before it is used.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.enclosing import NONE
from ddbench.analysis.nsys.export import LOW_BITS

_MOST_CLONES = 16  # of a clone of a clone ...; more is a cycle


def created_by(events: pd.DataFrame, ops: pd.DataFrame) -> np.ndarray:
    """Row of `events` that created the node of each op; NONE: no graph's, or created before the recording."""
    found = np.full(len(ops), NONE, np.int64)
    is_node = (ops["graph_node"] != 0).to_numpy()
    if not len(events) or not is_node.any():
        return found
    made = pd.DataFrame(
        {
            "process": events["thread"].to_numpy() & ~LOW_BITS,
            "node": events["node"].to_numpy(),
            "time": events["start_ns"].to_numpy(),
            "row": np.arange(len(events)),
        }
    ).sort_values("time", kind="stable")
    used = ops[is_node]
    rows = _latest(made, used["process"].to_numpy(), used["graph_node"].to_numpy(), used["start_ns"].to_numpy())
    found[is_node] = np.where(rows == NONE, NONE, _roots(events, made)[rows])
    return found


def _roots(events: pd.DataFrame, made: pd.DataFrame) -> np.ndarray:
    """For each event the event that its node comes from in the end; NONE where that one was not recorded."""
    original, start = events["original"].to_numpy(), events["start_ns"].to_numpy()
    process = events["thread"].to_numpy() & ~LOW_BITS
    current = np.arange(len(events))
    for _ in range(_MOST_CLONES):
        is_clone = (current != NONE) & (original[current] != 0)
        if not is_clone.any():
            return current
        at = current[is_clone]
        current[is_clone] = _latest(made, process[at], original[at], start[at])
    current[(current != NONE) & (original[current] != 0)] = NONE
    return current


def _latest(made: pd.DataFrame, process: np.ndarray, node: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Row of the latest event for each (process, node) not after `time`, or NONE."""
    asked = pd.DataFrame({"process": process, "node": node, "time": time, "place": np.arange(len(node))})
    asked = asked.sort_values("time", kind="stable")
    joined = pd.merge_asof(asked, made, on="time", by=["process", "node"])
    rows = np.full(len(node), NONE, np.int64)
    rows[joined["place"].to_numpy()] = joined["row"].fillna(NONE).to_numpy(dtype=np.int64)
    return rows
