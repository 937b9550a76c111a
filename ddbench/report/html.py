"""Report -> one HTML file that needs nothing else: style, script, drawings and raw rows are inside, the network is
never asked.

Everything in the document is escaped: by the template, and for table rows (of which there may be many thousand) by
`_rows`. Drawings are the exception: matplotlib has escaped their text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from ddbench import units
from ddbench.report import plots
from ddbench.report.document import DATA, LONGEST, Cell, Download, Panel, Report, Skipped, Table, visible

_HERE = Path(__file__).parent
_LINE = 48  # characters of a text from which it is given room rather than height
_LONG_VALUE = re.compile("=(?=[^ =]{5})")  # a short value stays with its name
_COLORS = {"ink": "currentColor", "rule": "var(--rule)", "faint": "var(--faint)", "paper": "var(--paper)"}
LARGEST_INSIDE = 1_000_000  # bytes of a download that the page carries; a larger one lies beside it


def render_html(report: Report) -> str:
    """The whole page."""
    environment = templates_in(_HERE)
    environment.tests["skipped"] = lambda section: isinstance(section, Skipped)
    environment.tests["inside"] = is_inside
    environment.filters["drawing"] = _drawing
    environment.filters["rows"] = _rows
    environment.filters["breakable"] = _breakable
    environment.filters["lines"] = _lines
    environment.filters["embedded"] = _embedded
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


def is_inside(download: Download) -> bool:
    """The page carries the rows themselves."""
    return len(download.text.encode()) <= LARGEST_INSIDE


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
    is_number = [column.is_number for column in table.columns]
    lines = (
        "<tr>" + "".join(_cell(cell, *place) for cell, place in zip(row, enumerate(is_number), strict=True)) + "</tr>\n"
        for row in table.rows
    )
    return Markup("".join(lines))


def _cell(cell: Cell, place: int, is_number: bool) -> str:
    """One cell. The first of a row is its header; a text that is not shown whole is kept whole for the download."""
    tag = "td" if place else 'th scope="row"'
    names = ["n"] if is_number else ["long"] if len(cell.text) > _LINE else []
    names += [cell.tone] if cell.tone != "plain" else []
    attributes = "".join(_attributes(cell, " ".join(names), is_number))
    text = _breakable(_short(cell.text))
    detail = f"<small>{escape(visible(_short(cell.detail)))}</small>" if cell.detail else ""
    return f"<{tag}{attributes}>{text}{detail}</{tag[:2]}>"


def _attributes(cell: Cell, names: str, is_number: bool) -> Iterator[str]:
    if names:
        yield f' class="{names}"'
    if cell.sort is None:
        yield ' data-sort=""'  # a missing value, which sorts last either way
    elif is_number or cell.sort != cell.text:
        yield f' data-sort="{escape(units.repeatable(cell.sort))}"'
    if len(cell.text) > LONGEST:
        yield f' data-full="{escape(visible(cell.text))}"'
    if cell.tip or len(cell.text) > LONGEST:
        yield f' title="{escape(visible(cell.tip or cell.text))}"'


def _short(text: str) -> str:
    return units.shortened(text, LONGEST)


def _lines(text: str) -> str:
    """A log as its lines, whatever ends them."""
    return "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n"))


def _embedded(download: Download) -> Markup:
    """The rows as a JSON string that no markup in them can leave."""
    text = json.dumps(download.text, ensure_ascii=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
