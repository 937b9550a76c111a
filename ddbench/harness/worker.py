"""The process of one case: `python -m ddbench.harness.worker JOB.json OUT_DIR`.

Talks to its parent in lines of JSON on standard output ({"phase": ...}); everything else that is printed goes to
standard error, whose tail the parent keeps. Writes the case's files into OUT_DIR, result.json last. Ends by itself when
its parent is gone: the parent holds the other end of its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch

from ddbench.errors import DdbenchError
from ddbench.harness.measure import Notify, measure_case
from ddbench.harness.run import Job
from ddbench.harness.store import CaseTables, write_case
from ddbench.records import CaseResult, FailedResult
from ddbench.spec import from_json

ORPHANED = 71  # exit code of a worker whose parent is gone
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")

Outcome = Literal["out_of_memory", "error"]
Measure = Callable[[Job, Notify], tuple[CaseResult, CaseTables | None]]


def main(arguments: list[str]) -> int:
    """Exit code 0 whenever a result was written, also one that says that the case failed."""
    job_file, out = Path(arguments[0]), Path(arguments[1])
    notify = take_over_stdout()
    _end_with_parent()
    job = from_json(Job, job_file.read_text(encoding="utf-8"), job_file.name)
    result, tables = guarded(job, notify, measure_case)
    write_case(out, result, tables)
    return 0


def guarded(job: Job, notify: Notify, measure: Measure) -> tuple[CaseResult, CaseTables | None]:
    """The case boundary: whatever goes wrong in a case becomes a typed result, and the sweep goes on."""
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        return measure(job, notify)
    except Exception as error:  # noqa: BLE001 the one place where every failure of a case has to be caught
        if not isinstance(error, DdbenchError):
            traceback.print_exc()
        outcome, reason = classify(error)
        failed = FailedResult(
            case_id=job.case_id, case=job.case, started_at=started_at, seconds=0.0, outcome=outcome, reason=reason
        )
        return failed, None


def classify(error: Exception) -> tuple[Outcome, str]:
    """What kind of failure, and one line about it."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else "no message"
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if is_memory or (isinstance(error, RuntimeError) and any(words in text.lower() for words in _OUT_OF_MEMORY)):
        return "out_of_memory", first
    return "error", first if isinstance(error, DdbenchError) else f"{type(error).__name__}: {first}"


def take_over_stdout() -> Notify:
    """Keep standard output for the protocol; prints of libraries go to standard error from now on."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)

    def notify(phase: str) -> None:
        protocol.write(json.dumps({"phase": phase}) + "\n")
        protocol.flush()

    return notify


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its worker; the end of our standard input tells us."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True, name="parent-watch").start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
