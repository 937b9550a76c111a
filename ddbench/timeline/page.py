"""`Summary` -> one HTML file with a strip to zoom into: script, style and data inside, the network never asked.

Data travel as columns: names once in a table, starts as differences. Every row of a lane holds intervals that do not
overlap, so that the script finds what is in view by bisection. All text goes through the template or through JSON whose
`<` is spelled out; the script writes it as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ddbench.analysis.nsys.calls import CALL_KINDS
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.profile.idle import HOST_IS_LATE, Cause
from ddbench.analysis.profile.launches import OP_KINDS
from ddbench.report import html, plots
from ddbench.report.document import visible
from ddbench.report.profiled import words
from ddbench.timeline.show import report_of
from ddbench.timeline.summary import Summary
from ddbench.timeline.tracks import rows_of

_HERE = Path(__file__).parent
_SCRIPTS = ("strip.js", "draw.js", "controls.js")
# Causes of idle time by who is to blame: the host, the launch, the device, nobody.
_BLAME: dict[Cause, str] = {
    **dict.fromkeys(HOST_IS_LATE, "host"),
    Cause.LAUNCH: "launch",
    **dict.fromkeys((Cause.REPLAY, Cause.QUEUE), "device"),
    **dict.fromkeys((Cause.UNKNOWN, Cause.NOTHING), "none"),
}
_PREFILL_COLOR = "#7b5ea7"  # no stage of a round: the palette has none for it
_MOST_ROWS = 12  # of a lane; what overlaps deeper is counted and left out


def render_page(summaries: Sequence[Summary]) -> str:
    """The whole page."""
    style = (Path(html.__file__).parent / "page.css", _HERE / "strip.css")
    template = html.templates_in(_HERE).get_template("page.html.j2")
    page = template.render(
        report=report_of(summaries),
        cases=[summary.window for summary in summaries],
        style=Markup("".join(path.read_text(encoding="utf-8") for path in style)),
        script=Markup("".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)),
        data=Markup(html.embedded(page_data(summaries))),
    )
    return page + "\n"


def page_data(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What the script draws."""
    colors = [plots.STAGE_COLORS.get(stage, _PREFILL_COLOR) for stage in STAGE_NAMES]
    return {
        "stages": [words(stage) for stage in (*STAGE_NAMES, "")],
        "colors": [*colors, plots.GREY],
        "causes": [cause.value for cause in Cause],
        "blame": [_BLAME[cause] for cause in Cause],
        "kinds": list(OP_KINDS),
        "callKinds": list(CALL_KINDS),
        "cases": [_case_data(summary) for summary in summaries],
    }


def _case_data(summary: Summary) -> dict[str, Any]:
    window = summary.window
    names = sorted({*window.ops["name"], *window.calls["name"]})
    place = {name: number for number, name in enumerate(names)}
    rounds = summary.rounds
    is_split = rounds.is_split
    tokens = [
        None if own is None else [own.num_accepted, own.num_emitted, own.num_nodes, own.batch_size]
        for own in rounds.tokens
    ]
    return {
        "label": window.label,
        "tool": window.capture.tool,
        "window": window.capture.window_ns,
        "withheld": window.capture.withheld,
        "names": [visible(name) for name in names],
        "rounds": {
            "step": rounds.steps.tolist() if is_split else [],
            "begin": rounds.begin_ns.tolist() if is_split else [],
            "end": rounds.end_ns.tolist() if is_split else [],
            "tokens": tokens if is_split else [],
        },
        "lanes": [lane for lane in _lanes(summary, place) if lane["rows"]],
    }


# --- lanes, from the top ---


def _lanes(summary: Summary, place: dict[str, int]) -> Iterator[dict[str, Any]]:
    window = summary.window
    for thread in sorted({*window.calls["thread"], *window.ranges["thread"]}):
        ranges = window.ranges[((window.ranges["thread"] == thread) & (window.ranges["kind"] == "stage")).to_numpy()]
        columns = {"stage": _stage_codes(ranges["name"]), "round": ranges["round"].to_numpy()}
        yield _lane("range", f"host stages, thread {thread}", ranges, columns)
        calls = window.calls[(window.calls["thread"] == thread).to_numpy()]
        columns = {
            "stage": _stage_codes(calls["stage"]),
            "round": calls["round"].to_numpy(),
            "name": _codes(calls["name"], place),
            "kind": _codes(calls["kind"], {kind: number for number, kind in enumerate(CALL_KINDS)}),
        }
        yield _lane("call", f"host calls, thread {thread}", calls, columns)
    yield _lane("idle", "idle", summary.idle, _idle_columns(summary.idle))
    for (gpu, stream), rows in sorted(window.ops.groupby(["gpu", "stream"]).indices.items()):
        title = f"GPU {gpu}, stream {stream}" if window.has_device else f"operators, thread {stream}"
        own = window.ops.iloc[rows]
        yield _lane("op", title, own, _op_columns(own, place))


def _idle_columns(idle: pd.DataFrame) -> dict[str, np.ndarray]:
    causes = {cause.value: number for number, cause in enumerate(Cause)}
    return {
        "cause": _codes(idle["cause"], causes),
        "stage": _stage_codes(idle["stage"]),
        "next": _stage_codes(idle["next_stage"]),
    }


def _op_columns(ops: pd.DataFrame, place: dict[str, int]) -> dict[str, np.ndarray]:
    launch = ops["launch_ns"].to_numpy()
    latency = np.where(launch >= 0, ops["start_ns"].to_numpy() - launch, -1)
    return {
        "name": _codes(ops["name"], place),
        "stage": _stage_codes(ops["stage"]),
        "round": ops["round"].to_numpy(),
        "kind": _codes(ops["kind"], {kind: number for number, kind in enumerate(OP_KINDS)}),
        "bytes": ops["num_bytes"].to_numpy(),
        "latency": latency,
        "replayed": ops["is_replayed"].to_numpy().astype(np.int64),
    }


def _lane(kind: str, title: str, frame: pd.DataFrame, columns: dict[str, np.ndarray]) -> dict[str, Any]:
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    rows = rows_of(start, end)
    is_shown = rows < _MOST_ROWS
    packed = []
    for row in range(int(rows[is_shown].max()) + 1 if len(rows) else 0):
        own = np.flatnonzero(rows == row)
        own = own[np.argsort(start[own], kind="stable")]
        values = {"start": np.diff(start[own], prepend=0), "dur": (end - start)[own]}
        values |= {name: column[own] for name, column in columns.items()}
        packed.append({"n": len(own)} | {name: _packed(column) for name, column in values.items()})
    left_out = int((~is_shown).sum())
    return {"kind": kind, "title": title, "rows": packed, "leftOut": left_out}


def _packed(column: np.ndarray) -> Any:
    """A column; of one in which every value is the same, that value."""
    values = column.tolist()
    return values[0] if len(values) > 1 and values.count(values[0]) == len(values) else values


def _codes(values: pd.Series, place: dict[str, int]) -> np.ndarray:
    return np.array([place[value] for value in values], np.int64)


def _stage_codes(stages: pd.Series) -> np.ndarray:
    """Place of the stage's name; the last is for what has none."""
    known = {stage: number for number, stage in enumerate(STAGE_NAMES)}
    return np.array([known.get(stage, len(STAGE_NAMES)) for stage in stages], np.int64)
