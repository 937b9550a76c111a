"""Sections say what the data says: best arms, caveats, reasons, and nothing where there is nothing."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from ddbench import units
from ddbench.analysis.frames import load_run
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.synthetic import make_cases
from ddbench.analysis.values import Estimate
from ddbench.records import OkResult, Parity
from ddbench.report import cells, checks
from ddbench.report.acceptance import acceptance
from ddbench.report.arms import arm_cell, arms
from ddbench.report.cards import cards, few
from ddbench.report.document import Section, Skipped, Table
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.headline import ACCEPTANCE_LABELS, BUSY, headline
from ddbench.report.provenance import common_warnings, environment, glossary, raw_data
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
    for fact in list(cards(full))[:2]:
        concurrency = int(fact.label.rsplit(" ", 1)[1])
        speedups = {s.label: full.value(s, "speedup_vs_ar") for s in full.study.at(concurrency)}
        measured = {label: value.value for label, value in speedups.items() if hasattr(value, "value")}
        assert fact.subject == max(measured, key=measured.get)
        assert fact.value == f"{max(measured.values()):.2f}x"
    assert "real for this pair only" in " ".join(section.notes)
    assert "14 of 17 planned cases were measured" in section.intro[0]


def test_an_arm_that_gains_most_on_a_slow_ar_is_not_best() -> None:
    """Of executors, each with an ar of its own: op by op the gain is larger, and everything takes far longer."""
    executors = Path(__file__).parents[2] / "reports" / "2026-11-executor-h200"
    evidence = evidence_of(load_run(executors))
    for fact, concurrency in zip(cards(evidence), (1, 4, 16), strict=True):
        settings = evidence.study.at(concurrency)
        fastest = min((s for s in settings if s.arm != "ar"), key=lambda s: evidence.value(s, "tpot_ms").value)
        speedups = {s.label: evidence.value(s, "speedup_vs_ar").value for s in settings if s.arm != "ar"}
        assert fact.subject == fastest.label
        assert fact.value == f"{speedups[fastest.label]:.2f}x"
        assert max(speedups, key=speedups.get) != fastest.label


def test_a_control_that_is_fastest_is_not_best(run_of) -> None:
    """It prices the tree's machinery; when it wins, that is noise, and nobody would choose it."""
    cases = make_cases(arms=("ar", "chain", "chain_via_tree"), concurrencies=(1,), **SMALL)
    slow = {"verify": 3.0, "draft": 3.0}
    evidence = evidence_of(load_run(run_of(cases=cases, slow=slow, slow_arms=("chain",))))
    speedups = {s.label: evidence.value(s, "speedup_vs_ar").value for s in evidence.study.at(1) if s.arm != "ar"}
    assert speedups["chain_via_tree"] > speedups["chain"], "the control of this test"
    (fact,) = cards(evidence)
    assert fact.subject == "chain"


def test_headline_counts_what_is_missing(full: Evidence) -> None:
    notes = " ".join(headline(full).notes)
    assert "1 case is incorrect and has no timings" in headline(full).intro[1]
    assert "1 case not run" in notes
    assert "1 case out of memory" in notes
    assert "book-keeping checks hold" in notes


def test_looping_arms_are_never_best(run_of) -> None:
    """H52: greedy decoding that loops makes the fastest arm; it has no headline."""
    run = run_of(cases=make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **SMALL))
    sound = evidence_of(load_run(run))
    frames = sound.frames
    fastest = next(cards(sound)).subject
    looping = frames.requests["case_id"].map(frames.cases.set_index("case_id")["label"]) == f"{fastest} c=1"
    pairs = zip(frames.requests["tokens"], looping, strict=True)
    tokens = [np.full(len(own), 3) if loops else own for own, loops in pairs]
    flagged = evidence_of(dataclasses.replace(frames, requests=frames.requests.assign(tokens=tokens)))
    assert fastest != "ar"
    assert next(cards(flagged)).subject not in ("ar", fastest)
    assert any("Outputs loop" in text and fastest in text for text in headline(flagged).intro)
    for evidence, may_be_marked in ((sound, True), (flagged, False)):
        table = arms(evidence).tables[0]
        strong = {row[0].text for row in table.rows for cell in row if cell.tone == "strong"}
        assert (fastest in strong) is may_be_marked


