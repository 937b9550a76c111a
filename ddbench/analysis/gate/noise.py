"""The noise floor: how far apart two measurements of the same code may lie. From interleaved repeats, in log-ratios.

Under `baseline`, which stores a floor with every value that a gate may hold. A floor is an upper bound, so that few
repeats give a high one: each part is the mean of a null effect plus Student's t times its standard error, and the floor
is the largest part. Quantiles of resampled halves would be smaller the fewer repeats there are, which is the wrong way
round. Letters: n blocks of a run, R runs.
Where many values were measured together a few times each (`shared_floors`), they tell of each other's noise too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import digamma, fdtri, polygamma, stdtrit

from ddbench.analysis.effects import FEWEST_BLOCKS
from ddbench.records import NotMeasured
from ddbench.spec import Record

TRIPWIRE = 0.25  # relative: above such a floor only a gross slowdown would be seen
_CONFIDENCE = 0.95
FEWEST_REPEATS = 3  # of values that share their noise
_LEAST_NOISE = 5e-4  # of a log: what the clocks of a device resolve in a sample; below, a spread is chance
_FEWEST_VALUES = 8  # from which on one value says something about the noise of another
_LIKELY = 0.95  # a spread above this quantile of the shared noise is a value's own


class Floor(Record):
    """Relative differences that repeats of one code showed, as bounds: 0.03 is 3 %."""

    even_odd: float  # neighbouring repeats
    halves: float  # the first half of a run against its second: drift
    runs: float | NotMeasured  # a new run against the ones that the floor is from
    num_blocks: int  # of the shortest run
    num_runs: int

    @property
    def value(self) -> float:
        """For a run of its own; without a second run, what differs between runs is not in it."""
        within = max(self.even_odd, self.halves)
        return within if isinstance(self.runs, NotMeasured) else max(within, self.runs)


def noise_floor(runs: Sequence[Sequence[float]]) -> Floor | NotMeasured:
    """The floor of one value (positive) that was measured in every repeat of R runs of one code, in order."""
    shortest = min((len(values) for values in runs), default=0)
    if shortest < FEWEST_BLOCKS:
        return NotMeasured(not_measured=f"{shortest} repeats, a noise floor takes at least {FEWEST_BLOCKS}")
    if any(not (math.isfinite(value) and value > 0) for values in runs for value in values):
        return NotMeasured(not_measured="a repeat's value is not positive: there is no ratio to it")
    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in runs]
    return Floor(
        even_odd=max(_even_odd(own) for own in logs),
        halves=max(_halves(own) for own in logs),
        runs=_between([float(own.mean()) for own in logs]),
        num_blocks=shortest,
        num_runs=len(runs),
    )


def _even_odd(logs: np.ndarray) -> float:
    """Repeats 0 and 1, 2 and 3, ... as if they were two codes."""
    count = len(logs) // 2
    differences = logs[1 : 2 * count : 2] - logs[0 : 2 * count : 2]  # [n / 2]
    return _bound(float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count), count - 1)


def _halves(logs: np.ndarray) -> float:
    """The first n / 2 repeats and the last n / 2 as if they were two codes."""
    count = len(logs) // 2
    first, last = logs[:count], logs[-count:]
    error = math.sqrt((float(first.var(ddof=1)) + float(last.var(ddof=1))) / count)
    return _bound(float(last.mean() - first.mean()), error, 2 * count - 2)


def _between(means: Sequence[float]) -> float | NotMeasured:
    """How far a new run may lie from the mean of R: a prediction bound, wide as long as there are two or three."""
    if len(means) < 2:
        return NotMeasured(not_measured="one run: what differs between runs of the same code was not measured")
    return round(math.expm1(prediction(means, _CONFIDENCE)), 9)


def _bound(effect: float, error: float, freedom: int) -> float:
    """Log-ratios to a relative difference."""
    return round(math.expm1(abs(effect) + float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * error), 9)


# ------------------------------------------------------------------------------------------------------ many values


def shared_floors(values: Sequence[Sequence[float]], alarm: float) -> list[float]:
    """Relative bounds for one new repeat against the geometric mean of the n old ones, one bound for every value.

    Of all values together one exceeds its bound in a share `alarm` of new repeats of the same code (Bonferroni). From n
    repeats alone such bounds are wide (13 standard errors for 150 values and n = 5), so spreads are drawn towards each
    other as far as they are alike: moderated t, Smyth 2004. Values that are noisier than the rest keep their own
    spread. All values must have the same n >= `FEWEST_REPEATS`, and be positive.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))  # [values, n]
    count, num_repeats = logs.shape
    assert num_repeats >= FEWEST_REPEATS, num_repeats
    freedom = num_repeats - 1
    own = np.maximum(logs.var(axis=1, ddof=1), _LEAST_NOISE**2)
    variance, total = own, np.full(count, float(freedom))
    if count >= _FEWEST_VALUES:
        shared, weight = _shared_variance(own, freedom)
        is_like = own <= shared * fdtri(freedom, weight, _LIKELY)
        variance = np.where(is_like, (weight * shared + freedom * own) / (weight + freedom), own)
        total = np.where(is_like, weight + freedom, freedom)
    bounds = stdtrit(total, 1 - alarm / count) * np.sqrt(variance * (1 + 1 / num_repeats))
    return [round(float(bound), 9) for bound in np.expm1(bounds)]


def prediction(values: Sequence[float], confidence: float) -> float:
    """How far a new value may lie from the mean of n (two-sided)."""
    count = len(values)
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return float(stdtrit(count - 1, (1 + confidence) / 2)) * spread


def _shared_variance(own: np.ndarray, freedom: int) -> tuple[float, float]:
    """The variance that values share, and how many degrees of freedom it is worth: by the spread of log variances.

    It never weighs more than a value's own: that many values are alike does not make the others so.
    """
    logs = np.log(own) - digamma(freedom / 2) + math.log(freedom / 2)
    excess = float(logs.var(ddof=1)) - float(polygamma(1, freedom / 2))
    weight = float(freedom) if excess <= 0 else min(2 * _inverse_trigamma(excess), float(freedom))
    return float(np.exp(logs.mean() + digamma(weight / 2) - math.log(weight / 2))), weight


def _inverse_trigamma(value: float) -> float:
    """Newton's steps on 1 / trigamma, which is convex and nearly linear (Smyth 2004, appendix)."""
    found = 0.5 + 1 / value
    for _ in range(50):
        at = float(polygamma(1, found))
        step = at * (1 - at / value) / float(polygamma(2, found))
        found += step
        if abs(step) < 1e-8 * found:
            break
    return found
