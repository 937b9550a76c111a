"""The three renderers show the same document, whatever its texts hold, and ask nobody for anything."""

import csv
import dataclasses
import html
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from ddbench.report import html as html_module
from ddbench.report import plots
from ddbench.report.build import build_report, report_on
from ddbench.report.console import print_report
from ddbench.report.document import LONGEST, Cell, Column, Download, Report, Section, Table, visible
from ddbench.report.html import render_html
from ddbench.report.markdown import escape, render_markdown

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
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
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append(dict(attrs).get("type", ""))
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
    targets = {value for _, key, value in page.attributes if key in ("href", "xlink:href")}
    assert {target[1:] for target in targets if not target.startswith("data/")} <= set(page.ids)


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
    assert all(value.startswith(("#", "data/")) for _, key, value in page.attributes if key.endswith("href"))
    assert not {"link", "iframe", "object", "embed", "base", "img"} & set(page.tags)
    assert "default-src 'none'" in text


def test_hostile_text_is_text_on_the_page(hostile_report: Report, hostile: str) -> None:
    """H30."""
    text = render_html(hostile_report)
    assert [script for script in Page(text).scripts if script != "application/json"] == [""]
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text
    shown = " ".join("".join(Page(text).texts).split())
    assert " ".join(hostile.split()) in shown


def tables_of(report: Report) -> list[Table]:
    return [table for section in report.sections if isinstance(section, Section) for table in section.tables]


def split_cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


@pytest.mark.parametrize("name", ["full", "hostile_report"])
def test_markdown_tables_stay_whole(name: str, request) -> None:
    """H30: every row has as many cells as its head."""
    report = request.getfixturevalue(name)
    text, _ = render_markdown(report)
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    tables = tables_of(report)
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
    assert "Formula" not in text
    assert "chain_via_tree" in text
    assert "out of memory" in text
    assert len(printed(full, is_compact=False)) > 2 * len(text)


def test_narrow_consoles_keep_names_and_numbers_whole(full: Report) -> None:
    """Intervals go first, then minor columns from the right, as many as have to."""
    wide, less, narrow = (printed(full, is_compact=True, width=width) for width in (160, 110, 80))
    for name in ("prompt_lookup", "chain_via_tree", "ddtree node_budget=32"):
        assert name in narrow
    assert re.search(r"TPOT +TTFT +Round +Steady round +tau +tau macro *$", wide, re.M)
    assert re.search(r"TPOT +TTFT +Round +Steady round +tau *$", less, re.M)
    assert re.search(r"TPOT +TTFT +tau", narrow)
    assert not re.search(r"Steady round|tau macro", narrow)
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
    for table in tables_of(full):
        for cell in (cell for row in table.rows for cell in row if cell.text):
            assert cell.text in html
            assert escape(cell.text) in markdown
            assert table.is_folded or cell.text in console


def test_every_missing_cell_has_its_reason_below(full: Report) -> None:
    for table in tables_of(full):
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


def test_drawings_take_any_name_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    """H30: what XML forbids is spelled out; letters that matplotlib's font lacks are the reader's business."""
    label = "\x1b[31m\u202e\x00 \u6811 \U0001f333\nline"
    svg = plots.forest([plots.Point(label, 1.5, 1.2, 1.9, "#0072b2")], "x", (0.5, 2.0))
    ET.fromstring(svg)
    assert "\\x1b[31m\\u202e\\x00 \u6811 \U0001f333 line" in svg
    assert not recwarn.list


def test_visible_leaves_letters_alone() -> None:
    text = "Zürich 樹 שלום naïve\tfa\u0300de\nnext"
    assert visible(text) is text
    assert visible("a\x1bb\u2066c\x85") == "a\\x1bb\\u2066c\\x85"


def one_table(*rows: tuple[Cell, ...], titles: tuple[str, ...]) -> Report:
    columns = tuple(Column(title, is_number=place > 0) for place, title in enumerate(titles))
    return Report("t", "q", "o", (Section("s", "S", tables=(Table("T", columns, rows),)),))


def test_long_texts_are_cut_in_sight_and_whole_on_demand() -> None:
    text = "begin " + "x" * 5000 + " end"
    html = render_html(one_table((Cell(text, sort=text), Cell("1", sort=1.0)), titles=("A", "B")))
    shown = next(own for own in Page(html).texts if own.startswith("begin "))
    assert len(shown) < 500
    assert shown.endswith(" end")
    assert f'data-full="{text}"' in html
    assert f'title="{text}"' in html


