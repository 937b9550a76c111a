"""The three answers and the ranking, on runs whose truth is known: every verdict where it belongs."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddbench.analysis.decompose import rounds_part
from ddbench.analysis.findings import launch
from ddbench.analysis.findings.answers import Finding, overall, told
from ddbench.analysis.findings.bandwidth import Marginal, marginal
from ddbench.analysis.findings.findings import Findings
from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import STAGE_SHARES, SyntheticPlan, build_run, make_cases, synthetic_ceilings
from ddbench.analysis.values import Estimate
from ddbench.records import Ceilings, NotMeasured, SkippedCase
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.spec import CaptureSpec

SMALL = {"num_requests": 16, "max_new_tokens": 32}
TREES = {"arms": ("ar", "chain", "ddtree"), "node_budgets": (8, 32, 64), **SMALL}
LONG = {**TREES, "num_requests": 64, "max_new_tokens": 64}


def ceilings(read: float = 1e9, matmul: float = 1e12, launch_ns: float = 1000.0) -> Ceilings:
    """A machine that reads, multiplies and launches at these rates."""
    amounts = {("read", "hot"): read, ("read", "cold"): read, ("matmul", "none"): matmul, ("launch", "none"): launch_ns}
    return synthetic_ceilings(amounts, spread=0.01)


@pytest.fixture
def evidence(tmp_path: Path) -> Callable[..., Evidence]:
    def build(**plan: Any) -> Evidence:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return evidence_of(load_run(build_run(folder, SyntheticPlan(**plan))))

    return build


def found_in(evidence: Evidence) -> Findings:
    (found,) = evidence.findings.values()
    return found


def answer(evidence: Evidence, question: int) -> Finding:
    return found_in(evidence).answers[question - 1]


# --- Q1: the simulator's verify takes 1.5 us per node, its context is 400 kB, all that it reads 1 MB ------------------


@pytest.mark.parametrize(
    ("read", "matmul", "verdict", "words"),
    [
        (1e9, 1e12, "yes", "it is shared"),  # reading 400 kB again takes 400 us, no stage is slower than its bytes
        (2e10, 1e13, "mixed", "bandwidth is wasted in"),  # 20 us; 1 MB takes 50 us, verify 1000
        (1e12, 1e14, "no", "bandwidth is wasted in"),  # 0.4 us: less than a node takes
        (1e12, 5e9, "undecided", "time enough to have done so"),  # verify is bound by arithmetic, nothing is wasted
    ],
)
def test_context_is_shared_where_a_node_is_cheaper_than_reading_it(evidence, read, matmul, verdict, words) -> None:
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES), ceilings=ceilings(read, matmul))
    found = answer(run, 1)
    assert (found.verdict, words in found.answer) == (verdict, True), found.answer
    assert found.answer.startswith("By inference, as no bytes were counted.")
    assert any("hardware counters" in text for text in found.missing)


def test_the_cost_of_a_node_is_the_simulators(evidence) -> None:
    run = evidence(cases=make_cases(concurrencies=(1, 4), **TREES), ceilings=ceilings())
    (basis,) = run.bases.values()
    for concurrency in (1, 4):
        found = marginal(basis, concurrency)
        assert isinstance(found, Marginal)
        assert [setting.engine.node_budget for setting in found.settings] == [8, 32, 64]
        truth = 0.003 * 0.495 * (1 if concurrency == 1 else found.settings[0].steps["batch_size"].mean())
        assert found.slope.low is not None
        assert found.slope.high is not None
        assert found.slope.low - 0.001 < truth < found.slope.high + 0.001
        assert isinstance(found.again, Estimate)
        assert found.again.value == pytest.approx(0.4, rel=0.02)


def test_without_ceilings_nothing_is_inferred(evidence) -> None:
    found = answer(evidence(cases=make_cases(concurrencies=(1,), **TREES)), 1)
    assert found.verdict == "not_measured"
    assert "the run has no ceilings.json" in found.answer
    assert found.brief == ("the run has no ceilings.json: its machine's ceilings were not measured",)


def test_records_without_context_bytes_say_so(evidence) -> None:
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES), ceilings=ceilings(matmul=5e9))
    unknown = NotMeasured(not_measured="written before context rows were counted apart")
    results = {
        key: result.model_copy(
            update={"stage_costs": tuple(c.model_copy(update={"context_bytes": unknown}) for c in result.stage_costs)}
        )
        for key, result in run.frames.results.items()
    }
    found = answer(evidence_of(dataclasses.replace(run.frames, results=results)), 1)
    assert found.verdict == "not_measured"
    assert "context bytes: written before context rows were counted apart" in found.missing


# --- Q2: a round takes 1.9 ms and 3 us per verified token -------------------------------------------------------------


def test_a_tree_that_pays_at_one_request_and_not_at_many_pays_in_part(evidence) -> None:
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1, 16), node_budgets=(64, 256), **SMALL)
    found = answer(evidence(cases=cases, seed=4), 2)
    assert found.verdict == "mixed"
    assert "At concurrency 1 the fastest of 2 node budgets is 64" in found.answer
    assert "from 256 on it is slower" in found.answer
    assert len(found.brief) == 2


def test_sweeps_of_one_concurrency_are_told_apart(evidence) -> None:
    sizes = {"arms": ("chain", "ddtree"), "concurrencies": (1,), "node_budgets": (16, 64), "num_requests": 6}
    cases = [case for length in (32, 48) for case in make_cases(max_new_tokens=length, **sizes)]
    found = answer(evidence(cases=cases), 2)
    assert found.answer.count("At concurrency 1 with max_new_tokens=") == 2
    assert {brief.partition(":")[0] for brief in found.brief} == {"c=1 max_new_tokens=32", "c=1 max_new_tokens=48"}


def test_a_tree_that_pays_everywhere_pays(evidence) -> None:
    """Of three budgets the best is reported with an interval that allows for the choice."""
    found = answer(evidence(cases=make_cases(concurrencies=(1,), **LONG)), 2)
    assert found.verdict == "yes"
    assert "cannot be told from it" in found.answer or "slower" in found.answer
    (number,) = (number for number in found.numbers if number.label == "speedup of the tree over the chain")
    assert isinstance(number.value, Estimate)
    assert "all pairs of 4 settings" in number.value.note


def test_a_tree_that_loses_everywhere_does_not_pay(evidence) -> None:
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(16,), node_budgets=(128, 256), **SMALL)
    found = answer(evidence(cases=cases), 2)
    assert found.verdict == "no"
    assert "verify adds" in found.answer


def test_no_difference_is_not_told_as_a_loss(evidence) -> None:
    """A drafter that is never right: a tree of 8 nodes does what the chain of 7 does, noise apart."""
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1,), node_budgets=(8,), **SMALL)
    found = answer(evidence(cases=cases, agreement=0.0), 2)
    assert found.verdict == "undecided"
    assert "does not tell from 1" in found.answer
    assert "--blocks" in found.would_change
    assert "the best node budget: it takes at least two of them per concurrency" in found.missing


def test_no_stage_is_blamed_for_rounds_that_are_not_dearer(evidence) -> None:
    """Single stages take more and others less: a round that costs no more beyond doubt has nothing to be explained."""
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1,), node_budgets=(8,), **SMALL)
    assert "adds" not in answer(evidence(cases=cases), 2).answer


WEAK = r"The chain spends (\S+) % of its round more than the tree on tree build: .* would be (\S+)x (\[.*?\]) over it"


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("budgets", [(8,), (8, 32)])
def test_a_stage_that_takes_a_chain_longer_than_a_tree_is_told_as_a_weak_baseline(
    evidence, budgets, concurrency
) -> None:
    """It has no more to do there: what the tree gains by it is no merit of the tree's. Waiting stays what it is."""
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(concurrency,), node_budgets=budgets, **SMALL)
    fair = answer(evidence(cases=cases), 2)
    found = answer(evidence(cases=cases, slow={"tree_build": 3.0}, slow_arms=("chain",)), 2)
    assert "The chain spends" not in fair.answer
    words = re.search(WEAK, found.answer)
    assert words is not None, found.answer
    assert float(words[1]) == pytest.approx(100 * 0.14 / 1.14, abs=1)  # a stage of 7 %, three times as long
    merits = [float(re.search(r"(\S+)x .* over the chain", one.answer)[1]) for one in (fair, found)]
    assert float(words[2]) == pytest.approx(merits[0], rel=0.03)
    assert merits[1] > merits[0] * 1.05
    told_of = f"({words[2]}x {words[3]} if tree build took the chain no longer)"
    assert [text.count(told_of) for text in found.brief] == [1]
    assert "no longer" not in str(fair.brief)


