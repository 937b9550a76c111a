"""Speedups taken apart: against numbers computed on paper, and against the truth of synthetic runs."""

import pytest

from ddbench.analysis.contests import Contest, contest
from ddbench.analysis.decompose import (
    HOST_GAP,
    PARTS,
    Decomposition,
    Shares,
    _running,
    decompose,
    rounds_part,
    shares_by_setting,
    shares_of,
)
from ddbench.analysis.frames import load_run
from ddbench.analysis.settings import Study, study_of
from ddbench.analysis.synthetic import STAGE_SHARES, SyntheticPlan, build_run, make_cases
from ddbench.analysis.values import Estimate
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured, StageSample

CASE = {case.arm: case for case in make_cases(concurrencies=(1,), node_budgets=(16,))}
MS = 1_000_000
SMALL = {"num_requests": 8, "max_new_tokens": 32}


def decomposed(study: Study, arm: str, against: str, concurrency: int = 1) -> Decomposition:
    setting = next(s for s in study.at(concurrency) if s.arm == arm)
    found = contest(setting, against, study)
    assert isinstance(found, Contest)
    return decompose(found, shares_by_setting(study.settings))


def parts_of(found: Decomposition) -> dict[str, float]:
    assert not isinstance(found.contributions, NotMeasured)
    return {one.part: one.share.value for one in found.contributions if isinstance(one.share, Estimate)}


def hand_study(hand_run, hand_case, hand_request, tax: int = 1, wait_ms: int = 0, is_timed: bool = True) -> Study:
    """chain: 2 tokens in 10 ms; ddtree: 3 tokens in 12 ms, after each of which its requests wait `wait_ms`."""
    cases = []
    for arm, tau, round_ms, verify, wait in (("chain", 2, 10, 6, 0), ("ddtree", 3, 12, 7, wait_ms)):
        span = 4 * (round_ms + wait)
        requests = tuple(
            hand_request(name, 1 + 4 * tau, (0, 10, 10 + span), ((tau - 1, tau, 0),) * 4) for name in "abcd"
        )
        stages = [
            StageSample(step=step, stage=stage, duration_ns=duration * tax * MS, clock="host")
            for step in range(9)
            for stage, duration in (("draft", 2), ("verify", verify))
        ]
        timed = {"stages": tuple(stages), "attributed_ms": (round_ms * tax,) * 9} if is_timed else {}
        case = hand_case(case=CASE[arm], requests=requests, round_ms=(round_ms,) * 16, num_nodes=7, **timed)
        cases.append(case)
    return study_of(load_run(hand_run(cases).path))


def test_contributions_are_differences_over_the_base_round(hand_run, hand_case, hand_request) -> None:
    """12 against 10 ms: verify 1 ms more, what no stage accounts for 1 ms more, draft the same."""
    found = decomposed(hand_study(hand_run, hand_case, hand_request), "ddtree", "chain")
    assert parts_of(found) == pytest.approx({"draft": 0.0, "verify": 0.1, HOST_GAP: 0.1})
    assert isinstance(found.contest.cost, Estimate)
    assert sum(parts_of(found).values()) == pytest.approx(found.contest.cost.value - 1)
    assert found.largest is not None


def test_an_attributed_pass_that_is_slower_all_over_changes_nothing(hand_run, hand_case, hand_request) -> None:
    found = decomposed(hand_study(hand_run, hand_case, hand_request, tax=3), "ddtree", "chain")
    assert parts_of(found) == pytest.approx({"draft": 0.0, "verify": 0.1, HOST_GAP: 0.1})


def test_waiting_between_rounds_is_told_from_the_rounds(hand_run, hand_case, hand_request) -> None:
    """The tree's requests wait 6 ms after rounds of 12: the speedup is two thirds of tau over round cost."""
    found = decomposed(hand_study(hand_run, hand_case, hand_request, wait_ms=6), "ddtree", "chain")
    assert isinstance(found.contest.speedup, Estimate)
    assert found.waiting == pytest.approx(2 / 3)
    assert found.typical == pytest.approx(1.0)
    assert found.contest.net == pytest.approx(1.25)
    assert found.contest.speedup.value == pytest.approx(1.25 * 2 / 3)