@pytest.mark.parametrize("name", ["full", "hostile_report"])
def test_what_cells_say_on_demand_is_in_the_page_once(name: str, request) -> None:
    """As a cell's own title, or, if several say it, in a list that the page's script reads by number."""
    report = request.getfixturevalue(name)
    text = render_html(report)
    page = Page(text)
    (kept,) = re.findall(r'<script type="application/json" id="tips">(.*?)</script>', text)
    told = json.loads(kept)
    numbers = [int(value) for _, key, value in page.attributes if key == "data-t"]
    titles = [value for _, key, value in page.attributes if key == "title" and value]
    assert len({*told, *titles}) == len(told) + len(titles)
    assert {number: numbers.count(number) > 1 for number in numbers} == dict.fromkeys(range(len(told)), True)
    counts = [numbers.count(number) for number in range(len(told))]
    assert counts == sorted(counts, reverse=True)
    cells = {cell.tip for table in tables_of(report) if not table.is_pairs for row in table.rows for cell in row}
    columns = {column.tip for table in tables_of(report) if not table.is_pairs for column in table.columns}
    pairs = {row[1].tip for table in tables_of(report) if table.is_pairs for row in table.rows}
    long = {cell.text for table in tables_of(report) for row in table.rows for cell in row if len(cell.text) > LONGEST}
    said = {visible(tip) for tip in cells | columns | pairs if tip}
    assert said <= {*told, *titles} <= said | {visible(own) for own in long}


def test_keys_are_told_where_what_is_shown_does_not_sort() -> None:
    """Several units, or words in place of a number; not where values are of one unit, or missing."""
    columns = {
        "1.2 GB": (Cell("1.20 GB", sort=1.2e9), Cell("900 MB", sort=9e8)),
        "words": (Cell("1.2", sort=1.2), Cell("base")),
        "1.0x": (Cell("1.20x", sort=1.2), Cell("–³")),
        "12 000": (Cell("12\u202f000", sort=12_000), Cell("−3.1", sort=-0.031)),
        "other": (Cell("2", sort=1.0), Cell("1", sort=2.0)),
    }
    keyed = {}
    for name, (one, other) in columns.items():
        page = render_html(one_table((Cell("a", sort="a"), one), (Cell("b", sort="b"), other), titles=("A", name)))
        keyed[name] = page.count("data-sort=")
    assert keyed == {"1.2 GB": 2, "words": 1, "1.0x": 0, "12 000": 0, "other": 2}


def test_pieces_of_wide_tables_name_their_rows(full: Report) -> None:
    """As many columns come again as tell the rows apart."""
    rows = [(Cell("arm"), Cell(str(place)), *(Cell("7" * 30, sort=7.0) for _ in range(4))) for place in range(3)]
    text = printed(one_table(*rows, titles=("Arm", "c", "w", "x", "y", "z")), is_compact=False, width=80)
    pieces = text.split("Arm")[1:]
    assert len(pieces) == 2
    for piece in pieces:
        assert re.findall(r"arm +(\d)\b", piece) == ["0", "1", "2"]


# --- the page as a browser has it -------------------------------------------------------------------------------------


def whole(color: str) -> str:
    """#abc as #aabbcc."""
    return color if len(color) == 7 else "#" + "".join(2 * digit for digit in color[1:])


