"""Simulated runs of two codes in turns, with every nuisance that a shared machine has, and analyses that ignore them.

A run is 2 n measurements in a row, two to a block. What disturbs a measurement depends on when it runs, never on which
code it is: drift and random walk of the machine, a warm-up that dies out, a cost of the second place in a block, noise
of several shapes, a slow mode. Letters: R runs, n blocks, T = 2 n measurements. Values are made up times in ms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.stats

from ddbench.analysis.effects import Pair

LEVEL_MS = 10.0
NOISE: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy": lambda rng, shape: rng.standard_t(2, shape) / 2,
    "skewed": lambda rng, shape: rng.lognormal(size=shape) / 2,
}


@dataclass(frozen=True)
class World:
    """Sizes are log-ratios, of one measurement where not said otherwise."""

    effect: float = 0.0  # of code b
    noise: float = 0.02
    tails: Literal["normal", "heavy", "skewed"] = "normal"
    drift: float = 0.0  # from the first to the last measurement
    walk: float = 0.0  # step of a random walk
    ramp: float = 0.0  # of the first measurement; dies out over two
    slot: float = 0.0  # of the second place in a block
    slow: float = 0.0  # of the slow mode, in which 15 % of measurements are
    order: Literal["turns", "drawn", "fixed", "sequential"] = "turns"


HARD = World(drift=0.05, walk=0.005, ramp=0.1, slot=0.03)


@dataclass(frozen=True)
class Runs:
    """Times in ms [R, n] and whether a ran first [R, n]."""

    a: np.ndarray
    b: np.ndarray
    is_a_first: np.ndarray

    def pairs(self, run: int) -> tuple[Pair, ...]:
        rows = zip(self.a[run].tolist(), self.b[run].tolist(), self.is_a_first[run].tolist(), strict=True)
        return tuple(Pair(block, a, b, first) for block, (a, b, first) in enumerate(rows))

    def all_pairs(self) -> list[tuple[Pair, ...]]:
        return [self.pairs(run) for run in range(len(self.a))]


def simulate(world: World, num_runs: int, num_blocks: int, seed: int) -> Runs:
    rng = np.random.default_rng(seed)
    times = _disturbances(world, rng, num_runs, num_blocks)
    if world.order == "sequential":  # all of a, then all of b
        a, b = times[:, :num_blocks], times[:, num_blocks:]
        is_a_first = np.ones(a.shape, dtype=bool)
    else:
        is_a_first = _orders(world, rng, num_runs, num_blocks)
        first, second = times[:, 0::2], times[:, 1::2] + world.slot
        a, b = np.where(is_a_first, first, second), np.where(is_a_first, second, first)
    return Runs(LEVEL_MS * np.exp(a), LEVEL_MS * np.exp(b + world.effect), is_a_first)


def _disturbances(world: World, rng: np.random.Generator, num_runs: int, num_blocks: int) -> np.ndarray:
    """Log-times of the measurements in the order in which they run: [R, T]."""
    shape = (num_runs, 2 * num_blocks)
    place = np.arange(shape[1])
    shared = world.drift * place / shape[1] + world.ramp * np.exp(-place / 2)
    walk = np.cumsum(rng.normal(size=shape), axis=1)
    is_slow = rng.random(shape) < 0.15
    return shared + world.walk * walk + world.noise * NOISE[world.tails](rng, shape) + world.slow * is_slow


def _orders(world: World, rng: np.random.Generator, num_runs: int, num_blocks: int) -> np.ndarray:
    """Whether a runs first: turns a-b b-a a-b ..., three in ten the other way round in a drawn order, or always."""
    if world.order == "fixed":
        return np.ones((num_runs, num_blocks), dtype=bool)
    own = np.arange(num_blocks) % 2 == 0 if world.order == "turns" else np.arange(num_blocks) >= 0.3 * num_blocks
    orders = np.tile(own, (num_runs, 1))
    return rng.permuted(orders, axis=1) if world.order == "drawn" else orders


def alarms_of_pairs(runs: Runs, alpha: float = 0.05) -> float:
    """Share of runs in which a paired t-test of the log-ratios, blind to the order, finds a difference."""
    return _share(scipy.stats.ttest_1samp(np.log(runs.b / runs.a), 0.0, axis=1).pvalue <= alpha)


def alarms_without_pairing(runs: Runs, alpha: float = 0.05) -> float:
    """The same for Welch's t-test of all of a against all of b."""
    return _share(scipy.stats.ttest_ind(runs.a, runs.b, axis=1, equal_var=False).pvalue <= alpha)


def alarms_of_medians(runs: Runs, min_effect: float = 0.02) -> float:
    """The same for a gate that has no test: medians further apart than the minimum effect."""
    return _share(np.abs(np.log(np.median(runs.b, axis=1) / np.median(runs.a, axis=1))) >= min_effect)


def _share(hits: np.ndarray) -> float:
    return float(np.mean(hits))
