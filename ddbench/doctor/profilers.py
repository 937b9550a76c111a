"""Checks of nsys and ncu: found, complete, permitted; and a capture of the self-test that must hold its range.

A tool's own exit code is not believed: what counts is what lies in the capture afterwards.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ddbench.doctor.finding import NO_GPU, Finding, failed, missing, ok
from ddbench.doctor.machine import Machine, version_of
from ddbench.doctor.self_test import RANGE
from ddbench.harness.tool_faults import (
    IMPORTER_CURE,
    LIBRARY_CURE,
    NCU_FAULTS,
    NSYS_FAULTS,
    PERMISSION_CURE,
    ToolFault,
    fault_in,
)
from ddbench.harness.tools import LONG_S, NCU_CURE, NSYS_CURE, SHORT_S, Ran, run, version_in

NCU_LOCK = "nsight-compute-lock"
METRIC = "gpu__time_duration.sum"
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: ([^:\s]+)")


# --------------------------------------------------------------------------------------------------------------- nsys


def nsys(machine: Machine) -> Finding:
    return _tool(machine.nsys, NSYS_CURE)


def importer(machine: Machine) -> Finding:
    """What turns nsys's raw stream into a report; without it a capture ends in a .qdstrm."""
    if machine.nsys is None:
        return missing("no nsys", "see nsys")
    if not machine.importers:
        return missing("no QdstrmImporter beside nsys", IMPORTER_CURE)
    found = [_started(file) for file in machine.importers]
    return next((finding for finding in found if finding.status == "ok"), found[0])


def _started(file: Path) -> Finding:
    """nsys starts it with the libraries beside it; what it lacks then has to come from the system."""
    done = run((file, "--help"), SHORT_S, libraries=file.parent)
    lacking = _MISSING_LIBRARY.search(done.output)
    if lacking is not None:
        return failed(f"QdstrmImporter lacks {lacking[1]}", LIBRARY_CURE)
    if done.code is None:
        return failed(f"QdstrmImporter {done.first_line}", "install Nsight Systems anew")
    return ok("QdstrmImporter starts")


def nsys_capture(machine: Machine) -> Finding:
    """Profile the self-test, export it, and find its range (and on a GPU its kernel) again."""
    if machine.nsys is None:
        return missing("not tried without nsys", "see nsys")
    if version_of("nvtx") is None:
        return missing("not tried without nvtx", "see nvtx")
    device = "cpu" if machine.torch.device is None else "cuda"
    with tempfile.TemporaryDirectory(prefix="ddbench-doctor-") as name:
        report, export = Path(name, "self-test.nsys-rep"), Path(name, "self-test.sqlite")
        done = run(profile_command(machine.nsys, report.with_suffix(""), device), LONG_S)
        if not report.is_file():
            has_stream = any(Path(name).glob("*.qdstrm"))
            return _fault(done, NSYS_FAULTS, "leaves a .qdstrm" if has_stream else "writes no report", "see importer")
        command = (machine.nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}", report)
        done = run(command, LONG_S)
        if not export.is_file():
            return _fault(done, NSYS_FAULTS, "cannot export its report", "see importer")
        return _judged(export, device)


def profile_command(nsys: Path, report: Path, device: str) -> tuple[str | Path, ...]:
    """A capture as a sweep makes it: no CPU sampling (it costs gigabytes), graphs node by node."""
    trace = "nvtx" if device == "cpu" else "cuda,nvtx"
    options = ["--sample=none", "--cpuctxsw=none", f"--trace={trace}", "--force-overwrite=true", f"--output={report}"]
    options += [] if device == "cpu" else ["--cuda-graph-trace=node"]
    return (nsys, "profile", *options, sys.executable, "-m", "ddbench.doctor.self_test", device)


