"""GateResult -> the document that every renderer shows: verdict, what needs attention, times, counters, the two places.

Between `analysis/gate` and `gate_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddbench import units
from ddbench.analysis.gate.rows import MEANINGS, PAIRED_RULE, GateResult, Row, Scalar, Timing, Verdict
from ddbench.analysis.values import Unit
from ddbench.records import NotMeasured
from ddbench.report.cells import (
    COLUMN_UNITS,
    DASH,
    count_cell,
    number,
    percent,
    text_cell,
    text_columns,
    with_notes,
    with_unit,
)
from ddbench.report.document import Cell, Column, Fact, Report, Section, Skipped, Table, Tone

TONES: dict[Verdict, Tone] = {
    "same": "plain",
    "improved": "good",
    "regression": "bad",
    "changed": "bad",
    "missing": "bad",
    "incomparable": "warn",
    "undecided": "warn",
    "not_gated": "quiet",
}
MOST_LINES = 40  # about rows, in a log
MANY_TIMES = 60  # rows from which on a table is folded: those that need a look have one of their own
EXITS: dict[int, str] = {
    0: "everything that is gated is as in the baseline, or better",
    1: "something is worse than in the baseline, or different where only equal will do",
    3: "measured, and no telling: more repeats decide, or --undecided-passes lets it pass",
    4: "something that the baseline holds was not measured here, or not correct",
    5: "the baseline is missing, or is of another machine, other weights or another torch",
}


def gate_report(result: GateResult) -> Report:
    """The whole document."""
    return Report(
        title=f"Gate: {result.experiment}" if result.experiment else "Gate",
        question=result.question,
        origin=f"run {result.run or 'none'}; baseline {', '.join(result.baseline) or 'none'}",
        sections=(
            _verdict(result),
            _attention(result),
            _timings(result),
            _counters(result),
            _ungated(result),
            _place(result),
        ),
    )


def lean(report: Report) -> Report:
    """What fits into a comment: without tables that are folded away and sections that are not there."""
    sections = [section for section in report.sections if isinstance(section, Section)]
    shown = [replace(section, tables=tuple(t for t in section.tables if not t.is_folded)) for section in sections]
    return replace(report, sections=tuple(section for section in shown if section.tables or section.facts))


def verdict_text(row: Row) -> str:
    return row.verdict.replace("_", " ")


# ------------------------------------------------------------------------------------------------------------ values


def plain(value: Scalar | None, unit: Unit = "count") -> str:
    """A row's value as text; without a unit a whole number stays whole."""
    if value is None:
        return DASH
    if isinstance(value, NotMeasured):
        return "not measured"
    return number(value, unit) if isinstance(value, float) else str(value)


def change(row: Row) -> str:
    """`+3.2 %`, where both sides are numbers."""
    if row.timing is not None:
        return units.signed_percent(row.timing.ratio - 1)
    before, now = row.before, row.now
    if isinstance(before, int) and isinstance(now, int):
        return units.signed_percent(now / before - 1) if before else f"{now - before:+d}"
    return ""


def row_line(row: Row) -> str:
    """`regression: num_rounds 812 -> 901 (+11 %); rounds ...: lower is better`; of a time `(in pairs +11 %)`."""
    text = f"{verdict_text(row)}: {row.name}"
    if row.before is not None or row.now is not None:
        text += f" {plain(row.before, row.unit)} -> {plain(row.now, row.unit)}"
        text += f" {COLUMN_UNITS[row.unit]}" if row.unit in COLUMN_UNITS else ""
    is_paired = row.timing is not None and row.timing.num_pairs  # then it need not be that of the two medians
    more = f"in pairs {change(row)}" if is_paired else change(row)
    return text + (f" ({more})" if more else "") + (f"; {row.reason}" if row.reason else "")


def attention(result: GateResult) -> list[Row]:
    """Rows that are not as in the baseline, the worst first."""
    order: tuple[Verdict, ...] = ("regression", "changed", "missing", "incomparable", "undecided", "improved")
    return sorted((row for row in result.rows if row.verdict in order), key=lambda row: order.index(row.verdict))


def attention_lines(result: GateResult) -> list[str]:
    """One line a row, for a terminal or a log."""
    rows = attention(result)
    lines = [f"{row.shape}: {row_line(row)}" if row.shape else row_line(row) for row in rows[:MOST_LINES]]
    return lines + [f"... and {len(rows) - MOST_LINES} more, in gate.md"] * (len(rows) > MOST_LINES)


def signed_interval(timing: Timing) -> str:
    if timing.low is None or timing.high is None:
        return ""
    return f"[{units.signed_percent(timing.low - 1)}, {units.signed_percent(timing.high - 1)}]"


def _value_cell(value: Scalar | None, unit: Unit) -> Cell:
    tip = value.not_measured if isinstance(value, NotMeasured) else ""
    return Cell(plain(value, unit), tip=tip, sort=value if isinstance(value, int | float | str) else None)


def _verdict_cell(row: Row) -> Cell:
    return text_cell(verdict_text(row), tone=TONES[row.verdict])


# ---------------------------------------------------------------------------------------------------------- sections


def _verdict(result: GateResult) -> Section:
    code = result.exit_code
    bad: Tone = "good" if code == 0 else "warn" if code in (3, 5) else "bad"
    shapes = {row.shape for row in result.rows if row.shape}
    worse = len(result.with_verdict("regression", "changed"))
    facts = (
        Fact("Result", MEANINGS[code], f"exit code {code}", (EXITS[code], result.counts), bad),
        Fact("Worse or changed", str(worse), f"of {result.num_gated} gated rows", tone="bad" if worse else "plain"),
        Fact("Shapes", str(len(shapes)), "that the baseline holds"),
    )
    return Section("headline", "Verdict", facts=facts, notes=result.notes)


