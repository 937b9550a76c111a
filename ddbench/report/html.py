"""Report -> one HTML file that needs nothing else to be read: style, script and drawings are inside, the network is
never asked. Raw rows lie beside it, and it links to them.

Everything in the document is escaped: by the template, and for table rows (of which there may be many thousand) by
`_rows`. Drawings are the exception: matplotlib has escaped their text. What a table would say over and over (what a
name stands for, a sort key that is the text) is said once, and `page.js` fills it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

from ddbench import units
from ddbench.report import plots
from ddbench.report.document import DATA, LONGEST, Cell, Panel, Report, Skipped, Table, visible

_HERE = Path(__file__).parent
_LINE = 48  # characters of a text from which it is given room rather than height
_PLAIN = re.compile(r"([+-]?\d+(?:\.\d+)?)x?")
_MISSING = re.compile("–[⁰¹²³⁴-⁹]*")
_LONG_VALUE = re.compile("=(?=[^ =]{5})")  # a short value stays with its name
_COLORS = {"ink": "currentColor", "rule": "var(--rule)", "faint": "var(--faint)", "paper": "var(--paper)"}


def render_html(report: Report) -> str:
    """The whole page."""
    environment = templates_in(_HERE)
    environment.tests["skipped"] = lambda section: isinstance(section, Skipped)
    environment.filters["drawing"] = _drawing
    environment.filters["rows"] = _rows
    environment.filters["breakable"] = _breakable
    environment.filters["lines"] = _lines
    environment.filters["size"] = lambda download: units.byte_count(len(download.text.encode()))
    environment.filters["count"] = units.grouped
    template = environment.get_template("page.html.j2")
    style = Markup((_HERE / "page.css").read_text(encoding="utf-8"))
    script = Markup((_HERE / "page.js").read_text(encoding="utf-8"))
    return template.render(report=report, style=style, script=script, data=DATA) + "\n"


def templates_in(folder: Path) -> jinja2.Environment:
    """Templates whose text is escaped, and made visible, whatever it holds."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
    )


def _finalize(value: object) -> object:
    return visible(value) if type(value) is str else value


def _drawing(panel: Panel) -> Markup:
    """The panel's SVG for inclusion: coloured by the page, without the namespace declarations that files need."""
    svg = plots.themed(panel.svg, _COLORS, panel.name)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    width = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert width, "matplotlib writes a view box"
    svg = re.sub(r'<svg [^>]*?height="[^"]*"', "<svg", svg, count=1)
    svg = re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", svg, count=1)
    return Markup(svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1))


def _breakable(text: str) -> Markup:
    """Escaped text that a narrow column may break after `=` rather than inside a word."""
    return Markup(_LONG_VALUE.sub("=<wbr>", str(escape(visible(text)))))


def _rows(table: Table) -> Markup:
    """The body of a table. Written without the template: rows times columns is what a page mostly consists of."""
    kinds = [_Kind(column.is_number, _sorts_as_shown(table, place)) for place, column in enumerate(table.columns)]
    above: Cell | None = None
    lines = []
    for row in table.rows:
        cells = (_cell(cell, place, kind) for place, (cell, kind) in enumerate(zip(row, kinds, strict=True)) if place)
        lines.append(f"<tr>{_cell(row[0], 0, kinds[0], above)}{''.join(cells)}</tr>\n")
        above = row[0]
    return Markup("".join(lines))


class _Kind(NamedTuple):
    """Of a column."""

    is_number: bool
    sorts_as_shown: bool  # what its cells show tells their order: they need no other key


def _sorts_as_shown(table: Table, place: int) -> bool:
    """Numbers of one unit, which the page can read (`plain` in page.js)."""
    if not table.columns[place].is_number:
        return False
    pairs = []
    for cell in (row[place] for row in table.rows):
        found = _PLAIN.fullmatch(cell.text.replace("\u202f", "").replace("−", "-"))
        if found and isinstance(cell.sort, int | float):
            pairs.append((cell.sort, float(found[1])))
        elif cell.sort is not None or not _MISSING.fullmatch(cell.text):
            return False
    return all(one <= other for (_, one), (_, other) in pairwise(sorted(pairs)))


def _cell(cell: Cell, place: int, kind: _Kind, above: Cell | None = None) -> str:
    """One cell. The first of a row is its header; a text that is not shown whole is kept whole for the download."""
    is_number = kind.is_number
    tag = "td" if place else 'th scope="row"'
    names = [] if is_number else ["long"] if len(cell.text) > _LINE else ["t"]  # most are numbers
    names += [cell.tone] if cell.tone != "plain" else []
    attributes = "".join(_attributes(cell, " ".join(names), kind, above))
    return f"<{tag}{attributes}>{_shown(cell)}</{tag[:2]}>"


def _shown(cell: Cell) -> str:
    detail = f"<small>{escape(visible(_short(cell.detail)))}</small>" if cell.detail else ""
    return f"{_breakable(_short(cell.text))}{detail}"


def _attributes(cell: Cell, names: str, kind: _Kind, above: Cell | None) -> Iterator[str]:
    if names:
        yield f' class="{names}"'
    key = _sort_key(cell, kind.is_number)
    if not kind.sorts_as_shown and key != cell.text:
        yield f' data-sort="{escape(key)}"'
    if len(cell.text) > LONGEST:
        yield f' data-full="{escape(visible(cell.text))}"'
    tip = _tip(cell)
    known = _tip(above) if above is not None and _shown(above) == _shown(cell) else ""
    if tip != known:
        yield f' title="{escape(visible(tip))}"'


def _sort_key(cell: Cell, is_number: bool) -> str:
    """Empty for a missing value, which sorts last either way. Nine digits of a fraction tell values apart."""
    if cell.sort is None:
        return ""
    if is_number and isinstance(cell.sort, float) and not cell.sort.is_integer():
        return f"{cell.sort:.9g}"
    return units.repeatable(cell.sort)


def _tip(cell: Cell) -> str:
    return cell.tip or (cell.text if len(cell.text) > LONGEST else "")


def _short(text: str) -> str:
    return units.shortened(text, LONGEST)


def _lines(text: str) -> str:
    """A log as its lines, whatever ends them."""
    return "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n"))
