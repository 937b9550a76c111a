"""Sections about captures: what they say, what they leave out with which reason, and that their sums add up."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddbench import units
from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import make_cases
from ddbench.analysis.synthetic_captures import CapturePlan
from ddbench.captured import CAPTURE_TABLES, CaptureFault, LedgerLine
from ddbench.records import ExpertUse
from ddbench.report.bandwidth import bandwidth
from ddbench.report.captures import captures
from ddbench.report.copies import copies
from ddbench.report.document import Section, Skipped, Table
from ddbench.report.downloads import downloads
from ddbench.report.evidence import Evidence, evidence_of
from ddbench.report.launches import CAUSES, COLORS, GROUPS, launches
from ddbench.report.occupancy import occupancy
from ddbench.report.profiled import times
from ddbench.report.provenance import raw_data
from ddbench.report.roofline import roofline

SECTIONS = (captures, bandwidth, occupancy, launches, copies)
DENIED = CaptureFault(reason="no_permission", what="counters are for <administrators>", cure="run as root")
ONE = make_cases(arms=("ddtree",), concurrencies=(1,), num_requests=6, max_new_tokens=24)


@pytest.fixture
def evidence(run_of: Callable[..., Path]) -> Callable[..., Evidence]:
    return lambda **plan: evidence_of(load_run(run_of(cases=ONE, captures={0: CapturePlan(**plan)})))


@pytest.fixture(scope="module")
def full(full_run: Path) -> Evidence:
    return evidence_of(load_run(full_run))


def section_of(found: Section | Skipped) -> Section:
    assert isinstance(found, Section), found
    return found


def table_of(found: Section | Skipped, title: str) -> Table:
    (table,) = (table for table in section_of(found).tables if table.title.startswith(title))
    return table


def column(table: Table, title: str) -> list[object]:
    places = [place for place, own in enumerate(table.columns) if own.title == title]
    return [row[places[0]].sort for row in table.rows]


def test_without_captures_every_section_says_what_to_do(run_of) -> None:
    own = evidence_of(load_run(run_of(cases=ONE)))
    for section in SECTIONS:
        found = section(own)
        assert isinstance(found, Skipped)
        assert (
            found.reason
            == "no profiler made a pass over a case: run with --capture stages,nsys,ncu (on a CPU: stages,torch)"
        )


def test_every_section_has_one_lesson(full) -> None:
    for section in SECTIONS:
        found = section_of(section(full))
        assert len(found.intro) == 1
        assert len(found.intro[0].split()) > 20


def test_the_ledger_adds_up_to_all_of_it(evidence) -> None:
    table = table_of(captures(evidence(unattributed=2)), "Ledger")
    for row in table.rows:
        assert sum(cell.sort for cell in row[2:6]) == pytest.approx(1)
        assert row[6].text == "100"
        counts = [int(re.sub(r"\D", "", cell.detail)) for cell in row[2:7]]
        assert sum(counts[:4]) == counts[4]
        assert row[5].sort > 0


def test_tax_and_replays_stand_with_every_pass(evidence) -> None:
    table = table_of(captures(evidence(is_graph=True, tax=1.5)), "What was recorded")
    assert [row[6].text for row in table.rows] == ["1.50x", "1.50x"]
    assert table.rows[0][7].text == "16 of 16"
    assert [row[2].text for row in table.rows] == ["whole", "whole"]
    assert [row[3].detail for row in table.rows] == ["4 to 19", "4 to 5"]


def test_a_failed_pass_has_reason_and_cure_and_no_numbers(evidence) -> None:
    own = evidence(faults={"ncu": DENIED})
    table = table_of(captures(own), "What was recorded")
    failed = table.rows[1]
    assert failed[2].text == "failed"
    assert all(cell.text.startswith("–") for cell in failed[3:8])
    (row,) = table_of(captures(own), "Passes that nothing is read from").rows
    assert [cell.text for cell in row[2:]] == ["no permission", "counters are for <administrators>", "run as root"]
    assert any("counters are for <administrators>" in note for note in table_of(bandwidth(own), "Bytes moved").notes)


def test_an_under_recorded_pass_is_withheld_everywhere(evidence) -> None:
    """H18: seen 15 of 16 replays; what it would say is in no section."""
    own = evidence(is_graph=True, lost_replays=1)
    table = table_of(captures(own), "What was recorded")
    assert (table.rows[0][2].text, table.rows[0][7].text, table.rows[0][7].tone) == ("withheld", "15 of 16", "bad")
    for section in (launches, copies):
        found = section(own)
        assert isinstance(found, Skipped)
        assert "under-recorded: 16 graph launches, 15 replays found" in found.reason
    assert not any(table.title.startswith("Sampled") for table in section_of(occupancy(own)).tables)
    assert all(cell is None for cell in column(table_of(bandwidth(own), "Bytes moved"), "Sampled"))


def test_a_round_is_the_sum_of_its_stages(evidence) -> None:
    own = evidence(waste={"verify": 4.0}, unattributed=1)
    table = table_of(bandwidth(own), "Bytes moved")
    for title in ("Moved", "Fewest", "Kernels", "Copies", "Sampled"):
        values = [value for value in column(table, title) if value is not None]
        assert values[0] == pytest.approx(sum(values[1:]))
    assert column(table, "Waste")[0] == pytest.approx((4 + 6 * 1.5) / 7, rel=0.01)
    bad = [row[1].text for row in table.rows if row[4].tone == "warn"]
    assert bad == ["verify"]
    counts = table_of(launches(own), "Launches per round and stage")
    for title in ("Kernels", "Copies", "Launch calls", "Syncs", "Busy"):
        values = column(counts, title)
        assert values[0] == pytest.approx(sum(values[1:]), rel=0.02)


def test_readings_stand_by_what_they_are_drawn_from(evidence) -> None:
    """Without kernels that are known as attention, all of verify is what answers, and why they do not is said."""
    table = table_of(bandwidth(evidence(waste={"verify": 1.2})), "How often verify")
    assert [row[1].text for row in table.rows] == ["attention kernels", "all of verify"]
    assert table.rows[1][-1].text == "read once"
    assert any("attention 'tree_triton' alone" in note for note in table.notes), table.notes
    short = table_of(bandwidth(evidence(waste={"verify": 0.7})), "How often verify")
    assert short.rows[1][-1].text == "cannot tell"
    assert "expectation" in short.rows[1][-1].tip


def counted(own: Evidence, num_rounds: int) -> Evidence:
    """600 kB of verify's fewest bytes were an expectation of experts; 400 kB were counted."""
    use = ExpertUse(touched=4.5, uniform=6.0, spread=0.05, held=8, tokens=17.0, num_rounds=num_rounds)
    fields = {"expected_bytes": 600_000, "counted_bytes": 400_000}
    results = {
        key: one.model_copy(
            update={
                "expert_use": use,
                "stage_costs": tuple(
                    c.model_copy(update=fields if c.stage == "verify" else {}) for c in one.stage_costs
                ),
            }
        )
        for key, one in own.frames.results.items()
    }
    return evidence_of(dataclasses.replace(own.frames, results=results))


