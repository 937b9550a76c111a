"""Point values with their intervals: a seeded bootstrap over units (prompts), vectorised and deterministic.

A unit is resampled whole: rounds of one prompt are not independent, and treating them as such gives intervals that are
far too narrow. Letters: R resamples, U units, G grid points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
NUM_RESAMPLES = 1000
FEWEST_UNITS = 3  # below: no interval at all
FEW_UNITS = 8  # below: the interval is shown, and said to be too narrow
_SEED = 20_250_101
_MAX_GRID = 256


@dataclass(frozen=True, slots=True)
class Summary:
    """A value, its interval where there is one, the number of units, and what is to be said about it."""

    value: float
    low: float | None
    high: float | None
    n: int
    note: str = ""


@lru_cache(maxsize=16)
def resample_counts(num_units: int, num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """How often each unit is drawn in each resample: [R, U], read-only; the same for the same arguments."""
    draws = np.random.default_rng((_SEED, num_units)).integers(0, num_units, (num_resamples, num_units))
    flat = draws + num_units * np.arange(num_resamples)[:, None]
    counts = np.bincount(flat.ravel(), minlength=num_resamples * num_units)
    table = counts.reshape(num_resamples, num_units).astype(np.float64)
    table.flags.writeable = False
    return table


def ratio_of_sums(numerators: Sequence[float] | np.ndarray, denominators: Sequence[float] | np.ndarray) -> Summary:
    """Pooled ratio sum(numerators) / sum(denominators), one entry per unit, with a BCa interval.

    Units whose denominator is 0 say nothing about the ratio and are left out. Needs a positive total denominator.
    """
    num, den = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    keep = den > 0
    num, den = num[keep], den[keep]
    assert den.size, "ratio_of_sums needs a unit with a positive denominator"
    value = float(num.sum() / den.sum())
    note = _why_no_interval(num / den)
    if note:
        return Summary(value, None, None, int(den.size), note)
    counts = resample_counts(den.size)
    resampled = (counts @ num) / (counts @ den)  # [R]
    jackknife = (num.sum() - num) / (den.sum() - den)  # [U]
    low, high = _bca(value, resampled, jackknife)
    return Summary(value, low, high, int(den.size), _small(den.size))


def mean(values: Sequence[float] | np.ndarray) -> Summary:
    """Mean of one value per unit."""
    return ratio_of_sums(values, np.ones(len(values)))


def median(values: Sequence[float] | np.ndarray, units: Sequence[int] | np.ndarray | None = None) -> Summary:
    """Median of `values` with a percentile interval; `units[i]` is the unit that value i is resampled with.

    Percentile and not BCa: the jackknife that BCa leans on is not valid for a median.
    """
    data = np.asarray(values, dtype=np.float64)
    assert data.size, "median needs a value"
    codes = np.arange(data.size) if units is None else np.unique(np.asarray(units), return_inverse=True)[1]
    num_units = int(codes.max()) + 1
    value = float(np.median(data))
    note = _why_no_interval(data, num_units)
    if note:
        return Summary(value, None, None, num_units, note)
    low, high = _percentiles(_resampled_medians(data, codes, resample_counts(num_units)))
    return Summary(value, min(low, value), max(high, value), num_units, _small(num_units))


def paired_ratio_of_medians(
    numerators: Sequence[float] | np.ndarray, denominators: Sequence[float] | np.ndarray
) -> Summary:
    """median(numerators) / median(denominators), entry i of both being one unit; both are resampled together."""
    num, den = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    assert num.size == den.size > 0, "paired values must be as many on both sides"
    value = float(np.median(num) / np.median(den))
    note = _why_no_interval(num / den)
    if note:
        return Summary(value, None, None, int(num.size), note)
    counts, codes = resample_counts(num.size), np.arange(num.size)
    low, high = _percentiles(_resampled_medians(num, codes, counts) / _resampled_medians(den, codes, counts))
    return Summary(value, min(low, value), max(high, value), int(num.size), _small(num.size))


def _why_no_interval(values: np.ndarray, num_units: int | None = None) -> str:
    count = values.size if num_units is None else num_units
    if count < FEWEST_UNITS:
        return f"n={count}: too few for an interval"
    if np.all(values == values[0]):
        return f"all {values.size} values are equal: no spread to make an interval from"
    return ""


def _small(num_units: int) -> str:
    return f"n={num_units}: an interval from so few is too narrow" if num_units < FEW_UNITS else ""


def _percentiles(resampled: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _bca(value: float, resampled: np.ndarray, jackknife: np.ndarray) -> tuple[float, float]:
    """Bias-corrected and accelerated quantiles (Efron 1987)."""
    normal = NormalDist()
    below = (np.sum(resampled < value) + 0.5 * np.sum(resampled == value)) / resampled.size
    bias = normal.inv_cdf(float(np.clip(below, 1 / (resampled.size + 1), resampled.size / (resampled.size + 1))))
    centred = jackknife.mean() - jackknife
    spread = float(np.sum(centred**2))
    acceleration = float(np.sum(centred**3)) / (6 * spread**1.5) if spread > 0 else 0.0
    levels = []
    for tail in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2):
        z = bias + normal.inv_cdf(tail)
        levels.append(normal.cdf(bias + z / (1 - acceleration * z)))
    low, high = np.quantile(resampled, levels)
    return float(low), float(high)


def _resampled_medians(values: np.ndarray, codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Median of every resample of units: [R].

    Each unit is reduced to how many of its values lie at or below each grid point, so a resample is a matrix product
    and memory does not grow with the number of values. Up to `_MAX_GRID` distinct values the grid is exact; beyond, it
    is that many quantiles.
    """
    grid = np.unique(values)  # [G], sorted
    if grid.size > _MAX_GRID:
        grid = np.unique(np.quantile(values, np.linspace(0, 1, _MAX_GRID), method="inverted_cdf"))
    cell = np.searchsorted(grid, values)
    num_units = counts.shape[1]
    per_unit = np.bincount(codes * grid.size + cell, minlength=num_units * grid.size).reshape(num_units, grid.size)
    at_most = counts @ np.cumsum(per_unit, axis=1, dtype=np.float64)  # [R, G] values <= grid point
    total = at_most[:, -1:]
    lower = np.sum(at_most < np.floor((total + 1) / 2), axis=1)
    upper = np.sum(at_most < np.floor(total / 2) + 1, axis=1)
    return (grid[lower] + grid[upper]) / 2
