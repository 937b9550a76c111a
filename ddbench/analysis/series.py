"""Intervals of what happens in a row: rounds are resampled in blocks of neighbours, passes or processes as a whole.

Neighbouring rounds share context lengths, batch sizes and clocks; drawing them one by one would claim a precision that
is not there. The bootstrap draws circular blocks of about sqrt(n) rounds of one pass (Politis and Romano 1992: moving
blocks in which the first and the last rounds are drawn as often as the others). From three processes on, processes are
drawn as well, else from three passes on passes are; below, the interval is about rounds within the passes that ran.

Letters: R resamples, N rows over all passes, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

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

    @property
    def ratio(self) -> float:
        return float(self.numerators.sum() / self.denominators.sum())

    @cached_property
    def sums(self) -> Sums:
        """Numerators and denominators of every resample."""
        return self._resampled(0)

    @cached_property
    def sums_apart(self) -> Sums:
        """The same with draws of their own, for a ratio to another stratum."""
        return self._resampled(1)

    def _resampled(self, stream: int) -> Sums:
        sums = resampled_sums(np.stack([self.numerators, self.denominators]), self.layout, stream)
        return sums[0], sums[1]


@dataclass(frozen=True)
class Slot:
    """What stands in the place of one pass in every resample: blocks of `block` rows, the last one cut short."""

    length: int  # rows of the pass
    block: int
    starts: np.ndarray  # [blocks, R] row that each block starts at; it runs on within the pass of that row, circularly

    @property
    def last_block(self) -> int:
        return self.length - (len(self.starts) - 1) * self.block


def block_length(num_rows: int) -> int:
    """About sqrt(n): long enough to keep neighbours together, short enough to leave many blocks."""
    return math.ceil(math.sqrt(num_rows))


def resampled_sums(columns: np.ndarray, layout: Layout, stream: int = 0) -> np.ndarray:
    """Sums over the rows of every resample: [C, N] -> [C, R].

    A block's sum depends on nothing but the row that it starts at, so it is summed once and looked up in every
    resample: sqrt(n) steps for each, not n.
    """
    sums = np.zeros((len(columns), NUM_RESAMPLES))
    for slot in _slots(layout, stream, _resamples_at_once(layout)):
        whole, last = (_sums_from(columns, layout, width) for width in (slot.block, slot.last_block))
        sums += whole.take(slot.starts[:-1], axis=1).sum(axis=1) + last.take(slot.starts[-1], axis=1)
    return sums


def _sums_from(columns: np.ndarray, layout: Layout, width: int) -> np.ndarray:
    """Sum of `width` rows from each row on, around the end of its pass: [C, N] -> [C, N]."""
    circles, places = _circles(layout, width)
    upto = columns[:, circles]  # sums of `size` values from each place on, doubled until they make `width`
    total, place, size = np.zeros((len(columns), len(circles) - width + 1)), 0, 1
    while size <= width:
        if width & size:
            total += upto[:, place : place + total.shape[1]]
            place += size
        upto = upto[:, :-size] + upto[:, size:]
        size *= 2
    return total.take(places, axis=1)


def resampled_medians(values: np.ndarray, layout: Layout, stream: int = 0) -> np.ndarray:
    """Median over the rows of every resample: [N] -> [R]."""
    return np.concatenate([stats.medians(part) for part in drawn(values, layout, stream)])


def drawn(values: np.ndarray, layout: Layout, stream: int = 0) -> Iterator[np.ndarray]:
    """The values of the rows of every resample, some resamples at a time: [N] -> [up to R, N]; what a sum or a median
    over a resample is about.
    """
    at_once = _resamples_at_once(layout)
    slots = _slots(layout, stream, at_once)
    windows = [_windows(values, layout, slot.block) for slot in slots]
    for part in _chunks(at_once):
        columns = [np.zeros((part.stop - part.start, 0), dtype=values.dtype)]
        for slot, (own, places) in zip(slots, windows, strict=True):
            blocks = own[places[slot.starts[:, part].T]]  # [some R, blocks, block]
            columns.append(blocks.reshape(len(blocks), -1)[:, : slot.length])
        yield np.concatenate(columns, axis=1)


def _windows(values: np.ndarray, layout: Layout, width: int) -> tuple[np.ndarray, np.ndarray]:
    """What stands at each row and after it, around the end of its pass: a view [.., width], and each row's place in it.

    A view, so that a long run does not take `width` times its memory.
    """
    circles, places = _circles(layout, width)
    return sliding_window_view(values[circles], width), places


def _circles(layout: Layout, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of every pass with `width` - 1 more from its beginning behind its end, and each row's place among them."""
    sizes = [size for size in layout.passes if size]
    firsts = np.cumsum([0, *sizes])
    circles = [first + np.arange(size + width - 1) % size for first, size in zip(firsts, sizes, strict=False)]
    places = np.arange(firsts[-1]) + np.repeat((width - 1) * np.arange(len(sizes)), sizes)
    return np.concatenate(circles), places


