"""Report -> the terminal. Compact: headline and arms; else every section that is not folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ddbench.report.document import Cell, Report, Section, Skipped, Table

_SHORT = 14  # characters of a text that is not folded
_FOLDED = 24  # characters that folded text is counted with
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
    """What the terminal is wide enough for: with intervals, without them, without minor columns, in several pieces."""
    every = tuple(range(len(table.columns)))
    major = tuple(place for place in every if not table.columns[place].is_minor)
    for places, has_details in ((every, True), (every, False), (major, False)):
        if _width(_grid(table, places, has_details), console) <= console.width:
            console.print(_grid(table, places, has_details))
            break
    else:
        for places in _pieces(table, console):
            console.print(_grid(table, places, has_details=False))
    for note in table.notes:
        console.print(Text(note, style="dim"))


def _width(grid: RichTable, console: Console) -> int:
    return console.measure(grid, options=console.options.update(max_width=10_000)).maximum


def _pieces(table: Table, console: Console) -> Iterator[tuple[int, ...]]:
    """Columns in groups that fit side by side once their text is folded, the first column in each."""
    piece: tuple[int, ...] = (0,)
    for place in range(1, len(table.columns)):
        is_too_wide = _width(_grid(table, (*piece, place), False, _FOLDED), console) > console.width
        if is_too_wide and len(piece) > 1:
            yield piece
            piece = (0,)
        piece = (*piece, place)
    yield piece


def _grid(table: Table, places: Sequence[int], has_details: bool, text_width: int | None = None) -> RichTable:
    """The columns at `places`. Numbers and short texts stay whole; other text folds, at `text_width` where given."""
    grid = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place in places:
        column = table.columns[place]
        heading = Text(f"{column.title}\n{column.unit}" if column.unit else column.title)
        longest = max((len(row[place].text) for row in table.rows), default=0)
        if column.is_number or longest <= _SHORT:
            grid.add_column(heading, justify="right" if column.is_number else "left", no_wrap=True)
        else:
            grid.add_column(heading, overflow="fold", min_width=_SHORT, max_width=text_width)
    for row in table.rows:
        grid.add_row(*(_text(row[place], has_details or not table.columns[place].is_number) for place in places))
    return grid


def _text(cell: Cell, has_detail: bool) -> Text:
    text = Text(cell.text, style=_STYLES[cell.tone])
    if has_detail and cell.detail:
        text.append(f"\n{cell.detail}", style="dim")
    return text
