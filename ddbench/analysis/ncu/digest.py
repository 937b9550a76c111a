"""Captures folder -> the `counters` table of a case: what ncu counted, kernel by kernel, each with its stage.

Reads raw/ncu.ncu-rep where NVIDIA's reader is installed, else raw/ncu.csv; and nsys-ops.parquet beside them, if the
case has it, for the stages of replayed kernels: digest nsys before ncu.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.analysis.ncu import report
from ddbench.analysis.ncu.counters import COUNTERS, counters_of
from ddbench.analysis.ncu.page import read_page
from ddbench.analysis.ncu.profile import Profile, counted, dram_peak_bytes_per_s
from ddbench.analysis.ncu.stages import Placed, bare_name, place, rounds_of
from ddbench.captured import KernelCounter, LedgerLine
from ddbench.records import NotMeasured
from ddbench.spec import Counters

REPORT, PAGE, TIMELINE = "ncu.ncu-rep", "ncu.csv", "nsys-ops.parquet"
_NO_PEAK: dict[Counters, str] = {
    "all": "ncu did not report it",
    "bytes": "only time and bytes were counted, by choice",
}
_WHOLE = 100.5  # %: less is rounding
_TIMELINE_COLUMNS = ["kind", "name", "stage", "basis", "round", "is_replayed"]


def digest_ncu(captures: Path, counted_kernels: str = "", counters: Counters = "all") -> Digested:
    """The table `counters` and what may be said about it. Raises `CaptureProblem`.

    `counted_kernels`, `counters`: what the driver was to count, as `CaptureSpec` says.
    """
    profile, notes = _profile(captures / "raw")
    timeline, no_timeline = _timeline(captures / TIMELINE)
    chosen = _chosen(timeline, counted_kernels)
    places, unplaced = place(profile.kernels, chosen)
    values = [counted(kernel) for kernel in profile.kernels]
    if not any(values):
        raise CaptureProblem("nothing", "the report has kernels, but none of the counters", "see COUNTERS")
    peak = dram_peak_bytes_per_s(profile)
    fields = {
        "ledger": _ledger(values, places),
        "dram_peak_bytes_per_s": NotMeasured(not_measured=_NO_PEAK[counters]) if peak is None else peak,
        "num_left_out": _left_out(profile, timeline, chosen) if counted_kernels else 0,
        "notes": (*notes, *_remarks(values, profile, counters), *no_timeline, *unplaced),
    }
    return Digested({"counters": _rows(profile, values, places)}, fields)


def _profile(raw: Path) -> tuple[Profile, list[str]]:
    """By the report if it can be read, else by its page, said so."""
    if not report.is_available() or not (raw / REPORT).exists():
        return read_page(raw / PAGE), []
    try:
        return report.read_report(raw / REPORT), []
    except CaptureProblem as problem:
        if not (raw / PAGE).exists():
            raise
        return read_page(raw / PAGE), [f"{REPORT} was not read ({problem.fault.what}): these are the values of {PAGE}"]


def _timeline(path: Path) -> tuple[pd.DataFrame | None, list[str]]:
    """Device ops of the case's nsys capture, in the order of their start; None: there are none, or none to be read."""
    if not path.exists():
        return None, []
    try:
        return pd.read_parquet(path, columns=_TIMELINE_COLUMNS), []
    except (OSError, ValueError, pa.ArrowException) as error:
        return None, [f"{path.name} cannot be read ({type(error).__name__})"]


def _chosen(timeline: pd.DataFrame | None, counted_kernels: str) -> pd.DataFrame | None:
    """Without the kernels that were not to be counted: a kernel's function name has to match as a whole."""
    if timeline is None or not counted_kernels:
        return timeline
    expression = re.compile(counted_kernels)
    known = {name: expression.fullmatch(bare_name(name)) is not None for name in timeline["name"].astype(str).unique()}
    return timeline[timeline["name"].astype(str).map(known).to_numpy(dtype=bool)]


def _left_out(profile: Profile, timeline: pd.DataFrame | None, chosen: pd.DataFrame | None) -> int | NotMeasured:
    """Kernels of the counted rounds that by choice were not counted."""
    if timeline is None or chosen is None:
        return NotMeasured(not_measured="no nsys capture of the case says how many kernels its rounds have")
    steps = set(rounds_of(profile.kernels))
    of_all, of_chosen = (
        int((own["round"].isin(steps) & (own["kind"] == "kernel")).sum()) for own in (timeline, chosen)
    )
    if not of_all:
        return NotMeasured(not_measured="the nsys capture does not reach the rounds that were counted")
    return of_all - of_chosen


def _rows(profile: Profile, values: Sequence[Mapping[str, float]], places: Sequence[Placed]) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    for index, (kernel, own, where) in enumerate(zip(profile.kernels, values, places, strict=True)):
        for key, value in own.items():
            facts = (index, kernel.name, where.stage, where.basis, where.is_replayed)
            rows.append((*facts, key, COUNTERS[key].unit, value))
    return pd.DataFrame(rows, columns=list(KernelCounter.model_fields))


def _ledger(values: Sequence[Mapping[str, float]], places: Sequence[Placed]) -> tuple[LedgerLine, ...]:
    """Kernel time by basis; empty where a kernel has no time, since the lines would not add up to all of them."""
    if not all("time" in own for own in values):
        return ()
    lines: dict[Any, list[int]] = {}
    for own, where in zip(values, places, strict=True):
        lines.setdefault(where.basis, []).append(round(own["time"]))
    return tuple(LedgerLine(basis=basis, count=len(own), time_ns=sum(own)) for basis, own in sorted(lines.items()))


def _remarks(values: Sequence[Mapping[str, float]], profile: Profile, counters: Counters) -> list[str]:
    """Counters that this chip lacks, those that some kernels lack, and shares of more than everything."""
    chip = f"compute capability {profile.chip}" if profile.chip else "this chip"
    notes = []
    for key in counters_of(counters):
        missing = sum(key not in own for own in values)
        if missing == len(values):
            notes.append(f"{key}: not counted, none of its names is known to {chip}")
        elif missing:
            notes.append(f"{key}: no value for {missing} of {len(values)} kernels")
        beyond = sum(own.get(key, 0.0) > _WHOLE for own in values) if COUNTERS[key].unit == "%" else 0
        if beyond:
            notes.append(f"{key}: above 100 % for {beyond} of {len(values)} kernels: not to be taken at face value")
    return notes
