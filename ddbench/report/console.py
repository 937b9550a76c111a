"""Report -> the terminal. Compact: headline and arms; else every section that is not folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ddbench import units
from ddbench.report.document import LONGEST, Cell, Fact, Report, Section, Skipped, Table, visible

_SHORT = 14  # characters of a text that is not folded
_MOST_NAMES = 3  # columns that are repeated in every piece of a wide table
_FOLDED = 24  # characters that folded text is counted with
_STYLES: dict[str, str] = {
    "plain": "",
    "strong": "bold green",
    "quiet": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
}
_FACTS = {**_STYLES, "plain": "bold", "good": "bold green", "warn": "bold yellow"}


def print_report(report: Report, console: Console | None = None, *, is_compact: bool = True) -> None:
    """Write the report to the terminal (standard output unless another console is given)."""
    console = console or Console()
    console.print(_plain(report.title, "bold"), _plain(report.question))
    for section in report.sections:
        if isinstance(section, Skipped):
            if not is_compact:
                console.print(_plain(f"{section.title}: {section.reason}", "dim"))
        elif not is_compact or section.name == "headline" or any(t.is_headline for t in section.tables):
            _print_section(section, console, is_compact)


def _print_section(section: Section, console: Console, is_compact: bool) -> None:
    console.print()
    console.print(_plain(section.title, "bold underline"))
    if not is_compact or section.name == "headline":
        for paragraph in section.intro:
            console.print(_plain(paragraph), "", sep="\n")
    for fact in section.facts:
        _print_fact(fact, console)
    notes = [*section.notes]
    if not is_compact:
        notes += [f"{file.name}: {file.about}; {units.grouped(file.num_rows)} rows" for file in section.downloads]
    for note in notes:
        console.print(_hanging(note))
    if section.facts or notes:
        console.print()
    for table in section.tables:
        if table.is_headline or not (is_compact or table.is_folded):
            _print_table(table, console)
    for listing in () if is_compact else section.listings:
        console.print("", _plain(listing.title, "bold"), sep="\n")
        console.print(_plain(listing.text.strip("\n")), soft_wrap=True)


def _print_fact(fact: Fact, console: Console) -> None:
    """The number with what it is a number of on one line, the rest indented below it."""
    subject = f"  {fact.subject}" if fact.subject else ""
    console.print(_plain(f"{fact.label}  ") + _plain(fact.value, _FACTS[fact.tone]) + _plain(subject, "bold"))
    if fact.details:
        console.print(Padding(_plain("; ".join(fact.details), "dim"), (0, 0, 0, 4)))


def _hanging(text: str) -> RichTable:
    """An entry of a list, its further lines below its first word."""
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_row("-", _plain(text))
    return grid


def _print_table(table: Table, console: Console) -> None:
    """As much as the terminal is wide enough for: intervals go first, then minor columns from the right."""
    every = tuple(range(len(table.columns)))
    minor = [place for place in every if table.columns[place].is_minor]
    fewer = [tuple(place for place in every if place not in minor[kept:]) for kept in range(len(minor), -1, -1)]
    for places, has_details in ((every, True), *((places, False) for places in fewer)):
        if _width(_grid(table, places, has_details), console) <= console.width:
            console.print(_grid(table, places, has_details))
            break
    else:
        for places in _pieces(table, console):
            console.print(_grid(table, places, has_details=False))
    for note in table.notes:
        console.print(_plain(note, "dim"))
    if table.notes:
        console.print()


def _width(grid: RichTable, console: Console) -> int:
    return console.measure(grid, options=console.options.update(max_width=10_000)).maximum


def _pieces(table: Table, console: Console) -> Iterator[tuple[int, ...]]:
    """Columns in groups that fit side by side once their text is folded, what names a row in each."""
    names = _names(table)
    piece = names
    for place in range(len(names), len(table.columns)):
        is_too_wide = _width(_grid(table, (*piece, place), False, _FOLDED), console) > console.width
        if is_too_wide and len(piece) > len(names):
            yield piece
            piece = names
        piece = (*piece, place)
    yield piece


def _names(table: Table) -> tuple[int, ...]:
    """The first columns, as few as tell all rows apart; the first alone where three do not."""
    for count in range(1, min(_MOST_NAMES, len(table.columns) - 1) + 1):
        if len({tuple(cell.text for cell in row[:count]) for row in table.rows}) == len(table.rows):
            return tuple(range(count))
    return (0,)


def _grid(table: Table, places: Sequence[int], has_details: bool, text_width: int | None = None) -> RichTable:
    """The columns at `places`. Numbers and short texts stay whole; other text folds, at `text_width` where given."""
    grid = RichTable(title=_plain(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place in places:
        column = table.columns[place]
        heading = _plain(f"{column.title}\n{column.unit}" if column.unit else column.title)
        longest = max((len(row[place].text) for row in table.rows), default=0)
        if column.is_number or longest <= _SHORT:
            grid.add_column(heading, justify="right" if column.is_number else "left", no_wrap=True)
        else:
            grid.add_column(heading, overflow="fold", min_width=_SHORT, max_width=text_width)
    for row in table.rows:
        grid.add_row(*(_text(row[place], has_details or not table.columns[place].is_number) for place in places))
    return grid


def _text(cell: Cell, has_detail: bool) -> Text:
    text = _plain(units.shortened(cell.text, LONGEST), _STYLES[cell.tone])
    if has_detail and cell.detail:
        text.append_text(_plain(f"\n{cell.detail}", "dim"))
    return text


def _plain(text: str, style: str = "") -> Text:
    """Text that the terminal shows and never obeys."""
    return Text(visible(text), style=style)
