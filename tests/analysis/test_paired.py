"""Verdicts over paired cells: nominal false alarms, nearly every true change seen, and no verdict where none is due."""

import math
import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ddbench.analysis.effects import Effect, Pair
from ddbench.analysis.paired import Cell, Decision, Limits, decide
from ddbench.records import NotMeasured

sim = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("simulate_pairs.py"))))
ALPHA = 0.05
NUM_RUNS = 1000
LIMITS = Limits(min_effect=0.02)
CHANGED = {"faster", "slower"}
# Log-ratios of blocks: mean 0, standard deviation 1 %, and as good as equal in both halves and both orders.
SCATTER = 0.01 * np.array([1.0, -1.0, -1.0, 1.0, 0.6, -0.6, -1.4, 1.4, -0.3, 0.3])


def made(ratio: float = 1.0, scatter: Sequence[float] | np.ndarray = SCATTER, level: float = 10.0) -> tuple[Pair, ...]:
    """b over a is `ratio` up to the scatter, orders in turns."""
    return tuple(
        Pair(block, level, level * ratio * math.exp(shift), block % 2 == 0) for block, shift in enumerate(scatter)
    )


def cell(pairs: Sequence[Pair], limits: Limits = LIMITS, direction: str = "lower", key: object = 0) -> Cell:
    return Cell(key, tuple(pairs), direction, limits)


def one(pairs: Sequence[Pair], limits: Limits = LIMITS, direction: str = "lower") -> Decision:
    (found,) = decide([cell(pairs, limits, direction)])
    return found


def alone(runs: SimpleNamespace, direction: str = "lower") -> list[Decision]:
    """Each run as a call of its own."""
    return [one(pairs, direction=direction) for pairs in runs.all_pairs()]


def count(decisions: Sequence[Decision], *verdicts: str) -> int:
    return sum(decision.verdict in verdicts for decision in decisions)


# ------------------------------------------------------------------------------------------------------------- rates


@pytest.mark.parametrize("order", ["turns", "drawn"])
@pytest.mark.parametrize("num_blocks", [6, 10])
def test_false_alarms_are_at_most_nominal(order: str, num_blocks: int) -> None:
    """H43: 1,000 A/A runs with drift, random walk, warm-up ramp and slot effect."""
    runs = sim.simulate(replace(sim.HARD, order=order), NUM_RUNS, num_blocks, seed=43)
    assert count(alone(runs), *CHANGED) <= ALPHA * NUM_RUNS


@pytest.mark.parametrize(
    ("alarms", "order"), [(sim.alarms_of_pairs, "fixed"), (sim.alarms_of_medians, "turns")], ids=["slot", "floor only"]
)
def test_the_same_runs_raise_alarms_without_the_rules(alarms: Callable[[SimpleNamespace], float], order: str) -> None:
    """Positive control of H43: blind to the slot effect; without a test."""
    assert alarms(sim.simulate(replace(sim.HARD, order=order), NUM_RUNS, 10, seed=43)) > 2 * ALPHA


@pytest.mark.parametrize("noise", [0.02, 0.02 / math.sqrt(2)], ids=["per measurement", "per ratio"])
@pytest.mark.parametrize(("ratio", "verdict"), [(1.05, "slower"), (1 / 1.05, "faster")])
def test_a_change_of_five_percent_is_seen(noise: float, ratio: float, verdict: str) -> None:
    """2 % noise, 10 blocks: at least 95 % of runs, and never the wrong way round."""
    decisions = alone(sim.simulate(sim.World(effect=math.log(ratio), noise=noise), NUM_RUNS, 10, seed=95))
    assert count(decisions, verdict) >= 0.95 * NUM_RUNS
    assert count(decisions, *(CHANGED - {verdict})) == 0


def test_a_change_is_seen_through_every_nuisance_at_once() -> None:
    decisions = alone(sim.simulate(replace(sim.HARD, effect=math.log(1.05)), NUM_RUNS, 10, seed=96))
    assert count(decisions, "slower") >= 0.95 * NUM_RUNS


