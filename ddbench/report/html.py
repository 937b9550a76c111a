"""Report -> one HTML file that needs nothing else to be read: style, script and drawings are inside, the network is
never asked. Raw rows lie beside it, and it links to them.

Everything in the document is escaped: by the template, and for table rows (of which there may be many thousand) by
`_rows`. Drawings are the exception: matplotlib has escaped their text. What a page would say over and over (what a cell
says on demand, a sort key that is the text) is said once, and `page.js` fills it in.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from ddbench import units
from ddbench.report import plots
from ddbench.report.document import DATA, LONGEST, Cell, Report, Section, Skipped, Table, visible
from ddbench.report.drawing_text import with_shared_styles

_HERE = Path(__file__).parent
_LINE = 48  # characters of a text from which it is given room rather than height
_PLAIN = re.compile(r"([+-]?\d+(?:\.\d+)?)x?")
_MISSING = re.compile("–[⁰¹²³⁴-⁹]*")
_LONG_VALUE = re.compile("=(?=[^ =]{5})")  # a short value stays with its name
_COLORS = {"ink": "currentColor", "rule": "var(--rule)", "faint": "var(--faint)", "paper": "var(--paper)"}


def render_html(report: Report) -> str:
    """The whole page."""
    drawings, drawing_style = _drawings(report)
    tips = _Tips(_said_in(report))
    environment = templates_in(_HERE)
    environment.tests["skipped"] = lambda section: isinstance(section, Skipped)
    environment.filters["drawing"] = lambda panel: drawings[panel.name]
    environment.filters["rows"] = partial(_rows, tips=tips)
    environment.filters["tip"] = lambda text: Markup(tips.attribute(text))
    environment.filters["breakable"] = _breakable
    environment.filters["lines"] = _lines
    environment.filters["size"] = lambda download: units.byte_count(len(download.text.encode()))
    environment.filters["count"] = units.grouped
    template = environment.get_template("page.html.j2")
    style = Markup((_HERE / "page.css").read_text(encoding="utf-8") + drawing_style)
    script = Markup((_HERE / "page.js").read_text(encoding="utf-8"))
    texts = Markup(embedded(list(tips.numbers)))
    return template.render(report=report, style=style, script=script, tips=texts, data=DATA) + "\n"


def embedded(data: Any) -> str:
    """JSON that may stand in a script element, whatever it holds."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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


def _drawings(report: Report) -> tuple[dict[str, Markup], str]:
    """The panels' SVG by their names, and the style that they share."""
    sections = (section for section in report.sections if isinstance(section, Section))
    panels = [panel for section in sections for figure in section.figures for panel in figure.panels]
    svgs = [_inline(plots.themed(panel.svg, _COLORS, f"p{place}")) for place, panel in enumerate(panels)]
    svgs, style = with_shared_styles(svgs)
    return {panel.name: Markup(svg) for panel, svg in zip(panels, svgs, strict=True)}, style + "\n" * bool(style)


def _inline(svg: str) -> str:
    """An SVG for inclusion: as wide as its place, and without the namespace declarations that files need."""
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("<use xlink:href=", "<use href=")
    assert re.search(r'viewBox="0 0 ([\d.]+) ', svg), "matplotlib writes a view box"
    svg = re.sub(r'<svg [^>]*?height="[^"]*"', "<svg", svg, count=1)
    svg = re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", svg, count=1)
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)


class _Tips:
    """What cells say on demand. What several of them say is kept once, most frequent first; they have its number."""

    def __init__(self, texts: Iterable[str]) -> None:
        often = (text for text, count in Counter(texts).most_common() if count > 1)
        self.numbers = {visible(text): number for number, text in enumerate(often)}

    def attribute(self, text: str) -> str:
        number = self.numbers.get(visible(text))
        told = f'title="{escape(visible(text))}"' if number is None else f'data-t="{number}"'
        return f" {told}"


def _said_in(report: Report) -> Iterator[str]:
    """Every tip that the page has, as often as it has it."""
    for table in (table for part in report.sections if isinstance(part, Section) for table in part.tables):
        if table.is_pairs:
            yield from (row[1].tip for row in table.rows if row[1].tip)
            continue
        yield from (column.tip for column in table.columns if column.tip)
        above: Cell | None = None
        for row in table.rows:
            yield from filter(None, (_tip_of(row[0], above), *(_tip_of(cell) for cell in row[1:])))
            above = row[0]


def _breakable(text: str) -> Markup:
    """Escaped text that a narrow column may break after `=` rather than inside a word."""
    return Markup(_LONG_VALUE.sub("=<wbr>", str(escape(visible(text)))))


def _rows(table: Table, tips: _Tips) -> Markup:
    """The body of a table. Written without the template: rows times columns is what a page mostly consists of."""
    kinds = [_Kind(column.is_number, _sorts_as_shown(table, place)) for place, column in enumerate(table.columns)]
    above: Cell | None = None
    lines = []
    for row in table.rows:
        cells = [_cell(row[0], 0, kinds[0], _tip_of(row[0], above), tips)]
        for place, cell in enumerate(row[1:], start=1):
            cells.append(_cell(cell, place, kinds[place], _tip_of(cell), tips))
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
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


def _cell(cell: Cell, place: int, kind: _Kind, tip: str | None, tips: _Tips) -> str:
    """One cell. The first of a row is its header; a text that is not shown whole is kept whole for the download."""
    tag = "td" if place else 'th scope="row"'
    names = [] if kind.is_number or not place else ["long"] if len(cell.text) > _LINE else ["t"]  # most are numbers
    names += [cell.tone] if cell.tone != "plain" else []
    attributes = "".join(_attributes(cell, " ".join(names), kind))
    attributes += tips.attribute(tip) if tip is not None else ""
    return f"<{tag}{attributes}>{_shown(cell)}</{tag[:2]}>"


def _shown(cell: Cell) -> str:
    detail = f"<small>{escape(visible(_short(cell.detail)))}</small>" if cell.detail else ""
    return f"{_breakable(_short(cell.text))}{detail}"


def _attributes(cell: Cell, names: str, kind: _Kind) -> Iterator[str]:
    if names:
        yield f' class="{names}"'
    key = _sort_key(cell, kind.is_number)
    if not kind.sorts_as_shown and key != cell.text:
        yield f' data-sort="{escape(key)}"'
    if len(cell.text) > LONGEST:
        yield f' data-full="{escape(visible(cell.text))}"'


def _sort_key(cell: Cell, is_number: bool) -> str:
    """Empty for a missing value, which sorts last either way. Nine digits of a fraction tell values apart."""
    if cell.sort is None:
        return ""
    if is_number and isinstance(cell.sort, float) and not cell.sort.is_integer():
        return f"{cell.sort:.9g}"
    return units.repeatable(cell.sort)


def _tip_of(cell: Cell, above: Cell | None = None) -> str | None:
    """None where there is none, or where the header above looks the same and has the same one."""
    known = _tip(above) if above is not None and _shown(above) == _shown(cell) else ""
    return _tip(cell) if _tip(cell) != known else None


def _tip(cell: Cell) -> str:
    return cell.tip or (cell.text if len(cell.text) > LONGEST else "")


def _short(text: str) -> str:
    return units.shortened(text, LONGEST)


def _lines(text: str) -> str:
    """A log as its lines, whatever ends them."""
    return "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n"))
