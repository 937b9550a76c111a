"""One case in a process of its own, seen from the parent: start, listen, stop, and say how it ended.

A case that crashes, hangs or runs out of memory is a typed result, never the end of the sweep. The child lives in its
own session, so that Ctrl-C reaches the parent only, which then stops the child and everything the child has started.
"""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

import psutil

from ddbench.errors import SchemaError
from ddbench.harness.environment import PACKAGE, child_environment
from ddbench.harness.store import RunFolder, read_result, write_result
from ddbench.records import CaseResult, FailedResult, OkResult
from ddbench.spec import Case, Record, without_unset_additions

WORKER: tuple[str, ...] = (sys.executable, "-m", "ddbench.harness.worker")
TAIL_LINES = 40
GRACE_S = 5.0  # for a killed process to disappear
_POLL_S = 0.1


class Job(Record):
    """What a case's process is told. It may be one of older code, which refuses what it does not know."""

    case_id: str
    case: Case
    reference: str | None = None  # requests.parquet of the `ar` case whose outputs these must equal


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child process ended."""

    exit_code: int | None  # None: it was stopped because its time was up
    seconds: float
    log_tail: str


def run_case(
    run: RunFolder,
    job: Job,
    on_phase: Callable[[str], None],
    command: Sequence[str] = WORKER,
    afterwards: Callable[[Path, Path, Case], None] | None = None,
) -> CaseResult:
    """Run a case and put its folder in place.

    `afterwards` is what is still to be done with an ok case before its folder is complete; it is given the job's file,
    the folder and the case.
    """
    case_id, case = job.case_id, job.case
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    with run.new_case_folder(case_id) as folder:
        job_file = folder / "job.json"
        job_file.write_text(json.dumps(without_unset_additions(job)), encoding="utf-8")
        ending = supervise((*command, str(job_file), str(folder)), case.capture.timeout_s, on_phase)
        result = _result(folder, job, started_at, ending)
        if isinstance(result, FailedResult):
            changes = {"log_tail": scrubbed(ending.log_tail), "seconds": ending.seconds}
            result = result.model_copy(update=changes)
            write_result(folder, result)
        elif isinstance(result, OkResult) and afterwards is not None:
            afterwards(job_file, folder, case)
        job_file.unlink()
        run.keep(folder, case_id)
    return result


def _result(folder: Path, job: Job, started_at: str, ending: Ending) -> CaseResult:
    """What the process has written, or how it ended without."""
    outcome, reason = _failure(ending, job.case.capture.timeout_s)
    if ending.exit_code == 0 and (folder / "result.json").is_file():
        try:
            return read_result(folder, job.case_id)
        except SchemaError as error:  # another version's worker may write what this one does not understand
            fault = str(error).rpartition("/")[2]
            outcome, reason = "error", f"its process wrote a result that cannot be read: {fault}"
    return FailedResult(
        case_id=job.case_id, case=job.case, started_at=started_at, seconds=ending.seconds,
        outcome=outcome, reason=reason,
    )  # fmt: skip


def _failure(ending: Ending, timeout_s: int) -> tuple[Literal["timeout", "crash", "error"], str]:
    """What it means that a process ended so and left no result."""
    if ending.exit_code is None:
        return "timeout", f"not finished after {timeout_s} s: raise timeout_s or shrink the case"
    if ending.exit_code < 0:
        name = _signal_name(-ending.exit_code)
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return "crash", f"the case's process was killed by {name}{hint}"
    last = scrubbed(ending.log_tail).rpartition("\n")[2].strip()
    why = f" ({last})" if last else ""
    return "crash", f"the case's process ended with exit code {ending.exit_code} and left no result{why}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -------------------------------------------------------------------------------------------------------- the process


def supervise(
    command: Sequence[str],
    timeout_s: float,
    on_phase: Callable[[str], None],
    *,
    environment: Mapping[str, str] | None = None,  # without: our own, in which this package is found
    tail_lines: int = TAIL_LINES,
    grace_s: float = 0.0,  # between asking it to end and killing it, where it may have to tidy up
) -> Ending:
    """Run a command to its end, to its timeout, or to an exception here; never leave a process behind."""
    begin = time.monotonic()
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # never written to: its end tells the child that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        env=child_environment() if environment is None else environment,
    )
    phases: queue.SimpleQueue[str] = queue.SimpleQueue()
    tail: deque[str] = deque(maxlen=tail_lines)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    readers = [
        threading.Thread(target=_read_phases, args=(child.stdout, phases, tail), daemon=True),
        threading.Thread(target=_read_log, args=(child.stderr, tail), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        is_late = not _wait(child, begin + timeout_s, phases, on_phase)
    finally:
        if child.poll() is None:  # never by the number of a process that is gone: it may be another's by now
            kill_tree(child, grace_s)
        child.wait()
        child.stdin.close()
        for reader in readers:
            reader.join(GRACE_S)
    seconds = round(time.monotonic() - begin, 3)
    return Ending(None if is_late else child.returncode, seconds, "\n".join(tail))


def _wait(
    child: subprocess.Popen[str], deadline: float, phases: queue.SimpleQueue[str], on_phase: Callable[[str], None]
) -> bool:
    """Pass phases on until the child has ended; False when the deadline came first."""
    while True:
        has_ended = child.poll() is not None
        try:
            while True:
                on_phase(phases.get(timeout=0 if has_ended else _POLL_S))
        except queue.Empty:
            pass
        if has_ended:
            return True
        if time.monotonic() > deadline:
            return False


def _read_phases(stream: IO[str], phases: queue.SimpleQueue[str], tail: deque[str]) -> None:
    for line in stream:
        try:
            phases.put(json.loads(line)["phase"])
        except (json.JSONDecodeError, KeyError, TypeError):
            tail.append(line.rstrip("\n"))  # not ours: a library that printed before the worker took over


def _read_log(stream: IO[str], tail: deque[str]) -> None:
    for line in stream:
        tail.append(line.rstrip("\n"))


def kill_tree(child: subprocess.Popen[str], grace_s: float = 0.0) -> None:
    """Kill a running child of ours and all its descendants; ask it to end by itself first where it gets the time."""
    try:
        root = psutil.Process(child.pid)
        processes = [*root.children(recursive=True), root]
        if grace_s:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(grace_s)
            processes = list(dict.fromkeys([*_descendants(root), *processes]))
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes[:-1], timeout=GRACE_S)


def _descendants(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def scrubbed(text: str) -> str:
    """A log without what names this machine's folders and user."""
    for folder, name in ((PACKAGE.parent, "<ddbench>"), (Path(sys.prefix), "<python>"), (Path.home(), "~")):
        if len(folder.parts) > 1:
            text = re.sub(re.escape(str(folder)) + r"(?=[/\\\s\"':]|$)", name, text)
    return text
