"""Every nanosecond and token of a pass belongs to one round or prefill; what that gives for intervals."""

from itertools import pairwise

import numpy as np
import pytest

from ddbench.analysis.columns import Columns, Whole
from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS, evaluate
from ddbench.analysis.settings import study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.timing import events, steady_rounds, tpot_by_prompt
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


def test_a_round_beside_a_prefill_is_not_steady(hand_run, hand_case, hand_request) -> None:
    """Rounds of 10, 11 and 12 ms, the first token of another request, 13, 14 and 15: left are 11, 14, 15."""
    case = next(case for case in make_cases(arms=("chain",), concurrencies=(1,)))
    three = ((2, 3, 0),) * 3
    requests = (hand_request("a", 10, (0, 0, 33), three), hand_request("b", 10, (33, 33, 75), three))
    hand = hand_case(case=case, requests=requests, round_ms=(10, 11, 12, 13, 14, 15), num_nodes=7, verify_width=8)
    study = study_of(load_run(hand_run([hand]).path))
    (setting,) = study.settings
    values, layout = steady_rounds(setting.ordered, setting.requests, setting.passes)
    assert values.tolist() == [11, 14, 15]
    assert layout.lengths == ((3,),)
    found = evaluate(METRICS["steady_round_ms"], setting, study)
    assert (found.value, found.n) == (14, 3)


def test_steady_rounds_are_of_a_full_batch_that_stays_as_it_is(synthetic_frames) -> None:
    """Against the same choice made round by round."""
    of_all, chosen = 0, 0
    for setting in study_of(synthetic_frames).settings:
        tables = (synthetic_frames.steps, synthetic_frames.requests)
        steps, requests = (one[(one["setting"] == setting.key) & (one["pass_name"] == "clean")] for one in tables)
        expected = []
        for key, rounds in steps.groupby(["block", "pass_index"]):
            rounds = rounds.sort_values("step")
            own = requests[(requests["block"] == key[0]) & (requests["pass_index"] == key[1])]
            ends = [-1, *rounds["end_ns"], 1 << 62]
            joins = [any(first <= at < last for at in own["first_token_ns"]) for first, last in pairwise(ends)]
            for i, (size, start, end) in enumerate(rounds[["batch_size", "start_ns", "end_ns"]].values.tolist()):
                if size == steps["batch_size"].max() and not joins[i] and not joins[i + 1]:
                    expected.append((end - start) / 1e6)
        values, layout = steady_rounds(setting.ordered, setting.requests, setting.passes)
        assert sorted(values) == pytest.approx(sorted(expected))
        assert sum(layout.passes) == len(values)
        of_all, chosen = of_all + len(steps), chosen + len(values)
    assert 0 < chosen < of_all


def test_where_every_round_stands_beside_a_prefill_none_is_steady(hand_run, hand_case, hand_request) -> None:
    case = next(case for case in make_cases(arms=("chain",), concurrencies=(1,)))
    request = hand_request("a", 6, (0, 0, 35), ((2, 3, 0),))
    hand = hand_case(case=case, requests=(request,), round_ms=(20,), wall_ms=50, num_nodes=7, verify_width=8)
    study = study_of(load_run(hand_run([hand]).path))
    found = evaluate(METRICS["steady_round_ms"], study.settings[0], study)
    assert found == NotMeasured(not_measured="every full batch stood beside a prefill")


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
