"""The first screen holds verdicts, best arms and the next step, and what speaks against them comes first."""

import dataclasses

import pytest

from ddbench.analysis.frames import load_run, merge_runs
from ddbench.analysis.synthetic import make_cases
from ddbench.analysis.values import Estimate
from ddbench.records import OkResult
from ddbench.report.cards import cards
from ddbench.report.document import Section, Skipped
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.findings import RANKING, WORDS, answer_cards, findings, next_cards
from ddbench.report.headline import BUSY, headline

SMALL = {"num_requests": 16, "max_new_tokens": 32}
CASES = make_cases(concurrencies=(1, 4), node_budgets=(8, 32), **SMALL)


@pytest.fixture
def evidence(run_of) -> Evidence:
    return evidence_of(load_run(run_of(cases=CASES)))


def test_the_first_screen_is_answers_then_arms_then_the_next_step(evidence: Evidence) -> None:
    facts = headline(evidence).facts
    assert facts == (*answer_cards(evidence), *cards(evidence), *next_cards(evidence))
    assert [fact.label[:2] for fact in facts[:3]] == ["Q1", "Q2", "Q3"]
    assert all(fact.value.split(",")[0] in WORDS.values() for fact in facts[:3])
    assert [fact.label for fact in facts[-2:]] == [f"Next to optimise at concurrency {c}" for c in (1, 4)]


def test_the_best_of_several_has_an_interval_that_allows_for_the_choice(evidence: Evidence) -> None:
    for fact in cards(evidence):
        concurrency = int(fact.label.rsplit(" ", 1)[1])
        setting = next(s for s in evidence.study.at(concurrency) if s.label == fact.subject)
        alone = evidence.value(setting, "speedup_vs_ar")
        assert isinstance(alone, Estimate)
        assert alone.low is not None
        assert alone.high is not None
        low, high = (float(end) for end in fact.details[0].partition("[")[2].partition("]")[0].split(", "))
        assert high - low > alone.high - alone.low
        assert fact.details[0].endswith("chosen of 4")  # of five; the control has no choice


def test_a_card_names_the_largest_predicted_gain(evidence: Evidence) -> None:
    (own,) = evidence.findings.values()
    for fact, group in zip(next_cards(evidence), own.proposals, strict=True):
        gains = [one.gain.value for one in group if isinstance(one.gain, Estimate)]
        assert fact.value == f"up to {max(gains):.2f}x"
        assert fact.details[0].startswith("[")


def test_the_ranking_holds_every_proposal_with_its_assumption(evidence: Evidence) -> None:
    section = findings(evidence)
    assert isinstance(section, Section)
    (table,) = (table for table in section.tables if table.title == RANKING)
    (own,) = evidence.findings.values()
    assert len(table.rows) == sum(len(group) for group in own.proposals)
    places = {column.title: place for place, column in enumerate(table.columns)}
    assert all(row[places["If"]].text and row[places["If"]].detail.startswith("rests on ") for row in table.rows)
    ranks = [row[places["Rank"]].text for row in table.rows]
    assert ranks.count("1") == 2


def test_every_answer_says_what_would_change_it(evidence: Evidence) -> None:
    section = findings(evidence)
    assert isinstance(section, Section)
    assert [text[:3] for text in section.intro] == ["Q1:", "Q2:", "Q3:"]
    (table,) = (table for table in section.tables if table.title == "How firm the answers are")
    assert [row[0].text for row in table.rows] == ["Q1", "Q2", "Q3"]
    assert all(len(row[2].text) > 30 for row in table.rows)
    assert all(len(cell.text) <= 240 for table in section.tables for row in table.rows for cell in row)


def test_runs_are_answered_apart(run_of) -> None:
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **SMALL)
    runs = [load_run(run_of(name, cases=cases, seed=seed)) for seed, name in enumerate(("left", "right"))]
    merged = evidence_of(merge_runs(runs))
    labels = [fact.label for fact in answer_cards(merged)]
    assert [label[-7:] for label in labels] == ["(run A)"] * 3 + ["(run B)"] * 3
    section = findings(merged)
    assert isinstance(section, Section)
    assert [text[:7] for text in section.intro] == ["Run A: "] * 3 + ["Run B: "] * 3


def test_what_speaks_against_a_speed_stands_above_it(run_of) -> None:
    """A busy machine, wrong outputs and looping outputs are read before the first card, and nothing is good news."""
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **{**SMALL, "num_requests": 48})
    calm = evidence_of(
        load_run(run_of(cases=(*cases, *make_cases(arms=("chain",), concurrencies=(2,))), incorrect=(3,)))
    )
    assert any(fact.tone == "good" for fact in answer_cards(calm))
    assert headline(calm).intro[1].startswith("1 case is incorrect and has no timings: chain c=2")
    results = dict(calm.frames.results)
    for key, result in results.items():
        if isinstance(result, OkResult):
            load = result.passes[0].load.model_copy(update={"host_load_after": 0.9})
            passes = tuple(one.model_copy(update={"load": load}) for one in result.passes)
            results[key] = result.model_copy(update={"passes": passes})
    busy = evidence_of(dataclasses.replace(calm.frames, results=results))
    assert BUSY in headline(busy).intro[1:3]
    assert not any(fact.tone == "good" for fact in headline(busy).facts)


def test_replayed_acceptance_is_said_above_the_cards(evidence: Evidence) -> None:
    results = {
        key: result.model_copy(update={"models": result.models.model_copy(update={"acceptance": "replayed"})})
        for key, result in evidence.frames.results.items()
    }
    replayed = evidence_of(dataclasses.replace(evidence.frames, results=results))
    assert any("It is an assumption, not a result" in text for text in headline(replayed).intro)
    assert not any("It is an assumption" in text for text in headline(evidence).intro)


def test_nothing_measured_has_no_findings(run_of) -> None:
    run = evidence_of(load_run(run_of(cases=make_cases(concurrencies=(1,), **SMALL), failed=range(5))))
    assert findings(run) == Skipped("findings", "Findings", "nothing was measured")
    assert headline(run).facts == ()
    assert "Nothing was measured." in headline(run).intro