def sweep(num_changed: int, seed: int) -> list[Decision]:
    """200 settings x 6 metrics of one call, the first cells 15 % slower."""
    world = replace(sim.HARD, noise=0.015)
    same = sim.simulate(world, 1200, 10, seed).all_pairs()
    slower = sim.simulate(replace(world, effect=math.log(1.15)), 1200, 10, seed).all_pairs()
    pairs = slower[:num_changed] + same[num_changed:]
    return list(decide([cell(own, key=index) for index, own in enumerate(pairs)]))


def test_a_sweep_without_a_change_raises_at_most_nominal_alarms() -> None:
    """H48: alpha is for the call, so at most one call in twenty may raise any."""
    calls = [sweep(0, seed) for seed in range(5)]
    assert sum(count(decisions, *CHANGED) > 0 for decisions in calls) == 0
    uncorrected = [count([one(pairs) for pairs in sim.simulate(sim.HARD, 1200, 10, 0).all_pairs()], *CHANGED)]
    assert sum(uncorrected) > 1  # control: cell by cell the same sweep does raise alarms


def test_a_sweep_shows_its_changes_and_few_others() -> None:
    decisions = sweep(60, seed=7)
    assert count(decisions[:60], "slower") >= 57
    assert count(decisions[60:], *CHANGED) <= ALPHA * 60
    assert [decision.key for decision in decisions] == list(range(1200))


# ---------------------------------------------------------------------------------------------------------- verdicts


def test_larger_is_worse_or_better_as_the_metric_says() -> None:
    """H49: the same pairs under both directions, in one call."""
    up, down = made(1.1), made(1 / 1.1)
    decisions = decide(
        [cell(up, key="ms"), cell(up, direction="higher", key="tok/s"), cell(down), cell(down, direction="higher")]
    )
    assert [decision.verdict for decision in decisions] == ["slower", "faster", "faster", "slower"]
    assert all(decision.reasons == () for decision in decisions)


@pytest.mark.parametrize("world", [sim.HARD, replace(sim.HARD, effect=0.04)], ids=["same code", "changed"])
def test_exchanging_the_sides_flips_the_verdict(world: SimpleNamespace) -> None:
    flipped = {"faster": "slower", "slower": "faster"}
    limits = Limits(min_effect=0.02, absolute_floor=0.35, noise_floor=0.03)
    for pairs in sim.simulate(world, 200, 10, seed=3).all_pairs():
        back = [Pair(pair.block, pair.b, pair.a, not pair.is_a_first) for pair in pairs]
        forth, other = one(pairs, limits), one(back, limits)
        assert other.verdict == flipped.get(forth.verdict, forth.verdict)
        assert other.reasons == forth.reasons


def test_the_order_in_which_pairs_and_cells_are_given_does_not_matter() -> None:
    cells = [cell(pairs, key=index) for index, pairs in enumerate(sim.simulate(sim.HARD, 40, 10, 1).all_pairs())]
    mixed = [replace(own, pairs=own.pairs[::-1]) for own in reversed(cells)]
    assert decide(cells) == tuple(reversed(decide(mixed)))


def test_no_effect_and_cannot_tell_are_different() -> None:
    """A narrow interval around none is `same`; a wide one is not, however close to none its middle is."""
    narrow, wide = one(made(1.001, SCATTER)), one(made(1.001, 5 * SCATTER))
    assert (narrow.verdict, narrow.reasons) == ("same", ())
    assert (wide.verdict, wide.reasons) == ("undecided", ("interval_spans_both",))


@pytest.mark.parametrize(
    ("limits", "ratio", "code"),
    [
        (Limits(min_effect=0.05), 1.045, "below_min_effect"),
        (Limits(min_effect=0.02, noise_floor=0.05), 1.045, "below_noise_floor"),
        (Limits(min_effect=0.02, absolute_floor=0.5), 1.045, "below_absolute_floor"),
    ],
)
def test_a_difference_below_a_limit_is_none_of_both(limits: Limits, ratio: float, code: str) -> None:
    """Significant, but too small; its interval reaches past the limit, so it is not `same` either."""
    below, above = one(made(ratio), limits), one(made(1.06), limits)
    assert (below.verdict, below.reasons) == ("undecided", (code,))
    assert below.q_value < ALPHA
    assert (above.verdict, above.reasons) == ("slower", ())


