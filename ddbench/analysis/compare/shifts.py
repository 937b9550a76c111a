"""Where the time of a round went from one setting to another: stage by stage, and where along the path acceptance fell.

Between settings and the diagnosis. Stage times come from the attributed pass: means per round of the whole batch, the
host gap included, so that the shifts add up to that of the round. Letters: R resamples, B blocks, K parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddbench.analysis import acceptance, stats
from ddbench.analysis.breakdown import stage_totals
from ddbench.analysis.decompose import PARTS
from ddbench.analysis.settings import Setting

MICROSECOND = 1e3  # ns


@dataclass(frozen=True, slots=True)
class Shift:
    """One part of a round, microseconds. No interval where fewer than three blocks were measured."""

    part: str
    a_us: float
    b_us: float
    low: float | None  # of the difference
    high: float | None
    share: float | None  # of the round's difference; None where the round hardly moved

    @property
    def delta_us(self) -> float:
        return self.b_us - self.a_us


@dataclass(frozen=True)
class RoundShift:
    """A whole round of the attributed pass, and its parts, those that grew most first."""

    a_us: float
    b_us: float
    parts: tuple[Shift, ...]

    @property
    def delta_us(self) -> float:
        return self.b_us - self.a_us


def round_shift(a: Setting, b: Setting, is_paired: bool) -> RoundShift | None:
    """None where either side has no attributed pass."""
    if not all(len(rows) for setting in (a, b) for rows in (setting.attributed_steps, setting.stages)):
        return None
    tables = [_per_block(setting) for setting in (a, b)]
    means = [table[:, :-1].sum(axis=0) / table[:, -1].sum() for table in tables]  # [K + 1] the whole round last
    deltas = means[1] - means[0]
    spans = _intervals(tables, is_paired and a.blocks == b.blocks)
    moved = abs(deltas[-1]) > 1e-3 * means[0][-1]
    parts = []
    for place, name in enumerate(PARTS):
        if means[0][place] or means[1][place]:
            low, high = (None, None) if spans is None else (float(spans[0][place]), float(spans[1][place]))
            share = float(deltas[place] / deltas[-1]) if moved else None
            parts.append(Shift(name, float(means[0][place]), float(means[1][place]), low, high, share))
    sign = 1 if deltas[-1] >= 0 else -1
    parts.sort(key=lambda shift: -sign * shift.delta_us)
    return RoundShift(float(means[0][-1]), float(means[1][-1]), tuple(parts))


def _per_block(setting: Setting) -> np.ndarray:
    """[B, K + 2]: microseconds of every part, the host gap last, and of whole rounds, and the number of rounds."""
    steps, stages = setting.attributed_steps, setting.stages
    rows = []
    for block in sorted(set(steps["block"].tolist())):
        is_own = steps["block"] == block
        whole = float((steps["end_ns"] - steps["start_ns"])[is_own].sum()) / MICROSECOND
        sums = stage_totals(stages, (stages["step"] >= 0) & (stages["block"] == block))
        times = [sums.get(name, 0.0) / MICROSECOND for name in PARTS[:-1]]
        rows.append([*times, whole - sum(times), whole, np.count_nonzero(is_own)])
    return np.array(rows)


def _intervals(tables: list[np.ndarray], is_paired: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Percentiles of the differences when blocks are drawn again, those of one block together where they are paired."""
    if min(len(table) for table in tables) < stats.FEWEST_UNITS:
        return None
    means = []
    for place, table in enumerate(tables):
        draws = stats.resample_draws(len(table), 0 if is_paired else place)
        sums = table[draws].sum(axis=1)  # [R, K + 2]
        means.append(sums[:, :-1] / sums[:, -1:])
    tail = (1 - stats.CONFIDENCE) / 2
    low, high = np.quantile(means[1] - means[0], [tail, 1 - tail], axis=0)
    return low, high


def prefill_us(setting: Setting) -> float | None:
    """Microseconds that a request spends in stages before its first round; None where they were not timed."""
    before = setting.stages["duration_ns"][setting.stages["step"] < 0]
    if not len(before):
        return None
    num_requests = sum(result.case.workload.num_requests for result in setting.results)
    return float(before.sum()) / num_requests / MICROSECOND


@dataclass(frozen=True, slots=True)
class DepthShift:
    """How often the drafted token at this depth was accepted, given that the one before it was."""

    depth: int
    a: float
    b: float


def depth_shift(a: Setting, b: Setting) -> DepthShift | None:
    """The depth at which acceptance changed most, weighted by how many rounds get there."""
    counts = [acceptance.histogram(setting) for setting in (a, b)]
    is_alike = (a.engine.draft, a.engine.block_size) == (b.engine.draft, b.engine.block_size)
    longest = (max if is_alike else min)(map(len, counts)) - 1  # drafted that deep on both sides
    if longest < 1 or not all(map(len, counts)):
        return None
    # Rounds that got so deep, [longest + 1]: one side may never get as far as the other, which is a change itself.
    reached = [np.cumsum(np.pad(own, (0, longest + 1))[::-1])[::-1][: longest + 1] for own in counts]
    rates = [own[1:] / np.maximum(own[:-1], 1) for own in reached]
    weights = np.minimum(*(own[:-1] / own[0] for own in reached))
    depth = int(np.argmax(np.abs(rates[1] - rates[0]) * weights))
    return DepthShift(depth + 1, float(rates[0][depth]), float(rates[1][depth]))