def test_routed_experts_that_were_counted_are_shown(run_of, some_ceilings) -> None:
    """And only these: a run that did not count says what it said before."""
    plan = CapturePlan(waste={"verify": 1.2})
    before = evidence_of(load_run(run_of(cases=ONE, captures={0: plan}, ceilings=some_ceilings)))
    after = counted(before, 31)
    for section, about in ((bandwidth, "Case"), (roofline, "Arm")):
        assert not any(table.title == "Routed experts touched" for table in section_of(section(before)).tables)
        table = table_of(section(after), "Routed experts touched")
        assert table.columns[0].title == about
        (row,) = table.rows
        assert [cell.sort for cell in row[1:]] == [4.5, 8, 6.0, 0.75, 0.05, 17.0, 31]
    old, new = (table_of(bandwidth(own), "Bytes moved") for own in (before, after))
    assert "an expectation, which may be too high" in old.columns[4].tip
    assert "as counted in other rounds" in new.columns[4].tip
    (verify,) = (row for row in new.rows if row[1].text == "verify")
    assert (verify[3].sort, verify[3].tip) == (8e5, "routed experts as counted in 31 rounds")
    assert verify[4].sort == pytest.approx(1.2 / 0.8, rel=0.01)
    assert "uniform router" in section_of(bandwidth(before)).intro[0]
    assert "uniform router" not in section_of(bandwidth(after)).intro[0]


def test_kernels_of_attention_have_a_row(evidence) -> None:
    own = evidence(waste={"verify": 1.2})
    frames = own.frames
    names = {"verify_kernel_2": "_tree_attention_hopper_kernel"}
    tables = {
        table: getattr(frames, table).assign(name=getattr(frames, table)["name"].astype(object).replace(names))
        for table in ("kernel_counters", "device_ops")
    }
    results = {
        key: result.model_copy(
            update={
                "case": result.case.model_copy(
                    update={"engine": result.case.engine.model_copy(update={"attention": "tree_triton"})}
                )
            }
        )
        for key, result in frames.results.items()
    }
    counters = tables["kernel_counters"]
    is_read = counters["name"].isin(names.values()) & (counters["metric"] == "dram_read")
    tables["kernel_counters"] = counters.assign(value=counters["value"].where(~is_read, 5e5))
    found = evidence_of(dataclasses.replace(frames, results=results, **tables))
    row = table_of(bandwidth(found), "How often verify").rows[0]
    assert (row[1].text, row[2].sort, row[-1].text) == ("attention kernels", 5e5, "read once")
    assert (row[-2].sort, row[-2].detail) == (pytest.approx(5e5 / row[4].sort), "")
    tables["kernel_counters"] = counters.assign(value=counters["value"].where(~is_read, 1e5))
    found = evidence_of(dataclasses.replace(frames, results=results, **tables))
    row = table_of(bandwidth(found), "How often verify").rows[0]
    assert (row[-2].detail, row[-1].text) == ("no bound", "cannot tell")