def test_without_stage_times_the_rest_still_stands(hand_run, hand_case, hand_request) -> None:
    found = decomposed(hand_study(hand_run, hand_case, hand_request, is_timed=False), "ddtree", "chain")
    assert found.contributions == NotMeasured(not_measured="no attributed pass was run: capture mode 'none'")
    assert found.largest is None
    assert found.waiting == pytest.approx(1.0)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    cases = make_cases(concurrencies=(1, 4), node_budgets=(8, 32), num_blocks=2, **SMALL)
    folder = build_run(tmp_path_factory.mktemp("run") / "run", SyntheticPlan(cases=cases))
    return study_of(load_run(folder))


@pytest.mark.parametrize("against", ["ar", "chain", "prompt_lookup"])
def test_every_speedup_is_exactly_the_product_of_its_factors(study: Study, against: str) -> None:
    shares = shares_by_setting(study.settings)
    for setting in study.settings:
        found = contest(setting, against, study)
        if setting.arm == against or not isinstance(found, Contest):
            continue
        taken = decompose(found, shares)
        assert isinstance(found.speedup, Estimate)
        assert isinstance(found.cost, Estimate)
        assert found.net is not None
        assert isinstance(taken.waiting, float)
        assert isinstance(taken.typical, float)
        assert found.net * taken.waiting * taken.typical == pytest.approx(found.speedup.value)
        assert 0.7 < taken.waiting < 1.4
        assert sum(parts_of(taken).values()) == pytest.approx(found.cost.value - 1, abs=1e-12)


def test_intervals_of_shares_hold_the_truth(study: Study) -> None:
    """The simulator gives every stage 0.98 to 1 times its share of a round."""
    setting = next(s for s in study.at(4) if s.arm == "ddtree")
    found = shares_of(setting)
    assert isinstance(found, Shares)
    for stage, share in STAGE_SHARES.items():
        value = found.of(stage.value)
        assert isinstance(value, Estimate)
        assert value.low is not None
        assert value.high is not None
        assert value.value == pytest.approx(0.99 * share, rel=0.004)
        assert 0 < value.high - value.low < 0.01 * share
    assert found.values.sum() == pytest.approx(1)
    assert found.resampled.shape == (1000, len(PARTS))


def test_a_stage_that_takes_twice_as_long_is_the_one_that_is_named(tmp_path) -> None:
    """Two runs of one experiment, in one of which verify takes three times as long: the difference is all verify's."""
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL)
    plain, slow = (
        study_of(load_run(build_run(tmp_path / name, SyntheticPlan(name=name, cases=cases, slow=stages))))
        for name, stages in (("plain", {}), ("slow", {"verify": 3.0}))
    )
    before, after = (parts_of(decomposed(one, "chain", "ar")) for one in (plain, slow))
    moved = {part: after[part] - before[part] for part in after}
    assert max(moved, key=lambda part: abs(moved[part])) == Stage.VERIFY.value
    assert all(abs(moved[part]) < 0.1 * moved["verify"] for part in moved if part != "verify")


def test_an_interval_needs_rounds(hand_run, hand_case, hand_request) -> None:
    stages = (StageSample(step=0, stage="verify", duration_ns=6 * MS, clock="host"),)
    request = hand_request("a", 3, (0, 10, 20), ((1, 2, 0),))
    case = hand_case(case=CASE["chain"], requests=(request,), round_ms=(10,), stages=stages, attributed_ms=(10,))
    (setting,) = study_of(load_run(hand_run([case]).path)).settings
    found = shares_of(setting)
    assert isinstance(found, Shares)
    value = found.of("verify")
    assert isinstance(value, Estimate)
    assert (value.value, value.low) == (pytest.approx(0.6), None)
    assert "too few" in value.note
    assert isinstance(found.of("draft"), NotMeasured)


def test_rounds_fill_a_request_at_concurrency_1_and_less_of_it_beside_prefills(study: Study) -> None:
    for setting in study.settings:
        found = rounds_part(setting)
        assert not isinstance(found, NotMeasured)
        assert found.value == pytest.approx(_running(setting))
        if setting.concurrency == 1:
            assert found.value == pytest.approx(1.0)
        else:
            assert found.value < 0.97