def test_an_interval_inside_a_limit_is_the_same_and_says_by_which() -> None:
    pairs = made(1.03, 0.2 * SCATTER)
    assert one(pairs).verdict == "slower"
    assert one(pairs, Limits(min_effect=0.04)).reasons == ()
    for limits, code in (
        (Limits(min_effect=0.02, noise_floor=0.04), "below_noise_floor"),
        (Limits(min_effect=0.02, absolute_floor=0.4), "below_absolute_floor"),
    ):
        found = one(pairs, limits)
        assert (found.verdict, found.reasons) == ("same", (code,))


def test_the_absolute_floor_is_in_the_unit_of_the_metric() -> None:
    """5 % of 10 ms are 0.5 ms, of 0.1 ms they are not."""
    limits = Limits(min_effect=0.02, absolute_floor=0.4)
    assert one(made(1.05, level=10.0), limits).verdict == "slower"
    assert one(made(1.05, level=0.1), limits).verdict == "same"


def test_a_difference_that_only_the_correction_takes_away_says_so() -> None:
    pairs = made(1.03, 2.5 * SCATTER)
    others = [cell(made(1.0, 2.5 * SCATTER), key=index) for index in range(1, 50)]
    assert one(pairs).verdict == "slower"
    among, *_ = decide([cell(pairs), *others])
    assert (among.verdict, among.reasons) == ("undecided", ("not_significant_after_fdr",))
    assert among.q_value > ALPHA > among.effect.p_value


# ------------------------------------------------------------------------------------------------------ confirmation


def test_a_difference_that_did_not_last_is_not_confirmed() -> None:
    fading = made(1.0, np.array([0.12, 0.11, 0.13, 0.12, 0.11, 0.09, 0.01, 0.0, 0.01, 0.0]))
    lasting = made(1.0, np.array([0.12, 0.11, 0.13, 0.12, 0.11, 0.09, 0.08, 0.08, 0.09, 0.08]))
    assert one(fading).q_value < ALPHA
    assert (one(fading).verdict, one(fading).reasons) == ("undecided", ("not_confirmed",))
    assert one(lasting).verdict == "slower"


@pytest.mark.parametrize(
    ("second", "is_confirmed"),
    [
        (made(1.06), True),
        (made(1.06, [0.0] * 6), True),  # without any spread
        (made(1.06)[:5], False),  # too few blocks
        (made(1.0), False),
        (made(1.005, 0.1 * SCATTER), False),  # significant, less than half of the minimum
        (made(1.06, 10 * SCATTER), False),  # not significant
        (made(1 / 1.06), False),  # the other way
        (tuple(replace(pair, is_a_first=True) for pair in made(1.06)), False),
        ((), False),
    ],
)
def test_a_second_run_confirms_only_what_it_shows_itself(second: tuple[Pair, ...], is_confirmed: bool) -> None:
    first = cell(made(1.06))
    (found,) = decide([first], confirmation={0: second})
    assert found.verdict == ("slower" if is_confirmed else "undecided")
    assert found.reasons == (() if is_confirmed else ("not_confirmed",))


def test_a_second_run_takes_the_place_of_the_halves() -> None:
    fading = cell(made(1.0, [0.12, 0.11, 0.13, 0.12, 0.11, 0.09, 0.01, 0.0, 0.01, 0.0]))
    assert decide([fading], confirmation={0: made(1.06)})[0].verdict == "slower"
    assert decide([fading], confirmation={"another": made(1.06)})[0].reasons == ("not_confirmed",)


def test_a_slow_mode_that_falls_on_one_order_is_not_a_difference() -> None:
    """H42: a difference in the three blocks that a begins and in no other fits a slot effect too, without spread."""
    by_chance = [0.2, 0.001, 0.2, -0.001, 0.2, 0.0]
    assert one(made(1.0, by_chance)).q_value < 1e-6
    assert one(made(1.0, by_chance)).reasons == ("not_confirmed",)
    assert one(made(1.0, [0.2, 0.04, 0.2, 0.04, 0.2, 0.04])).verdict == "slower"  # both orders show it
    assert one(made(1.0, [*by_chance, 0.2, 0.001, 0.2, 0.0])).verdict == "slower"  # five blocks are no chance


# -------------------------------------------------------------------------------------------------- degenerate input


