"""Part of the acceptance section: what the draft expected of its trees against what they brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddbench import units
from ddbench.analysis.calibration import Bin, calibration_bins
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import to_estimate
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.arms import where
from ddbench.report.document import Cell, Column, Panel, Table
from ddbench.report.evidence import Evidence

CAPTION = (
    " Expected against measured: rounds in bins of what their tree expected, against what they accepted plus one; on "
    "the dashed line the draft is right about itself, below it too sure."
)
Measured = Sequence[tuple[Setting, tuple[Bin, ...]]]


def measured_bins(settings: Sequence[Setting]) -> Measured:
    """Settings whose drafts give probabilities."""
    found = [(setting, calibration_bins(setting)) for setting in settings]
    return [(setting, bins) for setting, bins in found if not isinstance(bins, NotMeasured)]


def calibration_panel(evidence: Evidence, measured: Measured, colors: Mapping[str, str]) -> Panel:
    """One line per setting, in the colour of its key; on the dashed diagonal the draft is right about itself."""
    series = [
        plots.Series(
            evidence.name(setting),
            colors[setting.key],
            tuple(one.expected for one in bins),
            tuple(one.measured.value for one in bins),
            tuple(one.measured.low for one in bins),
            tuple(one.measured.high for one in bins),
        )
        for setting, bins in measured
    ]
    svg = plots.lines(series, "E[tau] of the tree", "tau, uncut", diagonal_from=1.0)
    return Panel("calibration", "Expected against measured tau", svg)


def calibration_table(evidence: Evidence, measured: Measured) -> Table:
    """The points of the figure."""
    columns = (
        Column("Arm", is_number=False),
        Column("E[tau]", "tokens", "mean over the rounds of the bin"),
        Column("tau uncut", "tokens", "1 + accepted, mean over the rounds of the bin"),
        Column("tau / E[tau]", tip="below 1 the draft is too sure of itself"),
        Column("Rounds"),
    )
    rows = [_row(evidence, setting, one) for setting, bins in measured for one in bins]
    return cells.with_notes(Table("Expected against measured tau, by bin", columns, tuple(rows), is_folded=True))


def _row(evidence: Evidence, setting: Setting, one: Bin) -> tuple[Cell, ...]:
    ratio = one.measured.value / one.expected
    return (
        cells.text_cell(evidence.name(setting)),
        Cell(cells.number(one.expected, "tokens"), units.interval(one.low, one.high), "least and most", one.expected),
        cells.value_cell(to_estimate(one.measured, "tokens"), where(setting)),
        Cell(cells.number(ratio, "x"), sort=ratio),
        cells.count_cell(one.num_rounds),
    )