@pytest.mark.parametrize(("stage", "budget"), [("verify", 8), ("draft", 8), ("tree_build", 4)])
def test_what_is_the_models_work_or_a_narrower_trees_is_no_weak_baseline(evidence, stage, budget) -> None:
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1,), node_budgets=(budget,), **SMALL)
    found = answer(evidence(cases=cases, slow={stage: 3.0}, slow_arms=("chain",)), 2)
    assert "The chain spends" not in found.answer


def test_without_a_chain_the_best_budget_still_stands(evidence) -> None:
    found = answer(evidence(cases=make_cases(concurrencies=(1,), **{**TREES, "arms": ("ar", "ddtree")})), 2)
    assert found.verdict == "not_measured"
    assert "the fastest of 3 node budgets is" in found.answer
    assert "the run has no chain arm" in found.missing


def test_idle_compute_is_told_where_ceilings_are(evidence) -> None:
    """For the chain and every budget; in words for the chain, the best tree and the widest."""
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES), ceilings=ceilings(matmul=1e10))
    found = answer(run, 2)
    shares = [n.value for n in found.numbers if n.label == "share of the matmul rate that verify reaches"]
    assert len(shares) == 1 + 3
    assert all(isinstance(value, Estimate) and 0.1 < value.value < 0.3 for value in shares)  # 0.2 ms of about 1
    unused = f"Of the matmul rate verify leaves {100 * (1 - shares[0].value):.1f} % with the chain"
    assert unused in found.answer
    without = answer(evidence(cases=make_cases(concurrencies=(1,), **TREES)), 2)
    assert "matmul rate" not in without.answer


