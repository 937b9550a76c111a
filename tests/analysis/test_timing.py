"""Every nanosecond and token of a pass belongs to one round or prefill; what that gives for intervals."""

from itertools import chain

import numpy as np
import pytest

from ddbench.analysis.columns import Columns, Whole
from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS, evaluate
from ddbench.analysis.series import Layout
from ddbench.analysis.settings import study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.timing import Rounds, events, steady_rounds, tpot_by_prompt
from ddbench.records import NotMeasured


def test_events_add_up_to_the_pass(synthetic_frames) -> None:
    for setting in study_of(synthetic_frames).settings:
        rounds, prefills = events(setting.ordered, setting.requests, setting.passes)
        tokens = rounds.numerators.sum() + prefills.numerators.sum()
        seconds = rounds.denominators.sum() + prefills.denominators.sum()
        assert tokens == setting.passes["num_emitted"].sum()
        assert seconds == pytest.approx(setting.passes["wall_ns"].sum() / 1e9, rel=1e-12)
        assert len(rounds.numerators) == len(setting.steps)
        assert len(prefills.numerators) == len(setting.requests)
        assert min(rounds.denominators.min(), prefills.denominators.min()) >= 0


def test_an_event_takes_the_time_since_the_one_before_it(hand_run, hand_case, hand_request) -> None:
    """First token at 10 ms, rounds end at 20 and 35 ms, the pass at 50: 10 | 10, 15 + the 15 that are left."""
    case = next(case for case in make_cases(arms=("chain",), concurrencies=(1,)))
    request = hand_request("a", 6, (0, 10, 35), ((2, 3, 0), (1, 2, 0)))
    hand = hand_case(case=case, requests=(request,), round_ms=(20, 15), wall_ms=50, num_nodes=7, verify_width=8)
    (setting,) = study_of(load_run(hand_run([hand]).path)).settings
    rounds, prefills = events(setting.ordered, setting.requests, setting.passes)
    assert prefills.numerators.tolist() == [1]
    assert prefills.denominators == pytest.approx([0.010])
    assert rounds.numerators.tolist() == [3, 2]
    assert rounds.denominators == pytest.approx([0.010, 0.030])


def rounds_of(*passes: list[tuple[int, int, int]], lengths: tuple[tuple[int, ...], ...]) -> Rounds:
    """Each round as (requests, start, end) in ms."""
    sizes, starts, ends = (np.array(column, dtype=np.float64) for column in zip(*chain(*passes), strict=True))
    return Rounds(sizes, sizes, starts * 1e6, ends * 1e6, Layout(lengths))


def test_a_steady_round_is_of_a_full_batch_and_begins_where_the_one_before_ended() -> None:
    """Two processes, three passes, one without rounds: before the first round of a pass stands none."""
    first = [(2, 0, 10), (2, 10, 21), (2, 22, 34), (2, 34, 47), (1, 47, 60), (2, 60, 74)]
    second = [(2, 74, 90), (2, 90, 107)]
    rounds = rounds_of(first, [], second, lengths=((6, 0), (2,)))
    values, layout = steady_rounds(rounds)
    assert values.tolist() == [11, 13, 14, 17]
    assert layout.lengths == ((3,), (1,))


def test_passes_and_processes_without_a_steady_round_are_not_drawn_from() -> None:
    apart = [(2, 0, 10), (2, 11, 20)]
    values, layout = steady_rounds(rounds_of(apart, [(2, 0, 10), (2, 10, 20)], apart, lengths=((2, 2), (2,))))
    assert (values.tolist(), layout.lengths) == ([10], ((1,),))


def test_where_the_host_never_runs_ahead_no_round_is_steady(hand_run, hand_case, hand_request) -> None:
    case = next(case for case in make_cases(arms=("chain",), concurrencies=(1,)))
    request = hand_request("a", 6, (0, 0, 35), ((2, 3, 0),))
    hand = hand_case(case=case, requests=(request,), round_ms=(20,), wall_ms=50, num_nodes=7, verify_width=8)
    study = study_of(load_run(hand_run([hand]).path))
    found = evaluate(METRICS["steady_round_ms"], study.settings[0], study)
    assert isinstance(found, NotMeasured)
    assert "the host did not run ahead" in found.not_measured


def test_layout_follows_processes_and_passes(tmp_path) -> None:
    (case,) = make_cases(arms=("chain",), concurrencies=(2,), num_requests=5, max_new_tokens=16)
    capture = case.capture.model_copy(update={"num_clean_passes": 2})
    cases = [case.model_copy(update={"block": block, "capture": capture}) for block in range(3)]
    frames = load_run(build_run(tmp_path / "run", SyntheticPlan(cases=tuple(cases))))
    (setting,) = study_of(frames).settings
    rounds, prefills = events(setting.ordered, setting.requests, setting.passes)
    assert prefills.layout.lengths == ((5, 5),) * 3
    assert [len(process) for process in rounds.layout.lengths] == [2, 2, 2]
    assert sum(rounds.layout.passes) == len(setting.steps)


def test_round_cost_weighs_rounds_by_the_requests_they_serve(synthetic_frames) -> None:
    """Against the same mean taken row by row over requests and rounds."""
    study = study_of(synthetic_frames)
    for setting in study.settings:
        value = evaluate(METRICS["round_cost_ms"], setting, study)
        rows = synthetic_frames.rounds
        own = rows[(rows["setting"] == setting.key) & (rows["pass_name"] == "clean")]
        steps = setting.steps
        durations = dict(zip(steps["step"], steps["end_ns"] - steps["start_ns"], strict=True))
        assert value.value == pytest.approx(float(np.mean([durations[step] for step in own["step"]])) / 1e6)
        assert value.low <= value.value <= value.high


def test_prompts_that_a_process_did_not_time_are_left_out(tmp_path) -> None:
    cases = make_cases(arms=("chain",), concurrencies=(1,), num_blocks=3, num_requests=6, max_new_tokens=16)
    frames = load_run(build_run(tmp_path / "run", SyntheticPlan(cases=cases)))
    (setting,) = study_of(frames).settings
    whole = tpot_by_prompt(setting.requests)
    assert whole.values.shape == (3, 6)
    rows = frames.requests
    is_kept = (rows["pass_name"] == "clean") & ~((rows["block"] == 1) & (rows["unit"] == "p2"))
    kept = Columns(Whole(rows, np.flatnonzero(is_kept)), 0, is_kept.sum())
    assert tpot_by_prompt(kept).units == tuple(unit for unit in whole.units if unit != "p2")