def _attention(result: GateResult) -> Section | Skipped:
    rows = attention(result)
    if not rows:
        return Skipped("attention", "What needs a look", "every gated row is as in the baseline")
    columns = (
        *text_columns("Verdict", "Shape", "What"),
        Column("Baseline"),
        Column("Now"),
        Column("Change"),
        *text_columns("Why"),
    )
    cells = tuple(
        (
            _verdict_cell(row),
            text_cell(row.shape),
            text_cell(row.name),
            _value_cell(row.before, row.unit),
            _value_cell(row.now, row.unit),
            Cell(change(row)),
            text_cell(row.reason),
        )
        for row in rows
    )
    table = Table("Not as in the baseline", columns, cells)
    return Section("attention", "What needs a look", tables=(table,))


def _timings(result: GateResult) -> Section | Skipped:
    rows = [row for row in result.rows if row.kind == "timing"]
    if not rows:
        return Skipped("times", "Times", "no times are gated here")
    is_paired = any(row.timing is not None and row.timing.num_pairs for row in rows) or result.rule == PAIRED_RULE
    about = "ratio of run to baseline" + " over pairs of repeats, with its 95 % interval" * is_paired
    columns = (
        *text_columns("Shape", "Metric"),
        Column("Baseline"),
        Column("Now"),
        Column("Change", tip=about),
        *([Column("Pairs", tip="repeats of both with the same number", is_minor=True)] if is_paired else []),
        Column("Floor", tip="noise floor: what repeats of the baseline's own code differ by at most"),
        Column("Threshold", tip="as asked for; the larger of floor and threshold decides"),
        *text_columns("Verdict", "Why"),
    )
    cells = tuple(_timing_cells(row, is_paired) for row in rows)
    table = with_notes(Table("Gated times", columns, cells, is_folded=len(rows) > MANY_TIMES))
    return Section("times", "Times", intro=(result.rule,), tables=(table,))


def _timing_cells(row: Row, is_paired: bool) -> tuple[Cell, ...]:
    timing = row.timing
    if timing is None:
        numbers: tuple[Cell, ...] = (Cell(DASH, tone="quiet"),) * (3 + is_paired)
    else:
        numbers = (
            Cell(change(row), signed_interval(timing), sort=timing.ratio),
            *([count_cell(timing.num_pairs)] if is_paired else []),
            floor_cell(timing.floor),
            Cell(percent(timing.threshold), tip=_absolute(timing, row.unit), sort=timing.threshold),
        )
    return (
        text_cell(row.shape),
        text_cell(row.name),
        Cell(_with_unit(row.before, row.unit), sort=_sortable(row.before)),
        Cell(_with_unit(row.now, row.unit), sort=_sortable(row.now)),
        *numbers,
        _verdict_cell(row),
        text_cell(row.reason),
    )


def _absolute(timing: Timing, unit: Unit) -> str:
    return f"and {with_unit(timing.absolute_floor, unit)} at the level of the medians" if timing.absolute_floor else ""


def _with_unit(value: Scalar | None, unit: Unit) -> str:
    return with_unit(value, unit) if isinstance(value, float) else plain(value)


def _sortable(value: Scalar | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def floor_cell(floor: float | NotMeasured) -> Cell:
    if isinstance(floor, NotMeasured):
        return Cell(DASH, tip=floor.not_measured, tone="quiet")
    return Cell(percent(floor), sort=floor)


def _counters(result: GateResult) -> Section | Skipped:
    rows = [row for row in result.rows if row.kind in ("counter", "output")]
    if not rows:
        return Skipped("counters", "Counters", "no counters are gated here")
    columns = (
        *text_columns("Shape", "Counter"),
        Column("Baseline"),
        Column("Now"),
        Column("Change"),
        *text_columns("Verdict", "Why"),
    )
    cells = tuple(
        (
            text_cell(row.shape),
            text_cell(row.name),
            _value_cell(row.before, row.unit),
            _value_cell(row.now, row.unit),
            Cell(change(row) if row.before != row.now else ""),
            _verdict_cell(row),
            text_cell(row.reason),
        )
        for row in rows
    )
    same = sum(row.verdict == "same" for row in rows)
    intro = f"{same} of {len(rows)} exact numbers are as in the baseline. They hold on any machine, without statistics."
    return Section("counters", "Counters", intro=(intro,), tables=(Table("All", columns, cells, is_folded=True),))


def _ungated(result: GateResult) -> Section | Skipped:
    if not result.ungated:
        return Skipped("not-gated", "Metrics that are not gated", "only counters are gated here")
    cells = tuple((text_cell(one.metric), text_cell(one.reason)) for one in result.ungated)
    table = Table("Why not", text_columns("Metric", "Reason"), cells, is_folded=True)
    return Section("not-gated", "Metrics that are not gated", tables=(table,))


def _place(result: GateResult) -> Section | Skipped:
    if not result.place:
        return Skipped("place", "Where", "one of the two places is not known")
    cells = tuple(
        (
            text_cell(one.name),
            text_cell(one.before),
            text_cell(one.now, tone="plain" if one.before == one.now else "warn"),
        )
        for one in result.place
    )
    changed = sum(one.before != one.now for one in result.place)
    intro = f"{changed} of {len(cells)} differ; times are compared only where none does."
    table = Table("The two places", text_columns("What", "Baseline", "Now"), cells, is_folded=not changed)
    return Section("place", "Where", intro=(intro,), tables=(table,))


def rows_by_shape(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows in groups of one shape, in order; what is about the whole run comes under ''."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.shape, []).append(row)
    return groups
