"""Report -> one HTML file that needs nothing else: style, script and drawings are inside, the network is never asked.

Everything in the document is escaped by the template, except the drawings, whose text matplotlib has escaped.
"""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from ddbench.report import plots
from ddbench.report.document import Cell, Panel, Report, Skipped

_HERE = Path(__file__).parent
_COLORS = {"ink": "currentColor", "rule": "var(--rule)", "faint": "var(--faint)", "paper": "var(--paper)"}


def render_html(report: Report) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests["skipped"] = lambda section: isinstance(section, Skipped)
    environment.filters["drawing"] = _drawing
    environment.filters["sort_key"] = _sort_key
    environment.filters["breakable"] = _breakable
    template = environment.get_template("page.html.j2")
    style = Markup((_HERE / "page.css").read_text(encoding="utf-8"))
    script = Markup((_HERE / "page.js").read_text(encoding="utf-8"))
    return template.render(report=report, style=style, script=script) + "\n"


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
    return Markup(str(escape(text)).replace("=", "=<wbr>"))


def _sort_key(cell: Cell) -> str:
    """What the page sorts by: nothing for a missing value, which sorts last either way."""
    return "" if cell.sort is None else f"{cell.sort}"