def _resamples_at_once(layout: Layout) -> int:
    """So that a long run takes bounded memory."""
    return max(1, _MAX_CELLS // max(1, sum(layout.passes)))


def _chunks(at_once: int) -> Iterator[slice]:
    return (slice(begin, min(begin + at_once, NUM_RESAMPLES)) for begin in range(0, NUM_RESAMPLES, at_once))


@lru_cache(maxsize=4)  # the metrics of one setting share their draws, and so do the two sides of a ratio
def _slots(layout: Layout, stream: int, at_once: int) -> tuple[Slot, ...]:
    """Where the blocks of every resample start, pass by pass; passes without rows have no slot."""
    clusters = layout.clusters
    firsts, sizes = _lenders(clusters)
    chosen = _chosen_clusters(len(clusters))
    rng = np.random.default_rng((_SEED, stream, *layout.passes))
    places = [
        (slot, column, length)
        for slot, cluster in enumerate(clusters)
        for column, length in enumerate(cluster)
        if length
    ]
    starts: list[list[np.ndarray]] = [[] for _ in places]
    for some in _chunks(at_once):
        part = chosen[some]
        for own, (slot, column, length) in zip(starts, places, strict=True):
            own.append(_starts(rng, length, *_sources(part[:, slot], slot, column, firsts, sizes)))
    return tuple(
        Slot(length, block_length(length), np.ascontiguousarray(np.concatenate(own).T))
        for own, (_, _, length) in zip(starts, places, strict=True)
    )


def _lenders(clusters: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of every pass by cluster and column: both [clusters, most passes of one]."""
    widest = max((len(cluster) for cluster in clusters), default=0)
    firsts, sizes = np.zeros((len(clusters), widest), dtype=np.int64), np.zeros((len(clusters), widest), dtype=np.int64)
    place = 0
    for row, cluster in enumerate(clusters):
        starts = place + np.cumsum((0, *cluster))
        for column in range(widest):  # a cluster with fewer passes lends them again
            firsts[row, column], sizes[row, column] = starts[column % len(cluster)], cluster[column % len(cluster)]
        place = int(starts[-1])
    return firsts, sizes


@lru_cache(maxsize=16)
def _chosen_clusters(count: int) -> np.ndarray:
    """The cluster that stands in each cluster's place: [R, count], read-only. One cluster is always itself."""
    chosen = np.random.default_rng((_SEED, count)).integers(0, count, (NUM_RESAMPLES, count))
    chosen.flags.writeable = False
    return chosen


def _sources(
    chosen: np.ndarray, slot: int, column: int, firsts: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of the pass that every resample draws from; a pass without rows lends nothing."""
    lender = np.where(sizes[chosen, column] > 0, chosen, slot)
    return firsts[lender, column], sizes[lender, column]


def _starts(rng: np.random.Generator, length: int, firsts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The row at which each block of `length` rows' worth starts, in the pass at `firsts`: [R, blocks]."""
    num_blocks = math.ceil(length / block_length(length))
    return (rng.random((len(firsts), num_blocks)) * sizes[:, None]).astype(np.int64) + firsts[:, None]


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
    return Summary(value, *stats.around(value, sums[0] / sums[1]), count, _small(first.layout, what))


def ratio_of_ratios(over: Stratum, under: Stratum, what: str) -> Summary:
    """The ratio of two strata's ratios.

    Rows are drawn together where both have as many in every pass (the same work done in another way, round for round),
    apart elsewhere; processes, where they are drawn, together.
    """
    shorter = min((over, under), key=lambda one: one.numerators.size)
    count, value = shorter.numerators.size, over.ratio / under.ratio
    note = _why_no_interval(shorter.layout, count, False, what)
    if note:
        return Summary(value, None, None, count, note)
    ours, theirs = resampled_ratios(over, under)
    return Summary(value, *stats.around(value, ours / theirs), count, _small(shorter.layout, what))


def resampled_ratios(one: Stratum, other: Stratum) -> tuple[np.ndarray, np.ndarray]:
    """Both ratios in every resample: [R] each; drawn as `ratio_of_ratios` says."""
    (a, b), (c, d) = one.sums, other.sums if one.layout == other.layout else other.sums_apart
    return a / b, c / d


def median(values: np.ndarray, layout: Layout, what: str) -> Summary:
    """Median of rows that happened one after the other."""
    assert values.size, "median needs a value"
    value = float(stats.medians(values))
    note = _why_no_interval(layout, values.size, bool(np.all(values == values[0])), what)
    if note:
        return Summary(value, None, None, values.size, note)
    ends = stats.around(value, resampled_medians(values, layout))
    return Summary(value, *ends, values.size, _small(layout, what))


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
