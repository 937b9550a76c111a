"""How much is launched per round and stage: kernels, copies and memsets on the device, calls of the host.

Counts of the rounds in the window, divided by their number: what lies outside rounds (prefills) is told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.intervals import union
from ddbench.analysis.profile.captured_case import ToolPass, in_rounds, texts
from ddbench.engine.stages import Stage

NO_STAGE = ""
OP_KINDS: tuple[str, ...] = ("kernel", "copy", "memset", "graph", "operator")
COUNTED_CALLS: tuple[str, ...] = ("launch", "graph_launch", "sync")


@dataclass(frozen=True)
class StageLaunches:
    """What one stage, or a whole round, puts on the device; all per round."""

    stage: str  # NO_STAGE: ops and calls of rounds of which no stage is known
    ops: dict[str, float]  # by kind of op, of `OP_KINDS`
    num_replayed: float  # of the ops, nodes of graphs
    calls: dict[str, float]  # by kind of call, of `COUNTED_CALLS`
    busy_ns: float  # at least one of its ops runs
    time_ns: float  # sum of its ops' times

    @property
    def num_ops(self) -> float:
        return sum(self.ops.values())


@dataclass(frozen=True)
class RoundLaunches:
    """The round and what it consists of."""

    whole: StageLaunches
    stages: tuple[StageLaunches, ...]  # in the order of a round, then what has no stage
    num_outside: int  # ops of the window that belong to no round, in all


def round_launches(one: ToolPass) -> RoundLaunches:
    """Counts of a usable timeline."""
    ops, calls = in_rounds(one.ops), in_rounds(one.calls)
    of_ops, of_calls = texts(ops, "stage"), texts(calls, "stage")
    rounds = one.num_rounds
    stages = [
        _counts(stage, ops[of_ops == stage], calls[of_calls == stage], rounds)
        for stage in stages_among(of_ops, of_calls)
    ]
    return RoundLaunches(_counts(NO_STAGE, ops, calls, rounds), tuple(stages), len(one.ops) - len(ops))


def stages_among(*columns: Sequence[str] | np.ndarray) -> tuple[str, ...]:
    """Stages that occur, in the order of a round; then NO_STAGE if it does."""
    found = {name for column in columns for name in column}
    return tuple(name for name in (*(stage.value for stage in Stage), NO_STAGE) if name in found)


def _counts(stage: str, ops: pd.DataFrame, calls: pd.DataFrame, num_rounds: int) -> StageLaunches:
    kinds, called = texts(ops, "kind"), texts(calls, "kind")
    took = (ops["end_ns"] - ops["start_ns"]).to_numpy(np.int64)
    return StageLaunches(
        stage=stage,
        ops={kind: float((kinds == kind).sum()) / num_rounds for kind in OP_KINDS},
        num_replayed=float(ops["is_replayed"].to_numpy(dtype=bool).sum()) / num_rounds,
        calls={kind: float((called == kind).sum()) / num_rounds for kind in COUNTED_CALLS},
        busy_ns=busy_of(ops) / num_rounds,
        time_ns=float(took.sum()) / num_rounds,
    )


def busy_of(ops: pd.DataFrame) -> int:
    """Time in which at least one of the ops runs, summed over GPUs."""
    start, end = (ops[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    return sum(union(start[rows], end[rows]).total for rows in ops.groupby("gpu", sort=True).indices.values())
