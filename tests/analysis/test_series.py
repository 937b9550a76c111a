"""Intervals of rounds in a row: they cover the truth although neighbours are alike, and say so where they cannot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis import series, stats
from ddbench.analysis.series import Layout, Stratum

NUM_ROUNDS = 400
NUM_DATA_SETS = 200
FADE = 0.8  # how much a round's time has of the one before it
WIDEST = 0.985
NARROWEST = 0.87  # blocks of 20 hold most of the dependence, not all of it


def rounds(seed: int, count: int = NUM_ROUNDS) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds of rounds whose times drift (first-order autoregression); the truth is 2 tokens per second."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.5 * np.sqrt(1 - FADE**2), count)
    drift = np.empty(count)
    drift[0] = rng.normal(0, 0.5)
    for place in range(1, count):
        drift[place] = FADE * drift[place - 1] + noise[place]
    return rng.integers(3, 6, count).astype(float), 2.0 + drift


def one_pass(seed: int) -> Stratum:
    tokens, seconds = rounds(seed)
    return Stratum(tokens, seconds, Layout(((NUM_ROUNDS,),)))


def coverage(interval, truth: float, num_data_sets: int = NUM_DATA_SETS) -> float:
    found = [interval(seed) for seed in range(num_data_sets)]
    assert all(summary.low is not None for summary in found)
    return sum(summary.low <= truth <= summary.high for summary in found) / num_data_sets


def test_rates_cover_the_truth_although_rounds_depend_on_their_neighbours() -> None:
    share = coverage(lambda seed: series.ratio_of_sums((one_pass(seed),), "rounds"), 2.0)
    assert NARROWEST <= share <= WIDEST


def test_round_times_cover_the_truth_although_rounds_depend_on_their_neighbours() -> None:
    share = coverage(lambda seed: series.median(rounds(seed)[1], Layout(((NUM_ROUNDS,),)), "rounds"), 2.0)
    assert NARROWEST <= share <= WIDEST


@pytest.mark.parametrize("statistic", ["rate", "median"])
def test_drawing_rounds_one_by_one_does_not_cover_it(statistic: str) -> None:
    """The control: what the coverage tests above have to see."""

    def naive(seed: int) -> stats.Summary:
        tokens, seconds = rounds(seed)
        return stats.ratio_of_sums(tokens, seconds) if statistic == "rate" else stats.median(seconds)

    assert coverage(naive, 2.0) < NARROWEST - 0.05


def processes(seed: int) -> tuple[np.ndarray, np.ndarray, Layout]:
    """Ten processes of two passes with 20 rounds each, every process with a speed of its own."""
    rng = np.random.default_rng(seed)
    speeds = np.repeat(rng.normal(2.0, 0.2, 10), 40)
    return np.full(400, 4.0), speeds + rng.normal(0, 0.05, 400), Layout(((20, 20),) * 10)


def test_ten_processes_cover_what_differs_between_them() -> None:
    """The control takes the same rounds for passes of one process in a row: only two clusters, so none are drawn."""

    def whole(seed: int) -> stats.Summary:
        tokens, seconds, layout = processes(seed)
        return series.ratio_of_sums((Stratum(tokens, seconds, layout),), "rounds")

    def blind(seed: int) -> stats.Summary:
        tokens, seconds, _ = processes(seed)
        return series.ratio_of_sums((Stratum(tokens, seconds, Layout(((200, 200),))),), "rounds")

    assert coverage(whole, 2.0, 150) >= NARROWEST
    assert coverage(blind, 2.0, 150) < NARROWEST - 0.05


def test_clusters_are_processes_from_three_on_else_passes_from_three_on() -> None:
    assert Layout(((9, 9), (9, 9), (9, 9))).clusters == ((9, 9), (9, 9), (9, 9))
    assert Layout(((9, 9), (9, 9))).clusters == ((9,), (9,), (9,), (9,))
    assert Layout(((9, 9),)).clusters == ((9, 9),)
    assert Layout(((9,), (9,))).clusters == ((9, 9),)


layouts = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda lengths: Layout(tuple(map(tuple, lengths)))
)


@given(layouts)
def test_draws_stay_within_one_pass_per_place_and_run_on(layout: Layout) -> None:
    """Every slot of a pass is filled from one pass, in runs of neighbours around its end."""
    total = sum(layout.passes)
    owner = np.repeat(np.arange(len(layout.passes)), layout.passes)
    firsts = np.cumsum((0, *layout.passes))
    drawn = np.concatenate(list(series.drawn(np.arange(sum(layout.passes)), layout)))
    assert drawn.shape == (stats.NUM_RESAMPLES, total)
    place = 0
    for length in layout.passes:
        slot = drawn[:5, place : place + length]
        place += length
        if not length:
            continue
        for row in slot:
            assert set(owner[row]) == {owner[row[0]]}
            own = int(owner[row[0]])
            inside = row - firsts[own]
            block = series.block_length(length)
            steps = (np.diff(inside) - 1) % layout.passes[own]
            starts = np.arange(1, length) % block == 0
            assert (steps[~starts] == 0).all()


def test_every_round_is_drawn_equally_often() -> None:
    """Blocks go around the end: the first and last rounds, prefills and drains, weigh as much as the others."""
    drawn = np.concatenate(list(series.drawn(np.arange(25), Layout(((25,),)))))
    times = np.bincount(drawn.ravel(), minlength=25) / stats.NUM_RESAMPLES
    assert times == pytest.approx(np.ones(25), abs=0.15)


def test_chunks_do_not_change_what_is_drawn(monkeypatch) -> None:
    """Long runs are drawn some resamples at a time to bound memory; every resample is still of full length."""
    monkeypatch.setattr(series, "_MAX_CELLS", 1000)
    parts = list(series.drawn(np.arange(40), Layout(((40,),))))
    assert len(parts) == 40
    assert np.concatenate(parts).shape == (stats.NUM_RESAMPLES, 40)


def test_strata_keep_their_sizes() -> None:
    """One prefill takes as long as all rounds: drawn as a round it would make the interval twice as wide or worse."""
    tokens, seconds = rounds(0, 100)
    prefill = (np.array([1.0]), np.array([200.0]))
    apart = series.ratio_of_sums(
        (Stratum(tokens, seconds, Layout(((100,),))), Stratum(*prefill, Layout(((1,),)))), "rounds"
    )
    joint = series.ratio_of_sums(
        (Stratum(np.concatenate([prefill[0], tokens]), np.concatenate([prefill[1], seconds]), Layout(((101,),))),),
        "rounds",
    )
    assert apart.value == pytest.approx(joint.value)
    assert apart.high - apart.low < 0.5 * (joint.high - joint.low)


def test_equal_work_is_compared_round_for_round() -> None:
    """Two ways to do the same rounds, one 1.1 times as dear: the drift of the rounds is common to both."""
    tokens, seconds = rounds(3)
    layout = Layout(((NUM_ROUNDS,),))
    noise = np.random.default_rng(1).normal(1.1, 0.02, NUM_ROUNDS)
    over, under = Stratum(seconds * noise, tokens, layout), Stratum(seconds, tokens, layout)
    paired = series.ratio_of_ratios(over, under, "rounds")
    other = Stratum(np.append(under.numerators, 2.0), np.append(tokens, 4.0), Layout(((NUM_ROUNDS + 1,),)))
    apart = series.ratio_of_ratios(over, other, "rounds")
    assert paired.value == pytest.approx(1.1, abs=0.005)
    assert paired.high - paired.low < 0.3 * (apart.high - apart.low)


def test_equal_calls_give_equal_intervals() -> None:
    assert series.ratio_of_sums((one_pass(5),), "rounds") == series.ratio_of_sums((one_pass(5),), "rounds")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_too_few_rounds_have_no_interval(count: int) -> None:
    """H42."""
    layout, values = Layout(((count,),)), np.arange(1.0, count + 1)
    for summary in (
        series.median(values, layout, "rounds"),
        series.ratio_of_sums((Stratum(values, values + 1, layout),), "rounds"),
        series.ratio_of_ratios(Stratum(values, values + 1, layout), Stratum(values, values, layout), "rounds"),
    ):
        assert (summary.low, summary.high, summary.n) == (None, None, count)
        assert summary.note == f"n={count} rounds: too few for an interval"


def test_equal_rounds_have_no_interval() -> None:
    """H42: no spread is not a perfect measurement."""
    layout = Layout(((30,),))
    assert series.median(np.ones(30), layout, "rounds").note == "no spread: all 30 rounds are equal"
    summary = series.ratio_of_sums((Stratum(np.full(30, 4.0), np.full(30, 2.0), layout),), "rounds")
    assert (summary.value, summary.low, summary.note) == (2.0, None, "no spread: all 30 rounds are equal")


@pytest.mark.parametrize(
    ("lengths", "note"),
    [
        (((20,),), "4 blocks of rounds: an interval from so few is too narrow"),
        (((400,),), ""),
        (((400,),) * 3, "3 processes: an interval from so few is too narrow"),
        (((400,) * 4,), "4 passes: an interval from so few is too narrow"),
        (((100,),) * 8, ""),
    ],
)
def test_few_pieces_are_said_to_be_few(lengths, note: str) -> None:
    layout = Layout(lengths)
    values = np.random.default_rng(0).normal(2, 0.1, sum(layout.passes))
    assert series.median(values, layout, "rounds").note == note
