"""The captures of one case: each tool's pass, its check against the clean pass, its digest. Nothing here ends a sweep.

Called by the sweep between the end of a case's process and the moment in which its folder takes its place, so that a
case has all of its captures or is not there. What goes wrong is a `Capture` with a fault; the case stays ok.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddbench.captured import TABLES_OF, Capture, CapturedRun, CaptureStart
from ddbench.errors import SchemaError
from ddbench.files import read_text, write_atomically
from ddbench.harness.profilers import in_process, ncu, nsys
from ddbench.harness.profilers.errand import MODULE, CaptureFailed, Errand, Files, last_words
from ddbench.harness.run import scrubbed, supervise
from ddbench.harness.store import clean_requests, json_text
from ddbench.harness.tool_faults import (
    Fault,
    no_gpu_case,
    no_nvtx,
    no_round,
    no_tool,
    not_digested,
    other_output,
    timed_out,
)
from ddbench.harness.tools import NCU_CURE, NSYS_CURE, SHORT_S, find_tool, run, version_in
from ddbench.records import NotMeasured
from ddbench.spec import Case, Tool, from_json

WORKER: tuple[str, ...] = (sys.executable, "-m", MODULE)
DIGEST: tuple[str, ...] = (sys.executable, "-m", "ddbench.analysis.digest")
ORDER: tuple[Tool, ...] = ("nsys", "torch", "ncu")  # the timeline first: its stages may help to read the counters
CURES = {"nsys": NSYS_CURE, "ncu": NCU_CURE}
DRIVERS: dict[Tool, Callable[[Errand], Files]] = {
    "nsys": nsys.capture,
    "torch": in_process.capture,
    "ncu": ncu.capture,
}


def tools_of(case: Case) -> tuple[Tool, ...]:
    """The tools that get a pass over the case. Its repeats in later blocks would show the same once more."""
    return tuple(tool for tool in ORDER if tool in case.capture.tools and not case.block)


def fault_before(case: Case, tool: Tool) -> Fault | None:
    """What a plan knows to be impossible."""
    return no_gpu_case(tool) if tool != "torch" and case.engine.device != "cuda" else None


def capture_case(
    job_file: Path,
    folder: Path,
    case: Case,
    on_phase: Callable[[str], None],
    worker: Sequence[str] = WORKER,
    digest: Sequence[str] = DIGEST,
) -> tuple[Capture, ...]:
    """Every capture of a case that has ended ok, written below its folder."""
    captures = folder / "captures"
    made = []
    for tool in tools_of(case):
        (captures / "raw").mkdir(parents=True, exist_ok=True)

        def tell(phase: str, tool: Tool = tool) -> None:
            on_phase(f"{tool}: {phase}")

        command = (*worker, str(job_file), str(folder), tool, str(os.getpid()))
        capture = _Pass(tool, case, captures, command, tell).made(digest)
        made.append(capture)
        write_atomically(captures / f"{tool}.json", json_text(capture))
        _tidy(captures, tool, capture)
    return tuple(made)


def known_captures(folder: Path, case: Case) -> tuple[Capture, ...]:
    """The captures that a finished case has; a damaged one is as good as none."""
    found = []
    for tool in tools_of(case):
        try:
            found.append(_read(folder / "captures" / f"{tool}.json"))
        except SchemaError:
            continue
    return tuple(found)


def _read(path: Path) -> Capture:
    return from_json(Capture, read_text(path), path.name)


class _Pass:
    """One tool's pass over a case."""

    def __init__(
        self, tool: Tool, case: Case, captures: Path, worker: tuple[str, ...], tell: Callable[[str], None]
    ) -> None:
        self._tool = tool
        self._case = case
        self._captures = captures
        self._worker = worker
        self._tell = tell
        self._begin = time.monotonic()
        self._version: str | NotMeasured = NotMeasured(not_measured="the tool was not run")

    def made(self, digest: Sequence[str]) -> Capture:
        try:
            files = self._recorded()
            self._check_run(files)
            return self._digested(files, digest)
        except CaptureFailed as error:
            return Capture(
                tool=self._tool,
                tool_version=self._version,
                seconds=self._seconds,
                fault=error.fault,
                command=error.command,
                raw=error.raw,
            )

    @property
    def _choice(self) -> dict[str, Any]:
        """Of kernels and counters, by the case: ncu alone can choose."""
        spec = self._case.capture
        return {"counted_kernels": spec.counted_kernels, "counters": spec.counters} if self._tool == "ncu" else {}

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._begin, 3)

    def _recorded(self) -> Files:
        errand = Errand(
            tool=self._tool,
            program=self._program(),
            captures=self._captures,
            worker=self._worker,
            device=self._case.engine.device,
            timeout_s=self._case.capture.timeout_s,
            on_phase=self._tell,
            counted_kernels=self._case.capture.counted_kernels,
            samples_per_s=self._case.capture.samples_per_s,
            counters=self._case.capture.counters,
        )
        return DRIVERS[self._tool](errand)

    def _program(self) -> Path:
        impossible = fault_before(self._case, self._tool)
        if impossible is not None:
            raise CaptureFailed(impossible)
        if self._tool == "torch":
            self._version = importlib.metadata.version("torch")
            return Path(sys.executable)
        if importlib.util.find_spec("nvtx") is None:
            raise CaptureFailed(no_nvtx())
        program = find_tool(self._tool)
        if program is None:
            raise CaptureFailed(no_tool(self._tool, CURES[self._tool]))
        self._version = version_in(run((program, "--version"), SHORT_S).output) or NotMeasured(
            not_measured="the tool states none"
        )
        return program

    def _check_run(self, files: Files) -> None:
        """The pass must have been one of the same case, and must have reached its window."""
        path = self._captures / f"{self._tool}.run.json"
        try:
            seen = from_json(CapturedRun, read_text(path), path.name)
        except SchemaError as error:
            raise CaptureFailed(not_digested(str(error).rpartition("/")[2]), files.raw, files.command) from error
        if not seen.round_ns:
            raise CaptureFailed(no_round(self._case.capture.first_round), files.raw, files.command)
        expected = clean_outputs(self._captures.parent)
        for request_id in sorted(expected.keys() | seen.outputs.keys(), key=int):
            if seen.outputs.get(request_id) != expected.get(request_id):
                raise CaptureFailed(other_output(request_id), files.raw, files.command)

    def _digested(self, files: Files, digest: Sequence[str]) -> Capture:
        """By a process of its own, which may need much memory, or crash."""
        start = CaptureStart(
            tool=self._tool,
            tool_version=self._version,
            seconds=self._seconds,
            reads=files.reads,
            raw=files.raw,
            command=files.command,
            cache=files.cache,
            notes=files.notes,
            **self._choice,
        )
        write_atomically(self._captures / f"{self._tool}.start.json", json_text(start))
        self._tell("digest")
        timeout_s = self._case.capture.timeout_s
        ending = supervise((*digest, str(self._captures), self._tool), timeout_s, self._tell)
        if ending.exit_code is None:
            raise CaptureFailed(timed_out(self._tool, timeout_s), files.raw, files.command)
        try:
            if not ending.exit_code:
                return _read(self._captures / f"{self._tool}.json")
            words = last_words(scrubbed(ending.log_tail))
        except SchemaError as error:
            words = str(error).rpartition("/")[2]
        raise CaptureFailed(not_digested(words), files.raw, files.command)


def clean_outputs(folder: Path) -> dict[str, tuple[int, ...]]:
    """Tokens of every request in the first clean pass of a case."""
    rows = clean_requests(folder / "requests.parquet")
    return {str(request_id): tuple(row["tokens"]) for request_id, row in rows.items()}


def _tidy(captures: Path, tool: Tool, capture: Capture) -> None:
    """Leave what the capture names, and of a failed one no tables."""
    for name in (f"{tool}.run.json", f"{tool}.start.json"):
        (captures / name).unlink(missing_ok=True)
    for path in (captures / "raw").iterdir():
        if path.name.startswith(tool) and path.name not in capture.raw:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for table in TABLES_OF[tool] if capture.fault is not None else ():
        (captures / f"{tool}-{table}.parquet").unlink(missing_ok=True)
