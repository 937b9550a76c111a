"""Captures folder -> the `counters` table of a case: what ncu counted, kernel by kernel, each with its stage.

Reads raw/ncu.ncu-rep where NVIDIA's reader is installed, else raw/ncu.csv; and nsys-ops.parquet beside them, if the
case has it, for the stages of replayed kernels: digest nsys before ncu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.analysis.ncu import report
from ddbench.analysis.ncu.counters import COUNTERS
from ddbench.analysis.ncu.page import read_page
from ddbench.analysis.ncu.profile import Profile, counted, dram_peak_bytes_per_s
from ddbench.analysis.ncu.stages import Placed, place
from ddbench.captured import KernelCounter, LedgerLine
from ddbench.records import NotMeasured

REPORT, PAGE, TIMELINE = "ncu.ncu-rep", "ncu.csv", "nsys-ops.parquet"
_WHOLE = 100.5  # %: less is rounding
_TIMELINE_COLUMNS = ["kind", "name", "stage", "basis", "round", "is_replayed"]


def digest_ncu(captures: Path) -> Digested:
    """The table `counters` and what may be said about it. Raises `CaptureProblem`."""
    profile, notes = _profile(captures / "raw")
    timeline, no_timeline = _timeline(captures / TIMELINE)
    places, unplaced = place(profile.kernels, timeline)
    values = [counted(kernel) for kernel in profile.kernels]
    if not any(values):
        raise CaptureProblem("nothing", "the report has kernels, but none of the counters", "see COUNTERS")
    peak = dram_peak_bytes_per_s(profile)
    fields = {
        "ledger": _ledger(values, places),
        "dram_peak_bytes_per_s": NotMeasured(not_measured="ncu did not report it") if peak is None else peak,
        "notes": (*notes, *_remarks(values, profile), *no_timeline, *unplaced),
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


def _remarks(values: Sequence[Mapping[str, float]], profile: Profile) -> list[str]:
    """Counters that this chip lacks, those that some kernels lack, and shares of more than everything."""
    chip = f"compute capability {profile.chip}" if profile.chip else "this chip"
    notes = []
    for key in COUNTERS:
        missing = sum(key not in own for own in values)
        if missing == len(values):
            notes.append(f"{key}: not counted, none of its names is known to {chip}")
        elif missing:
            notes.append(f"{key}: no value for {missing} of {len(values)} kernels")
        beyond = sum(own.get(key, 0.0) > _WHOLE for own in values) if COUNTERS[key].unit == "%" else 0
        if beyond:
            notes.append(f"{key}: above 100 % for {beyond} of {len(values)} kernels: not to be taken at face value")
    return notes
