"""The budget section is there where an arm ran at two budgets, and says why it is not elsewhere."""

import itertools

import pytest

from ddbench.analysis.frames import load_run, merge_runs
from ddbench.analysis.synthetic import make_cases
from ddbench.report.budget import budget
from ddbench.report.document import Section, Skipped
from ddbench.report.evidence import evidence_of

SMALL = {"num_requests": 8, "max_new_tokens": 24}
STEPS = "What each step to a wider tree brings and costs"


def section_of(run, **plan):
    return budget(evidence_of(load_run(run(**plan))))


@pytest.mark.parametrize("budgets", [(8, 64), (8, 16, 32, 64)])
def test_every_budget_stands_beside_the_chain(run_of, budgets) -> None:
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1, 4), node_budgets=budgets, **SMALL)
    section = section_of(run_of, cases=cases)
    assert isinstance(section, Section)
    assert [table.title for table in section.tables] == ["Concurrency 1", "Concurrency 4", STEPS]
    for table in section.tables[:2]:
        assert [row[0].text for row in table.rows] == ["chain", *(f"ddtree node_budget={n}" for n in budgets)]
        assert table.rows[0][-1].text == "base"
    widths = ["chain", *map(str, budgets)]
    assert [row[1].text for row in section.tables[2].rows] == [
        f"{narrow} to {wide}" for narrow, wide in itertools.pairwise(widths)
    ] * 2
    (figure,) = section.figures
    assert [panel.title for panel in figure.panels] == ["tau", "Round cost", "TPOT speedup over chain"]
    assert [entry.label for entry in figure.legend] == ["concurrency 1", "concurrency 4"]


def test_the_fastest_budget_is_the_one_with_the_highest_speedup(run_of) -> None:
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), node_budgets=(8, 16, 32), **SMALL)
    evidence = evidence_of(load_run(run_of(cases=cases)))
    speedups = {
        s.engine.node_budget: evidence.value(s, "speedup_vs_chain").value
        for s in evidence.study.settings
        if s.arm == "ddtree"
    }
    best = max(speedups, key=speedups.get)
    text = budget(evidence).intro[0]
    assert f"The fastest budget is {best} at concurrency 1 ({speedups[best]:.2f}x [" in text
    assert "compared with each other and with the chain at once" in text


def test_without_a_chain_the_speedup_is_over_ar(run_of) -> None:
    cases = make_cases(arms=("ar", "ddtree"), concurrencies=(1,), node_budgets=(8, 16), **SMALL)
    section = section_of(run_of, cases=cases)
    assert section.figures[0].panels[-1].title == "TPOT speedup over ar"
    assert [row[0].text for row in section.tables[0].rows] == ["ddtree node_budget=8", "ddtree node_budget=16"]


def test_one_budget_is_no_sweep(run_of) -> None:
    section = section_of(run_of, cases=make_cases(concurrencies=(1,), **SMALL))
    assert section == Skipped("budget", "Node budget", "no arm was measured at 2 node budgets or more")


def test_sweeps_that_differ_otherwise_are_not_mixed(run_of) -> None:
    cases = [
        case
        for materialize in ("fused", "sequential")
        for case in make_cases(
            arms=("ddtree",), concurrencies=(1,), node_budgets=(8, 16), materialize=materialize, **SMALL
        )
    ]
    section = section_of(run_of, cases=tuple(cases))
    assert {table.title for table in section.tables} - {STEPS} == {
        "Concurrency 1, ddtree",
        "Concurrency 1, ddtree materialize=sequential",
    }


def test_runs_keep_their_own_curves(run_of) -> None:
    cases = make_cases(arms=("chain", "ddtree"), concurrencies=(1,), node_budgets=(8, 16), **SMALL)
    runs = [load_run(run_of(name, cases=cases)) for name in ("left", "right")]
    section = budget(evidence_of(merge_runs(runs)))
    assert [entry.label for entry in section.figures[0].legend] == ["concurrency 1 (A)", "concurrency 1 (B)"]