def test_a_ledger_of_chosen_kernels_says_of_how_many(evidence) -> None:
    own = evidence()
    frames = own.frames
    lines = (LedgerLine(basis="launch", count=61, time_ns=1000),)
    captures_ = {
        key: {
            tool: one.model_copy(
                update={"counted_kernels": "_mla_.*", "num_left_out": 1439, "ledger": lines} if tool == "ncu" else {}
            )
            for tool, one in tools.items()
        }
        for key, tools in frames.captures.items()
    }
    found = captures(evidence_of(dataclasses.replace(frames, captures=captures_)))
    assert table_of(found, "Ledger").rows[1][6].detail == f"61 of {units.grouped(1500)} kernels, by choice"
    state = table_of(found, "What was recorded").rows[1][2]
    assert (state.text, "_mla_.*" in state.tip, state.tone) == ("some kernels", True, "plain")


def test_sources_that_disagree_are_marked(evidence) -> None:
    for sampled, tone in ((0.9, "plain"), (0.3, "warn"), (2.5, "warn")):
        table = table_of(bandwidth(evidence(sampled=sampled)), "Bytes moved")
        assert table.rows[0][8].tone == tone


def test_busy_and_causes_are_all_of_a_round(full) -> None:
    assert {cause for causes in GROUPS.values() for cause in causes} == set(CAUSES)
    assert COLORS.keys() == GROUPS.keys()
    for row in table_of(launches(full), "The device's time").rows:
        assert row[2].sort + sum(cell.sort for cell in row[4 : 4 + len(GROUPS)]) == pytest.approx(1)
        assert row[3].sort == pytest.approx(1 - row[2].sort)


def test_copies_to_the_host_are_named_first(evidence) -> None:
    table = table_of(copies(evidence()), "Copies and memsets")
    assert [row[1].text for row in table.rows][:3] == ["device to host", "device to host", "device to device"]
    assert table.rows[0][1].tone == "warn"
    assert {row[8].text for row in table.rows} == {"cudaMemcpyAsync"}
    assert not section_of(copies(evidence())).notes


def test_files_come_with_the_command_that_opens_them(evidence) -> None:
    own = evidence()
    (key,) = own.profiles
    table = table_of(captures(own), "Files of the tools")
    place = f"cases/{key[1]}/captures/raw"
    assert [row[3].text for row in table.rows] == [f"nsys-ui {place}/case.nsys-rep", f"ncu-ui {place}/case.ncu-rep"]
    assert table.is_folded


def test_a_trace_of_torch_has_a_timeline_without_bytes(run_of) -> None:
    own = evidence_of(load_run(run_of(cases=ONE, captures={0: CapturePlan(tools=("torch",))})))
    assert isinstance(launches(own), Section)
    skipped = bandwidth(own)
    assert isinstance(skipped, Skipped)
    assert "no pass recorded hardware counters" in skipped.reason
    assert isinstance(occupancy(own), Skipped)


def test_large_ratios_are_readable() -> None:
    assert [times(value) for value in (0.9, 1.25, 42.0, 5390.2)] == ["0.90x", "1.25x", "42.0x", "5\u202f390x"]


def test_exact_values_come_along_as_rows(evidence) -> None:
    own = evidence(faults={"ncu": DENIED}, waste={"verify": 4.0})
    files = {file.name: list(csv.DictReader(io.StringIO(file.text))) for file in downloads(own)}
    passes = {row["tool"]: row for row in files["captured-passes.csv"]}
    assert (passes["ncu"]["state"], passes["ncu"]["round_ns"]) == ("failed", "")
    assert float(passes["nsys"]["round_ns"]) / float(passes["nsys"]["clean_ns"]) == pytest.approx(1.25)
    stages = {row["stage"]: row for row in files["captured-stages.csv"]}
    assert stages["verify"]["counted_bytes"] == ""
    assert float(stages["verify"]["moved_bytes"]) == pytest.approx(0.9 * 4e6, rel=1e-3)
    assert float(stages["verify"]["kernels"]) == 3
    assert sum(float(row["share"]) for row in files["captured-idle.csv"]) == pytest.approx(1)


def test_tables_of_captures_are_among_the_raw_data(evidence) -> None:
    table = table_of(raw_data(evidence()), "Files of the run folder")
    counts = {row[1].text: row[2].sort for row in table.rows}
    assert counts["cases/*/captures/*-ops.parquet"] == 16 * 25
    assert {f"cases/*/captures/*-{name}.parquet" for name in CAPTURE_TABLES} <= counts.keys()
