"""Copies, memsets and synchronisations of the rounds in a capture's window: what, where, how large, how often."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.profile.captured_case import ToolPass, in_rounds, texts

_VERSION = re.compile(r"_v\d+$")
TO_HOST = "device to host"


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies (or memsets) of one stage, direction and size; counts per round."""

    stage: str
    what: str  # a direction, or 'memset'
    num_bytes: int  # of each
    per_round: float
    bytes_per_round: float
    ns_per_round: float
    calls: tuple[str, ...]  # names of the host's calls that asked for them; empty: not recorded

    @property
    def is_to_host(self) -> bool:
        return self.what == TO_HOST


@dataclass(frozen=True, slots=True)
class Syncs:
    """Synchronising calls of one name and stage; per round, on the host's clock."""

    stage: str
    name: str
    per_round: float
    ns_per_round: float
    longest_ns: int


def copies_of(one: ToolPass) -> tuple[Copies, ...]:
    """By direction, those to the host first; within one the most bytes first."""
    ops = in_rounds(one.ops[np.isin(texts(one.ops, "kind"), ("copy", "memset"))])
    names = dict(zip(one.calls["start_ns"].tolist(), texts(one.calls, "name").tolist(), strict=True))
    what = np.where(texts(ops, "kind") == "memset", "memset", texts(ops, "direction"))
    frame = pd.DataFrame(
        {
            "stage": texts(ops, "stage"),
            "what": what,
            "num_bytes": ops["num_bytes"].to_numpy(np.int64),
            "took": (ops["end_ns"] - ops["start_ns"]).to_numpy(np.int64),
            "call": [names.get(launch, "") for launch in ops["launch_ns"].tolist()],
        }
    )
    found = [
        Copies(
            stage=str(stage),
            what=str(kind),
            num_bytes=int(size),
            per_round=len(rows) / one.num_rounds,
            bytes_per_round=float(rows["num_bytes"].sum()) / one.num_rounds,
            ns_per_round=float(rows["took"].sum()) / one.num_rounds,
            calls=tuple(sorted({plain_name(name) for name in set(rows["call"]) - {""}})),
        )
        for (stage, kind, size), rows in frame.groupby(["stage", "what", "num_bytes"], sort=True)
    ]
    return tuple(sorted(found, key=lambda own: (not own.is_to_host, own.what, -own.bytes_per_round, own.stage)))


def syncs_of(one: ToolPass) -> tuple[Syncs, ...]:
    """The most waiting first."""
    calls = in_rounds(one.calls[(one.calls["kind"] == "sync").to_numpy(dtype=bool)])
    frame = pd.DataFrame(
        {
            "stage": texts(calls, "stage"),
            "name": [plain_name(name) for name in texts(calls, "name")],
            "took": (calls["end_ns"] - calls["start_ns"]).to_numpy(np.int64),
        }
    )
    found = [
        Syncs(
            stage=str(stage),
            name=str(name),
            per_round=len(rows) / one.num_rounds,
            ns_per_round=float(rows["took"].sum()) / one.num_rounds,
            longest_ns=int(rows["took"].max()),
        )
        for (stage, name), rows in frame.groupby(["stage", "name"], sort=True)
    ]
    return tuple(sorted(found, key=lambda own: (-own.ns_per_round, own.name, own.stage)))


def plain_name(call: str) -> str:
    """`cudaMemcpyAsync` of `cudaMemcpyAsync_v3020`: the version of the interface tells nothing here."""
    return _VERSION.sub("", call)


def moved_by_copies(one: ToolPass) -> dict[str, float]:
    """Stage -> bytes per round that copies and memsets move through device memory, read and written.

    A copy within a device reads and writes; one from or to the host does one of the two, and so does a memset.
    """
    found: dict[str, float] = {}
    for own in copies_of(one):
        times = 2 if own.what in ("device to device", "peer to peer") else 1
        found[own.stage] = found.get(own.stage, 0.0) + times * own.bytes_per_round
    return found
