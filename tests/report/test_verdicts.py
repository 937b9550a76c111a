"""The headline's sentence says what the intervals allow, in words that follow from the data alone."""

import dataclasses

import numpy as np
import pytest

from ddbench.analysis.contests import Contest
from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import make_cases
from ddbench.analysis.values import Estimate
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.verdicts import verdicts

SMALL = {"num_requests": 8, "max_new_tokens": 24}
ARMS = ("ar", "prompt_lookup", "chain", "ddtree")


def ratio(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value, value - half, value + half, 16, "x", "clean")


@pytest.fixture
def evidence(run_of) -> Evidence:
    return evidence_of(
        load_run(run_of(cases=make_cases(arms=ARMS, concurrencies=(1, 4, 16), node_budgets=(32,), **SMALL)))
    )


def with_contests(evidence: Evidence, arm: str, against: str, values: dict[int, tuple[Estimate, ...]]) -> Evidence:
    """The evidence with (speedup, tau, cost) of `arm` against another by concurrency; the arm is also the fastest."""
    contests, metrics = dict(evidence.contests), {key: dict(own) for key, own in evidence.values.items()}
    for setting in evidence.study.settings:
        if setting.arm == arm:
            found = contests[setting.key, against]
            assert isinstance(found, Contest)
            speedup, length, cost = values[setting.concurrency]
            contests[setting.key, against] = dataclasses.replace(found, speedup=speedup, length=length, cost=cost)
            metrics[setting.key]["tpot_ms"] = dataclasses.replace(ratio(0.01, 0.001), unit="ms")
            metrics[setting.key]["acceptance_length"] = dataclasses.replace(ratio(9.0), unit="tokens")
    return dataclasses.replace(evidence, contests=contests, values=metrics)


def test_a_drafter_that_loses_has_no_headline(evidence: Evidence) -> None:
    values = {c: (ratio(0.7), ratio(1.5), ratio(2.1)) for c in (1, 4, 16)}
    sentence = next(verdicts(with_contests(evidence, "ddtree", "prompt_lookup", values)))
    assert sentence == (
        "Against prompt_lookup, which needs no model, the drafter is slower at concurrency 1, 4 and 16 (ddtree 0.70x); "
        "its longest tau is higher at concurrency 1, 4 and 16 (ddtree 1.50x). A drafter that does not beat it has no "
        "headline."
    )


def test_a_drafter_that_wins_everywhere_has_one(evidence: Evidence) -> None:
    values = {c: (ratio(1.3), ratio(1.5), ratio(1.1)) for c in (1, 4, 16)}
    sentence = next(verdicts(with_contests(evidence, "ddtree", "prompt_lookup", values)))
    assert "the drafter is faster at concurrency 1, 4 and 16 (ddtree 1.30x)" in sentence
    assert "headline" not in sentence


def test_concurrencies_are_told_apart_where_they_differ(evidence: Evidence) -> None:
    """An interval that holds 1 is neither a win nor a loss; the rule still asks for a win."""
    values = {
        1: (ratio(1.3), ratio(1.5), ratio(1.1)),
        4: (ratio(1.02), ratio(0.98), ratio(1.1)),
        16: (ratio(0.7), ratio(1.5), ratio(2.0)),
    }
    sentence = next(verdicts(with_contests(evidence, "ddtree", "prompt_lookup", values)))
    assert "is faster at concurrency 1 (ddtree 1.30x), is not separated in speed at 4 (ddtree 1.02x)" in sentence
    assert "and is slower at 16 (ddtree 0.70x)" in sentence
    assert "its longest tau is higher at concurrency 1 and 16 (ddtree 1.50x) and not separated at 4" in sentence
    assert sentence.endswith("A drafter that does not beat it has no headline at concurrency 4 and 16.")


def test_many_concurrencies_are_told_as_a_range(run_of) -> None:
    concurrencies = (1, 2, 4, 8)
    evidence = evidence_of(
        load_run(run_of(cases=make_cases(arms=ARMS, concurrencies=concurrencies, node_budgets=(32,), **SMALL)))
    )
    values = {c: (ratio(1.3 + c / 100), ratio(1.5), ratio(1.1)) for c in concurrencies}
    sentence = next(verdicts(with_contests(evidence, "ddtree", "prompt_lookup", values)))
    assert "is faster at concurrency 1, 2, 4 and 8 (ddtree 1.31x to 1.38x)" in sentence


def test_without_prompt_lookup_the_question_stays_open(run_of) -> None:
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **SMALL)
    (sentence,) = verdicts(evidence_of(load_run(run_of(cases=cases))))
    assert sentence == (
        "Whether the drafter beats prompt_lookup, which needs none, is open: the run has no prompt_lookup arm."
    )


def test_without_drafts_nothing_is_said(run_of) -> None:
    evidence = evidence_of(
        load_run(run_of(cases=make_cases(arms=("ar", "prompt_lookup"), concurrencies=(1,), **SMALL)))
    )
    assert list(verdicts(evidence)) == []


def test_a_looping_baseline_decides_nothing(evidence: Evidence) -> None:
    """H52: against an arm whose outputs loop there is no verdict."""
    requests = evidence.frames.requests
    loops = (requests["case_id"].map(evidence.frames.cases.set_index("case_id")["arm"]) == "prompt_lookup").to_numpy()
    tokens = [np.full(40, 3) if own else row for own, row in zip(loops, requests["tokens"], strict=True)]
    looped = dataclasses.replace(evidence.frames, requests=requests.assign(tokens=tokens))
    first = next(verdicts(evidence_of(looped)))
    assert "is open: the outputs or the book-keeping of prompt_lookup are not to be trusted" in first


def test_runs_are_told_apart(run_of) -> None:
    from ddbench.analysis.frames import merge_runs

    cases = make_cases(arms=ARMS, concurrencies=(1,), **SMALL)
    runs = [load_run(run_of(name, cases=cases, seed=seed)) for seed, name in enumerate(("left", "right"))]
    sentences = list(verdicts(evidence_of(merge_runs(runs))))
    assert [sentence.partition(": ")[0] for sentence in sentences] == ["Run A", "Run B"]
