"""Section: copies by direction, size and stage, those to the host first, and the calls in which the host waits."""

from __future__ import annotations

from collections.abc import Iterator

from ddbench.analysis.profile.captured_case import ToolPass
from ddbench.analysis.profile.copies import Copies, Syncs, copies_of, syncs_of
from ddbench.analysis.values import missing
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Section, Skipped, Table
from ddbench.report.evidence import Evidence
from ddbench.report.profiled import bytes_cell, labelled, per_round_cell, rate_cell, skipped, stage_cell, table, us_cell

TITLE = "Copies and syncs"
MAX_ROWS = 20  # of a case, in each table

Own = list[tuple[Cell, ToolPass]]


def copies(evidence: Evidence) -> Section | Skipped:
    """What crosses to the host, what is copied within the device, and where the host waits."""
    found = [(label, profile.case.timeline) for label, profile in labelled(evidence)]
    known = [(label, one) for label, one in found if not isinstance(one, NotMeasured)]
    if not known:
        reasons = [one.not_measured for _, one in found if isinstance(one, NotMeasured)]
        return skipped(evidence, "copies", TITLE, reasons)
    intro = (
        "A copy to the host that the host waits for ends a run of launches and keeps a round from being one graph: "
        "these are what is read back, where and how much. A sync is cheap where it waits for nothing; its time is the "
        "host's.",
    )
    tables = (*_copy_table(known), *_sync_table(known))
    notes = tuple(_nothing(known))
    return Section("copies", TITLE, intro, tables=tables, notes=notes)


def _nothing(own: Own) -> Iterator[str]:
    for label, one in own:
        if not any(copy.is_to_host for copy in copies_of(one)):
            yield f"{label.text}: no round copies anything to the host."


def _copy_table(own: Own) -> Iterator[Table]:
    columns = (
        *cells.text_columns("Case", "Direction", "Stage"),
        Column("Size", tip="of each"),
        Column("Copies", "per round"),
        Column("Bytes", "per round"),
        Column("Time", "us/round", "on the device"),
        Column("Rate"),
        Column("Asked for by", is_number=False, tip="calls of the host"),
    )
    rows = [_copy_row(label, copy) for label, one in own for copy in copies_of(one)[:MAX_ROWS]]
    yield from table("Copies and memsets by direction, stage and size", columns, rows)


def _copy_row(label: Cell, one: Copies) -> tuple[Cell, ...]:
    rate: float | NotMeasured = missing("a copy of no time or no bytes has no rate")
    if one.ns_per_round and one.bytes_per_round:
        rate = one.bytes_per_round / one.ns_per_round * 1e9
    called = ", ".join(one.calls)
    return (
        label,
        cells.text_cell(one.what, tone="warn" if one.is_to_host else "plain"),
        stage_cell(one.stage),
        bytes_cell(one.num_bytes),
        per_round_cell(one.per_round),
        bytes_cell(one.bytes_per_round),
        us_cell(one.ns_per_round),
        rate_cell(rate),
        cells.text_cell(called) if called else cells.missing_cell("the call was not recorded"),
    )


def _sync_table(own: Own) -> Iterator[Table]:
    columns = (
        *cells.text_columns("Case", "Call", "Stage"),
        Column("Calls", "per round"),
        Column("Time", "us/round", "of the host, waiting included"),
        Column("Longest", "us"),
    )
    rows = [_sync_row(label, sync) for label, one in own for sync in syncs_of(one)[:MAX_ROWS]]
    yield from table("Calls in which the host waits for the device", columns, rows)


def _sync_row(label: Cell, one: Syncs) -> tuple[Cell, ...]:
    return (
        label,
        cells.text_cell(one.name),
        stage_cell(one.stage),
        per_round_cell(one.per_round),
        us_cell(one.ns_per_round),
        us_cell(one.longest_ns),
    )