def luminance(color: str) -> float:
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_stands_out_from_what_it_is_on(theme: int) -> None:
    """WCAG AA, 4.5 to 1, for every colour of text on every ground."""
    style = (Path(html_module.__file__).parent / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    themes = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks]
    assert len(themes) == 3
    colors = {name: whole(color) for name, color in (themes[0] | themes[theme]).items()}
    assert "opacity" not in style
    for ground in ("paper", "wash", "good-wash"):
        for ink in ("ink", "faint", "accent", "good", "warn", "bad"):
            high, low = sorted((luminance(colors[ground]), luminance(colors[ink])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ground, ink)


def test_page_can_be_read_without_sight_or_mouse(full: Report) -> None:
    page = Page(render_html(full))
    assert {"main", "nav", "header", "h1"} <= set(page.tags)
    assert ("a", "class", "skip") in page.attributes
    assert ("a", "href", "#content") in page.attributes
    labels = {value for tag, key, value in page.attributes if tag == "section" and key == "aria-labelledby"}
    assert labels == {f"{section.name}-title" for section in full.sections}
    assert labels <= set(page.ids)
    regions = [value for tag, key, value in page.attributes if tag == "div" and (key, value) == ("role", "region")]
    tables = [table for table in tables_of(full) if not table.is_pairs]
    assert len(regions) == page.tags.count("table") == len(tables)
    assert page.tags.count("button") >= sum(len(table.columns) for table in tables)


PROBE = """
const found = {};
const holder = document.querySelector(".table");
found.csv = csvOf(holder);
found.tables = document.querySelectorAll(".table").length;
found.buttons = document.querySelectorAll(".tools button.get").length;
const order = () => [...holder.querySelectorAll("tbody tr")].map((row) => keyOf(row.cells[1], true));
const head = holder.querySelectorAll("thead th")[1];
head.querySelector("button").click();
found.ascending = [order(), head.getAttribute("aria-sort")];
head.querySelector("button").click();
found.descending = [order(), head.getAttribute("aria-sort")];
const region = holder.querySelector(".scroll");
const press = (key) => (document.activeElement === document.body ? region : document.activeElement)
  .dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
region.focus();
for (const key of ["ArrowDown", "ArrowRight"]) press(key);
found.focused = document.activeElement.textContent;
showTip(document.activeElement);
found.tip = [document.getElementById("tip").textContent, document.activeElement.getAttribute("aria-describedby")];
press("Escape");
found.closed = document.getElementById("tip").hidden;
const link = document.querySelector(".files a");
found.link = [link.getAttribute("href"), link.hasAttribute("download")];
found.tips = [...document.querySelectorAll("#names tbody th")].map((own) => [own.textContent, tipOf(own)]);
window.dispatchEvent(new Event("beforeprint"));
found.folded = document.querySelectorAll("details:not([open])").length;
document.body.replaceChildren(make("pre", { id: "found", textContent: JSON.stringify(found) }));
"""


@pytest.mark.skipif(not CHROMIUM, reason="needs a chromium to run the page's script in")
def test_script_sorts_tells_and_saves(tmp_path: Path) -> None:
    """H30 as well: a table's CSV is exact, and a name that is a formula is marked as text."""
    rows = (
        (Cell('=1+"a",\n|b', sort="b"), Cell("1\u202f200", "[1, 2]", "a tip", 1200.0)),
        (Cell("-x", sort="a"), Cell("–¹", tip="not seen", tone="quiet")),
        (Cell("c" * 600, sort="c"), Cell("-3.5", "", "", -3.5)),
    )
    files = Section("files", "Files", downloads=(Download("r.csv", "rows", 1, "a\r\n</script>\r\n"),))
    report = one_table(*rows, titles=("Name", "Value"))
    folded = Table("F", (Column("A", is_number=False),), ((Cell("x"),),), is_folded=True)
    more = Section("more", "More", tables=(folded, dataclasses.replace(folded, title="P", is_folded=False)))
    tips = (("a", "what a is"), ("a", "what a is"), ("b", "what b is"), ("b", "what b is"), ("b", ""), ("b", ""))
    named = tuple(Cell(text, "same", tip) for text, tip in (*tips, ("b", "what b is"), ("c", "")))
    names = Table("N", (Column("A", is_number=False),), tuple((cell,) for cell in named))
    more = (files, more, Section("names", "Names", tables=(names,)))
    page = render_html(dataclasses.replace(report, sections=(*report.sections, *more)))
    end = page.rindex("</script>")
    (tmp_path / "page.html").write_text(page[:end] + PROBE + page[end:], encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    command = [CHROMIUM, *options, (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    dumped = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert dumped, done.stderr[-2000:]
    found = json.loads(html.unescape(dumped[1]))
    assert list(csv.reader(io.StringIO(found["csv"], newline=""))) == [
        ["Name", "Value", "Value: note"],
        ['\'=1+"a",\n|b', "1200", "[1, 2]"],
        ["'-x", "", "not seen"],
        ["c" * 600, "-3.5", ""],
    ]
    assert found["tables"] == found["buttons"] == 4
    assert found["ascending"] == [["-3.5", "1200", ""], "ascending"]
    assert found["descending"] == [["1200", "-3.5", ""], "descending"]
    assert found["focused"] == "1\u202f200[1, 2]"
    assert found["tip"] == ["a tip", "tip"]
    assert found["closed"] is True
    assert found["link"] == ["data/r.csv", True]
    assert found["tips"] == [[cell.text + cell.detail, cell.tip] for cell in named]
    assert (page.count("what b is"), page.count('data-t="0"'), page.count('title="what a is"')) == (1, 2, 1)
    assert found["folded"] == 0
