"""An export of Nsight Systems in a captures folder -> the rows and facts of its `Capture`.

Everything is attributed before it is cut to the window, since stages within graphs come from their capture before it.
Times count from the window's start. Calls and ranges are those of the process that opened the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ddbench.analysis.digested import CaptureProblem, Digested, read_run, source
from ddbench.analysis.nsys.attribution import Attribution, attributed_ops, concluded
from ddbench.analysis.nsys.calls import CALL_KINDS, call_kind, outermost
from ddbench.analysis.nsys.enclosing import NONE
from ddbench.analysis.nsys.export import NsysExport, read_export
from ddbench.analysis.nsys.failures import ExportError
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.nsys.ranges import codes_around, exact, round_ranges, stage_ranges
from ddbench.analysis.nsys.sampled import StageMetric, dram_bytes_per_s, samples_within, stage_metrics
from ddbench.analysis.nsys.window import Window, find_window, ops_within, strays
from ddbench.captured import OUTSIDE_ROUNDS, CapturedRun, StageSamples
from ddbench.records import NotMeasured

_MOST_DIAGNOSTICS, _LONGEST_NOTE = 8, 200
_NAMING = (  # pieces of a warning that name a machine or whoever uses it
    (r"(?<!\w)/\S+", "<path>"),
    (r"(?<![\w-])[A-Z][A-Z0-9_]*=\S*", "<variable>"),
    (r"\S*\w@\w\S*", "<address>"),
)
_NO_STAGE = len(STAGE_NAMES)
_STAGES = [*STAGE_NAMES, ""]


def digest_nsys(folder: Path) -> Digested:
    """What the export in `folder`/raw says of the window; a CaptureProblem where it says nothing."""
    run = read_run(folder, "nsys")
    try:
        export = read_export(source(folder, "nsys"))
    except ExportError as error:
        raise CaptureProblem(error.reason, error.what, error.cure) from error
    window = find_window(export)
    ops = ops_within(window, attributed_ops(export), export.api_calls)
    own = replace(
        export,
        samples=samples_within(export.samples, window.start_ns, window.end_ns),
        api_calls=export.api_calls[window.holds(export.api_calls)],
    )
    attribution = concluded(own, ops)
    metrics = stage_metrics(own, attribution)
    calls, ranges = _calls_and_ranges(export, window)
    notes = (
        *export.notes,
        *_recording_notes(export, window, attribution),
        *_round_notes(run, ranges),
        *_sample_notes(own, metrics),
        *_diagnostics(export),
    )
    tables = {
        "ops": _ops_table(export, window, ops),
        "calls": calls,
        "ranges": ranges,
        "samples": _samples_table(metrics),
    }
    return Digested(tables, {**_facts(export, window, attribution), "notes": notes})


def _facts(export: NsysExport, window: Window, attribution: Attribution) -> dict[str, object]:
    """What `Capture` holds beside the tables."""
    nothing = "" if len(attribution.ops) else "nothing ran on a device in the window"
    gpus = attribution.ops["gpu"].to_numpy()
    return {
        "window_ns": window.end_ns - window.start_ns,
        "ledger": attribution.ledger,
        "num_graph_launches": attribution.recording.num_launches,
        "num_graph_replays": attribution.recording.num_replays,
        "withheld": attribution.withheld or nothing,
        "schema_version": export.schema_version,
        "dram_peak_bytes_per_s": dram_bytes_per_s(100.0, int(gpus[0]) if len(gpus) else 0, export),
    }


# --- tables ---


def _ops_table(export: NsysExport, window: Window, ops: pd.DataFrame) -> pd.DataFrame:
    rows = ops["launch_call"].to_numpy()
    calls = export.api_calls
    started = np.append(calls["start_ns"].to_numpy()[outermost(calls)] - window.start_ns, -1)
    return pd.DataFrame(
        {
            "kind": ops["kind"],
            "name": ops["name"].cat.remove_unused_categories(),
            "stage": _named(ops["stage"].cat.codes.to_numpy()),
            "launch_stage": _named(ops["launch_stage"].cat.codes.to_numpy()),
            "basis": ops["basis"],
            "round": ops["round"],
            "gpu": ops["gpu"].to_numpy(np.int64),
            "stream": ops["stream"],
            "start_ns": ops["start_ns"] - window.start_ns,
            "end_ns": ops["end_ns"] - window.start_ns,
            "num_bytes": ops["num_bytes"],
            "direction": _directions(ops),
            "is_replayed": ops["is_replayed"],
            "launch_ns": started[rows],  # NONE takes the last
        }
    )


def _directions(ops: pd.DataFrame) -> pd.Categorical:
    """`device to host` of a copy; the empty text of anything else."""
    is_copy = (ops["kind"] == "copy").to_numpy()
    codes, names = ops["name"].cat.codes.to_numpy(), ops["name"].cat.categories
    directions = pd.Categorical([name.removeprefix("copy ") for name in names[codes[is_copy]]])
    places = np.zeros(len(ops), np.int64)
    places[is_copy] = directions.codes + 1
    return pd.Categorical.from_codes(places, categories=["", *directions.categories])


def _calls_and_ranges(export: NsysExport, window: Window) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both number threads in the order in which they appear in either."""
    stages, rounds = exact(stage_ranges(export)), exact(round_ranges(export))
    calls, ranges = _own_calls(export, window), _own_ranges(window, stages, rounds)
    appeared = pd.concat([calls[["start_ns", "thread"]], ranges[["start_ns", "thread"]]])
    numbers = pd.Index(appeared.sort_values("start_ns", kind="stable")["thread"].unique())
    of_name = np.array([CALL_KINDS.index(call_kind(name)) for name in calls["name"].cat.categories], np.int64)
    steps = _steps(codes_around(rounds, calls))
    steps[_closing(calls)] = OUTSIDE_ROUNDS
    call_columns = {
        "kind": pd.Categorical.from_codes(of_name[calls["name"].cat.codes], categories=list(CALL_KINDS)),
        "name": calls["name"].cat.remove_unused_categories(),
        "stage": _named(codes_around(stages, calls)),
        "round": steps,
    }
    is_round, code = (ranges["kind"] == "round").to_numpy(), ranges["code"].to_numpy()
    range_columns = {
        "kind": pd.Categorical(ranges["kind"], categories=["stage", "round"]),
        "name": _named(np.where(is_round, NONE, code)),
        "round": np.where(is_round, code, _steps(codes_around(rounds, ranges))),
    }
    return _timed(call_columns, calls, numbers, window), _timed(range_columns, ranges, numbers, window)


