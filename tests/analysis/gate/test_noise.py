"""Floors of many values together: a bound for chance over all of them, that shares what they know of each other."""

from __future__ import annotations

import numpy as np
import pytest

from ddbench.analysis.gate.noise import FEWEST_REPEATS, prediction, shared_floors

COUNT, REPEATS, ALARM = 100, 5, 0.01
SPREADS = {
    "alike": np.full(COUNT, 0.003),
    "lognormal": 0.003 * np.exp(np.random.default_rng(1).normal(0, 0.7, COUNT)),
    "a few are restless": np.concatenate([np.full(6, 0.04), np.full(COUNT - 6, 0.003)]),
}


def drawn(seed: int, spreads: np.ndarray, repeats: int = REPEATS) -> tuple[list[list[float]], np.ndarray]:
    """Values of the repeats, and how far a new one lies from their geometric mean (in logs)."""
    random = np.random.default_rng(seed)
    old = random.normal(0, spreads[:, None], (len(spreads), repeats))
    return np.exp(old).tolist(), random.normal(0, spreads) - old.mean(axis=1)


@pytest.mark.parametrize("spreads", SPREADS.values(), ids=SPREADS)
def test_chance_exceeds_one_of_all_floors_as_seldom_as_is_said(spreads: np.ndarray) -> None:
    """The bound is for all values together; twice of it is room for what 400 draws tell."""
    alarms = 0
    for seed in range(400):
        values, new = drawn(seed, spreads)
        alarms += bool((np.expm1(new) > np.array(shared_floors(values, ALARM))).any())
    assert alarms <= 2 * 400 * ALARM


def test_values_that_are_alike_have_narrower_floors_together_than_alone() -> None:
    values, _ = drawn(0, SPREADS["alike"])
    together = np.array(shared_floors(values, ALARM))
    alone = np.array([shared_floors([one], ALARM / COUNT)[0] for one in values])
    assert np.median(together) < 0.7 * np.median(alone)


def test_a_restless_value_keeps_its_own_noise() -> None:
    values, _ = drawn(0, SPREADS["a few are restless"])
    floors = np.array(shared_floors(values, ALARM))
    assert floors[:6].min() > 4 * np.median(floors)
    assert floors[0] == pytest.approx(shared_floors([values[0]], ALARM / COUNT)[0])


def test_fewer_repeats_and_rarer_alarms_give_wider_floors() -> None:
    values, _ = drawn(3, SPREADS["alike"], repeats=8)
    few = np.median(shared_floors([one[:FEWEST_REPEATS] for one in values], ALARM))
    assert few > np.median(shared_floors(values, ALARM))
    assert np.median(shared_floors(values, ALARM / 10)) > np.median(shared_floors(values, ALARM))


def test_floors_do_not_depend_on_the_unit_and_are_never_nothing() -> None:
    values, _ = drawn(4, SPREADS["lognormal"])
    scaled = [[1e6 * value for value in one] for one in values]
    assert shared_floors(scaled, ALARM) == pytest.approx(shared_floors(values, ALARM))
    assert min(shared_floors([[7.0] * REPEATS] * COUNT, ALARM)) > 0, "equal as far as the clock tells"


def test_a_prediction_holds_a_new_value_as_often_as_is_said() -> None:
    random = np.random.default_rng(5)
    draws = random.normal(10, 2, (2000, 6))
    outside = [abs(row[5] - row[:5].mean()) > prediction(row[:5].tolist(), 0.9) for row in draws]
    assert 0.08 < np.mean(outside) < 0.12