def test_a_speedup_that_may_be_none_is_not_marked(run_of) -> None:
    """The best of a column stands out only where its interval leaves 1 behind."""
    evidence = evidence_of(load_run(run_of(cases=make_cases(concurrencies=(1,), **SMALL))))
    setting, best = next(
        (setting, value)
        for setting in evidence.arms_at(1)
        if isinstance(value := evidence.value(setting, "speedup_vs_ar"), Estimate) and value.value > 1
    )
    for low, expected in ((1.01, "strong"), (0.99, "plain"), (None, "strong")):
        told = dataclasses.replace(best, low=low, high=None if low is None else best.value + 1, note="n=1: too few")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Evidence, "value", lambda self, one, name, told=told: told)
            assert arm_cell(evidence, setting, "speedup_vs_ar", setting.key).tone == expected


def test_when_everything_loops_nothing_is_best(run_of) -> None:
    evidence = evidence_of(load_run(run_of(cases=make_cases(concurrencies=(1,), **SMALL))))
    requests = evidence.frames.requests
    looped = requests.assign(tokens=[np.full(len(tokens), 3) for tokens in requests["tokens"]])
    fact = next(cards(evidence_of(dataclasses.replace(evidence.frames, requests=looped))))
    assert (fact.value, fact.subject) == ("no best arm", "the outputs of every measured arm loop")


def test_a_failing_identity_is_on_top_and_its_case_is_not_best(run_of) -> None:
    evidence = evidence_of(
        load_run(run_of(cases=make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), **SMALL)))
    )
    requests = evidence.frames.requests
    counts = requests["num_rounds"] + (
        requests["case_id"].map(evidence.frames.cases.set_index("case_id")["arm"]) == "ddtree"
    )
    broken = evidence_of(dataclasses.replace(evidence.frames, requests=requests.assign(num_rounds=counts)))
    assert "not to be believed" in headline(broken).intro[1]
    assert next(cards(broken)).subject == "chain"
    failing = checks.identities(broken).tables[0]
    assert failing.title == "Failing"
    assert {row[0].text for row in failing.rows} == {"ddtree node_budget=16 c=1"}
    assert any("book-keeping" in row[0].detail for row in arms(broken).tables[0].rows)


def test_without_ar_the_lowest_tpot_is_named(run_of) -> None:
    run = run_of(cases=make_cases(arms=("prompt_lookup", "ddtree"), concurrencies=(2,), **SMALL))
    fact = next(cards(evidence_of(load_run(run))))
    assert fact.label == "Lowest TPOT at concurrency 2"
    assert fact.subject.startswith("ddtree")
    assert "there is no ar arm to compare with" in fact.details


def test_arms_tables_hold_every_setting_and_its_fate(full: Evidence) -> None:
    section = arms(full)
    assert isinstance(section, Section)
    titles = [table.title for table in section.tables]
    assert titles[:3] == ["Concurrency 1", "Concurrency 4", "Concurrency 8"]
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
    assert [figure.title for figure in section.figures] == [
        "Speedup over autoregressive decoding",
        "What makes a round of the fastest drafter dearer",
    ]


def test_variants_are_compared_with_what_they_change(full: Evidence) -> None:
    section = variants(full)
    assert isinstance(section, Section)
    table, stages_of_changes = section.tables
    assert column(stages_of_changes, "Change") == ["materialize=sequential"]
    assert column(table, "Change") == ["materialize=sequential"]
    assert table.rows[0][3].text.endswith("x")
    assert table.rows[0][3].detail.startswith("[")


def test_nothing_ablated_is_a_reason(run_of) -> None:
    evidence = evidence_of(load_run(run_of(cases=make_cases(arms=("ar",), concurrencies=(1,), **SMALL))))
    assert variants(evidence) == Skipped("variants", "Variants", "the experiment ablates nothing")
    assert acceptance(evidence) == Skipped("acceptance", "Acceptance", "no measured case drafts anything")
    assert checks.failures(evidence) == Skipped("failures", "Failures", "every case of the plan delivered")
    assert isinstance(checks.skipped(evidence), Skipped)
    assert ACCEPTANCE_LABELS["none"] in headline(evidence).notes


def test_no_column_of_steady_rounds_where_the_host_never_ran_ahead(full: Evidence, full_run: Path) -> None:
    frames = load_run(full_run)
    waited = dataclasses.replace(frames, steps=frames.steps.assign(start_ns=frames.steps["start_ns"] + 1))
    for evidence, expected in ((full, True), (evidence_of(waited), False)):
        titles = [column.title for column in arms(evidence).tables[0].columns]
        assert "Round" in titles
        assert ("Steady round" in titles) is expected


