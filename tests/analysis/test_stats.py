"""Intervals cover what they claim to cover, follow independent implementations, and are absent where they would lie."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats

from ddbench.analysis import stats

NUM_DATA_SETS = 400
UNITS = 24
# 95 % claimed over 400 data sets: outside of this band the claim is wrong (a bootstrap of 24 units falls a bit short).
COVERAGE = (0.90, 0.985)

Interval = Callable[[np.ndarray, np.ndarray], stats.Summary]


def draws(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Emitted tokens and rounds of 24 prompts: tau differs from prompt to prompt; the true pooled tau is 3."""
    rng = np.random.default_rng(seed)
    rounds = rng.integers(10, 40, UNITS)
    return rounds * rng.gamma(9, 3 / 9, UNITS), rounds


def mean(values) -> stats.Summary:
    return stats.ratio_of_sums(values, np.ones(len(values)))


def coverage(interval: Interval, truth: float) -> float:
    hits = 0
    for seed in range(NUM_DATA_SETS):
        summary = interval(*draws(seed))
        assert summary.low is not None
        assert summary.high is not None
        hits += summary.low <= truth <= summary.high
    return hits / NUM_DATA_SETS


def halved(interval: Interval) -> Interval:
    """The same interval at half its width: the fault that the coverage check has to see."""

    def narrow(num: np.ndarray, den: np.ndarray) -> stats.Summary:
        whole = interval(num, den)
        middle, quarter = (whole.low + whole.high) / 2, (whole.high - whole.low) / 4
        return stats.Summary(whole.value, middle - quarter, middle + quarter, whole.n)

    return narrow


def median_of_taus(num: np.ndarray, den: np.ndarray) -> stats.Summary:
    return stats.median(num / den)


GAMMA_MEDIAN = float(scipy.stats.gamma(9, scale=3 / 9).median())


@pytest.mark.parametrize(
    ("interval", "truth"), [(stats.ratio_of_sums, 3.0), (median_of_taus, GAMMA_MEDIAN)], ids=["ratio", "median"]
)
def test_intervals_cover_the_truth_as_often_as_they_claim(interval: Interval, truth: float) -> None:
    assert COVERAGE[0] <= coverage(interval, truth) <= COVERAGE[1]


@pytest.mark.parametrize(
    ("interval", "truth"), [(stats.ratio_of_sums, 3.0), (median_of_taus, GAMMA_MEDIAN)], ids=["ratio", "median"]
)
def test_coverage_check_sees_intervals_that_are_too_narrow(interval: Interval, truth: float) -> None:
    assert coverage(halved(interval), truth) < COVERAGE[0]


def test_paired_ratio_covers_the_truth() -> None:
    """Two arms on the same prompts, one 1.5 times as fast, prompts differing by far more than that."""

    def interval(num: np.ndarray, den: np.ndarray) -> stats.Summary:
        noise = np.random.default_rng(int(num.sum() * 1e6)).lognormal(0, 0.03, UNITS)
        return stats.paired_ratio_of_medians(1.5 * num * noise, num)

    assert 0.88 <= coverage(interval, 1.5) <= 1.0


def test_pairing_narrows_the_interval() -> None:
    slow, _ = draws(1)
    fast = slow / 1.5
    paired = stats.paired_ratio_of_medians(slow * np.linspace(0.99, 1.01, UNITS), fast)
    shuffled = stats.paired_ratio_of_medians(slow, np.roll(fast, 7))
    assert paired.high - paired.low < 0.5 * (shuffled.high - shuffled.low)