# --- Q3 ---------------------------------------------------------------------------------------------------------------


def with_variant(part: str, value: str, concurrencies: tuple[int, ...] = (1,)) -> tuple[Any, ...]:
    plain = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=concurrencies, **SMALL)
    return (*plain, *make_cases(arms=("ddtree",), concurrencies=concurrencies, **{part: value}, **SMALL))


@pytest.mark.parametrize(("ratio", "verdict"), [(0.6, "yes"), (1.5, "no")])
@pytest.mark.parametrize(("part", "value"), [("executor", "round_graph"), ("tree_build", "device")])
def test_a_variant_pays_where_its_rounds_are_shorter(evidence, part, value, ratio, verdict) -> None:
    other = {"executor": ("tree_build", "device"), "tree_build": ("executor", "round_graph")}[part]
    cases = (*with_variant(part, value), *with_variant(*other)[-1:])
    found = answer(evidence(cases=cases, usual={value: ratio, other[1]: ratio}), 3)
    assert found.verdict == verdict
    (number,) = (number for number in found.numbers if number.label.startswith(f"speedup of {part}={value} over"))
    assert isinstance(number.value, Estimate)
    assert (number.value.value > 1) is (verdict == "yes")


@pytest.mark.parametrize(("ratio", "word"), [(0.6, "off"), (1.5, "more on")])
def test_what_a_variant_takes_off_a_round_is_told_in_time_and_in_shares(evidence, ratio, word) -> None:
    """Planted: rounds of so many times the others' length; both are held against the round's own mean."""
    of_rounds = evidence(cases=with_variant("executor", "round_graph"), usual={"round_graph": ratio})
    found = answer(of_rounds, 3)
    values = {number.label.partition(" executor")[0]: number.value for number in found.numbers}
    share, in_us = values["share off a round by"], values["time off a round by"]
    assert share.value == pytest.approx(1 - ratio, abs=0.04)
    assert share.low < share.value < share.high
    (plain,) = (s for s in of_rounds.study.at(1) if s.arm == "ddtree" and s.engine.executor == "eager")
    assert in_us.value == pytest.approx(1000 * of_rounds.value(plain, "round_cost_ms").value * share.value)
    assert in_us.low < in_us.value < in_us.high
    amount = abs(100 * share.value)
    ends = sorted(abs(100 * end) for end in (share.low, share.high))
    assert f" us or {amount:.1f} % [{ends[0]:.1f}, {ends[1]:.1f}] {word} a round)" in found.answer


def test_graphs_that_pay_and_a_build_that_does_not_are_told_apart(evidence) -> None:
    cases = (*with_variant("executor", "round_graph"), *with_variant("tree_build", "device")[-1:])
    found = answer(evidence(cases=cases, usual={"round_graph": 0.6, "device": 1.5}), 3)
    assert found.verdict == "mixed"
    assert [line.partition(":")[0] for line in found.brief] == ["graphs", "a tree built on the device"]


@pytest.mark.parametrize(("part", "value"), [("executor", "round_graph"), ("tree_build", "device")])
def test_half_of_the_question_is_not_the_whole_answer(evidence, part, value) -> None:
    assert answer(evidence(cases=with_variant(part, value), usual={value: 0.6}), 3).verdict == "mixed"


