"""Report -> Markdown text and its image files. Any text survives: pipes, markup, newlines, control characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddbench import units
from ddbench.report import plots
from ddbench.report.document import DATA, LONGEST, Column, Figure, Listing, Report, Section, Skipped, Table, visible

_COLORS = {"ink": "#1b2229", "rule": "#dde1e6", "faint": "#5c6670", "paper": "#ffffff"}
_MARKUP = re.compile(r"([\\`*_\[\]|~#])")
_BLOCK = re.compile(r"^([-+=>]|\d+(?=[.)]))")  # what makes a list, a rule or a quotation of a line that begins with it
FIGURES = "figures"  # the folder beside the Markdown file


def escape(text: str) -> str:
    """Plain text as Markdown: one line, no markup, no HTML, no formula."""
    text = " ".join(visible(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", text).replace("$", "&#36;")


def _paragraph(text: str) -> str:
    """Text that stays a paragraph, whatever it begins with."""
    return _BLOCK.sub(lambda match: f"\\{match[0]}" if not match[0].isdigit() else f"{match[0]}\\", escape(text))


def render_markdown(report: Report) -> tuple[str, dict[str, str]]:
    """The text, and the image files by name (below `FIGURES`)."""
    images: dict[str, str] = {}
    lines = [f"# {escape(report.title)}", "", _paragraph(report.question), "", f"_{escape(report.origin)}_", ""]
    for section in report.sections:
        lines += [f"## {escape(section.title)}", ""]
        if isinstance(section, Skipped):
            lines += [f"Not in this report: {escape(section.reason)}.", ""]
        else:
            lines += _section(section)
            images.update({f"{panel.name}.svg": _image(panel.svg) for f in section.figures for panel in f.panels})
    return "\n".join(lines).rstrip() + "\n", images


def _section(section: Section) -> Iterator[str]:
    for paragraph in section.intro:
        yield from (_paragraph(paragraph), "")
    for fact in section.facts:
        yield f"- **{escape(fact.label)}: {escape(fact.value)}** {escape('; '.join((fact.subject, *fact.details)))}"
    yield from ("",) if section.facts else ()
    for note in section.notes:
        yield f"- {escape(note)}"
    yield from ("",) if section.notes else ()
    for figure in section.figures:
        yield from _figure(figure)
    for file in section.downloads:
        size = f"{units.grouped(file.num_rows)} rows, {units.byte_count(len(file.text.encode()))}"
        yield f"- [{escape(file.name)}]({DATA}/{file.name}): {escape(file.about)}; {size}"
    yield from ("",) if section.downloads else ()
    for table in section.tables:
        yield from _table(table)
    for listing in section.listings:
        yield from _listing(listing)


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {escape(table.title)}", "")
    yield _row(escape(_heading(column)) for column in table.columns)
    yield _row("---:" if column.is_number else "---" for column in table.columns)
    for row in table.rows:
        yield _row(_cell(f"{cell.text} {cell.detail}" if cell.detail else cell.text) for cell in row)
    yield ""
    for note in table.notes:
        yield from (_paragraph(note), "")


def _cell(text: str) -> str:
    return escape(units.shortened(text, LONGEST))


def _listing(listing: Listing) -> Iterator[str]:
    """A fence longer than any run of backticks in it."""
    lines = [visible(line) for line in listing.text.strip("\n").splitlines()]
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", "\n".join(lines))), default=0))
    yield from (f"### {escape(listing.title)}", "", f"{fence}text", *lines, fence, "")


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _row(texts: Iterator[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _figure(figure: Figure) -> Iterator[str]:
    yield from (f"### {escape(figure.title)}", "")
    if figure.legend:
        yield from ("Legend: " + ", ".join(f"{escape(e.label)} `{e.color}`" for e in figure.legend), "")
    for panel in figure.panels:
        alt = escape(": ".join(filter(None, (figure.title, panel.title))))
        if panel.title:
            yield from (f"**{escape(panel.title)}**", "")
        yield from (f"![{alt}]({FIGURES}/{panel.name}.svg)", "")
    yield from (_paragraph(figure.caption), "")


def _image(svg: str) -> str:
    """A file of its own: fixed colours on white."""
    svg = plots.themed(svg, _COLORS, "f")
    return re.sub(r"(<svg[^>]*>)", r'\1\n <rect width="100%" height="100%" fill="#ffffff"/>', svg, count=1)