def _judged(export: Path, device: str) -> Finding:
    try:
        num_ranges, num_kernels = recorded(export)
    except sqlite3.Error as error:
        return failed(f"its export cannot be read: {error}", "look for free space; then install nsys anew")
    if not num_ranges:
        cure = "use an nsys of 2025 or later, or pip install 'nvtx<0.2.12': older ones record no range of newer nvtx"
        return failed(f"the self-test's range is not in the capture (nvtx {version_of('nvtx')})", cure)
    if device == "cpu":
        return ok("the self-test's range was found again (no GPU)")
    if not num_kernels:
        cure = "stop other CUPTI clients (DCGM, a torch profiler); nsys must be at least as new as the driver"
        return failed("the self-test's kernel is not in the capture", cure)
    return ok("the self-test's range and kernel were found again")


def recorded(export: Path) -> tuple[int, int]:
    """How often a SQLite export holds the self-test's range, and how many kernels; an absent table is an empty one."""
    with closing(sqlite3.connect(f"{export.resolve().as_uri()}?mode=ro", uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        num_kernels = num_ranges = 0
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            (num_kernels,) = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        if "NVTX_EVENTS" in tables:
            text, join = "event.text", ""
            if "StringIds" in tables:  # registered strings, as nvtx makes them, lie there
                text, join = "COALESCE(event.text, string.value)", "LEFT JOIN StringIds string ON string.id = textId"
            query = f"SELECT COUNT(*) FROM NVTX_EVENTS event {join} WHERE {text} = ?"
            (num_ranges,) = database.execute(query, (RANGE,)).fetchone()
    return num_ranges, num_kernels


# ---------------------------------------------------------------------------------------------------------------- ncu


def ncu(machine: Machine) -> Finding:
    return _tool(machine.ncu, NCU_CURE)


def counters(machine: Machine) -> Finding:
    """Who may read the GPU's counters: ncu needs them, and nsys for its GPU metrics."""
    if not machine.has_gpu:
        return NO_GPU
    if machine.are_counters_restricted is None:
        return missing("the driver does not tell who may read them", "the ncu capture shows it")
    if not machine.are_counters_restricted:
        return ok("open to every user")
    if machine.is_administrator:
        return ok("open to administrators only, which this is")
    return missing("for administrators only (RmProfilingAdminOnly: 1)", PERMISSION_CURE)


def ncu_lock(machine: Machine) -> Finding:
    """ncu runs once per machine, by a lock file that it leaves behind, with the rights of whoever made it."""
    file = Path(tempfile.gettempdir(), NCU_LOCK)
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        cure = f"let its owner or root remove {NCU_LOCK} from the temporary folder, or set TMPDIR to one of your own"
        return failed("another user's lock file is in the way", cure)
    return ok("free")


def ncu_capture(machine: Machine) -> Finding:
    """Profile the self-test's kernel with its clocks untouched."""
    if machine.ncu is None:
        return missing("not tried without ncu", "see ncu")
    if machine.torch.device is None:
        return missing("not tried without a GPU that torch can use", "see GPU and CUDA")
    if version_of("nvtx") is None:
        return missing("not tried without nvtx", "see nvtx")
    done = run(counter_command(machine.ncu), LONG_S)
    if METRIC in done.output and re.search(r'^"\d+",', done.output, flags=re.MULTILINE):
        return ok("the self-test's kernel was counted")
    return _fault(done, NCU_FAULTS, "counts no kernel", "run ncu on a small program to see what it says")


def counter_command(ncu: Path) -> tuple[str | Path, ...]:
    options = ("--clock-control", "none", "--metrics", METRIC, "--csv", "--page", "raw", "--print-units", "base")
    return (ncu, *options, "--launch-count", "1", sys.executable, "-m", "ddbench.doctor.self_test", "cuda")


# --------------------------------------------------------------------------------------------------------------- both


def _tool(file: Path | None, cure: str) -> Finding:
    if file is None:
        return missing("neither on the PATH nor where installers put it", cure)
    done = run((file, "--version"), SHORT_S)
    version = version_in(done.output)
    if done.code != 0 or version is None:
        return failed(f"{file} does not tell its version: {done.first_line}", cure)
    return ok(f"{version}, {file}")


def _fault(done: Ran, faults: Sequence[ToolFault], what: str, cure: str) -> Finding:
    known = fault_in(done.output, faults)
    if known is not None:
        return failed(known.what, known.cure)
    return failed(f"{what}: {done.last_line}", cure)