def test_stage_times_and_gap_make_up_the_round(full: Evidence) -> None:
    section = stages(full)
    assert isinstance(section, Section)
    times = [table for table in section.tables if not table.is_folded]
    assert len(times) == 3
    for table in times:
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
        for place, (key, result) in enumerate(list(full.frames.results.items())[:3], start=8)
    }
    frames = dataclasses.replace(full.frames, results=results)
    assert common_notes(dataclasses.replace(full, frames=frames)) == [
        "Busy: 10 % of the CPUs (worst of all 3 cases).",
        "Random prompts (all 3 cases).",
    ]


def common_notes(evidence: Evidence) -> list[str]:
    """The warnings that most cases share, as the headline tells them."""
    return list(common_warnings(evidence))


def test_warnings_of_few_cases_stay_with_them(full: Evidence) -> None:
    """What most cases warned about is a matter of the headline; what one did is shown where its times are."""
    place, (key, result) = 4, list(full.frames.results.items())[4]
    results = {**full.frames.results, key: result.model_copy(update={"warnings": ("the fan was off",)})}
    warned = evidence_of(dataclasses.replace(full.frames, results=results))
    assert not any("fan" in note for note in headline(warned).notes)
    assert environment(warned).notes == (f"The fan was off (1 in 16 cases: {full.case_labels[key]}).",)
    flagged = [row[0] for row in arms(warned).tables[0].rows if "warned" in row[0].detail]
    assert [cell.text for cell in flagged] == ["ddtree node_budget=8"], place
    assert flagged[0].tip.startswith("The fan was off.")
    assert not any("warned" in row[0].detail for table in acceptance(warned).tables for row in table.rows)


def loaded(evidence: Evidence, share: float, count: int) -> Evidence:
    """The same run with other processes on the machine around the passes of the first `count` cases."""
    results = dict(evidence.frames.results)
    ok = [(key, result) for key, result in results.items() if isinstance(result, OkResult)]
    for key, result in ok[:count]:
        load = result.passes[0].load.model_copy(update={"host_load_after": share})
        passes = tuple(one.model_copy(update={"load": load}) for one in result.passes)
        results[key] = result.model_copy(update={"passes": passes})
    return evidence_of(dataclasses.replace(evidence.frames, results=results))


def test_a_busy_machine_is_said_before_any_verdict(full: Evidence) -> None:
    assert BUSY not in headline(full).intro
    busy = loaded(full, 0.9, 14)
    assert BUSY in headline(busy).intro[1:3]
    assert all(fact.tone != "good" for fact in headline(busy).facts)
    assert BUSY not in headline(loaded(full, 0.9, 5)).intro
    assert BUSY not in headline(loaded(full, 0.3, 14)).intro


def test_headline_says_what_intervals_cover(run_of) -> None:
    """Nobody is to read the spread between processes into intervals of one process."""
    one = evidence_of(load_run(run_of(cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL))))
    three = evidence_of(
        load_run(run_of("three", cases=make_cases(arms=("ar", "chain"), concurrencies=(1,), num_blocks=3, **SMALL)))
    )
    (note,) = (note for note in headline(one).notes if note.startswith("Intervals"))
    assert "within the one process that ran a case" in note
    assert "--blocks 3" in note
    (note,) = (note for note in headline(three).notes if note.startswith("Intervals"))
    assert "also cover what differs between the 3 processes" in note


def test_output_has_an_interval_over_rounds(full: Evidence) -> None:
    place = [column.title for column in arms(full).tables[0].columns].index("Output")
    cell = arms(full).tables[0].rows[0][place]
    assert cell.detail.startswith("[")
    assert "rounds" in cell.tip


def test_parity_does_not_blame_what_cannot_be_compared(full: Evidence) -> None:
    key, result = next(iter(full.frames.results.items()))
    parity = Parity(status="not_applicable", num_prompts=0, num_tokens=0, detail="sampled output has no single answer")
    results = {**full.frames.results, key: result.model_copy(update={"parity": parity})}
    section = checks.parity(dataclasses.replace(full, frames=dataclasses.replace(full.frames, results=results)))
    titles = [table.title for table in section.tables]
    assert titles == ["Not identical", "Nothing to compare with (1)", "Identical (13)"]
    assert section.intro[0].startswith("13 of 14 cases that can be compared")
    assert column(section.tables[1], "Why") == ["sampled output has no single answer"]


