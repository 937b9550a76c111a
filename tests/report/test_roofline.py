"""The roofline section: distances by hand, gaps with their reasons, warnings in words, the same drawing every time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ddbench.analysis.frames import load_run, merge_runs
from ddbench.analysis.synthetic import make_cases
from ddbench.records import Ceilings, CeilingSample, NotMeasured
from ddbench.report import plots
from ddbench.report.document import Section, Skipped, Table
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.roofline import roofline

# Every stage of a synthetic case moves 1 MB and does 2 Mflop: 10 us of bytes (100 cold), 2 us of flops, 1.5 of launch.
CASES = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1, 4), num_requests=4, max_new_tokens=16)


@pytest.fixture
def evidence_with(run_of: Callable[..., Path], some_ceilings: Ceilings) -> Callable[..., Evidence]:
    """A synthetic run with these ceilings, changed."""

    def make(name: str = "own", failed: tuple[int, ...] = (), **changes: object) -> Evidence:
        ceilings = some_ceilings.model_copy(update=changes)
        return evidence_of(load_run(run_of(name, cases=CASES, failed=failed, ceilings=ceilings)))

    return make


def changed(ceilings: Ceilings, kind: str, cache: str, **factors: float) -> tuple[CeilingSample, ...]:
    """The samples with one ceiling changed by a factor, before or after."""
    return tuple(
        one.model_copy(update={"amount": one.amount * factors.get(one.when, 1.0)})
        if (one.kind, one.cache) == (kind, cache)
        else one
        for one in ceilings.samples
    )


def column(table: Table, title: str) -> list[str]:
    place = [one.title for one in table.columns].index(title)
    return [row[place].text for row in table.rows]


def test_every_stage_stands_against_its_floor(evidence_with) -> None:
    section = roofline(evidence_with())
    assert isinstance(section, Section)
    first = section.tables[0]
    assert [table.title for table in section.tables[:2]] == ["Concurrency 1", "Concurrency 4"]
    stages = column(first, "Stage")
    assert stages[:5] == ["whole round", "verify", "accept", "commit", "whole round"]
    assert column(first, "Floor")[:4] == ["30.0", "10.0", "10.0", "10.0"]
    assert [row[4].detail for row in first.rows[:2]] == ["cold 300", "cold 100"]
    assert column(first, "Bound by")[1:4] == ["bytes"] * 3
    assert column(first, "Intensity")[1] == "2.00"
    assert column(first, "Cache")[1] == "hot"
    for row in first.rows:
        distance, time, floor = (row[place].sort for place in (2, 3, 4))
        assert distance == pytest.approx(time / floor)
    assert section.notes == ()
    assert "Most time above a floor: verify of " in section.intro[0]


def test_ceilings_are_shown_before_and_after(evidence_with) -> None:
    table = roofline(evidence_with()).tables[-1]
    assert table.title == "What this machine can do, last-level cache 32.0 MB"
    assert column(table, "Ceiling") == ["read, hot", "read, cold", "copy, cold", "matmul", "launch"]
    assert column(table, "Before") == ["100 GB/s", "10.0 GB/s", "9.00 GB/s", "1.00 Tflop/s", "1.50 us"]
    assert table.rows[0][4].detail == "90.0 GB/s to 110 GB/s"
    assert column(table, "Change") == ["1.00x"] * 5


def test_a_change_of_the_machine_is_a_warning(evidence_with, some_ceilings) -> None:
    section = roofline(evidence_with(samples=changed(some_ceilings, "read", "hot", after=0.8)))
    (note,) = section.notes
    assert note.startswith("Ceilings changed between the first case and the last one (read, hot 0.80x)")
    (row,) = (row for row in section.tables[-1].rows if row[0].text == "read, hot")
    assert row[-1].tone == "warn"


def test_an_interrupted_run_and_a_fault_are_told(evidence_with, some_ceilings) -> None:
    only_before = tuple(one for one in some_ceilings.samples if one.when == "before")
    section = roofline(evidence_with(samples=only_before, faults=("after the cases: it broke",)))
    assert section.notes == (
        "Ceilings were measured before the cases only.",
        "A ceiling was not measured after the cases: it broke.",
    )
    assert column(section.tables[-1], "After")[0].startswith("–")


def test_what_is_faster_than_its_floor_is_told_in_words(evidence_with, some_ceilings) -> None:
    """1 MB at 1 MB/s takes a second; no cache is known to make it faster."""
    slow = changed(some_ceilings, "read", "cold", before=1e-4, after=1e-4)
    section = roofline(evidence_with(samples=slow, last_level_cache_bytes=NotMeasured(not_measured="unknown")))
    notes = [note for note in section.notes if "faster than its floor" in note]
    assert len(notes) == len(CASES)
    assert notes[0].startswith("ar at concurrency 1, faster than its floor: verify (0.00")
    assert notes[0].endswith("The cost model or the ceiling is wrong there.")
    assert {row[2].tone for row in section.tables[0].rows} == {"bad"}
    assert section.tables[-1].title.endswith("last-level cache: not measured (unknown)")


def test_without_ceilings_the_section_says_why_it_is_not_there(evidence_with, run_of) -> None:
    section = roofline(evidence_of(load_run(run_of("old", cases=CASES))))
    assert isinstance(section, Skipped)
    assert section.reason == "the run has no ceilings.json: its machine's ceilings were not measured"
    fault = "before the cases: not finished after 60 s"
    section = roofline(evidence_with(samples=(), faults=(fault,)))
    assert isinstance(section, Skipped)
    assert section.reason == f"no read ceiling was measured for float32 with 2 threads; {fault}"


def test_a_case_without_result_has_a_row_with_its_reason(evidence_with) -> None:
    section = roofline(evidence_with(failed=(1,)))
    table = section.tables[0]
    (row,) = (row for row in table.rows if row[0].text == "chain")
    assert all(cell.text == "–¹" for cell in row[1:])
    assert table.notes == ("¹ out_of_memory: the allocator gave up at 7.9 GB",)


def test_runs_side_by_side_keep_their_own_ceilings(run_of, some_ceilings) -> None:
    left, right = (load_run(run_of(name, cases=CASES, ceilings=some_ceilings)) for name in ("left", "right"))
    without = load_run(run_of("without", cases=CASES))
    section = roofline(evidence_of(merge_runs([left, right, without])))
    assert [table.title[:7] for table in section.tables[-2:]] == ["Run A: ", "Run B: "]
    assert {arm[-3:] for arm in column(section.tables[0], "Arm")} == {"(A)", "(B)", "(C)"}
    names = [panel.name for panel in section.figures[0].panels]
    assert names == ["roofline-c1-A", "roofline-c4-A", "roofline-c1-B", "roofline-c4-B"]


def test_the_drawing_names_its_lines_and_arms_and_is_the_same_every_time(evidence_with) -> None:
    (figure,) = roofline(evidence_with()).figures
    again = roofline(evidence_with(name="again")).figures[0]
    assert [panel.svg for panel in figure.panels] == [panel.svg for panel in again.panels]
    svg = figure.panels[0].svg
    for text in ("matmul 1.00 Tflop/s", "read, hot 100 GB/s", "read, cold 10.0 GB/s", "ar", "chain", "ddtree"):
        assert text in svg
    assert "mathdefault" not in svg
    assert "verify" in [entry.label for entry in figure.legend]


def test_marks_and_roofs_far_apart_can_be_drawn() -> None:
    marks = [plots.Mark("a", "#009e73", 0.001, 1e3), plots.Mark("b", "#009e73", 1e6, 9e14)]
    roofs = [plots.Roof("flat", 1e15, True), plots.Roof("cold", 4e12, False), plots.Roof("hot", 9e12, False)]
    assert plots.roofline(marks, roofs).count("<path") > 5
