"""Intervals of what happens in a row: rounds are resampled in blocks of neighbours, passes or processes as a whole.

Neighbouring rounds share context lengths, batch sizes and clocks; drawing them one by one would claim a precision that
is not there. The bootstrap draws circular blocks of about sqrt(n) rounds of one pass (Politis and Romano 1992: moving
blocks in which the first and the last rounds are drawn as often as the others). From three processes on, processes are
drawn as well, else from three passes on passes are; below, the interval is about rounds within the passes that ran.

Letters: R resamples, N rows over all passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddbench.analysis import stats
from ddbench.analysis.stats import FEW_UNITS, FEWEST_UNITS, NUM_RESAMPLES, Summary

_SEED = 20_250_102
Sums = tuple[np.ndarray, np.ndarray]  # of numerators and of denominators: [R] each
_MAX_CELLS = 2_000_000  # rows drawn at once, over all resamples of a chunk


@dataclass(frozen=True)
class Layout:
    """How rows, in the order in which they happened, split into passes: `lengths[process][pass]` rows."""

    lengths: tuple[tuple[int, ...], ...]

    @property
    def passes(self) -> tuple[int, ...]:
        return tuple(length for process in self.lengths for length in process)

    @property
    def clusters(self) -> tuple[tuple[int, ...], ...]:
        """What is drawn as a whole: processes or passes, from three on; everything as one cluster below."""
        if len(self.lengths) >= FEWEST_UNITS:
            return self.lengths
        if len(self.passes) >= FEWEST_UNITS:
            return tuple((length,) for length in self.passes)
        return (self.passes,)

    @property
    def num_blocks(self) -> int:
        """Blocks of a resample: how many nearly independent pieces there are."""
        return sum(math.ceil(length / block_length(length)) for length in self.passes if length)


@dataclass(frozen=True)
class Stratum:
    """Rows of one kind with what they add to numerator and denominator of a ratio."""

    numerators: np.ndarray  # [N]
    denominators: np.ndarray  # [N]
    layout: Layout

    @cached_property
    def sums(self) -> Sums:
        """Numerators and denominators of every resample."""
        return _resampled_sums(self, 0)

    @cached_property
    def sums_apart(self) -> Sums:
        """The same with draws of their own, for a ratio to another stratum."""
        return _resampled_sums(self, 1)


def block_length(num_rows: int) -> int:
    """About sqrt(n): long enough to keep neighbours together, short enough to leave many blocks."""
    return math.ceil(math.sqrt(num_rows))


def draws(layout: Layout, stream: int = 0) -> Iterator[np.ndarray]:
    """Row numbers of every resample, some resamples at a time: [up to R, N]; the same for the same arguments."""
    clusters = layout.clusters
    widest = max((len(cluster) for cluster in clusters), default=0)
    firsts, sizes = np.zeros((len(clusters), widest), dtype=np.int64), np.zeros((len(clusters), widest), dtype=np.int64)
    place = 0
    for row, cluster in enumerate(clusters):
        starts = place + np.cumsum((0, *cluster))
        for column in range(widest):  # a cluster with fewer passes lends them again
            firsts[row, column], sizes[row, column] = starts[column % len(cluster)], cluster[column % len(cluster)]
        place = int(starts[-1])
    chosen = _chosen_clusters(len(clusters))
    rng = np.random.default_rng((_SEED, stream, *layout.passes))
    rows_at_once = max(1, _MAX_CELLS // max(1, place))
    for begin in range(0, NUM_RESAMPLES, rows_at_once):
        part = chosen[begin : begin + rows_at_once]
        columns = [
            _blocks(rng, length, *_sources(part[:, slot], slot, column, firsts, sizes))
            for slot, cluster in enumerate(clusters)
            for column, length in enumerate(cluster)
            if length
        ]
        yield np.concatenate(columns, axis=1) if columns else np.zeros((len(part), 0), dtype=np.int64)


def _chosen_clusters(count: int) -> np.ndarray:
    """The cluster that stands in each cluster's place: [R, count]. One cluster is always itself."""
    return np.random.default_rng((_SEED, count)).integers(0, count, (NUM_RESAMPLES, count))


