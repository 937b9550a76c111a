"""Captures folder -> tables and `Capture` of one tool: `python -m ddbench.analysis.digest CAPTURES_FOLDER TOOL`.

Runs in a process of its own, after the driver of the tool and before anything that looks at captures. Reads
<tool>.start.json, <tool>.run.json and what lies in raw/; writes <tool>-<table>.parquet and, last, <tool>.json. What is
wrong with what it reads becomes the capture's fault, and then there are no tables; only bugs raise.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from ddbench.analysis.digested import CaptureProblem, Digested, Reader, read_run, read_start
from ddbench.analysis.tables import write_capture_table
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Capture, CapturedRun, CaptureStart
from ddbench.files import PARTIAL, write_atomically
from ddbench.records import NotMeasured
from ddbench.spec import Tool

_STARTED = ("tool_version", "raw", "command", "cache", "counted_kernels", "counters", "notes")  # as the driver says


def _nsys(folder: Path) -> Digested:
    from ddbench.analysis.nsys.digest import digest_nsys

    return digest_nsys(folder)


def _ncu(folder: Path) -> Digested:
    from ddbench.analysis.ncu.digest import digest_ncu

    start = read_start(folder, "ncu")
    return digest_ncu(folder, start.counted_kernels, start.counters)


def _torch(folder: Path) -> Digested:
    from ddbench.analysis.kineto import digest_kineto

    return digest_kineto(folder)


READERS: dict[Tool, Reader] = {"nsys": _nsys, "ncu": _ncu, "torch": _torch}


def digest(folder: Path, tool: Tool) -> Capture:
    """Digest what `tool` left in a captures folder, replacing an older digest of it."""
    began = time.monotonic()
    facts: dict[str, Any] = {"tool": tool, "tool_version": NotMeasured(not_measured="its driver left no account")}
    seconds = 0.0
    _remove(folder, tool)
    try:
        start = read_start(folder, tool)
        seconds = start.seconds
        facts.update(_of_start(start))
        run = read_run(folder, tool)
        facts.update(_of_run(run))
        digested = READERS[tool](folder)
        _write_tables(folder, tool, digested.tables)
        facts.update({**digested.fields, "notes": (*start.notes, *digested.fields.get("notes", ()))})
    except CaptureProblem as problem:
        facts["fault"] = problem.fault
    capture = Capture(**facts, seconds=seconds + time.monotonic() - began)
    write_atomically(folder / f"{tool}.json", capture.model_dump_json(indent=1) + "\n")
    return capture


def _of_start(start: CaptureStart) -> dict[str, Any]:
    return {name: getattr(start, name) for name in _STARTED}


def _of_run(run: CapturedRun) -> dict[str, Any]:
    if not run.round_ns:
        cure = "choose an earlier first_round, or let the requests generate more tokens"
        raise CaptureProblem("nothing", f"no round ran from round {run.first_round} on", cure)
    return {name: getattr(run, name) for name in ("first_round", "round_ns", "num_emitted")}


# --- files ---


def _remove(folder: Path, tool: Tool) -> None:
    """An older digest: its account first, since that is what makes the rest be read."""
    (folder / f"{tool}.json").unlink(missing_ok=True)
    for name in CAPTURE_TABLES:
        (folder / f"{tool}-{name}.parquet").unlink(missing_ok=True)


def _write_tables(folder: Path, tool: Tool, tables: Mapping[str, pd.DataFrame]) -> None:
    assert set(tables) == set(TABLES_OF[tool]), f"tables of {tool}: {sorted(tables)}"
    try:
        for name, table in tables.items():
            partial = folder / f"{PARTIAL}{tool}-{name}.parquet"
            write_capture_table(partial, CAPTURE_TABLES[name], table)
        for name in tables:
            os.replace(folder / f"{PARTIAL}{tool}-{name}.parquet", folder / f"{tool}-{name}.parquet")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CaptureProblem("disk", "no space left on the device for the tables", "free some") from error
    finally:
        for name in tables:
            (folder / f"{PARTIAL}{tool}-{name}.parquet").unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """0: there is a digest, be it that there was nothing to digest."""
    parser = argparse.ArgumentParser(prog="python -m ddbench.analysis.digest", description="Digest a tool's capture.")
    parser.add_argument("folder", type=Path, help="captures folder of a case")
    parser.add_argument("tool", choices=get_args(Tool))
    asked = parser.parse_args(arguments)
    if not asked.folder.is_dir():
        parser.error(f"{asked.folder}: no such folder")
    digest(asked.folder, asked.tool)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
