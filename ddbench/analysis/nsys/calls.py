"""The host's calls into CUDA: what kind each is, and within which other call it happens.

A runtime call may make driver calls; where both are recorded, the outer one is what the program did.
"""

from __future__ import annotations

import itertools
import re
from typing import Literal, get_args

import numpy as np
import pandas as pd

CallKind = Literal["launch", "graph_launch", "copy", "memset", "sync", "memory", "other"]
CALL_KINDS: tuple[CallKind, ...] = get_args(CallKind)
# How a name goes on behind `cuda` or `cu`; the first that fits.
_BEGINNINGS: tuple[tuple[CallKind, str], ...] = (
    ("graph_launch", r"GraphLaunch"),
    ("launch", r"Launch(Cooperative)?Kernel|Launch(Grid(Async)?)?(_|$)"),
    ("copy", r"Memcpy"),
    ("memset", r"Memset"),
    ("sync", r"(Device|Stream|Event|Ctx|Thread)Synchronize"),
    ("memory", r"Malloc|Free|Host(Alloc|Register|Unregister)"),
    ("memory", r"Mem(Alloc|Free|Host|Create|Release|Map|Unmap|SetAccess|Address)"),
)


def call_kind(name: str) -> CallKind:
    """What a call is for: `cudaMemcpyAsync_v3020` is a copy; nodes added to a graph are none."""
    rest = re.sub(r"^cu(da)?", "", name)
    return next((kind for kind, beginning in _BEGINNINGS if re.match(beginning, rest)), "other")


def outermost(calls: pd.DataFrame) -> np.ndarray:
    """For each call the row of the outermost call around it on its thread: itself, where there is none."""
    start, end, thread = (calls[name].to_numpy() for name in ("start_ns", "end_ns", "thread"))
    order = np.lexsort((-end, start, thread))
    found = np.arange(len(calls))
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    for first, last in itertools.pairwise([0, *edges, len(order)]):
        own = order[first:last]
        reached = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[own])[:-1])
        is_outer = start[own] >= reached
        found[own] = own[is_outer][np.cumsum(is_outer) - 1]
    return found
