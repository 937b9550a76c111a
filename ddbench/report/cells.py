"""Values to cells: the one place that decides how a number, an interval and a missing value look in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddbench import units
from ddbench.analysis.metrics import METRICS, Metric
from ddbench.analysis.values import Estimate, Unit, Value
from ddbench.records import NotMeasured
from ddbench.report.document import Cell, Column, Table, Tone

DASH = "–"
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# Units that a column names once; the others travel with every number.
COLUMN_UNITS: dict[Unit, str] = {
    "tok/s": "tok/s",
    "ms": "ms",
    "us": "us",
    "tokens": "tokens",
    "nodes": "nodes",
    "requests": "requests",
    "share": "%",
}


def number(value: float, unit: Unit) -> str:
    """`value` as text in `unit`, the unit left to the column where it stands there."""
    if unit == "x":
        return units.ratio(value)
    if unit == "share":
        return units.significant(100 * value)
    if unit == "bytes":
        return units.byte_count(value)
    return units.significant(value)


def percent(share: float) -> str:
    return f"{units.significant(100 * share)} %"


def with_unit(value: float, unit: Unit) -> str:
    """`12.3 ms`: for running text."""
    text = number(value, unit)
    return f"{text} {COLUMN_UNITS[unit]}" if unit in COLUMN_UNITS else text


def interval(value: Estimate) -> str:
    """`[1.37, 1.93]`, or why there is none in a few words."""
    if value.low is None or value.high is None:
        return value.note.partition(":")[0]
    scale = 100 if value.unit == "share" else 1
    return units.interval(scale * value.low, scale * value.high)


def metric_column(metric: Metric, is_minor: bool = False) -> Column:
    better = "" if metric.direction == "neither" else f" ({metric.direction} is better)"
    unit = COLUMN_UNITS.get(metric.unit, "")
    return Column(metric.title, unit, f"{metric.name}{better}: {metric.formula}", is_minor=is_minor)


def value_cell(value: Value, where: str = "", tone: Tone = "plain") -> Cell:
    """A metric's cell. A missing value shows a dash; `with_notes` numbers its reason."""
    if isinstance(value, NotMeasured):
        return missing_cell(value.not_measured)
    parts = [f"n={value.n} {value.counted}", f"{value.pass_name} pass", where]
    if value.low is not None:
        parts.insert(0, "95 % interval")  # itself stands below the value
    tip = ", ".join(part for part in parts if part) + (f"; {value.note}" if value.note else "")
    return Cell(number(value.value, value.unit), interval(value), tip, value.value, tone)


def missing_cell(reason: str) -> Cell:
    return Cell(DASH, tip=reason, tone="quiet")


def baseline_cell() -> Cell:
    return Cell("base", tip="the arm that the others are compared with", sort=1.0, tone="quiet")


def text_cell(text: str, tip: str = "", tone: Tone = "plain", detail: str = "") -> Cell:
    return Cell(text, detail=detail, tip=tip, sort=text, tone=tone)


def count_cell(count: int) -> Cell:
    return Cell(units.grouped(count), sort=count)


def text_columns(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, is_number=False) for title in titles)


def with_notes(table: Table) -> Table:
    """The table with the reasons of its missing cells as numbered notes below it."""
    reasons: dict[str, int] = {}
    rows = []
    for row in table.rows:
        cells = []
        for cell in row:
            if cell.text == DASH and cell.tip:
                mark = str(reasons.setdefault(cell.tip, len(reasons) + 1)).translate(_SUPERSCRIPTS)
                cell = replace(cell, text=DASH + mark)
            cells.append(cell)
        rows.append(tuple(cells))
    notes = tuple(f"{str(mark).translate(_SUPERSCRIPTS)} {reason}" for reason, mark in reasons.items())
    return replace(table, rows=tuple(rows), notes=(*table.notes, *notes))


def best_of(values: Iterable[tuple[str, Value]], metric: Metric, fewest: int = 2) -> str | None:
    """The key of the best measured value, by the metric's direction; None under `fewest` measured ones."""
    measured = [(key, value.value) for key, value in values if isinstance(value, Estimate)]
    if metric.direction == "neither" or len(measured) < fewest:
        return None
    pick = max if metric.direction == "higher" else min
    return pick(measured, key=lambda pair: pair[1])[0]


def metrics_named(names: Sequence[str]) -> tuple[Metric, ...]:
    return tuple(METRICS[name] for name in names)
