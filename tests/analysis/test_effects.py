"""Paired effects: the slot effect cancels, one odd block does not matter, the rates are what they claim to be."""

import itertools
import math
import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.effects import FEWEST_BLOCKS, Effect, Pair, effect_of, halves
from ddbench.records import NotMeasured

sim = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("simulate_pairs.py"))))
ALPHA = 0.05
NUM_RUNS = 2000

order_lists = st.lists(st.booleans(), min_size=6, max_size=12).filter(lambda orders: len(set(orders)) == 2)


def effect(pairs: Sequence[Pair]) -> Effect:
    found = effect_of(pairs)
    assert isinstance(found, Effect)
    return found


def is_at_most(rate: float, count: int) -> bool:
    """Whether `count` of all runs leaves the claim standing; a true rate of 7 % would not."""
    return bool(scipy.stats.binomtest(count, NUM_RUNS, rate, alternative="greater").pvalue > 0.001)


def made(ratios: Sequence[float], orders: Sequence[bool | None], slot: float = 1.0) -> tuple[Pair, ...]:
    """b over a as given; the one that runs second takes `slot` times as long."""
    rows = enumerate(zip(ratios, orders, strict=True))
    return tuple(
        Pair(block, 10.0 * (slot if first is False else 1), 10.0 * ratio * (slot if first else 1), first)
        for block, (ratio, first) in rows
    )


def noisy(count: int, seed: int = 0, size: float = 0.02) -> list[float]:
    return np.exp(np.random.default_rng(seed).normal(0, size, count)).tolist()


def swapped(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    return tuple(
        Pair(pair.block, pair.b, pair.a, None if pair.is_a_first is None else not pair.is_a_first) for pair in pairs
    )


@pytest.mark.parametrize("order", ["turns", "drawn"])
@pytest.mark.parametrize("num_blocks", [6, 10])
def test_codes_that_do_not_differ_are_told_apart_at_most_as_often_as_said(order: str, num_blocks: int) -> None:
    """H43: the test alone, before any minimum effect, under drift, random walk, warm-up and slot effect."""
    runs = sim.simulate(replace(sim.HARD, order=order), NUM_RUNS, num_blocks, seed=43)
    p_values = [effect(pairs).p_value for pairs in runs.all_pairs()]
    assert is_at_most(ALPHA, sum(p_value <= ALPHA for p_value in p_values))
    assert not is_at_most(ALPHA, round(0.07 * NUM_RUNS))


@pytest.mark.parametrize("world", [{"tails": "heavy"}, {"tails": "skewed"}, {"slow": 0.2}, {"walk": 0.02}], ids=str)
def test_odd_noise_does_not_raise_the_rate(world: dict) -> None:
    runs = sim.simulate(sim.World(**world), NUM_RUNS, 10, seed=42)
    assert is_at_most(ALPHA, sum(effect(pairs).p_value <= ALPHA for pairs in runs.all_pairs()))


@pytest.mark.parametrize(
    ("alarms", "order"),
    [
        (sim.alarms_of_pairs, "fixed"),
        (sim.alarms_of_pairs, "drawn"),
        (sim.alarms_without_pairing, "sequential"),
        (sim.alarms_of_medians, "turns"),
    ],
)
def test_the_simulated_machine_fools_an_analysis_that_ignores_it(alarms: sim.World, order: str) -> None:
    """Positive control: what the rates above are worth."""
    assert alarms(sim.simulate(replace(sim.HARD, order=order), 4000, 10, seed=43)) > 1.2 * ALPHA


@given(order_lists, st.floats(0.9, 1.1), st.integers(0, 1000))
def test_a_slot_effect_cancels_and_does_not_widen_anything(orders: list[bool], slot: float, seed: int) -> None:
    """H44, whether or not the orders are balanced."""
    ratios = noisy(len(orders), seed)
    plain, shifted = effect(made(ratios, orders)), effect(made(ratios, orders, slot))
    assert shifted.slot_ratio == pytest.approx(slot * plain.slot_ratio)
    for name in ("ratio", "low", "high", "spread", "p_value"):
        assert getattr(shifted, name) == pytest.approx(getattr(plain, name), rel=1e-6), name


def test_a_slot_effect_that_is_left_in_biases_and_widens() -> None:
    """Positive control of the one above: the same pairs with the orders withheld."""
    orders = [True] * 7 + [False] * 3
    pairs = made(noisy(10), orders, slot=1.1)
    blind = effect([replace(pair, is_a_first=None) for pair in pairs])
    assert blind.slot_ratio is None
    assert "unknown" in blind.note
    assert blind.spread > 1.5 * effect(pairs).spread
    assert abs(math.log(blind.ratio / effect(pairs).ratio)) > 0.02


@given(order_lists, st.integers(0, 1000))
def test_exchanging_the_sides_inverts_the_ratio(orders: list[bool], seed: int) -> None:
    pairs = made(noisy(len(orders), seed), orders, slot=1.03)
    one, other = effect(pairs), effect(swapped(pairs))
    assert other.ratio == pytest.approx(1 / one.ratio)
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))
    assert (other.p_value, other.spread) == pytest.approx((one.p_value, one.spread))
    assert other.slot_ratio == pytest.approx(one.slot_ratio)
    assert halves(swapped(pairs)) == pytest.approx([-half for half in halves(pairs)])


