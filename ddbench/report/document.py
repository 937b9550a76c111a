"""The typed document between sections and renderers: what HTML, Markdown and console all show.

Text in here is plain: every renderer escapes it for its own format, after `visible` has taken from it what could act on
its surroundings. Numbers are already text, beside the value that a table is sorted by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "strong", "quiet", "good", "warn", "bad"]

DATA = "data"  # the folder beside a report for its downloads
LONGEST = 400  # characters of a text that are shown; a longer one is cut in its middle
# Control characters (a terminal obeys them, XML forbids them) and marks that turn the direction of what follows.
_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")


def visible(text: str) -> str:
    """`text` with characters that act rather than show spelled out, such as `\\x1b` and `\\u202e`."""
    return _ACTIVE.sub(_spelled, text) if _ACTIVE.search(text) else text


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


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
class Listing:
    """Text that is shown as it is, line by line: the log of a failed case."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Download:
    """A CSV file that comes with the report: exact values, every row."""

    name: str  # of the file
    about: str  # what one row is
    num_rows: int
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    name: str  # anchor
    title: str
    intro: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    listings: tuple[Listing, ...] = ()
    downloads: tuple[Download, ...] = ()


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
    runs: tuple[str, ...] = ()  # ids of the runs that it is about
