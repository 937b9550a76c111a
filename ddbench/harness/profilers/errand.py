"""What a driver of a profiler is told, what it gives back, and how it fails.

Between `drive.py`, which sends drivers (`nsys.py`, `ncu.py`, `in_process.py`) on errands, and the process they run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddbench.captured import CaptureFault
from ddbench.errors import DdbenchError
from ddbench.harness.run import Ending, scrubbed, supervise
from ddbench.harness.tool_faults import Fault, ToolFault, crashed, cut_off, fault_in, no_report, timed_out
from ddbench.harness.tools import case_environment
from ddbench.spec import Counters, Tool

OUTPUT_LINES = 2000  # of a tool's words kept to look for its faults; ncu says a line for every kernel
GRACE_S = 10.0  # for a tool that is stopped, to end its session
_LONGEST = 200  # characters of a tool's own words in a message
MODULE = "ddbench.harness.capture_worker"
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b|==ERROR==")  # as Python ends a traceback, or as ncu begins a line
_PROGRESS = re.compile(r"==PROF==|\s*\[[ 0-9/=%]|Collecting data|Generating|Processing|Capture range|Generated:")


@dataclass(frozen=True, slots=True)
class Errand:
    """One pass of a tool over a case."""

    tool: Tool
    program: Path  # of the tool
    captures: Path  # folder of the case's captures
    worker: tuple[str, ...]  # command of the case's process
    device: str
    timeout_s: int
    on_phase: Callable[[str], None]
    counted_kernels: str  # these three as `CaptureSpec` says
    counters: Counters
    samples_per_s: int

    @property
    def raw(self) -> Path:
        return self.captures / "raw"

    @property
    def run_file(self) -> Path:
        """Written by the case's process at its end."""
        return self.captures / f"{self.tool}.run.json"

    def start(self, words: Sequence[str | Path]) -> Ending:
        """Run the case's process below the tool, or by itself where there are no words; remains of a try before go."""
        for file in (self.run_file, *self.raw.glob(f"{self.tool}.*")):
            file.unlink(missing_ok=True)
        command = [*(str(word) for word in words), *self.worker]
        return supervise(
            command,
            self.timeout_s,
            self.on_phase,
            environment=case_environment(),
            tail_lines=OUTPUT_LINES,
            grace_s=GRACE_S,
        )

    def check(
        self, ending: Ending, report: str, command: str, faults: Sequence[ToolFault], leftovers: Sequence[str] = ()
    ) -> None:
        """A pass counts when the report and the program's own record are there, whatever the exit code (H27).

        Else `CaptureFailed`: with what the tool's words tell of `faults`, and with those of `leftovers` that are there.
        """
        if ending.exit_code is None:
            raise CaptureFailed(timed_out(self.tool, self.timeout_s), command=command)
        file = self.raw / report
        if file.is_file() and self.run_file.is_file():
            if not file.stat().st_size:
                raise CaptureFailed(cut_off(report), command=command)
            return
        said = self.plain(last_words(ending.log_tail))
        unknown = no_report(said) if self.run_file.is_file() else crashed(said)
        kept = [name for name in leftovers if (self.raw / name).is_file()]
        raise CaptureFailed(fault_in(ending.log_tail, faults) or unknown, kept, command)

    def shown(self, words: Sequence[str | Path]) -> str:
        """The command without what names a machine."""
        shorter = [str(word).replace(f"{self.captures}{os.sep}", "captures/") for word in words]
        name = [self.tool] if words else []
        return " ".join([*name, *shorter[1:], "python", "-m", MODULE, "JOB", "CASE", self.tool])

    def plain(self, text: str) -> str:
        """A tool's own words as they go into a message: one line of them, nothing of this machine."""
        line = scrubbed(" ".join(text.split()).replace(str(self.captures), "captures"))
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


@dataclass(frozen=True, slots=True)
class Files:
    """What a tool left in captures/raw/."""

    reads: str  # what the digest reads
    raw: tuple[str, ...]  # what stays
    command: str
    notes: tuple[str, ...] = ()
    cache: Literal["as it ran", "flushed"] = "as it ran"  # before every kernel


class CaptureFailed(DdbenchError):
    """A pass gave nothing."""

    def __init__(self, fault: Fault, raw: Sequence[str] = (), command: str = "") -> None:
        super().__init__(f"{fault.what}: {fault.cure}")
        self.fault = CaptureFault(reason=fault.reason, what=fault.what, cure=fault.cure)  # type: ignore[arg-type]
        self.raw = tuple(raw)
        self.command = command


def last_words(output: str) -> str:
    """The line of an output that says most: the last error, else the last one that is no progress of a tool's."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not _PROGRESS.match(line)]
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")