def test_five_blocks_decide_nothing_and_six_do() -> None:
    """H42."""
    huge = made(2.0)
    assert (one(huge[:5]).verdict, one(huge[:5]).reasons) == ("undecided", ("too_few_blocks",))
    assert one(huge[:6]).verdict == "slower"
    assert one(huge[:1]).reasons == ("too_few_blocks",)


def test_a_side_that_always_ran_first_decides_nothing() -> None:
    """H44: then the slot effect is in the ratio. Orders that are unknown are the caller's to judge."""
    always = [replace(pair, is_a_first=True) for pair in made(1.06)]
    unknown = [replace(pair, is_a_first=None) for pair in made(1.06)]
    assert (one(always).verdict, one(always).reasons) == ("undecided", ("one_order_only",))
    assert one(always).q_value is None
    assert one(unknown).verdict == "slower"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_unusable_values_are_undecided(bad: float) -> None:
    pairs = [*made(1.5), Pair(10, bad, 10.0, True)]
    found = one(pairs)
    assert (found.verdict, found.reasons, found.q_value) == ("undecided", ("unusable_values",), None)
    assert isinstance(found.effect, NotMeasured)


def test_no_pairs_are_undecided_and_no_cells_are_no_decisions() -> None:
    assert (one([]).verdict, one([]).reasons) == ("undecided", ("no_pairs",))
    assert decide([]) == ()


def test_values_that_repeat_exactly_are_judged_like_counters() -> None:
    """H42: no interval and no test, whichever way; a difference needs its blocks all the same."""
    equal = [Pair(block, 3.0, 3.0, block % 2 == 0) for block in range(6)]
    assert (one(equal).verdict, one(equal).reasons) == ("same", ("identical",))
    assert one(equal[:2]).verdict == "same"
    assert one(equal[:1]).verdict == "undecided"
    larger = [replace(pair, b=3.3) for pair in equal]
    assert (one(larger).verdict, one(larger).reasons) == ("slower", ("no_spread",))
    assert one(larger, direction="higher").verdict == "faster"
    assert one(larger[:5]).reasons == ("too_few_blocks",)
    slightly = [replace(pair, b=3.03) for pair in equal]
    assert (one(slightly).verdict, one(slightly).reasons) == ("same", ("no_spread", "below_min_effect"))
    assert one(larger, Limits(min_effect=0.02, absolute_floor=0.5)).verdict == "same"


def test_an_effect_of_exactly_the_minimum_counts() -> None:
    assert one(made(1.02, [0.0] * 6)).verdict == "slower"
    assert one(made(1 / 1.02, [0.0] * 6)).verdict == "faster"
    assert one(made(1.0199, [0.0] * 6)).verdict == "same"


def test_a_slot_effect_alone_is_the_same_even_without_a_minimum() -> None:
    pairs = [Pair(block, *((3.0, 3.1) if block % 2 else (3.1, 3.0)), block % 2 == 0) for block in range(6)]
    assert one(pairs, Limits(min_effect=0.0)).verdict == "same"
    assert one(made(1.001, 0.01 * SCATTER), Limits(min_effect=0.0)).verdict == "slower"


def test_two_modes_are_too_wide_for_a_verdict() -> None:
    """H42: a third of the blocks 40 % slower. A difference that stands out of any spread is still seen."""
    modes = np.array([0.35, 0, 0, 0.35, 0, 0, 0.35, 0, 0, 0]) + 0.05 * SCATTER
    found = one(made(1.1, modes))
    assert (found.verdict, found.reasons) == ("undecided", ("spread_too_wide",))
    assert one(made(3.0, modes)).verdict == "slower"
    assert one(made(1.1, SCATTER)).verdict == "slower"


def test_every_cell_gets_an_effect_of_numbers_only() -> None:
    runs = sim.simulate(sim.World(tails="heavy", noise=3.0), 100, 6, seed=0)
    for decision in decide([cell(pairs) for pairs in runs.all_pairs()]):
        assert isinstance(decision.effect, Effect)
        numbers = (decision.q_value, decision.effect.ratio, decision.effect.low, decision.effect.high)
        assert all(math.isfinite(number) for number in numbers if number is not None)
        assert decision.verdict in {"undecided", "faster", "slower"}
