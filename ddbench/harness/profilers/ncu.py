"""Drives ncu: the case's process below it, kernel by kernel, then its report as one CSV of raw values.

Clocks and caches are left as they are. Every kernel is run several times, once for each group of counters that fits the
hardware; what a chip calls them is asked first, since a name that it lacks may end the whole pass. Where bytes alone
are asked for, one run of each kernel counts them: nothing has to be saved and restored, however large the model, and
caches are flushed before it, so that what it reads comes from memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from ddbench.harness.profilers.errand import CaptureFailed, Errand, Files, last_words
from ddbench.harness.tool_faults import NCU_FAULTS, fault_in, no_export
from ddbench.harness.tools import LONG_S, run
from ddbench.spec import Counters

REPORT = "ncu.ncu-rep"
CSV = "ncu.csv"
_HEAD = 100_000  # characters of a page in which its header must stand
_LISTED = re.compile(r"^\s*([a-z0-9]+__\w+)", flags=re.MULTILINE)  # a base name where a line of a list begins
_UNKNOWN = re.compile(r"(?:failed to find|unknown|unsupported|invalid) metric\w*:? *(?:'|\")?([a-z0-9]+__[\w.]+)", re.I)


def capture(errand: Errand) -> Files:
    """Count and export. Raises `CaptureFailed`."""
    metrics = known_metrics(errand.program, errand.counters)
    words = count_words(errand, metrics)
    ending = errand.start(words)
    refused = set(_UNKNOWN.findall(ending.log_tail))
    if refused and ending.exit_code is not None and not (errand.raw / REPORT).is_file():
        metrics = tuple(name for name in metrics if name not in refused)
        words = count_words(errand, metrics)
        errand.on_phase("again, without counters that this GPU lacks")
        ending = errand.start(words)
    command = errand.shown(words)
    errand.check(ending, REPORT, command, NCU_FAULTS, (REPORT,))
    errand.on_phase("export")
    _export(errand, command)
    cache: Literal["as it ran", "flushed"] = "flushed" if _is_flushed(errand) else "as it ran"
    return Files(reads=CSV, raw=(REPORT, CSV), command=command, cache=cache)


def count_words(errand: Errand, metrics: Sequence[str]) -> tuple[str | Path, ...]:
    """The command line: only what the program itself marks, each node of a graph as a kernel."""
    caches = "all" if _is_flushed(errand) else "none"
    options = ["--clock-control", "none", "--cache-control", caches, "--nvtx", "--graph-profiling", "node"]
    if errand.counted_kernels:
        options += ["--kernel-name-base", "function", "--kernel-name", f"regex:^({errand.counted_kernels})$"]
    options += ["--profile-from-start", "off", "--target-processes", "all", "--metrics", ",".join(metrics)]
    return (errand.program, *options, "--force-overwrite", "--export", errand.raw / "ncu")


def _is_flushed(errand: Errand) -> bool:
    """Caches, before every kernel."""
    return errand.counters == "bytes"


@cache
def known_metrics(program: Path, counters: Counters = "all") -> tuple[str, ...]:
    """The wanted counters, each by those of its names that ncu lists for the GPUs here; by all where it lists none."""
    from ddbench.analysis.ncu.counters import DRAM_PEAK, counters_of  # the package brings pandas along

    listed = set(_LISTED.findall(run((program, "--query-metrics"), LONG_S).output))
    names: list[str] = []
    for counter in counters_of(counters).values():
        names += [name for name in counter.names if name.partition(".")[0] in listed] or counter.names
    return (*names, *DRAM_PEAK) if counters == "all" else tuple(names)


def _export(errand: Errand, command: str) -> None:
    """Values in base units, without separators: `LC_ALL` is C."""
    words = ("--import", errand.raw / REPORT, "--csv", "--page", "raw", "--print-units", "base")
    file = errand.raw / CSV
    done = run((errand.program, *words), errand.timeout_s, into=file)
    with file.open(encoding="utf-8", errors="replace") as lines:
        head = lines.read(_HEAD)
    if done.code != 0 or '"ID"' not in head:
        said = done.output if done.output.strip() else head
        known = fault_in(said, NCU_FAULTS)
        raise CaptureFailed(known or no_export(errand.plain(last_words(said))), (REPORT,), command)
