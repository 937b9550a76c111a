"""A baseline -> its document: the noise floors, for whoever has just qualified a code."""

from __future__ import annotations

from ddbench.analysis.gate.baseline import Baseline, Shape
from ddbench.analysis.gate.noise import TRIPWIRE
from ddbench.analysis.gate.policies import EXACT_UNITS
from ddbench.analysis.metrics import METRICS
from ddbench.records import NotMeasured
from ddbench.report.cells import text_cell, text_columns, with_notes
from ddbench.report.document import Cell, Column, Report, Section, Table
from ddbench.report.gate_report import floor_cell


def baseline_report(baseline: Baseline) -> Report:
    """What has just been qualified."""
    timed = [name for name, metric in METRICS.items() if metric.unit not in EXACT_UNITS]
    metrics = [name for name in timed if any(name in shape.metrics for shape in baseline.shapes)]
    columns = (*text_columns("Shape"), *(Column(METRICS[name].title, tip=name) for name in metrics))
    rows = tuple((text_cell(shape.label), *(_noise_cell(shape, name) for name in metrics)) for shape in baseline.shapes)
    counters = sum(not isinstance(value, NotMeasured) for shape in baseline.shapes for value in shape.counters.values())
    repeats = sorted({len(shape.repeats) for shape in baseline.shapes})
    intro = (
        f"{len(baseline.shapes)} shapes, {counters} exact counters, {' or '.join(map(str, repeats))} repeats each. "
        f"A threshold under a floor would only raise false alarms."
    )
    table = with_notes(Table("Noise floor: what the same code differs by at most", columns, rows, is_headline=True))
    coarse = sum(cell.sort > TRIPWIRE for row in rows for cell in row[1:] if isinstance(cell.sort, float))
    note = (
        f"{coarse} floors are above {100 * TRIPWIRE:.0f} %: this machine is too restless, only a gross slowdown shows."
    )
    return Report(
        title=f"Baseline: {baseline.experiment}",
        question=baseline.question,
        origin=f"runs {', '.join(baseline.runs)}",
        sections=(
            Section("headline", "Noise floors", intro=(intro,), tables=(table,), notes=(note,) if coarse else ()),
        ),
    )


def _noise_cell(shape: Shape, name: str) -> Cell:
    floor = shape.metrics[name].floor
    return floor_cell(floor if isinstance(floor, NotMeasured) else floor.value)
