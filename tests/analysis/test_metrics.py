"""Metrics against numbers computed on paper, and what they say where there is nothing to measure."""

import dataclasses
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis import acceptance
from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS, evaluate, measure
from ddbench.analysis.settings import Setting, Study, study_of
from ddbench.analysis.synthetic import make_cases
from ddbench.analysis.values import Estimate, Unit
from ddbench.records import NotMeasured
from ddbench.spec import Case

CASE = {case.arm: case for case in make_cases(concurrencies=(1,))}


def study(run) -> Study:
    return study_of(load_run(run.path))


def chain_case(hand_case, requests, **changes):
    values = {
        "case": CASE["chain"],
        "requests": requests,
        "round_ms": (14, 16, 10, 14, 14),
        "num_nodes": 3,
        "verify_width": 5,
        "expected_length": 2.0,
        "identity_paths": (True, False, True, True, True),
    }
    return hand_case(**{**values, **changes})


def test_values_are_those_computed_by_hand(hand_run, hand_case, three_requests) -> None:
    """TPOT 30/6, 24/4, 14/2 ms; 12 tokens in 5 rounds; accepted 2, 3, 0, 2, 1 with one token cut off."""
    found = study(hand_run([chain_case(hand_case, three_requests)]))
    values = measure(found.settings[0], found)
    expected = {
        "output_tok_per_s": 150.0,
        "tpot_ms": 6.0,
        "ttft_ms": 8.0,
        "round_ms": 14.0,
        "round_cost_ms": 68 / 5,
        "acceptance_length": 12 / 5,
        "acceptance_length_uncut": 13 / 5,
        "acceptance_length_macro": (3 + 2 + 2) / 3,
        "acceptance_length_novel": (3 + 1 + 3 + 2) / 4,
        "acceptance_length_repeated": 3.0,
        "expected_length": 2.0,
        "calibration": 1.3,
        "nodes_per_round": 3.0,
        "padding_share": 0.2,
        "identity_path_share": 0.8,
        "mean_batch_size": 1.0,
    }
    for name, value in expected.items():
        estimate = values[name]
        assert isinstance(estimate, Estimate), (name, estimate)
        assert estimate.value == pytest.approx(value, rel=1e-12), name
        assert (estimate.unit, estimate.pass_name) == (METRICS[name].unit, "clean")
    assert values["tpot_ms"].n == 3
    assert values["output_tok_per_s"].note == "n=5 rounds: too few for an interval"
    assert isinstance(values["degenerate_share"], NotMeasured)


def test_depths_and_histogram_are_those_computed_by_hand(hand_run, hand_case, three_requests) -> None:
    setting = study(hand_run([chain_case(hand_case, three_requests)])).settings[0]
    assert acceptance.histogram(setting).tolist() == [1, 1, 2, 1]
    assert [d.value for d in acceptance.by_depth(setting)] == [4 / 5, 3 / 4, 1 / 3]


def test_speedup_is_the_ratio_of_median_tpot_over_shared_prompts(
    hand_run, hand_case, hand_request, three_requests
) -> None:
    """ar takes 12, 15, 21 ms per token on a, b, c and runs a prompt that the chain has not."""
    steps = tuple((0, 1, 0) for _ in range(2))
    slow = tuple(
        hand_request(prompt, 3, (0, 0, 2 * tpot), steps)
        for prompt, tpot in (("a", 12), ("b", 15), ("c", 21), ("d", 1000))
    )
    ar = hand_case(case=CASE["ar"], requests=slow, round_ms=(12,) * 8)
    found = study(hand_run([ar, chain_case(hand_case, three_requests)]))
    chain = next(s for s in found.settings if s.arm == "chain")
    speedup = evaluate(METRICS["speedup_vs_ar"], chain, found)
    assert isinstance(speedup, Estimate)
    assert speedup.value == pytest.approx(15 / 6)
    assert speedup.n == 3
    itself = evaluate(METRICS["speedup_vs_chain"], chain, found)
    assert itself == NotMeasured(not_measured="this is the chain arm itself")


def test_repeats_of_a_prompt_count_once(hand_run, hand_case, hand_request) -> None:
    """Prompt a at 5 and 9 ms, prompt b at 20 ms: the median over prompts of 7 and 20."""
    one_round = ((1, 2, 0),)
    requests = tuple(
        hand_request(prompt, 3, (0, 0, 2 * tpot), one_round) for prompt, tpot in (("a", 5), ("a", 9), ("b", 20))
    )
    found = study(hand_run([chain_case(hand_case, requests)]))
    tpot = evaluate(METRICS["tpot_ms"], found.settings[0], found)
    assert isinstance(tpot, Estimate)
    assert (tpot.value, tpot.n) == (13.5, 2)


def test_one_token_requests_have_no_time_per_token_and_no_acceptance(hand_run, hand_case, hand_request) -> None:
    """H57: a missing value is a reason, never 0."""
    requests = tuple(hand_request(prompt, 1, (0, 10, 10)) for prompt in "abcd")
    found = study(hand_run([chain_case(hand_case, requests, round_ms=(), identity_paths=())]))
    values = measure(found.settings[0], found)
    assert values["tpot_ms"] == NotMeasured(not_measured="no request emitted two tokens: the time per token needs two")
    assert values["ttft_ms"].value == 10.0
    for name in ("acceptance_length", "acceptance_length_macro", "calibration", "nodes_per_round", "padding_share"):
        assert values[name] == NotMeasured(not_measured="the clean pass recorded no rounds"), name
    assert values["round_ms"] == NotMeasured(not_measured="the clean pass recorded no steps")
    assert acceptance.by_depth(found.settings[0]) == ()