def test_variants_count_where_the_plain_one_is_the_ablation(evidence) -> None:
    """On a GPU the run's base has everything: what graphs and the device's tree buy is what their loss costs."""
    base = {"executor": "round_graph", "tree_build": "device", "attention": "tree_triton", "kernels": "triton"}
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **base, **SMALL)
    for change in ({"executor": "eager"}, {"executor": "stage_graphs"}, {"tree_build": "heap"}):
        cases += make_cases(arms=("ddtree",), concurrencies=(1,), **{**base, **change}, **SMALL)
    ratios = {"round_graph": 0.3, "stage_graphs": 0.5, "device": 0.6}
    found = answer(evidence(cases=cases, usual=ratios), 3)
    assert found.verdict == "yes"
    speedups = {number.label: number.value for number in found.numbers if number.label.startswith("speedup of")}
    assert speedups.keys() == {
        "speedup of executor=round_graph over eager",
        "speedup of executor=stage_graphs over eager",
        "speedup of tree_build=device over heap",
    }
    for label, value in speedups.items():
        name = label.partition("=")[2].partition(" ")[0]
        assert value.low <= 1 / ratios[name] <= value.high, label


def test_a_variant_that_changes_nothing_is_not_said_to_pay(evidence) -> None:
    assert answer(evidence(cases=with_variant("executor", "round_graph")), 3).verdict in ("undecided", "mixed")


def test_what_could_not_run_says_why_and_what_it_could_gain(evidence) -> None:
    why = "executor 'round_graph' needs a CUDA device and is not part of this version"
    skipped = (SkippedCase(arm="ddtree", label="ddtree executor=round_graph c=1", reason=why),)
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES), skipped=skipped, ceilings=ceilings(launch_ns=1000))
    found = answer(run, 3)
    assert found.verdict == "not_measured"
    assert f"executor: {why}" in found.missing
    assert "tree build: the run asked for heap only" in found.missing
    assert any(text.startswith("expert against tensor parallelism") for text in found.missing)
    values = {number.label: number.value for number in found.numbers}
    gap = 1 - 0.99 * sum(STAGE_SHARES.values())
    assert isinstance(bound := values["at most, without a host gap"], Estimate)
    assert bound.value == pytest.approx(1 / (1 - gap), rel=0.01)
    assert isinstance(ops := values["ops that a round dispatches"], Estimate)
    assert ops.value == 40 * len(STAGE_SHARES)
    assert isinstance(launching := values["launching these ops at best: share of a round"], Estimate)
    assert launching.value == pytest.approx(0.28 / 2.0, rel=0.1)


# --- what to do next --------------------------------------------------------------------------------------------------


def test_gains_follow_amdahl_and_fall(evidence) -> None:
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES), ceilings=ceilings(read=2e9, matmul=1e13))
    (group,) = found_in(run).proposals
    gains = [one.gain.value for one in group if isinstance(one.gain, Estimate)]
    assert gains == sorted(gains, reverse=True)
    by_title = {one.title: one for one in group}
    verify = by_title["verify to its floor"]
    (basis,) = run.bases.values()
    running, floor = rounds_part(verify.setting), basis.floor(verify.setting, "verify")
    assert not isinstance(running, NotMeasured)
    assert not isinstance(floor, NotMeasured)
    share = 0.99 * 0.5 * min(1.0, running.value)
    assert floor.floor_ms == pytest.approx(0.5)
    assert isinstance(verify.gain, Estimate)
    assert verify.gain.value == pytest.approx(1 / (1 - share * (1 - floor.floor_ms / floor.milliseconds)), rel=0.01)
    assert isinstance(verify.at_most, Estimate)
    assert verify.at_most.value == pytest.approx(1 / (1 - share), rel=0.01)
    gap = by_title["no host gap"]
    assert gap.gain == gap.at_most


def test_a_models_own_work_is_not_ranked_by_its_vanishing(evidence) -> None:
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES))
    (group,) = found_in(run).proposals
    titles = [one.title for one in group]
    known = [one.title for one in group if isinstance(one.gain, Estimate)]
    assert titles[: len(known)] == known
    assert {"a faster verify", "a faster draft", "a faster materialize"} <= set(titles) - set(known)
    assert known[0] == "longer accepted paths" or known[0].startswith("no ")