def processes(seed: int, level: float) -> np.ndarray:
    """TPOT of 24 prompts in 10 processes, each with a speed of its own: [B, U], true median 1."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, level, (10, 1)) * rng.lognormal(0, 0.05, UNITS) * rng.lognormal(0, 0.01, (10, UNITS))


def test_intervals_over_processes_cover_what_differs_between_them() -> None:
    """The control reduces every prompt to its median over processes first, which hides how far they are apart."""
    hits, blind_hits = 0, 0
    for seed in range(NUM_DATA_SETS // 2):
        table = processes(seed, level=0.1)
        summary, blind = stats.median(table), stats.median(np.median(table, axis=0))
        assert summary.value == pytest.approx(blind.value)
        hits += summary.low <= 1 <= summary.high
        blind_hits += blind.low <= 1 <= blind.high
    assert hits / (NUM_DATA_SETS // 2) >= 0.88
    assert blind_hits / (NUM_DATA_SETS // 2) < 0.75


def test_a_slow_process_of_both_arms_cancels_in_pairs() -> None:
    """Two arms that ran interleaved in processes of very different speed, one exactly 1.5 times as fast."""
    table = processes(2, level=0.5)
    summary = stats.paired_ratio_of_medians(1.5 * table, table)
    assert summary.value == pytest.approx(1.5)
    noisy = stats.paired_ratio_of_medians(1.5 * table * np.random.default_rng(0).lognormal(0, 0.02, table.shape), table)
    assert noisy.low <= 1.5 <= noisy.high
    assert noisy.high - noisy.low < 0.2


def test_paired_ratio_of_ratios_covers_the_truth() -> None:
    """tau of two arms on the same prompts, one 1.4 times the other."""
    hits = 0
    for seed in range(NUM_DATA_SETS // 2):
        emitted, rounds = draws(seed)
        noise = np.random.default_rng((seed, 1)).lognormal(0, 0.1, UNITS) / np.exp(0.005)
        summary = stats.paired_ratio_of_ratios((1.4 * emitted * noise, rounds), (emitted, rounds))
        hits += summary.low <= 1.4 <= summary.high
    assert COVERAGE[0] <= hits / (NUM_DATA_SETS // 2) <= 1.0


def test_bca_follows_scipy() -> None:
    num, den = draws(11)

    def ratio(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return x.sum(axis=axis) / y.sum(axis=axis)

    theirs = scipy.stats.bootstrap(
        (num, den), ratio, paired=True, method="BCa", n_resamples=9999, rng=np.random.default_rng(0)
    ).confidence_interval
    ours = stats.ratio_of_sums(num, den)
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.1 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.1 * width)


def test_two_processes_are_not_resampled() -> None:
    """Under three there is nothing to resample; a prompt counts as its median over them."""
    table = np.array([[1.0, 2.0, 4.0, 9.0], [3.0, 2.0, 6.0, 9.0]])
    assert stats.median(table) == stats.median([2.0, 2.0, 5.0, 9.0])


def test_equal_calls_give_equal_intervals() -> None:
    num, den = draws(5)
    assert stats.ratio_of_sums(num, den) == stats.ratio_of_sums(num.copy(), den.copy())
    assert stats.median(num) == stats.median(num.copy())


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_units_have_no_interval(n: int) -> None:
    """H42: one sample is no distribution."""
    for summary in (
        mean(range(1, n + 1)),
        stats.median(range(n)),
        stats.paired_ratio_of_medians([2.0] * n, [1.0] * n),
    ):
        assert (summary.low, summary.high, summary.n) == (None, None, n)
        assert summary.note == f"n={n}: too few for an interval"


def test_few_units_are_said_to_be_few() -> None:
    assert mean([1.0, 2.0, 4.0]).note == "n=3: an interval from so few is too narrow"
    assert mean(range(8)).note == ""


def test_equal_values_have_no_interval() -> None:
    """H42: no spread is not a perfect measurement."""
    summary = mean([2.0] * 12)
    assert (summary.value, summary.low, summary.high) == (2.0, None, None)
    assert summary.note == "no spread: all 12 values are equal"


def test_units_without_rounds_say_nothing_about_a_ratio() -> None:
    summary = stats.ratio_of_sums([4.0, 0.0, 6.0, 9.0], [2.0, 0.0, 2.0, 3.0])
    assert (summary.value, summary.n) == (19 / 7, 3)
