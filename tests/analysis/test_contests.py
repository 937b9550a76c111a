"""A speedup taken apart into acceptance and round cost, against numbers computed on paper."""

import pytest

from ddbench.analysis.contests import Contest, contest, standing
from ddbench.analysis.frames import load_run
from ddbench.analysis.settings import study_of
from ddbench.analysis.synthetic import make_cases
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured

CASE = {case.arm: case for case in make_cases(concurrencies=(1,), node_budgets=(16,))}


def prompts(hand_request, tau: int, num_rounds: int, round_ms: int):
    """Four prompts whose rounds emit `tau` tokens and take `round_ms` each."""
    span = num_rounds * round_ms
    return tuple(
        hand_request(name, 1 + tau * num_rounds, (0, 10, 10 + span), ((tau - 1, tau, 0),) * num_rounds)
        for name in "abcd"
    )


def hand_study(hand_run, hand_case, hand_request):
    """chain: 2 tokens in 10 ms; ddtree: 3 tokens in 12 ms; so 1.5 / 1.2 = 1.25."""
    cases = []
    for arm, tau, round_ms in (("chain", 2, 10), ("ddtree", 3, 12)):
        cases.append(
            hand_case(
                case=CASE[arm],
                requests=prompts(hand_request, tau, 4, round_ms),
                round_ms=(round_ms,) * 16,
                num_nodes=7,
                verify_width=8,
            )
        )
    return study_of(load_run(hand_run(cases).path))


def test_speedup_is_acceptance_over_round_cost(hand_run, hand_case, hand_request) -> None:
    study = hand_study(hand_run, hand_case, hand_request)
    tree = next(s for s in study.settings if s.arm == "ddtree")
    found = contest(tree, "chain", study)
    assert isinstance(found, Contest)
    assert found.length.value == pytest.approx(1.5)
    assert found.cost.value == pytest.approx(1.2)
    assert found.net == pytest.approx(1.25)
    assert found.speedup.value == pytest.approx(1.25)
    assert (found.length.n, found.length.counted) == (4, "prompts")
    assert (found.cost.n, found.cost.counted) == (16, "rounds")


def test_a_contest_without_counterpart_says_why(hand_run, hand_case, hand_request) -> None:
    study = hand_study(hand_run, hand_case, hand_request)
    tree = next(s for s in study.settings if s.arm == "ddtree")
    assert contest(tree, "ar", study) == NotMeasured(not_measured="the run has no ar arm")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.01, 1.2, "ahead"), (0.9, 1.1, "even"), (0.7, 0.99, "behind"), (1.0, 1.2, "even"), (None, None, "unknown")],
)
def test_standing_needs_the_whole_interval_on_one_side(low, high, expected) -> None:
    value = Estimate(1.0, low, high, 9, "x", "clean", "" if low else "n=2: too few for an interval")
    assert standing(value) == expected


def test_what_is_not_measured_has_no_standing() -> None:
    assert standing(NotMeasured(not_measured="no reason")) == "unknown"