def test_small_stage_times_are_never_shown_as_zero(full: Evidence) -> None:
    for table in stages(full).tables:
        for cell in (cell for row in table.rows for cell in row if isinstance(cell.sort, float) and cell.sort > 0):
            assert re.search("[1-9]", cell.text + cell.detail), cell
    assert units.microseconds(0.0231) == "0.0231"
    assert units.microseconds(12704.6) == "12\u202f705"


def test_a_cut_block_is_said_where_its_acceptance_is_read(run_of) -> None:
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), **SMALL)
    cut = make_cases(arms=("chain",), concurrencies=(1,), block_size=4, **SMALL)
    whole, mixed = (
        evidence_of(load_run(run_of(name, cases=own))) for name, own in (("a", cases), ("b", (*cases, *cut)))
    )
    note = "chain block_size=4 drafted blocks of 4, the drafter was trained for 8: a shorter block costs acceptance."
    assert note in headline(mixed).notes
    assert not any("trained for" in text for text in headline(whole).notes)
    assert [row[6].detail for row in environment(whole).tables[1].rows] == [""]
    assert sorted(row[6].detail for row in environment(mixed).tables[1].rows) == ["", "trained: 8"]


def test_weights_name_the_drafters_that_drafted(run_of) -> None:
    """Arms without a drafter add no row of their own, unless there is no other."""
    drafting = evidence_of(load_run(run_of("a", cases=make_cases(concurrencies=(1,), **SMALL))))
    (row,) = environment(drafting).tables[1].rows
    assert [row[0].text, row[3].text, row[7].text] == ["nano-k2", "nano-k2 drafter", "measured"]
    plain = evidence_of(load_run(run_of("b", cases=make_cases(arms=("ar",), concurrencies=(1,), **SMALL))))
    (row,) = environment(plain).tables[1].rows
    assert row[3].tip == "no arm with a drafter was measured"


def test_kernels_that_ran_are_told_of_records_that_say_it(full: Evidence) -> None:
    """Of a GPU alone; old records do not know, and are shown as they were."""
    assert not [table for table in environment(full).tables if table.title == "Kernels that ran"]
    hopper = {"tree_attention_gluon": ("_hopper_kernel",), "tree_attention_triton": ("_combine_kernel",)}
    plain = {"tree_attention_triton": ("_combine_kernel", "_tree_kernel"), "swiglu_triton": ("_swiglu_kernel",)}
    keys = [key for key, result in full.frames.results.items() if isinstance(result, OkResult)][:3]
    changed = dict(zip(keys, (hopper, plain, {**hopper, "swiglu_triton": ("_swiglu_kernel",)}), strict=True))
    results = {
        key: result.model_copy(update={"kernels_launched": changed.get(key, {})})
        for key, result in full.frames.results.items()
    }
    known = evidence_of(dataclasses.replace(full.frames, results=results))
    (table,) = [table for table in environment(known).tables if table.title == "Kernels that ran"]
    labels = [full.case_labels[key] for key in keys]
    assert [tuple(cell.text for cell in row) for row in table.rows] == [
        ("swiglu", cells.DASH, "_swiglu_kernel", f"{labels[1]} and {labels[2]}"),
        ("tree attention", cells.DASH, "_combine_kernel, _tree_kernel", labels[1]),
        ("tree attention", "_hopper_kernel", "_combine_kernel", f"{labels[0]} and {labels[2]}"),
    ]


def test_threads_are_those_that_cases_used(run_of) -> None:
    cases = make_cases(arms=("ar", "chain"), concurrencies=(1,), num_threads=1, **SMALL)
    evidence = evidence_of(load_run(run_of(cases=cases)))
    facts = {row[0].text: row[1].text for row in environment(evidence).tables[0].rows}
    assert evidence.frames.manifests[0].environment.num_threads == 2
    assert facts["Threads"] == "1"
    assert "1 thread)" in headline(evidence).intro[0]


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


def test_long_labels_keep_both_ends() -> None:
    label = "ddtree materialize=fused tree_build=device attention=tree_triton node_budget=16"
    assert units.shortened(label, 40) == "ddtree materialize=f…iton node_budget=16"
    assert len(units.shortened(label, 41)) == 41
    assert units.shortened("chain", 5) == "chain"


def test_names_are_shortened_only_as_far_as_they_can_be_told_apart() -> None:
    names = [f"ddtree draft=oracle node_budget={budget} prompt_tokens=2048" for budget in (16, 64)]
    assert few(names) == ", ".join(names)
    assert few(names[:1]) == "ddtree draft=oracle … prompt_tokens=2048"
    assert few(["ar", "chain", "ddtree", "prompt_lookup"]) == "ar, chain, ddtree and 1 more"
