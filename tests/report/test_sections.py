"""Sections say what the data says: best arms, caveats, reasons, and nothing where there is nothing."""

import dataclasses
from pathlib import Path

import pytest

from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.synthetic import make_cases
from ddbench.report import cells, checks
from ddbench.report.acceptance import acceptance
from ddbench.report.arms import arms
from ddbench.report.document import Section, Skipped, Table
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.headline import ACCEPTANCE_LABELS, headline
from ddbench.report.provenance import environment, glossary, raw_data
from ddbench.report.stages import stages
from ddbench.report.variants import variants

SMALL = {"num_requests": 8, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def full(full_run: Path) -> Evidence:
    return evidence_of(load_run(full_run))


def column(table: Table, title: str) -> list[str]:
    place = [column.title for column in table.columns].index(title)
    return [row[place].text for row in table.rows]


def test_headline_names_the_arm_with_the_highest_speedup(full: Evidence) -> None:
    section = headline(full)
    for fact in section.facts[:2]:
        concurrency = int(fact.label.rsplit(" ", 1)[1])
        speedups = {s.label: full.value(s, "speedup_vs_ar") for s in full.study.at(concurrency)}
        measured = {label: value.value for label, value in speedups.items() if hasattr(value, "value")}
        assert fact.subject == max(measured, key=measured.get)
        assert fact.value == f"{max(measured.values()):.2f}x"
    assert "real for this pair only" in " ".join(section.intro)
    assert "14 of 17 planned cases were measured" in section.intro[0]


def test_headline_counts_what_is_missing(full: Evidence) -> None:
    notes = " ".join(headline(full).notes)
    assert "1 case incorrect" in notes
    assert "1 case not run" in notes
    assert "1 case out of memory" in notes
    assert "book-keeping checks hold" in notes


def test_looping_arms_are_never_best(run_of) -> None:
    """H52: greedy decoding that loops makes the fastest arm; it has no headline."""
    run = run_of(cases=make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **SMALL))
    sound = evidence_of(load_run(run))
    frames = sound.frames
    fastest = headline(sound).facts[0].subject
    looping = frames.requests["label"] == f"{fastest} c=1"
    tokens = [[3] * len(own) if loops else own for own, loops in zip(frames.requests["tokens"], looping, strict=True)]
    flagged = evidence_of(dataclasses.replace(frames, requests=frames.requests.assign(tokens=tokens)))
    assert fastest != "ar"
    assert headline(flagged).facts[0].subject not in ("ar", fastest)
    assert any("Outputs loop" in note and fastest in note for note in headline(flagged).notes)
    for evidence, may_be_marked in ((sound, True), (flagged, False)):
        (table,) = arms(evidence).tables
        strong = {row[0].text for row in table.rows for cell in row if cell.tone == "strong"}
        assert (fastest in strong) is may_be_marked


def test_when_everything_loops_nothing_is_best(run_of) -> None:
    evidence = evidence_of(load_run(run_of(cases=make_cases(concurrencies=(1,), **SMALL))))
    requests = evidence.frames.requests
    looped = requests.assign(tokens=[[3] * len(tokens) for tokens in requests["tokens"]])
    fact = headline(evidence_of(dataclasses.replace(evidence.frames, requests=looped))).facts[0]
    assert (fact.value, fact.subject) == ("no best arm", "the outputs of every measured arm loop")


def test_a_failing_identity_is_on_top_and_its_case_is_not_best(run_of) -> None:
    evidence = evidence_of(
        load_run(run_of(cases=make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **SMALL)))
    )
    requests = evidence.frames.requests
    counts = requests["num_rounds"] + (requests["arm"] == "ddtree")
    broken = evidence_of(dataclasses.replace(evidence.frames, requests=requests.assign(num_rounds=counts)))
    assert "not to be believed" in headline(broken).notes[0]
    assert headline(broken).facts[0].subject == "chain"
    failing = checks.identities(broken).tables[0]
    assert failing.title == "Failing"
    assert {row[0].text for row in failing.rows} == {"ddtree node_budget=16 c=1"}
    assert any("book-keeping" in row[0].detail for row in arms(broken).tables[0].rows)


def test_without_ar_the_lowest_tpot_is_named(run_of) -> None:
    run = run_of(cases=make_cases(arms=("prompt_lookup", "ddtree"), concurrencies=(2,), **SMALL))
    fact = headline(evidence_of(load_run(run))).facts[0]
    assert fact.label == "Lowest TPOT at concurrency 2"
    assert fact.subject.startswith("ddtree")
    assert "there is no ar arm to compare with" in fact.details