@given(order_lists, st.randoms(use_true_random=False))
def test_the_order_of_blocks_does_not_matter(orders: list[bool], rng: random.Random) -> None:
    """Neither that in which pairs are given nor which block had which pair."""
    pairs = list(made(noisy(len(orders)), orders))
    expected = effect(pairs)
    mixed = list(pairs)
    rng.shuffle(mixed)
    assert effect(mixed) == expected
    assert halves(mixed) == halves(pairs)
    renumbered = effect([replace(pair, block=block) for block, pair in enumerate(mixed)])
    assert renumbered.ratio == pytest.approx(expected.ratio)
    assert renumbered.p_value == pytest.approx(expected.p_value)


def test_one_odd_block_does_not_drag_the_ratio() -> None:
    orders = [True, False] * 5
    ratios = [1.05 * ratio for ratio in noisy(10, size=0.01)]
    spoilt = made([*ratios[:3], 8.0, *ratios[4:]], orders)
    assert effect(spoilt).ratio == pytest.approx(1.05, rel=0.015)
    assert effect(spoilt).spread > 0.5  # it is not hidden either
    assert scipy.stats.gmean([pair.b / pair.a for pair in spoilt]) > 1.2  # a mean is dragged


def test_the_ratio_is_the_median_of_pairwise_means() -> None:
    """By brute force, and the interval by the textbook's least squares, orders unbalanced and one unknown."""
    orders = [True, True, False, True, None, False, True, True]
    pairs = made(noisy(8), orders, slot=1.04)
    signs = np.array([0 if first is None else 1 if first else -1 for first in orders])
    logs = [math.log(pair.b / pair.a) for pair in pairs]
    ahead, behind = ([log for log, sign in zip(logs, signs, strict=True) if sign == side] for side in (1, -1))
    slot = np.median([one - other for one, other in itertools.product(ahead, behind)]) / 2
    rest = np.array(logs) - slot * signs
    centre = np.median([(x + y) / 2 for x, y in itertools.combinations_with_replacement(rest, 2)])
    design = np.stack([np.ones(8), signs], axis=1)
    spread = math.sqrt(sum((rest - centre) ** 2) / 6)
    error = spread * math.sqrt(np.linalg.inv(design.T @ design)[0, 0]) * math.sqrt(math.pi / 3)
    half = scipy.stats.t(6).ppf(0.975) * error
    found = effect(pairs)
    assert found.spread == pytest.approx(spread)
    assert found.slot_ratio == pytest.approx(math.exp(slot))
    expected = [math.exp(value) for value in (centre, centre - half, centre + half)]
    assert [found.ratio, found.low, found.high] == pytest.approx(expected)
    assert found.p_value == pytest.approx(2 * scipy.stats.t(6).sf(abs(centre) / error))


