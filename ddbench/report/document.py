"""The typed document between sections and renderers: what HTML, Markdown and console all show.

Text in here is plain: every renderer escapes it for its own format. Numbers are already text, beside the value that a
table is sorted by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "strong", "quiet", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One table cell. `detail` is its second, quieter line; `tip` is what a reader gets on demand."""

    text: str
    detail: str = ""
    tip: str = ""
    sort: float | str | None = None
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    unit: str = ""
    tip: str = ""
    is_number: bool = True
    is_minor: bool = False  # left out where the page is too narrow for all columns


@dataclass(frozen=True, slots=True)
class Table:
    """`notes` hold what cells refer to by superscript numbers. A folded table is closed until asked for."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    is_folded: bool = False
    is_headline: bool = False  # part of the compact console output
    is_pairs: bool = False  # two columns, name and value: a list rather than a table

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"ragged table '{self.title}'"


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a figure; `svg` still has placeholder colours (see plots.py)."""

    name: str  # unique in the report, a file name
    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class LegendEntry:
    label: str
    color: str


@dataclass(frozen=True, slots=True)
class Figure:
    """Small multiples that share their scales and one legend."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that stands for itself at the top of the page."""

    label: str
    value: str
    subject: str = ""  # what it is a number of
    details: tuple[str, ...] = ()
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    name: str  # anchor
    title: str
    intro: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A section that this run has no data for."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    question: str
    origin: str  # version, run and date of the data; nothing about the moment of rendering
    sections: tuple[Section | Skipped, ...]
