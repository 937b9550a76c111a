"""Names that others chose: markup, formulas, control characters, turned directions and 4 kB stay text everywhere."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from ddbench.analysis.frames import load_run
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.records import SkippedCase
from ddbench.report.build import report_on
from ddbench.report.console import print_report
from ddbench.report.document import Report, Section
from ddbench.report.downloads import csv_text, downloads
from ddbench.report.evidence import evidence_of
from ddbench.report.html import render_html
from ddbench.report.markdown import escape, render_markdown
from ddbench.report.sections import make_report

SMALL = {"num_requests": 6, "max_new_tokens": 16}
# Markup of every format, a terminal's colour, a turned direction, a formula, a line's end, and 4 kB.
NASTY = "=<script>alert(1)</script>|`a`$b$\\|*c*_d_[e](f)&amp;\"'\u202etxt\x1b[31mred\x00\n# g\r\n-- " + "k" * 4000
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory, edited) -> tuple[Report, str]:
    """NASTY wherever a run can hold text that is not ours; and its files' rows."""
    cases = make_cases(arms=("ar", "chain", "ddtree"), concurrencies=(1,), target=NASTY, materialize=NASTY, **SMALL)
    plan = SyntheticPlan(
        name=NASTY[:40],
        question=NASTY,
        cases=(*cases, *make_cases(arms=("chain",), concurrencies=(4, 8), **SMALL)),
        failed=(3,),
        skipped=(SkippedCase(arm="ddtree", label=NASTY, reason=NASTY),),
    )
    run = build_run(tmp_path_factory.mktemp("nasty") / "run", plan)
    edited(run, 0, lambda r: r.update(warnings=[NASTY]))
    edited(run, 1, lambda r: r["parity"].update(status="near_tie", detail=NASTY))
    edited(run, 3, lambda r: r.update(reason=NASTY, log_tail=f"{NASTY}\n{NASTY}"))
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    manifest["environment"].update(cpu_model=NASTY, device=NASTY, libraries={NASTY: NASTY, "torch": NASTY})
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    frames = load_run(run)
    kinds = {kind: f"{NASTY}{kind}" for kind in frames.rounds["kind"].unique()}
    tables = {
        name: getattr(frames, name).assign(
            kind=lambda table: table["kind"].astype(object).map(kinds).astype("category")
        )
        for name in ("requests", "rounds")
    }
    evidence = evidence_of(dataclasses.replace(frames, **tables))
    return make_report(evidence), "".join(file.text for file in downloads(evidence))


class Page(HTMLParser):
    """Tags, attributes, and text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.shown: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)
        self.shown += [value or "" for name, value in attrs if name in ("title", "aria-label", "data-full")]
        if tag == "script":
            self.scripts.append(dict(attrs))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.shown.append(data)


def printed(report: Report, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    print_report(report, console, is_compact=False)
    return console.file.getvalue()


def test_hostile_text_cannot_leave_its_place_on_the_page(nasty: tuple[Report, str], full_run: Path) -> None:
    """H30."""
    text, plain = render_html(nasty[0]), render_html(report_on([full_run]))
    page, ours = Page(text), Page(plain)
    assert page.open == []
    assert page.tags <= ours.tags | {"details", "summary", "pre"}
    assert not [name for name in page.names if name.startswith("on")]
    assert page.scripts == [{"type": "application/json", "id": "tips"}, {}]
    assert not ACTIVE.search(text)
    assert "alert(1)" in "".join(page.shown)
    assert "\\u202etxt\\x1b[31mred\\x00" in "".join(page.shown)


def test_hostile_text_cannot_leave_its_place_in_markdown(nasty: tuple[Report, str]) -> None:
    """H30: as many cells as the head has; nothing active, no markup, no formula, no line of its own."""
    report = nasty[0]
    text, images = render_markdown(report)
    prose = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    tables = [table for s in report.sections if isinstance(s, Section) for table in s.tables]
    blocks = re.findall(r"(?:^\|.*\n)+", prose, flags=re.MULTILINE)
    assert len(blocks) == len(tables)
    for block, table in zip(blocks, tables, strict=True):
        rows = [re.split(r"(?<!\\)(?:\\\\)*\|", line.strip())[1:-1] for line in block.splitlines()]
        assert {len(row) for row in rows} == {len(table.columns)}
        assert len(rows) == len(table.rows) + 2
    assert not ACTIVE.search(text)
    assert "<script" not in prose
    assert "$b$" not in prose
    assert not re.search(r"(?<!\\)\[e\]|^(# g|--)", prose, flags=re.MULTILINE)
    for svg in images.values():
        assert not ACTIVE.search(svg)
        assert ET.fromstring(svg).tag.endswith("svg")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("- a", "- a"), ("> b", "&gt; b"), ("1. c", "1. c"), ("$d$", "&#36;d&#36;"), ("e\u202ef", "e\\\\u202ef")],
)
def test_escape_makes_text_of_everything(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_paragraphs_stay_paragraphs(run_of) -> None:
    """What begins like a list, a quotation or a rule is neither."""
    for place, (question, line) in enumerate(
        (
            ("- a", "\\- a"),
            ("+ b", "\\+ b"),
            ("= c", "\\= c"),
            ("12. d", "12\\. d"),
            ("3) e", "3\\) e"),
            ("1.5 f", "1\\.5 f"),
        )
    ):
        report = make_report(evidence_of(load_run(run_of(f"q{place}", question=question))))
        assert render_markdown(report)[0].splitlines()[2] == line


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_is_told_nothing_but_text(nasty: tuple[Report, str], width: int) -> None:
    """H30: no escape sequence of a name reaches it, and 4 kB do not push anything off the screen."""
    text = printed(nasty[0], width)
    assert not ACTIVE.search(text)
    assert "\\x1b[31mred" in "".join(text.split())


def test_rows_are_exact_and_no_spreadsheet_evaluates_them(nasty: tuple[Report, str]) -> None:
    """H30: names come back as they were, a formula behind an apostrophe."""
    for text in nasty[1].split("run,")[1:]:
        table = list(csv.reader(io.StringIO(f"run,{text}", newline="")))
        assert len({len(row) for row in table}) == 1
        values = [value for row in table[1:] for value in row]
        numbers = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
        assert not [value for value in values if value[:1] in tuple("=+-@\t\r") and not numbers.fullmatch(value)]
    skipped = list(csv.reader(io.StringIO(csv_text(("a", "b", "c"), [(NASTY, -1.5, None)]), newline="")))
    assert skipped == [["a", "b", "c"], [f"'{NASTY}", "-1.5", ""]]
    assert csv_text(("a",), [(text,) for text in ("=1", "@x", "plain", "1=2")]) == "a\r\n'=1\r\n'@x\r\nplain\r\n1=2\r\n"
