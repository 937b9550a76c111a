"""Report -> the terminal. Compact: headline and arms; else every section that is not folded away."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ddbench.report.document import Cell, Report, Section, Skipped, Table

_STYLES: dict[str, str] = {
    "plain": "",
    "strong": "bold green",
    "quiet": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
}


def print_report(report: Report, console: Console | None = None, *, is_compact: bool = True) -> None:
    """Write the report to the terminal (standard output unless another console is given)."""
    console = console or Console()
    console.print(Text(report.title, style="bold"), Text(report.question))
    for section in report.sections:
        if isinstance(section, Skipped):
            if not is_compact:
                console.print(Text(f"{section.title}: {section.reason}", style="dim"))
        elif not is_compact or section.name == "headline" or any(t.is_headline for t in section.tables):
            _print_section(section, console, is_compact)


def _print_section(section: Section, console: Console, is_compact: bool) -> None:
    console.print()
    console.print(Text(section.title, style="bold underline"))
    if not is_compact or section.name == "headline":
        for paragraph in section.intro:
            console.print(Text(paragraph))
    for fact in section.facts:
        details = "; ".join((fact.subject, *fact.details))
        console.print(Text.assemble((f"{fact.label}: ", "bold"), (fact.value, "bold green"), f"  {details}"))
    for note in section.notes:
        console.print(Text(f"- {note}"))
    for table in section.tables:
        if table.is_headline or not (is_compact or table.is_folded):
            _print_table(table, console)


def _print_table(table: Table, console: Console) -> None:
    """What the terminal is wide enough for: with intervals, without them, without minor columns."""
    unlimited = console.options.update(max_width=10_000)
    every = tuple(range(len(table.columns)))
    major = tuple(place for place in every if not table.columns[place].is_minor)
    for places, has_details in ((every, True), (every, False), (major, False)):
        grid = _grid(table, places, has_details)
        if console.measure(grid, options=unlimited).maximum <= console.width:
            break
    console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="dim"))


def _grid(table: Table, places: Sequence[int], has_details: bool) -> RichTable:
    grid = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in (table.columns[place] for place in places):
        heading = Text(f"{column.title}\n{column.unit}" if column.unit else column.title)
        if column.is_number:
            grid.add_column(heading, justify="right", no_wrap=True)
        else:
            grid.add_column(heading, overflow="fold", min_width=12)
    for row in table.rows:
        grid.add_row(*(_text(row[place], has_details or not table.columns[place].is_number) for place in places))
    return grid


def _text(cell: Cell, has_detail: bool) -> Text:
    text = Text(cell.text, style=_STYLES[cell.tone])
    if has_detail and cell.detail:
        text.append(f"\n{cell.detail}", style="dim")
    return text
