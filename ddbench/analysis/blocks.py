"""One value per interleaved repeat: what paired comparisons are made of.

Between settings and comparisons. A block is one process of every case; values of two settings in one block are a pair,
and which of the two ran first is known from when their cases started. Everything reads the clean pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ddbench.analysis.settings import Setting
from ddbench.analysis.timing import MILLISECOND, Table

PerBlock = Callable[[Setting], Mapping[int, float]]  # block -> value, in the metric's unit


def tpot(setting: Setting) -> dict[int, float]:
    """Median over prompts of milliseconds per token after the first."""
    return _medians(setting.tpot)


def ttft(setting: Setting) -> dict[int, float]:
    """Median over prompts of milliseconds from admission to first token."""
    return _medians(setting.ttft)


def round_cost(setting: Setting) -> dict[int, float]:
    """Mean duration of a round in milliseconds, rounds weighted by the requests they serve."""
    steps = setting.steps
    sizes = steps["batch_size"].astype(np.float64)
    times = (steps["end_ns"] - steps["start_ns"]).astype(np.float64) / MILLISECOND
    return _ratios(setting, steps["block"], sizes * times, sizes)


def output_rate(setting: Setting) -> dict[int, float]:
    """Emitted tokens over wall seconds."""
    passes = setting.passes
    return _ratios(setting, passes["block"], passes["num_emitted"].astype(np.float64), passes["wall_ns"] / 1e9)


def acceptance_length(setting: Setting) -> dict[int, float]:
    """Emitted tokens over rounds."""
    rounds = setting.rounds
    return _ratios(setting, rounds["block"], rounds["num_emitted"].astype(np.float64), np.ones(len(rounds)))


def _medians(table: Table) -> dict[int, float]:
    return dict(zip(table.blocks, np.median(table.values, axis=1).tolist(), strict=True)) if table.units else {}


def _ratios(setting: Setting, blocks: np.ndarray, over: np.ndarray, under: np.ndarray) -> dict[int, float]:
    found = {}
    for block in sorted(setting.blocks):
        own = blocks == block
        if under[own].sum() > 0:
            found[block] = float(over[own].sum() / under[own].sum())
    return found


def started_at(setting: Setting) -> Mapping[int, str]:
    """Block -> when its case began (UTC, ISO 8601): the order within a pair."""
    return {result.case.block: result.started_at for result in setting.results}
