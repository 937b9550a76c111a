"""What is computed by a shortcut equals what is computed plainly: the same draws, the same medians, the same sums.

The plain ways here are slow and obvious: row by row, resample by resample, one table per setting.
"""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ddbench.analysis import series, stats
from ddbench.analysis.frames import RunFrames, load_run, merge_runs
from ddbench.analysis.series import Layout
from ddbench.analysis.settings import SAME_FOR_SPEEDUP, Setting, Study, study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.timing import events
from ddbench.records import NotMeasured

finite = st.floats(-1e9, 1e9, allow_nan=False, allow_subnormal=False)
layouts = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda lengths: Layout(tuple(map(tuple, lengths)))
)


# --- medians and quantiles --------------------------------------------------------------------------------------------


@given(arrays.arrays(np.float64, arrays.array_shapes(min_dims=1, max_dims=3, max_side=9), elements=finite))
def test_medians_are_those_of_numpy(values: np.ndarray) -> None:
    found = stats.medians(values)
    assert np.array_equal(found, np.median(values, axis=-1))
    assert found.base is None, "a view would keep all values alive"


@given(arrays.arrays(np.float64, st.integers(1, 50), elements=finite), st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_quantiles_are_those_of_numpy(values: np.ndarray, levels: tuple[float, float]) -> None:
    assert stats.quantiles(values, levels) == tuple(np.quantile(values, levels).tolist())


def test_quantiles_of_what_is_no_number_are_no_numbers() -> None:
    assert all(map(math.isnan, stats.quantiles(np.array([1.0, math.nan, 2.0]), (0.1, 0.9))))


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 12)), elements=finite))
def test_resampled_medians_are_medians_of_what_was_drawn(table: np.ndarray) -> None:
    units = stats.resample_draws(table.shape[1])
    if len(table) < stats.FEWEST_UNITS:
        plain = [np.median(np.median(table, axis=0)[drawn]) for drawn in units]
    else:
        processes = stats.resample_draws(len(table), salt=1)
        plain = [np.median(np.median(table[rows], axis=0)[drawn]) for rows, drawn in zip(processes, units, strict=True)]
    assert np.array_equal(stats.resampled_medians(table), plain)


# --- rounds in blocks of neighbours -----------------------------------------------------------------------------------


def rows_drawn(layout: Layout, stream: int = 0) -> list[np.ndarray]:
    return list(series.drawn(np.arange(sum(layout.passes)), layout, stream))


