"""From the host's launch call to the start on the device: of ops launched one by one, and of whole replays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.profile.captured_case import texts

COPIES: tuple[str, ...] = ("copy", "memset")


def first_of_replay(ops: pd.DataFrame) -> np.ndarray:
    """[N] ops that began a replay, as all that one call launched are one; an op without a launch begins none."""
    launch = ops["launch_ns"].to_numpy(np.int64)
    is_known = ops["is_replayed"].to_numpy(dtype=bool) & (launch >= 0)
    return is_known & ~pd.Series(np.where(is_known, launch, -1)).duplicated().to_numpy()


def launches_of(ops: pd.DataFrame) -> pd.DataFrame:
    """One row per launch of which the call was recorded: what (`op`, `copy`, `replay`), start_ns of its (first) op,
    latency_ns from the start of the call; `ops` by start. A launch behind other work waits for that too.
    """
    launch, start = (ops[name].to_numpy(np.int64) for name in ("launch_ns", "start_ns"))
    kinds, is_first, is_replayed = texts(ops, "kind"), first_of_replay(ops), ops["is_replayed"].to_numpy(dtype=bool)
    is_meant = (launch >= 0) & (kinds != "operator") & (is_first | ~is_replayed)
    what = np.where(is_first, "replay", np.where(np.isin(kinds, COPIES), "copy", "op"))
    return pd.DataFrame({"what": what[is_meant], "start_ns": start[is_meant], "latency_ns": (start - launch)[is_meant]})


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians; 0 where there is none of a kind."""

    num_ops: int  # launched one by one, copies and memsets included
    median_op_ns: float
    num_replays: int
    median_replay_ns: float  # to the first node


def launch_latency(ops: pd.DataFrame) -> Latency:
    """Of the ops of a timeline."""
    found = launches_of(ops)
    is_replay = (found["what"] == "replay").to_numpy()
    single, replays = (found["latency_ns"].to_numpy()[rows] for rows in (~is_replay, is_replay))
    return Latency(len(single), _median(single), len(replays), _median(replays))


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else 0.0
