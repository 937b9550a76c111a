"""`NsysExport` -> `Attribution`: every kernel, copy and memset with its stage, and a ledger of how each was found.

Two ways, two columns, never summed together:
- `launch_stage`: correlation id and process -> API call -> innermost stage range around the call on its thread;
- `capture_stage`: graph node -> event of its creation (through clones) -> innermost stage range around that event.
An op that a graph replays is charged by capture, since one launch stands for all stages of the graph; any other op by
launch. What rests on less (a range never closed, or ended on another thread; a replayed node whose capture lies outside
of the recording but whose launch lies in a stage) is `approximate`. The rest is `unattributed`; nothing is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.device_ops import device_ops
from ddbench.analysis.nsys.enclosing import NONE
from ddbench.analysis.nsys.export import LOW_BITS, NsysExport
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.nsys.nodes import created_by
from ddbench.analysis.nsys.ranges import Codes, codes_around, exact, round_ranges, stage_ranges
from ddbench.analysis.nsys.recording import Recording, recorded
from ddbench.captured import OUTSIDE_ROUNDS, Basis, LedgerLine

BASES: tuple[Basis, ...] = get_args(Basis)


@dataclass(frozen=True)
class Attribution:
    """Ops in the order of their start, each with its stage, and what may be said about all of them."""

    # kind, name, device, gpu, stream, start_ns, end_ns, num_bytes, is_replayed, the stages, basis, round, launch_call
    ops: pd.DataFrame
    ledger: tuple[LedgerLine, ...]  # one line per basis; adds up to all ops, whether or not these are all that ran
    recording: Recording
    withheld: str  # why no totals may be read from the ops; empty: they may


def attributed_ops(export: NsysExport) -> pd.DataFrame:
    """Every op with its stage, what that rests on, and its round; `launch_call` is its row in `export.api_calls`."""
    ops = device_ops(export)
    calls = _launches(ops, export.api_calls)
    launch, launch_approximate = _stages_of_calls(export, calls)
    capture = _stages_of_nodes(export, ops)
    is_replayed = ((ops["graph_node"] != 0) | (ops["kind"] == "graph")).to_numpy()
    stage, basis = _charged(is_replayed, launch, launch_approximate, capture)
    ops["is_replayed"] = is_replayed
    for name, codes in (("launch_stage", launch), ("capture_stage", capture), ("stage", stage)):
        ops[name] = pd.Categorical.from_codes(codes, categories=list(STAGE_NAMES))
    ops["basis"] = pd.Categorical.from_codes(basis, categories=list(BASES))
    ops["round"] = _rounds(export, calls)
    ops["launch_call"] = calls["row"].to_numpy()
    return ops


def concluded(export: NsysExport, ops: pd.DataFrame) -> Attribution:
    """What may be said about these ops, given the API calls of the same time."""
    recording = recorded(export, ops)
    nothing = "nothing ran on a device in this capture: `--trace=cuda` was missing, or no GPU"
    return Attribution(ops, _ledger(ops), recording, recording.complaint or (nothing if export.is_cpu_only else ""))


def _ledger(ops: pd.DataFrame) -> tuple[LedgerLine, ...]:
    """Device time by what its attribution rests on, in the order of `BASES`."""
    duration, codes = (ops["end_ns"] - ops["start_ns"]).to_numpy(), ops["basis"].cat.codes.to_numpy()
    lines = tuple(
        LedgerLine(basis=basis, count=int(np.count_nonzero(is_own)), time_ns=int(duration[is_own].sum()))
        for basis, is_own in ((basis, codes == code) for code, basis in enumerate(BASES))
    )
    assert sum(line.count for line in lines) == len(ops), "an op that is in no line, or in two"
    assert sum(line.time_ns for line in lines) == duration.sum(), "device time that is in no line, or in two"
    return lines


# --- by launch ---


def _launches(ops: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """The API call of each op, row for row; row NONE: not recorded. Correlation ids repeat in every process."""
    if not len(api_calls):
        return _taken(api_calls, np.full(len(ops), NONE))
    processes = api_calls["thread"].to_numpy() & ~LOW_BITS
    known = np.unique(processes)
    place = np.minimum(np.searchsorted(known, ops["process"]), len(known) - 1)
    is_known = known[place] == ops["process"].to_numpy()
    # Ids are compared as places in the sorted list of all of them, so that process and id fit one integer.
    ids, id_codes = np.unique(api_calls["correlation"].to_numpy(), return_inverse=True)
    keys = np.searchsorted(known, processes) * np.int64(len(ids)) + id_codes
    order = np.lexsort((api_calls["start_ns"].to_numpy(), keys))
    wanted_id = np.minimum(np.searchsorted(ids, ops["correlation"]), len(ids) - 1)
    is_known &= (ids[wanted_id] == ops["correlation"].to_numpy()) & (ops["correlation"].to_numpy() != 0)
    wanted = place * np.int64(len(ids)) + wanted_id
    first = np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)
    is_known &= keys[order[first]] == wanted
    return _taken(api_calls, np.where(is_known, order[first], NONE))


def _taken(api_calls: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    """Row, start, end and thread of the calls at `rows`; zeros where there is none."""
    found = {"row": rows}
    for name in ("start_ns", "end_ns", "thread"):
        values = api_calls[name].to_numpy() if len(api_calls) else np.zeros(1, np.int64)
        found[name] = np.where(rows == NONE, 0, values[rows])
    return pd.DataFrame(found)


def _stages_of_calls(export: NsysExport, calls: pd.DataFrame) -> tuple[Codes, Codes]:
    """Stage of each op's launch, and the stage by weaker evidence for those that have none."""
    stages = stage_ranges(export)
    is_call = calls["row"].to_numpy() != NONE
    by_thread = codes_around(exact(stages), calls)
    by_thread[~is_call] = NONE
    rest = stages.drop(exact(stages).index)
    # Of a range that another thread ends, no thread can be said to be inside: wall time within the process decides.
    by_process = codes_around(
        rest.assign(thread=rest["thread"] & ~LOW_BITS), calls.assign(thread=calls["thread"] & ~LOW_BITS)
    )
    by_process[~is_call] = NONE
    return by_thread, by_process


def _rounds(export: NsysExport, calls: pd.DataFrame) -> np.ndarray:
    """Step of the round range around each op's launch, or OUTSIDE_ROUNDS."""
    found = codes_around(exact(round_ranges(export)), calls)
    return np.where((calls["row"].to_numpy() == NONE) | (found == NONE), OUTSIDE_ROUNDS, found)


# --- by capture ---


def _stages_of_nodes(export: NsysExport, ops: pd.DataFrame) -> Codes:
    """Stage in which the node of each op was created while its graph was captured."""
    events = export.node_events
    created = events.assign(end_ns=np.maximum(events["start_ns"], events["end_ns"]))
    of_event = codes_around(exact(stage_ranges(export)), created)
    rows = created_by(events, ops)
    if not len(events):
        return rows
    return np.where(rows == NONE, NONE, of_event[rows])


def _charged(is_replayed: np.ndarray, launch: Codes, weaker: Codes, capture: Codes) -> tuple[Codes, np.ndarray]:
    """The stage of each op and on what it rests."""
    by_launch, by_capture, approximate, unattributed = range(len(BASES))
    fallback = np.where(launch != NONE, launch, weaker)
    stage = np.where(is_replayed, np.where(capture != NONE, capture, fallback), fallback)
    exact = np.where(is_replayed, capture != NONE, launch != NONE)
    basis = np.where(exact, np.where(is_replayed, by_capture, by_launch), approximate)
    return stage, np.where(stage == NONE, unattributed, basis)
