"""The page holds what the window holds, needs nothing else, and no name in it acts."""

import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddbench.timeline.page import page_data, render_page
from ddbench.timeline.summary import summary_of
from ddbench.timeline.window import Tokens, Window

MakeWindow = Callable[..., Window]
HOSTILE = "</script><img src=x onerror=alert(1)> & \"q\" 'q' <!-- ]]> \u202e \x1b[31m"


def window(make_window: MakeWindow, name: str = "k", **more: Any) -> Window:
    rng = np.random.default_rng(3)
    starts = np.cumsum(rng.integers(50, 400, 60))
    ops = [
        {"start_ns": int(at), "end_ns": int(at) + int(length), "launch_ns": int(at) - 40, "round": place // 20,
         "stage": ("draft", "verify", "")[place % 3], "stream": 7 + place % 2, "name": (name, "other<T>")[place % 2]}
        for place, (at, length) in enumerate(zip(starts, rng.integers(1, 600, 60), strict=True))
    ]  # fmt: skip
    calls = [{"start_ns": op["launch_ns"], "end_ns": op["launch_ns"] + 30, "name": f"call {name}"} for op in ops]
    ranges = [{"start_ns": 0, "end_ns": 9_000}, {"start_ns": 100, "end_ns": 900, "name": "draft"}]
    tokens = {step: Tokens(step, step + 1, 31, 1) for step in range(3)}
    return make_window(ops, calls, ranges, end=int(starts[-1]) + 1_000, tokens=tokens, **more)


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data


def unpacked(lane: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Items of a lane, as the script reads them."""
    for row in lane["rows"]:
        columns = {
            name: values if isinstance(values, list) else [values] * row["n"]
            for name, values in row.items()
            if name != "n"
        }
        assert {len(values) for values in columns.values()} == {row["n"]}
        starts = np.cumsum(columns["start"]).tolist()
        for place in range(row["n"]):
            yield {name: values[place] for name, values in columns.items()} | {"start": starts[place]}


def test_data_hold_every_op_call_and_range(make_window: MakeWindow) -> None:
    one = window(make_window)
    data = page_data([summary_of(one)])
    case = data["cases"][0]
    items = {
        kind: [item for lane in case["lanes"] if lane["kind"] == kind for item in unpacked(lane)]
        for kind in ("op", "call", "range", "idle")
    }
    got = Counter(
        (item["start"], item["dur"], case["names"][item["name"]], item["round"], item["latency"])
        for item in items["op"]
    )
    assert got == Counter(
        (row.start_ns, row.end_ns - row.start_ns, row.name, row.round, row.start_ns - row.launch_ns)
        for row in one.ops.itertuples()
    )
    assert sorted(item["start"] for item in items["call"]) == sorted(one.calls["start_ns"])
    assert {data["stages"][item["stage"]] for item in items["range"]} == {"verify", "draft"}
    assert sum(item["dur"] for item in items["idle"]) == sum(line.total_ns for line in summary_of(one).idle_lines)


def test_rows_hold_nothing_that_overlaps(make_window: MakeWindow) -> None:
    """The script finds what is in view by bisection of starts and of ends."""
    data = page_data([summary_of(window(make_window))])
    for lane in data["cases"][0]["lanes"]:
        for row in lane["rows"]:
            items = list(unpacked({"rows": [row]}))
            for one, following in itertools.pairwise(items):
                assert one["start"] + one["dur"] <= following["start"]


def test_a_page_needs_nothing_else(make_window: MakeWindow) -> None:
    text = render_page([summary_of(window(make_window))])
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [attrs for _, attrs in page.elements if {"src", "srcset", "action", "background"} & set(attrs)]
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", text)
    policy = next(attrs for tag, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy["content"])


@pytest.mark.parametrize("count", [1, 2])
def test_hostile_names_do_nothing(make_window: MakeWindow, count: int) -> None:
    """H30: the elements are those of the same page with plain names, and the name comes back out of the data."""
    hostile, plain = (
        Page(render_page([summary_of(window(make_window, name, notes=(name,)))] * count)) for name in (HOSTILE, "k")
    )
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert not [attrs for _, attrs in hostile.elements if any(name.startswith("on") for name in attrs)]
    assert len(hostile.scripts) == 2
    names = json.loads(hostile.scripts[0])["cases"][0]["names"]
    assert any("</script><img src=x" in name for name in names)
    assert not any("\u202e" in name or "\x1b" in name for name in names), "what turns or obeys is spelled out"
    assert hostile.scripts[1] == plain.scripts[1]


def test_two_cases_lie_on_one_page(make_window: MakeWindow) -> None:
    text = render_page([summary_of(window(make_window)), summary_of(window(make_window, "other"))])
    strips = [attrs for tag, attrs in Page(text).elements if attrs.get("class") == "strip"]
    assert [attrs["data-case"] for attrs in strips] == ["0", "1"]
    assert "Side by side" in text


def test_what_was_not_all_recorded_is_said_above_the_strip(make_window: MakeWindow) -> None:
    """H18: the strip shows what was recorded, and no total is read from it."""
    text = render_page([summary_of(window(make_window, withheld="9 graph launches, 4 replays found"))])
    assert text.index("totals are withheld: 9 graph launches") < text.index("<canvas")
    assert "Stages on the device" not in text


@pytest.mark.skipif(shutil.which("node") is None, reason="nothing here runs JavaScript")
def test_the_script_finds_every_item_again(make_window: MakeWindow, tmp_path: Path) -> None:
    """The page's own script, without a browser: rows are in order, and each op is where bisection looks for it."""
    page = Page(render_page([summary_of(window(make_window))]))
    model = page.scripts[1].partition("// The strip and its map")[0]
    check = """
    let count = 0;
    for (const one of CASES) for (const lane of one.lanes) for (const row of lane.rows) for (let i = 0; i < row.n; i++) {
      const j = above(row.end, row.start[i]);
      if (j !== i || row.end[i] - row.start[i] !== row.dur[i] || !described({ one, lane, row, i })[0]) throw new Error(lane.title);
      count += 1;
    }
    console.log(count);
    """  # noqa: E501
    stub = f"const document = {{ getElementById: () => ({{ textContent: {json.dumps(page.scripts[0])} }}) }};"
    script = tmp_path / "page.js"
    script.write_text(model.replace('"use strict";', f'"use strict";{stub}', 1) + check, encoding="utf-8")
    done = subprocess.run(["node", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    one = window(make_window)
    num_idle = len(summary_of(one).idle)
    assert int(done.stdout) == len(one.ops) + len(one.calls) + len(one.ranges) + num_idle


def test_many_ops_travel_compactly(make_window: MakeWindow) -> None:
    ops = [{"start_ns": 10 * at, "end_ns": 10 * at + 7, "launch_ns": max(0, 10 * at - 30), "name": f"kernel {at % 9}"}
           for at in range(20_000)]  # fmt: skip
    text = render_page([summary_of(make_window(ops, end=200_000))])
    assert len(text) < 50 * len(ops)