def _sources(
    chosen: np.ndarray, slot: int, column: int, firsts: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of the pass that every resample draws from; a pass without rows lends nothing."""
    lender = np.where(sizes[chosen, column] > 0, chosen, slot)
    return firsts[lender, column], sizes[lender, column]


def _blocks(rng: np.random.Generator, length: int, firsts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`length` row numbers per resample in blocks of neighbours, from the pass at `firsts`: [R, length]."""
    block = block_length(length)
    starts = np.floor(rng.random((len(firsts), math.ceil(length / block))) * sizes[:, None]).astype(np.int64)
    rows = (starts[:, :, None] + np.arange(block)) % sizes[:, None, None]
    return rows.reshape(len(firsts), -1)[:, :length] + firsts[:, None]


def ratio_of_sums(strata: Sequence[Stratum], what: str) -> Summary:
    """sum(numerators) / sum(denominators) over all strata, each resampled by itself; `what` names the first one's rows.

    Strata keep what is fixed by design apart from what varies: a workload has its number of prefills, however often
    the one long wait for sixteen of them would be drawn. n is the number of rows of the first stratum.
    """
    num = sum(float(stratum.numerators.sum()) for stratum in strata)
    den = sum(float(stratum.denominators.sum()) for stratum in strata)
    assert den > 0, "a ratio needs a positive denominator"
    first = strata[0]
    count, value = first.numerators.size, num / den
    is_flat = np.all(first.numerators * first.denominators[0] == first.numerators[0] * first.denominators)
    note = _why_no_interval(first.layout, count, bool(is_flat), what)
    if note:
        return Summary(value, None, None, count, note)
    sums = np.array([first.sums, *(stratum.sums_apart for stratum in strata[1:])]).sum(axis=0)  # [2, R]
    return _summary(value, sums[0] / sums[1], count, _small(first.layout, what))


def ratio_of_ratios(over: Stratum, under: Stratum, what: str) -> Summary:
    """The ratio of two strata's ratios.

    Rows are drawn together where both have as many in every pass (the same work done in another way, round for round),
    apart elsewhere; processes, where they are drawn, together.
    """
    values = [float(one.numerators.sum() / one.denominators.sum()) for one in (over, under)]
    shorter = min((over, under), key=lambda one: one.numerators.size)
    count, value = shorter.numerators.size, values[0] / values[1]
    note = _why_no_interval(shorter.layout, count, False, what)
    if note:
        return Summary(value, None, None, count, note)
    (a, b), (c, d) = over.sums, under.sums if over.layout == under.layout else under.sums_apart
    return _summary(value, (a / b) / (c / d), count, _small(shorter.layout, what))


def _resampled_sums(stratum: Stratum, stream: int) -> Sums:
    sums = [
        (stratum.numerators[rows].sum(axis=1), stratum.denominators[rows].sum(axis=1))
        for rows in draws(stratum.layout, stream)
    ]
    return np.concatenate([top for top, _ in sums]), np.concatenate([bottom for _, bottom in sums])


def _summary(value: float, resampled: np.ndarray, count: int, note: str) -> Summary:
    low, high = stats.percentiles(resampled)
    return Summary(value, min(low, value), max(high, value), count, note)


def median(values: np.ndarray, layout: Layout, what: str) -> Summary:
    """Median of rows that happened one after the other."""
    assert values.size, "median needs a value"
    value = float(np.median(values))
    note = _why_no_interval(layout, values.size, bool(np.all(values == values[0])), what)
    if note:
        return Summary(value, None, None, values.size, note)
    resampled = np.concatenate([np.median(values[rows], axis=1) for rows in draws(layout)])
    return _summary(value, resampled, values.size, _small(layout, what))


def _why_no_interval(layout: Layout, count: int, is_flat: bool, what: str) -> str:
    if layout.num_blocks < FEWEST_UNITS:
        return f"n={count} {what}: too few for an interval"
    return f"no spread: all {count} {what} are equal" if is_flat else ""


def _small(layout: Layout, what: str) -> str:
    """Said where the pieces that are drawn are few."""
    num_clusters = len(layout.clusters)
    if num_clusters > 1 and num_clusters < FEW_UNITS:
        kind = "processes" if len(layout.lengths) >= FEWEST_UNITS else "passes"
        return f"{num_clusters} {kind}: an interval from so few is too narrow"
    if layout.num_blocks < FEW_UNITS:
        return f"{layout.num_blocks} blocks of {what}: an interval from so few is too narrow"
    return ""