def _own_calls(export: NsysExport, window: Window) -> pd.DataFrame:
    """Outermost calls in the window."""
    calls = export.api_calls
    calls = calls[window.holds_own(calls) & (outermost(calls) == np.arange(len(calls)))]
    return calls.sort_values(["start_ns", "end_ns"], kind="stable")


def _own_ranges(window: Window, stages: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Stages and rounds in the window, an outer range before those within it."""
    ranges = pd.concat([stages.assign(kind="stage"), rounds.assign(kind="round")])
    own = ranges[window.holds_own(ranges)]
    return own.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")


def _closing(calls: pd.DataFrame) -> np.ndarray:
    """The call, if it is there, in which the probe waits for the device before it closes the window: no round's own."""
    is_last = np.arange(len(calls)) == len(calls) - 1
    return is_last & calls["name"].astype(str).str.contains("DeviceSynchronize", regex=False).to_numpy(bool)


def _timed(columns: dict[str, object], rows: pd.DataFrame, numbers: pd.Index, window: Window) -> pd.DataFrame:
    """The columns that both tables end with."""
    frame = {
        **columns,
        "thread": numbers.get_indexer(rows["thread"]).astype(np.int64),
        "start_ns": rows["start_ns"] - window.start_ns,
        "end_ns": rows["end_ns"] - window.start_ns,
    }
    return pd.DataFrame({name: getattr(values, "array", values) for name, values in frame.items()})


def _named(codes: np.ndarray) -> pd.Categorical:
    """Names of stages by code; the empty text for NONE."""
    return pd.Categorical.from_codes(np.where(codes == NONE, _NO_STAGE, codes), categories=_STAGES)


def _steps(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == NONE, OUTSIDE_ROUNDS, codes).astype(np.int64)


def _samples_table(metrics: tuple[StageMetric, ...] | NotMeasured) -> pd.DataFrame:
    found = () if isinstance(metrics, NotMeasured) else metrics
    columns: dict[str, list[object]] = {name: [] for name in StageSamples.model_fields}
    for metric in found:
        for name, values in columns.items():
            value = getattr(metric, name)
            values.append(0.0 if isinstance(value, NotMeasured) else value)  # `num_whole` tells that it is none
    types = {"gpu": np.int64, "mean": float, "blended": float, "num_whole": np.int64, "num_touching": np.int64}
    return pd.DataFrame(columns).astype({**types, "time_ns": np.int64})


# --- notes: what the reader could not take at face value ---


def _recording_notes(export: NsysExport, window: Window, attribution: Attribution) -> Iterator[str]:
    num_untraced = attribution.recording.num_untraced
    if num_untraced:
        yield f"{num_untraced} graph replays are recorded as a whole, without their kernels"
    num_strays = strays(window, attribution.ops, export.api_calls)
    if num_strays:
        yield f"{num_strays} ops ran in the window but were launched outside of it"


def _round_notes(run: CapturedRun, ranges: pd.DataFrame) -> Iterator[str]:
    expected = set(range(run.first_round, run.first_round + len(run.round_ns)))
    found = set(ranges.loc[(ranges["kind"] == "round").to_numpy(), "round"])
    if expected - found:
        yield f"{len(expected - found)} of the window's {len(expected)} rounds have no range"
    if found - expected:
        yield f"{len(found - expected)} ranges are of rounds that the run does not know"


def _sample_notes(export: NsysExport, metrics: tuple[StageMetric, ...] | NotMeasured) -> Iterator[str]:
    if isinstance(metrics, NotMeasured):
        yield f"no GPU metrics: {metrics.not_measured}"
    elif (export.samples["value"] % 1 == 0).all():
        yield "GPU metrics are sampled in whole percents: shares of a few percent are rough"


def _diagnostics(export: NsysExport) -> tuple[str, ...]:
    """nsys's own warnings, each once, without what names a machine."""
    said = dict.fromkeys(_anonymous(text)[:_LONGEST_NOTE] for text in export.diagnostics)
    return tuple(f"nsys: {text}" for text in said)[:_MOST_DIAGNOSTICS]


def _anonymous(text: str) -> str:
    for pattern, what in _NAMING:
        text = re.sub(pattern, what, text)
    return text
