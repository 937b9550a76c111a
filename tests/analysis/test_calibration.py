"""Calibration bins: all rounds once, in order, and right about a draft whose truth is known."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from ddbench.analysis.calibration import FEWEST_ROUNDS, MOST_BINS, calibration_bins
from ddbench.analysis.columns import Columns, Whole
from ddbench.analysis.frames import load_run
from ddbench.analysis.settings import Setting, study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.records import NotMeasured


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Setting]:
    cases = make_cases(arms=("ar", "prompt_lookup", "ddtree"), concurrencies=(1,), num_requests=24, max_new_tokens=64)
    run = build_run(tmp_path_factory.mktemp("calibration") / "run", SyntheticPlan(cases=cases))
    return {setting.arm: setting for setting in study_of(load_run(run)).settings}


def with_rounds(setting: Setting, expected: np.ndarray, accepted: np.ndarray) -> Setting:
    unit = pd.Categorical(setting.rounds["unit"][: len(expected)])
    rounds = pd.DataFrame({"unit": unit, "expected_length": expected, "num_accepted": accepted})
    return dataclasses.replace(setting, rounds=Columns(Whole(rounds), 0, len(rounds)))


def test_every_round_is_in_one_bin_in_order(settings: dict[str, Setting]) -> None:
    setting = settings["ddtree"]
    bins = calibration_bins(setting)
    assert sum(one.num_rounds for one in bins) == len(setting.rounds)
    assert 1 < len(bins) <= MOST_BINS
    for one in bins:
        assert one.low <= one.expected <= one.high
        assert one.num_rounds >= FEWEST_ROUNDS / 2
    assert all(left.high < right.low for left, right in itertools.pairwise(bins))
    pooled = sum(one.measured.value * one.num_rounds for one in bins) / len(setting.rounds)
    assert pooled == pytest.approx(1 + setting.rounds["num_accepted"].mean())


def test_a_draft_that_is_right_lies_on_the_diagonal(settings: dict[str, Setting]) -> None:
    accepted = np.arange(200) % 5
    for one in calibration_bins(with_rounds(settings["ddtree"], 1.0 + accepted, accepted)):
        assert one.measured.value == pytest.approx(one.expected)


def test_a_draft_that_is_sure_of_nothing_true_lies_flat(settings: dict[str, Setting]) -> None:
    expected = np.repeat(np.linspace(2, 6, 100), 2)
    bins = calibration_bins(with_rounds(settings["ddtree"], expected, np.ones(200, dtype=int)))
    assert len(bins) == MOST_BINS
    assert {one.measured.value for one in bins} == {2.0}
    assert bins[0].expected < bins[-1].expected - 2


def test_equal_expectations_are_never_parted(settings: dict[str, Setting]) -> None:
    expected = np.array([2.0] * 190 + [3.0] * 10)
    bins = calibration_bins(with_rounds(settings["ddtree"], expected, np.zeros(200, dtype=int)))
    assert (bins[0].low, bins[0].high, bins[0].num_rounds) == (2.0, 2.0, 190)
    assert sum(one.num_rounds for one in bins) == 200
    (alone,) = calibration_bins(with_rounds(settings["ddtree"], np.full(7, 2.5), np.zeros(7, dtype=int)))
    assert alone.num_rounds == 7


def test_without_probabilities_there_is_a_reason(settings: dict[str, Setting]) -> None:
    for arm in ("ar", "prompt_lookup"):
        assert isinstance(calibration_bins(settings[arm]), NotMeasured)
    unknown = with_rounds(settings["ddtree"], np.full(40, np.nan), np.zeros(40, dtype=int))
    assert isinstance(calibration_bins(unknown), NotMeasured)
