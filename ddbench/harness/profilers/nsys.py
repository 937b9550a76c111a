"""Drives nsys: the case's process below it, then the export of its report as one Parquet file per table.

CPU sampling is off: left on, it made a report of gigabytes of a program of seconds. GPU metrics are sampled along;
where that is not possible the capture is made without them, and says so.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ddbench.harness.profilers.errand import CaptureFailed, Errand, Files
from ddbench.harness.tool_faults import METRICS_FAULTS, NSYS_FAULTS, fault_in, no_export
from ddbench.harness.tools import case_environment, run

EXPORT = "nsys-export"
REPORT = "nsys.nsys-rep"
STREAM = "nsys.qdstrm"  # what is left where the importer fails


def capture(errand: Errand) -> Files:
    """Record and export. Raises `CaptureFailed`."""
    words = profile_words(errand, gpu=sampled_gpu(case_environment()))
    notes: tuple[str, ...] = ()
    ending = errand.start(words)
    lacking = None if _has_report(errand) else fault_in(ending.log_tail, METRICS_FAULTS)
    if lacking is not None and ending.exit_code is not None:
        notes = (f"no GPU metrics: {lacking.what} ({lacking.cure})",)
        words = profile_words(errand, gpu=None)
        errand.on_phase("again, without GPU metrics")
        ending = errand.start(words)
    command = errand.shown(words)
    errand.check(ending, REPORT, command, () if _has_report(errand) else NSYS_FAULTS, (REPORT, STREAM))
    errand.on_phase("export")
    return Files(reads=_export(errand, command), raw=(REPORT,), command=command, notes=notes)


def profile_words(errand: Errand, gpu: str | None) -> tuple[str | Path, ...]:
    """The command line; graphs node by node, recorded while the program says so, and the program runs on after it."""
    options = ["-s", "none", "--cpuctxsw=none", "--trace=cuda,nvtx", "--cuda-graph-trace=node"]
    options += ["-c", "cudaProfilerApi", "--capture-range-end=stop", "--kill=none"]
    if gpu is not None:
        options += [f"--gpu-metrics-devices={gpu}", f"--gpu-metrics-frequency={errand.samples_per_s}"]
    return (errand.program, "profile", *options, "--force-overwrite=true", f"--output={errand.raw / 'nsys'}")


def sampled_gpu(environment: Mapping[str, str]) -> str:
    """nsys's number of the first GPU that a case sees; its own word for it where it is not called by a number."""
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return first if re.fullmatch(r"\d+", first) else "cuda-visible"


def _has_report(errand: Errand) -> bool:
    return (errand.raw / REPORT).is_file()


def _export(errand: Errand, command: str) -> str:
    """Name of the folder of Parquet files."""
    folder = errand.raw / EXPORT
    shutil.rmtree(folder, ignore_errors=True)
    words = ("export", "--type=parquetdir", "--force-overwrite=true", f"--output={folder}", errand.raw / REPORT)
    done = run((errand.program, *words), errand.timeout_s)
    if not any(folder.glob("*.parquet")):
        known = fault_in(done.output, NSYS_FAULTS)
        raise CaptureFailed(known or no_export(errand.plain(done.last_line)), (REPORT,), command)
    return EXPORT