def drawn_row_by_row(layout: Layout, stream: int) -> np.ndarray:
    """The bootstrap of `series.py` as its text has it: [R, N] row numbers."""
    clusters = layout.clusters
    chosen = np.random.default_rng((series._SEED, len(clusters))).integers(
        0, len(clusters), (stats.NUM_RESAMPLES, len(clusters))
    )
    firsts = [np.cumsum((0, *cluster)) + sum(map(sum, clusters[:place])) for place, cluster in enumerate(clusters)]
    rng = np.random.default_rng((series._SEED, stream, *layout.passes))
    at_once = max(1, series._MAX_CELLS // max(1, sum(layout.passes)))
    drawn: list[list[int]] = [[] for _ in range(stats.NUM_RESAMPLES)]
    for begin in range(0, stats.NUM_RESAMPLES, at_once):
        resamples = range(begin, min(begin + at_once, stats.NUM_RESAMPLES))
        for slot, cluster in enumerate(clusters):
            for column, length in enumerate(cluster):
                block = series.block_length(length)
                if length:
                    shares = rng.random((len(resamples), math.ceil(length / block)))
                for row, resample in enumerate(resamples if length else ()):
                    lender = chosen[resample, slot]
                    own = clusters[lender][column % len(clusters[lender])]
                    if not own:
                        lender, own = slot, length
                    first = firsts[lender][column % len(clusters[lender])]
                    starts = [math.floor(share * own) for share in shares[row]]
                    rows = [first + (start + step) % own for start in starts for step in range(block)]
                    drawn[resample] += rows[:length]
    return np.array(drawn, dtype=np.int64)


LAYOUTS = (((40,),), ((7,), (0,)), ((5, 0, 9), (4,)), ((12, 3), (6,), (0, 8)), ((9, 9),) * 4)


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("lengths", LAYOUTS)
def test_draws_are_those_of_the_plain_bootstrap(lengths, stream: int) -> None:
    layout = Layout(lengths)
    assert np.array_equal(np.concatenate(rows_drawn(layout, stream)), drawn_row_by_row(layout, stream))


def test_draws_in_chunks_are_those_of_the_plain_bootstrap(monkeypatch) -> None:
    layout = Layout(((20, 10), (5,), (13,)))
    monkeypatch.setattr(series, "_MAX_CELLS", 10_007)
    parts = rows_drawn(layout)
    assert len(parts) > 1
    assert max(part.size for part in parts) <= 10_007
    assert np.array_equal(np.concatenate(parts), drawn_row_by_row(layout, 0))


@given(layouts, st.integers(0, 1))
def test_sums_and_medians_of_resamples_are_those_of_their_rows(layout: Layout, stream: int) -> None:
    total = sum(layout.passes)
    columns = np.random.default_rng(total).lognormal(0, 1, (2, total))
    columns[1] = np.rint(10 * columns[1])  # whole numbers: their sums are exact in any order
    rows = np.concatenate(rows_drawn(layout, stream))
    sums = series.resampled_sums(columns, layout, stream)
    assert np.array_equal(sums[1], columns[1][rows].sum(axis=1))
    np.testing.assert_allclose(sums[0], columns[0][rows].sum(axis=1), rtol=1e-14)
    if total:
        assert np.array_equal(series.resampled_medians(columns[0], layout, stream), np.median(columns[0][rows], axis=1))


def test_long_runs_are_looked_at_through_a_view() -> None:
    """Blocks of a long run overlap: all of them written out would take sqrt(n) times the run's memory."""
    values = np.arange(10_000.0)
    windows, places = series._windows(values, Layout(((6_000, 4_000),)), 100)
    assert windows[places[5_990], :20].tolist() == [*range(5_990, 6_000), *range(10)]
    assert windows.base is not None
    assert sum(windows.strides) == 2 * values.itemsize


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    """Two runs: several processes and passes, failures, another dtype; rows of every table shuffled."""
    folder = tmp_path_factory.mktemp("many")
    small = {"num_requests": 5, "max_new_tokens": 20}
    cases = make_cases(arms=("ar", "chain", "ddtree"), num_blocks=3, **small)
    cases = tuple(
        case.model_copy(update={"capture": case.capture.model_copy(update={"num_clean_passes": 2})}) for case in cases
    )
    others = make_cases(arms=("ar", "ddtree"), concurrencies=(1,), dtype="bfloat16", seed=3, **small)
    plans = (
        SyntheticPlan(name="one", cases=(*cases, *others), failed=(0, 4), incorrect=(7,)),
        SyntheticPlan(name="two", cases=make_cases(arms=("prompt_lookup", "chain"), **small)),
    )
    frames = merge_runs([load_run(build_run(folder / plan.name, plan)) for plan in plans])
    names = ("requests", "rounds", "steps", "stages", "passes")
    shuffled = {name: getattr(frames, name).sample(frac=1, random_state=1) for name in names}
    return RunFrames(**{**vars(frames), **shuffled})


TABLES = {
    "requests": ("requests", "clean"),
    "rounds": ("rounds", "clean"),
    "steps": ("steps", "clean"),
    "passes": ("passes", "clean"),
    "attributed_steps": ("steps", "attributed"),
    "attributed_passes": ("passes", "attributed"),
    "stages": ("stages", None),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_setting_has_its_rows_in_their_order(many: RunFrames, name: str) -> None:
    source, pass_name = TABLES[name]
    table = getattr(many, source)
    for setting in study_of(many).settings:
        is_own = table["setting"] == setting.key
        if pass_name:
            is_own &= table["pass_name"] == pass_name
        expected, found = table[is_own.to_numpy(dtype=bool)], getattr(setting, name)
        assert len(found) == len(expected)
        for column in table.columns:
            plain = expected[column].tolist()
            assert all(np.array_equal(one, other) for one, other in zip(found[column], plain, strict=True))


def test_rows_of_settings_are_slices_of_one_table(many: RunFrames) -> None:
    """Memory does not grow with the number of settings."""
    rows = [setting.rounds["num_emitted"] for setting in study_of(many).settings if setting.is_ok]
    bases = {id(own.base if own.base.base is None else own.base.base) for own in rows}
    assert len(rows) > 5
    assert len(bases) == 1


def plain_counterpart(study: Study, setting: Setting, arm: str) -> Setting | None:
    found = [
        other
        for other in study.settings
        if other.arm == arm != setting.arm
        and other.run == setting.run
        and other.workload == setting.workload
        and other.is_ok
        and all(getattr(other.engine, name) == getattr(setting.engine, name) for name in SAME_FOR_SPEEDUP)
    ]
    return found[0] if found else None


def test_counterparts_are_those_of_a_search_through_all(many: RunFrames) -> None:
    study = study_of(many)
    found = {}
    for setting in study.settings:
        for arm in ("ar", "chain", "prompt_lookup"):
            counterpart = study.counterpart(setting, arm)
            found[setting.key, arm] = None if isinstance(counterpart, NotMeasured) else counterpart.key
            expected = plain_counterpart(study, setting, arm)
            assert found[setting.key, arm] == (None if expected is None else expected.key)
    assert len(set(found.values())) > 5


def test_rounds_and_prefills_are_those_of_each_pass(many: RunFrames) -> None:
    """Pass by pass from the frames, whatever order their rows are in."""
    for setting in study_of(many).settings:
        if not setting.is_ok:
            continue
        passes = clean_rows(many.passes, setting).sort_values(["block", "pass_index"])
        steps = [of_pass(clean_rows(many.steps, setting), one).sort_values("step") for one in passes.itertuples()]
        requests = [of_pass(clean_rows(many.requests, setting), one) for one in passes.itertuples()]
        assert setting.ordered.layout.passes == tuple(map(len, steps))
        durations = pd.concat([(own["end_ns"] - own["start_ns"]) / 1e6 for own in steps])
        assert setting.ordered.milliseconds.tolist() == durations.tolist()
        rounds, prefills = events(setting.ordered, setting.requests, setting.passes)
        assert rounds.numerators.tolist() == pd.concat(steps)["num_emitted"].tolist()
        assert prefills.layout.passes == tuple(map(len, requests))


def clean_rows(table: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    return table[((table["setting"] == setting.key) & (table["pass_name"] == "clean")).to_numpy(dtype=bool)]


def of_pass(table: pd.DataFrame, one) -> pd.DataFrame:
    return table[((table["case_id"] == one.case_id) & (table["pass_index"] == one.pass_index)).to_numpy(dtype=bool)]