@pytest.mark.parametrize("num_blocks", [6, 10])
def test_intervals_cover_the_truth_at_least_as_often_as_they_claim(num_blocks: int) -> None:
    truth = 1.05
    runs = sim.simulate(replace(sim.HARD, effect=math.log(truth)), NUM_RUNS, num_blocks, seed=5)
    found = [effect(pairs) for pairs in runs.all_pairs()]
    assert is_at_most(0.05, sum(not one.low <= truth <= one.high for one in found))
    halved = [(one.ratio * one.low) ** 0.5 <= truth <= (one.ratio * one.high) ** 0.5 for one in found]
    assert sum(halved) < 0.9 * NUM_RUNS  # control: intervals of half the width do not


def test_an_interval_excludes_no_difference_exactly_when_it_is_significant() -> None:
    world = replace(sim.HARD, effect=0.02)
    found = [effect(pairs) for pairs in sim.simulate(world, 200, 10, seed=1).all_pairs()]
    significant = [one.p_value <= ALPHA for one in found]
    assert significant == [not one.low <= 1 <= one.high for one in found]
    assert 20 < sum(significant) < 180


@pytest.mark.parametrize("count", range(1, FEWEST_BLOCKS + 1))
def test_few_blocks_have_no_p_value(count: int) -> None:
    """H42: below 6 blocks two-sided signs cannot reach 5 %, whatever the values."""
    found = effect(made([1.5 * ratio for ratio in noisy(count)], [True, False, True, False, True, False][:count]))
    assert (found.p_value is None) == (2 / 2**count > ALPHA) == ("fewer than 6" in found.note)
    assert (found.spread is None) == (found.low is None) == (count == 1)
    assert found.ratio == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("ratio", [1.0, 1.1])
def test_values_without_spread_have_no_interval(ratio: float) -> None:
    """H42: an interval of width zero would be made up."""
    found = effect(made([ratio] * 8, [True, False] * 4))
    assert (found.low, found.high, found.p_value) == (None, None, None)
    assert found.ratio == pytest.approx(ratio)
    assert found.spread == pytest.approx(0, abs=1e-12)
    assert "no spread" in found.note


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_value_that_has_no_logarithm_makes_the_effect_not_measured(bad: float, side: str) -> None:
    """H42, H57: 0 for "not measured" is not averaged in, and does not turn into NaN."""
    pairs = [*made(noisy(8), [True, False] * 4), replace(Pair(8, 1.0, 1.0, True), **{side: bad})]
    found = effect_of(pairs)
    assert isinstance(found, NotMeasured)
    assert "block 8" in found.not_measured


def test_nothing_is_not_measured() -> None:
    assert isinstance(effect_of([]), NotMeasured)


@given(
    st.lists(st.tuples(st.floats(5e-324, 1.7e308), st.floats(5e-324, 1.7e308), st.none() | st.booleans()), max_size=8)
)
def test_no_input_gives_anything_but_numbers(rows: list[tuple[float, float, bool | None]]) -> None:
    found = effect_of([Pair(block, *row) for block, row in enumerate(rows)])
    if isinstance(found, Effect):
        values = (found.ratio, found.low, found.high, found.p_value, found.slot_ratio, found.spread)
        assert all(math.isfinite(value) for value in values if value is not None)
    else:
        assert found.not_measured


def test_halves_are_the_earlier_and_the_later_blocks_and_both_hold_both_orders() -> None:
    orders = [True, False, False, True, True, False]
    early, late = halves(made([1.0, 1.0, 1.0, 1.2, 1.2, 1.2], orders, slot=1.0))
    assert (early, late) == pytest.approx((0.0, math.log(1.2)), abs=1e-9)