def test_a_longer_tau_is_proposed_only_where_a_wider_tree_shows_it(evidence) -> None:
    run = evidence(cases=make_cases(concurrencies=(16,), **TREES))
    (group,) = found_in(run).proposals
    (tau,) = (one for one in group if one.title == "longer accepted paths")
    assert isinstance(tau.at_most, Estimate)
    single = evidence(cases=make_cases(arms=("chain", "ddtree"), concurrencies=(1,), **SMALL))
    (group,) = found_in(single).proposals
    (tau,) = (one for one in group if one.title == "longer accepted paths")
    assert tau.gain == NotMeasured(not_measured="one node budget: nothing shows what a wider tree would accept")


# --- what is missing, what is not to be trusted -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        {"cases": make_cases(arms=("ar",), concurrencies=(1,), **SMALL)},
        {"cases": make_cases(arms=("ar", "prompt_lookup"), concurrencies=(4,), **SMALL)},
        {"cases": make_cases(concurrencies=(1,), **SMALL), "failed": range(5)},
        {"cases": make_cases(concurrencies=(1,), **SMALL), "incorrect": range(1, 5)},
        {"cases": make_cases(concurrencies=(1,), **SMALL), "not_run": range(5)},
        {"cases": ()},
    ],
    ids=["ar only", "no drafter", "all failed", "drafts incorrect", "not run", "empty"],
)
def test_a_run_that_says_nothing_is_not_made_to(evidence, plan) -> None:
    found = found_in(evidence(**plan))
    assert [one.verdict for one in found.answers] == ["not_measured"] * 3
    assert found.proposals == ()
    assert all(one.answer and one.missing for one in found.answers)


def test_without_an_attributed_pass_speeds_are_answered_and_shares_are_not(evidence) -> None:
    plain = make_cases(concurrencies=(1,), **LONG)
    cases = tuple(case.model_copy(update={"capture": CaptureSpec(mode="none")}) for case in plain)
    run = evidence(cases=cases, ceilings=ceilings())
    assert [one.verdict for one in found_in(run).answers] == ["not_measured", "yes", "not_measured"]
    assert any("no attributed pass" in text for text in answer(run, 1).missing)


def test_nothing_rests_on_outputs_that_loop(evidence) -> None:
    """H52."""
    run = evidence(cases=make_cases(concurrencies=(1,), **TREES))
    requests = run.frames.requests
    is_tree = requests["case_id"].map(run.frames.cases.set_index("case_id")["arm"]) == "ddtree"
    looped = [np.full(40, 3) if loops else own for own, loops in zip(requests["tokens"], is_tree, strict=True)]
    flagged = evidence_of(dataclasses.replace(run.frames, requests=requests.assign(tokens=looped)))
    found = found_in(flagged)
    assert answer(flagged, 2).verdict == "not_measured"
    assert not any("ddtree" in label for one in found.answers for label in one.rests_on)


def test_the_same_run_gives_the_same_answers(evidence) -> None:
    plan = {"cases": make_cases(concurrencies=(1, 4), **TREES), "ceilings": ceilings()}
    assert found_in(evidence(**plan)).answers == found_in(evidence(**plan)).answers


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("not_measured", "not_measured"), "not_measured"),
        (("not_measured", "no"), "undecided"),
        (("not_measured", "yes"), "mixed"),
        (("no", "no"), "no"),
        (("yes", "no"), "mixed"),
    ],
)
def test_a_part_that_does_not_pay_beside_one_that_was_not_measured_is_no_gain_in_part(verdicts, expected) -> None:
    assert launch.of_both(verdicts) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((), "not_measured"),
        (("not_measured", "not_measured"), "not_measured"),
        (("yes", "not_measured"), "yes"),
        (("yes", "no"), "mixed"),
        (("yes", "undecided"), "mixed"),
        (("no", "undecided"), "undecided"),  # "in part" would read as a gain
        (("undecided", "undecided"), "undecided"),
    ],
)
def test_verdicts_are_put_together(verdicts, expected) -> None:
    assert overall(verdicts) == expected


def test_numbers_are_told_with_unit_and_interval() -> None:
    assert told(Estimate(0.1234, 0.1, 0.15, 9, "share", "clean")) == "12.3 % [10.0, 15.0]"
    assert told(Estimate(1.5, 1.2, 1.9, 9, "x", "clean")) == "1.50x [1.20, 1.90]"
    assert told(Estimate(0.5, None, None, 1, "ms", "clean", "exact: none")) == "0.500 ms"
    assert told(NotMeasured(not_measured="why")) == "not measured (why)"