def test_drafts_without_probabilities_expect_nothing(hand_run, hand_case, three_requests) -> None:
    found = study(hand_run([chain_case(hand_case, three_requests, expected_length=math.nan)]))
    values = measure(found.settings[0], found)
    reason = NotMeasured(not_measured="the draft 'dflash' gives no probabilities")
    assert values["expected_length"] == values["calibration"] == reason


def test_a_draft_without_a_model_is_not_calibrated(hand_run, hand_case, three_requests) -> None:
    """It counts every proposal as certain; tau over that sum would look like a badly calibrated drafter."""
    case = chain_case(hand_case, three_requests, case=CASE["prompt_lookup"], expected_length=4.0)
    found = study(hand_run([case]))
    values = measure(found.settings[0], found)
    assert isinstance(values["calibration"], NotMeasured)
    assert values["calibration"] == values["expected_length"]
    assert values["calibration"].not_measured.startswith("prompt_lookup has no model")
    assert values["acceptance_length"].value == 12 / 5


def test_ar_has_no_draft_metrics(hand_run, hand_case, hand_request) -> None:
    requests = (hand_request("a", 3, (0, 1, 5), ((0, 1, 0), (0, 1, 0))),)
    found = study(hand_run([hand_case(case=CASE["ar"], requests=requests, round_ms=(2, 2))]))
    values = measure(found.settings[0], found)
    reason = NotMeasured(not_measured="the ar arm drafts nothing")
    assert values["expected_length"] == values["nodes_per_round"] == values["identity_path_share"] == reason
    assert values["acceptance_length"].value == 1.0


def missing_counterparts() -> list[tuple[str, Case, str]]:
    ar = CASE["ar"]
    workload = ar.workload.model_copy(update={"max_new_tokens": 7})
    return [
        ("no ar at all", CASE["chain_via_tree"], "the run has no ar arm"),
        ("other executor", _with_engine(ar, executor="stage_graphs"), "no ar case with executor=eager to compare with"),
        ("other precision", _with_engine(ar, dtype="bfloat16"), "no ar case with dtype=float32 to compare with"),
        ("other workload", ar.model_copy(update={"workload": workload}), "no ar case with the same workload (c=1)"),
        ("other block", ar.model_copy(update={"block": 1}), "no interleaved repeat holds both this case and ar"),
    ]


def _with_engine(case: Case, **changes) -> Case:
    return case.model_copy(update={"engine": case.engine.model_copy(update=changes)})


@pytest.mark.parametrize(("name", "other", "reason"), missing_counterparts())
def test_speedup_without_counterpart_says_why(
    hand_run, hand_case, hand_request, three_requests, name, other, reason
) -> None:
    requests = (hand_request("a", 3, (0, 1, 5), ((0, 1, 0), (0, 1, 0))),)
    found = study(
        hand_run(
            [
                chain_case(hand_case, three_requests),
                hand_case(case=other, requests=requests, round_ms=(2, 2)),
            ]
        )
    )
    chain = next(s for s in found.settings if s.arm == "chain")
    assert evaluate(METRICS["speedup_vs_ar"], chain, found) == NotMeasured(not_measured=reason)


def test_metric_table_is_complete() -> None:
    tables = {field.name for field in dataclasses.fields(Setting)}
    for name, metric in METRICS.items():
        assert name == metric.name
        assert metric.unit in get_args(Unit)
        assert set(metric.needs) <= tables
        assert len(metric.formula) > 20
        assert metric.title


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5] * 40, True),
        ([1, 2, 3, 4, 5] * 12, True),
        (list(range(30)) + [7, 8] * 30, True),
        (list(range(64)), False),
        ([1, 2, 3, 4, 5] * 8 + list(range(100, 130)), False),  # repeated itself, then went on
        (list(range(60)) + [9] * 17, False),  # ends in a loop, but most of it is new
        ([5] * 15, None),
    ],
)
def test_loops_are_seen(tokens, expected) -> None:
    """H52, H107: a repetition loop is the fastest arm there is."""
    assert acceptance.is_degenerate(tokens) is expected


@given(st.lists(st.integers(0, 3), max_size=40))
def test_repetition_is_the_share_of_seen_four_grams(tokens) -> None:
    seen, repeated = [], 0
    for end in range(4, len(tokens) + 1):
        gram = tokens[end - 4 : end]
        repeated += gram in seen
        seen.append(gram)
    assert acceptance.repetition(tokens) == pytest.approx(repeated / len(seen) if seen else 0.0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=16), st.lists(st.integers(0, 9), max_size=20))
def test_every_cycle_at_the_end_is_a_tail_loop(cycle, before) -> None:
    assert acceptance.has_tail_loop([*before, *(cycle * math.ceil(48 / len(cycle)))])


def test_acceptance_is_pooled_over_clean_passes_only(synthetic_frames) -> None:
    found = study_of(synthetic_frames)
    for setting in found.settings:
        rows = synthetic_frames.rounds
        own = rows[(rows["setting"] == setting.key) & (rows["pass_name"] == "clean")]
        value = evaluate(METRICS["acceptance_length"], setting, found)
        assert value.value == pytest.approx(own["num_emitted"].sum() / len(own))
        assert len(own) == len(setting.rounds)


def test_no_estimate_is_ever_nan() -> None:
    with pytest.raises(AssertionError, match="never NaN"):
        Estimate(np.nan, None, None, 3, "ms", "clean", "why")
