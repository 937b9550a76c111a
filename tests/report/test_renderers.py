"""The three renderers show the same document, whatever its texts hold, and ask nobody for anything."""

import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from ddbench.report import plots
from ddbench.report.build import build_report, report_on
from ddbench.report.console import print_report
from ddbench.report.document import Report, Section
from ddbench.report.html import render_html
from ddbench.report.markdown import escape, render_markdown

VOID = ("meta", "wbr", "br", "hr", "img", "link", "input")


class Page(HTMLParser):
    """Collects what the assertions below are about, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def full(full_run: Path) -> Report:
    return report_on([full_run])


@pytest.fixture(scope="module")
def hostile_report(hostile_run: Path) -> Report:
    return report_on([hostile_run])


@pytest.mark.parametrize("name", ["full", "hostile_report"])
def test_page_is_well_formed_and_ids_are_unique(name: str, request) -> None:
    page = Page(render_html(request.getfixturevalue(name)))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    targets = {value[1:] for _, key, value in page.attributes if key in ("href", "xlink:href")}
    assert targets <= set(page.ids)


@pytest.mark.parametrize("name", ["full", "hostile_report"])
def test_page_asks_the_network_for_nothing(name: str, request) -> None:
    text = render_html(request.getfixturevalue(name))
    page = Page(text)
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert all(match.startswith("#") for match in re.findall(r"url\(([^)]*)\)", text))
    loading = [(tag, key, value) for tag, key, value in page.attributes if key in ("src", "srcset", "data", "action")]
    assert loading == []
    assert all(value.startswith("#") for _, key, value in page.attributes if key.endswith("href"))
    assert not {"link", "iframe", "object", "embed", "base", "img"} & set(page.tags)
    assert "default-src 'none'" in text


def test_hostile_text_is_text_on_the_page(hostile_report: Report, hostile: str) -> None:
    """H30."""
    text = render_html(hostile_report)
    assert Page(text).tags.count("script") == 1
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text
    shown = " ".join("".join(Page(text).texts).split())
    assert " ".join(hostile.split()) in shown


def split_cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


@pytest.mark.parametrize("name", ["full", "hostile_report"])
def test_markdown_tables_stay_whole(name: str, request) -> None:
    """H30: every row has as many cells as its head."""
    report = request.getfixturevalue(name)
    text, _ = render_markdown(report)
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    tables = [table for section in report.sections if isinstance(section, Section) for table in section.tables]
    assert len(blocks) == len(tables)
    for block, table in zip(blocks, tables, strict=True):
        lines = block.splitlines()
        assert len(lines) == 2 + len(table.rows)
        assert {len(split_cells(line)) for line in lines} == {len(table.columns)}


def test_markdown_holds_no_markup_of_others(hostile_report: Report) -> None:
    text, _ = render_markdown(hostile_report)
    assert "<script" not in text
    assert "[d](e)" not in text
    assert not re.search(r"^# g", text, flags=re.MULTILINE)


def test_markdown_images_exist_and_are_drawings(full_run: Path, tmp_path: Path) -> None:
    paths = build_report([full_run], ("md",), tmp_path)
    text = (tmp_path / "report.md").read_text()
    names = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert names
    assert {tmp_path / name for name in names} == {path for path in paths if path.suffix == ".svg"}
    for name in names:
        assert ET.parse(tmp_path / name).getroot().tag.endswith("svg")


def test_escape_leaves_plain_text_alone() -> None:
    assert escape("TPOT 1.25x, [1.20, 1.31]") == "TPOT 1.25x, \\[1.20, 1.31\\]"
    assert escape("a\nb\t c") == "a b c"


def printed(report: Report, *, is_compact: bool, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    print_report(report, console, is_compact=is_compact)
    return console.file.getvalue()


def test_console_shows_headline_and_arms(full: Report) -> None:
    text = printed(full, is_compact=True)
    assert "Best vs ar at concurrency 1" in text
    assert "Concurrency 4" in text
    assert "Glossary" not in text
    assert "chain_via_tree" in text
    assert "out of memory" in text
    assert len(printed(full, is_compact=False)) > 2 * len(text)


def test_narrow_consoles_keep_names_and_numbers_whole(full: Report) -> None:
    """At 80 columns intervals go first, then minor columns."""
    wide, narrow = printed(full, is_compact=True), printed(full, is_compact=True, width=80)
    for name in ("prompt_lookup", "chain_via_tree", "ddtree node_budget=32"):
        assert name in narrow
    assert re.search(r"TPOT +TTFT +Round", wide)
    assert not re.search(r"TPOT +TTFT", narrow)
    assert re.search(r"vs ar +vs chain", narrow)
    assert max(len(line) for line in narrow.splitlines()) <= 80


def test_tables_too_wide_for_a_console_come_in_pieces(full: Report) -> None:
    """No number is cut off, and every piece names its rows."""
    text = printed(full, is_compact=False, width=80)
    (stages,) = (section for section in full.sections if section.name == "stages")
    table = stages.tables[0]
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("ddtree node_budget=32") > 2 * text.count("chain_via_tree") / 3
    for cell in (cell for row in table.rows for cell in row[1:] if cell.text):
        assert re.search(rf"(?<=\s){re.escape(cell.text)}(?=\s)", text), cell
    start = text.index("Mean microseconds")
    pieces = [part for part in text[start:].split("Concurrency 1 ")[1:] if " materialize" in part or " draft" in part]
    assert len(pieces) >= 2
    assert all("prompt_lookup" in piece for piece in pieces)


def test_console_takes_markup_literally(hostile_report: Report) -> None:
    assert "[red]i[/red]" in printed(hostile_report, is_compact=False, width=400)


def test_every_renderer_shows_every_cell(full: Report) -> None:
    html, (markdown, _) = "".join(Page(render_html(full)).texts), render_markdown(full)
    console = printed(full, is_compact=False, width=2000)
    for section in full.sections:
        assert isinstance(section, Section)
        for table in section.tables:
            for cell in (cell for row in table.rows for cell in row if cell.text):
                assert cell.text in html
                assert escape(cell.text) in markdown
                assert table.is_folded or cell.text in console


def test_every_missing_cell_has_its_reason_below(full: Report) -> None:
    for section in full.sections:
        assert isinstance(section, Section)
        for table in section.tables:
            for cell in (cell for row in table.rows for cell in row if cell.text.startswith("–")):
                assert f"{cell.text[1:]} {cell.tip}" in table.notes


def test_drawings_do_not_depend_on_the_readers_settings() -> None:
    """Labels with $ are no formulas; matplotlibrc changes nothing."""
    import matplotlib

    points = [plots.Point("a $b$ <c>", 1.5, 1.2, 1.9, "#0072b2"), plots.Point("d" * 200, 1.0, None, None, "#0072b2")]
    once = plots.forest(points, "x", (0.5, 2.0), 1.0)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None, "axes.grid": True}):
        assert plots.forest(points, "x", (0.5, 2.0), 1.0) == once
    assert "a $b$ &lt;c&gt;" in once
    assert "<metadata" not in once
    assert once.startswith("<svg")


def test_placeholder_colours_are_all_replaced(full: Report) -> None:
    html, (_, images) = render_html(full), render_markdown(full)
    for placeholder in (plots._INK, plots._RULE, plots._FAINT, plots._PAPER):
        assert placeholder not in html
        assert all(placeholder not in svg for svg in images.values())


def test_series_have_colours_of_their_own() -> None:
    arms = ["prompt_lookup", "chain", "chain_via_tree", "ddtree", "ddtree", "ddtree", "ddtree"]
    colors = plots.series_colors(arms)
    assert len(set(colors)) == len(arms)
    assert colors[:4] == tuple(plots.ARM_COLORS[arm] for arm in arms[:4])