def test_arms_tables_hold_every_setting_and_its_fate(full: Evidence) -> None:
    section = arms(full)
    assert isinstance(section, Section)
    titles = [table.title for table in section.tables]
    assert titles == ["Concurrency 1", "Concurrency 4", "Concurrency 8"]
    first = section.tables[0]
    assert column(first, "Arm") == [
        "ar",
        "prompt_lookup",
        "chain",
        "chain_via_tree",
        "ddtree node_budget=8",
        "ddtree node_budget=16",
        "ddtree node_budget=32",
    ]
    assert column(first, "vs ar")[0] == "base"
    assert column(first, "vs chain")[2] == "base"
    assert first.rows[3][0].detail == "out of memory"
    assert all(cell.text.startswith(cells.DASH) for cell in first.rows[3][1:])
    assert {figure.title for figure in section.figures} == {"Speedup over autoregressive decoding", "Node budget"}


def test_variants_are_compared_with_what_they_change(full: Evidence) -> None:
    section = variants(full)
    assert isinstance(section, Section)
    (table,) = section.tables
    assert column(table, "Change") == ["materialize=sequential"]
    assert table.rows[0][3].text.endswith("x")
    assert table.rows[0][3].detail.startswith("[")


def test_nothing_ablated_is_a_reason(run_of) -> None:
    evidence = evidence_of(load_run(run_of(cases=make_cases(arms=("ar",), concurrencies=(1,), **SMALL))))
    assert variants(evidence) == Skipped("variants", "Variants", "the experiment ablates nothing")
    assert acceptance(evidence) == Skipped("acceptance", "Acceptance", "no measured case drafts anything")
    assert checks.failures(evidence) == Skipped("failures", "Failures", "every case of the plan delivered")
    assert isinstance(checks.skipped(evidence), Skipped)
    assert ACCEPTANCE_LABELS["none"] in headline(evidence).intro


def test_stage_times_and_gap_make_up_the_round(full: Evidence) -> None:
    section = stages(full)
    assert isinstance(section, Section)
    for table in section.tables:
        names = [column.title for column in table.columns]
        first, gap = names.index("Round") + 1, names.index("Host gap")
        for row in table.rows:
            parts = sum(cell.sort for cell in row[first : gap + 1] if cell.sort is not None)
            assert parts == pytest.approx(row[first - 1].sort)


def test_acceptance_splits_by_depth_kind_and_text(full: Evidence) -> None:
    section = acceptance(full)
    assert isinstance(section, Section)
    titles = [table.title for table in section.tables]
    assert titles[:3] == ["Lengths at concurrency 1", "Conditional acceptance by depth", "tau by kind of prompt"]
    assert [column.title for column in section.tables[2].columns] == ["Arm", "code", "docs", "prose"]
    assert "ddtree materialize=sequential" not in column(section.tables[1], "Arm")


def test_parity_keeps_what_diverged_in_sight(full: Evidence) -> None:
    section = checks.parity(full)
    diverged, identical = section.tables
    assert not diverged.is_folded
    assert identical.is_folded
    assert "position 17: 12 became 99" in column(diverged, "First divergence")[0]


def test_glossary_prints_every_formula() -> None:
    (table,) = glossary(None).tables
    assert column(table, "Name") == list(METRICS)
    assert column(table, "Formula") == [metric.formula for metric in METRICS.values()]


def test_raw_data_counts_rows(full: Evidence) -> None:
    (table,) = raw_data(full).tables
    counts = dict(zip(column(table, "File"), (row[2].sort for row in table.rows), strict=True))
    assert counts["cases/*/rounds.parquet"] == len(full.frames.rounds)
    assert counts["cases/*/result.json"] == 16


def test_environment_says_why_it_does_not_know(full: Evidence) -> None:
    section = environment(full)
    machine = section.tables[0]
    facts = {row[0].text: row[1] for row in machine.rows}
    assert facts["Threads"].text == "2"
    assert facts["Driver"].tip == "a synthetic run has no machine"
    assert machine.notes == ("¹ a synthetic run has no machine",)


def test_warnings_that_differ_in_numbers_only_are_told_once(full: Evidence) -> None:
    results = {
        key: result.model_copy(update={"warnings": (f"busy: {place} % of the CPUs", "random prompts")})
        for place, (key, result) in enumerate(list(full.frames.results.items())[:3])
    }
    warned = dataclasses.replace(full, frames=dataclasses.replace(full.frames, results=results))
    assert environment(warned).notes == (
        "busy: 0 % of the CPUs (and 2 more with other numbers)",
        "random prompts (3 cases)",
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.2345, "x", "1.23x"),
        (0.12345, "share", "12.3"),
        (1336.4, "tok/s", "1336"),
        (0.0123, "ms", "0.0123"),
        (617e6, "bytes", "617 MB"),
    ],
)
def test_numbers_keep_three_digits(value: float, unit: str, text: str) -> None:
    assert cells.number(value, unit) == text
