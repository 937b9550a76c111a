"""A baseline of ops -> its document: noise floors and controls, for whoever has just qualified a code."""

from __future__ import annotations

from statistics import median

from ddbench import units
from ddbench.opbench.gate.baseline import HeldRow, OpsBaseline
from ddbench.opbench.gate.notes import VISIBLE
from ddbench.opbench.gate.times import NS_PER_US, POLICY, least_seen
from ddbench.records import NotMeasured
from ddbench.report.cells import percent, text_cell, text_columns, with_notes
from ddbench.report.document import Cell, Column, Fact, Report, Section, Table
from ddbench.report.gate_report import floor_cell


def ops_baseline_report(baseline: OpsBaseline) -> Report:
    """What has just been qualified."""
    return Report(
        title="Baseline: single ops",
        question="By how much does the same code differ from itself, process by process?",
        origin=f"{baseline.place.get('device', 'unknown device')}; {', '.join(baseline.repeats)}",
        sections=(_floors(baseline), _ceilings(baseline)),
    )


def _floors(baseline: OpsBaseline) -> Section:
    gated = [row for row in baseline.rows if not row.is_control]
    floors = sorted(row.floor for row in gated if not isinstance(row.floor, NotMeasured))
    seen = sum(least_seen(row, POLICY) <= VISIBLE for row in gated)
    facts = [
        Fact("Gated", str(len(gated)), "times", (f"{len(baseline.rows) - len(gated)} controls of the machine",)),
        Fact("Repeats", str(len(baseline.repeats)), "processes"),
        Fact(f"See {percent(VISIBLE)}", str(seen), f"of {len(gated)} times"),
    ]
    if floors:
        detail = f"{percent(floors[0])} to {percent(floors[-1])}"
        facts.append(Fact("Noise floor", percent(median(floors)), "median", (detail,)))
    columns = (
        *text_columns("Op", "Shape", "Implementation", "Cache"),
        Column("Time", "us"),
        Column("Spread", "%", tip="from the fastest repeat to the slowest, over the typical one"),
        Column("Floor", tip="what chance alone may make of it in a new repeat, made for all times together"),
        Column("Sees", tip=f"the least slowdown that fails: above threshold, floor and {POLICY.absolute_floor:g} us"),
    )
    table = with_notes(Table("Noise floors", columns, tuple(_cells(row) for row in baseline.rows)))
    note = (
        f"A time of the same code exceeds its floor in about {percent(baseline.alarm)} of runs, counted over all times "
        f"together. The threshold of a gate is {percent(POLICY.threshold)} where the floor is lower."
    )
    return Section("headline", "Noise floors", facts=tuple(facts), tables=(table,), notes=(note,))


def _cells(row: HeldRow) -> tuple[Cell, ...]:
    spread = (max(row.times_ns) - min(row.times_ns)) / row.typical_ns
    seen = least_seen(row, POLICY)
    return (
        *(text_cell(text) for text in row.key),
        Cell(units.microseconds(row.typical_ns / NS_PER_US), sort=row.typical_ns),
        Cell(units.significant(100 * spread, 2), sort=spread),
        floor_cell(row.floor),
        Cell("-", tone="quiet") if row.is_control or seen == float("inf") else Cell(percent(seen), sort=seen),
    )


def _ceilings(baseline: OpsBaseline) -> Section:
    rows = tuple(
        (text_cell(label), Cell(f"{median(amounts):.4g}"), Cell(units.significant(100 * _spread(amounts), 2)))
        for label, amounts in baseline.ceilings.items()
    )
    columns = (*text_columns("Ceiling"), Column("Median", tip="bytes/s, flops/s or ns"), Column("Spread", "%"))
    return Section("ceilings", "Ceilings", tables=(Table("Controls of the machine", columns, rows),))


def _spread(amounts: tuple[float, ...]) -> float:
    return (max(amounts) - min(amounts)) / median(amounts)
