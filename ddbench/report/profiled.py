"""Cells and columns that all sections about captures share, and how long their tables may get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddbench import units
from ddbench.analysis.profile.launches import NO_STAGE
from ddbench.analysis.profile.profile import Profile, no_captures
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Skipped, Table
from ddbench.report.evidence import Evidence

MAX_ROWS_OPEN = 40  # a longer table is folded
CASE_STAGE: tuple[Column, ...] = cells.text_columns("Case", "Stage")
NO_SUCH = "no stage"
VIEWERS: dict[str, str] = {".nsys-rep": "nsys-ui", ".ncu-rep": "ncu-ui"}


def skipped(evidence: Evidence, name: str, title: str, reasons: Sequence[str]) -> Skipped:
    """A section without data: no captures at all, or why there is nothing in them."""
    why = list(dict.fromkeys(reasons)) if evidence.profiles else [no_captures().not_measured]
    return Skipped(name, title, "; ".join(why) or "no captured case has a result")


def labelled(evidence: Evidence) -> Iterator[tuple[Cell, Profile]]:
    """Every captured case with the cell that names it."""
    for (run, case_id), profile in evidence.profiles.items():
        yield cells.text_cell(evidence.case_labels[run, case_id], tip=case_id), profile


def stage_cell(stage: str) -> Cell:
    return cells.text_cell(words(stage))


def words(stage: str) -> str:
    return NO_SUCH if stage == NO_STAGE else stage.replace("_", " ")


def us_cell(nanoseconds: float | NotMeasured, tip: str = "") -> Cell:
    if isinstance(nanoseconds, NotMeasured):
        return cells.missing_cell(nanoseconds.not_measured)
    return Cell(units.microseconds(nanoseconds / 1e3), tip=tip, sort=nanoseconds)


def bytes_cell(count: float | NotMeasured, detail: str = "", tip: str = "") -> Cell:
    if isinstance(count, NotMeasured):
        return cells.missing_cell(count.not_measured)
    return Cell(units.byte_count(count) if count else "0", detail, tip, count)


def per_round_cell(count: float) -> Cell:
    """A count per round: whole where it is the same in every round."""
    text = units.grouped(round(count)) if abs(count - round(count)) < 1e-9 else units.significant(count)
    return Cell(text, sort=count)


def share_cell(share: float | NotMeasured, detail: str = "") -> Cell:
    """A share as percent, the unit left to the column."""
    if isinstance(share, NotMeasured):
        return cells.missing_cell(share.not_measured)
    return Cell(units.significant(100 * share), detail, sort=share)


def ratio_cell(ratio: float | NotMeasured, *, is_bad: bool = False) -> Cell:
    if isinstance(ratio, NotMeasured):
        return cells.missing_cell(ratio.not_measured)
    return Cell(times(ratio), sort=ratio, tone="warn" if is_bad else "plain")


def times(ratio: float) -> str:
    """`1.25x`, `42.0x`, `5 390x`."""
    if ratio < 10:
        return units.ratio(ratio)
    return f"{units.grouped(round(ratio))}x" if ratio >= 100 else f"{units.significant(ratio)}x"


def number_cell(value: float | NotMeasured) -> Cell:
    """The unit is left to the column."""
    if isinstance(value, NotMeasured):
        return cells.missing_cell(value.not_measured)
    return Cell(units.significant(value), sort=value)


def rate_cell(bytes_per_s: float | NotMeasured) -> Cell:
    if isinstance(bytes_per_s, NotMeasured):
        return cells.missing_cell(bytes_per_s.not_measured)
    return Cell(units.rate(bytes_per_s, "B/s"), sort=bytes_per_s)


def viewer_of(name: str) -> str:
    """The program that opens a tool's own file; empty: any of its kind."""
    return next((viewer for suffix, viewer in VIEWERS.items() if name.endswith(suffix)), "")


def table(
    title: str, columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]], *, is_folded: bool = False
) -> Iterator[Table]:
    """The table, folded where it is long; none without rows."""
    if rows:
        folded = is_folded or len(rows) > MAX_ROWS_OPEN
        yield cells.with_notes(Table(title, tuple(columns), tuple(rows), is_folded=folded))
