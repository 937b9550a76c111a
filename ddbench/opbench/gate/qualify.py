"""Repeats of `ddbench bench-ops` for a baseline: the same code again and again, each time in a process of its own.

A gate compares processes, so processes are repeated: each draws its addresses, its graphs and the state of the clocks
anew. Every repeat leaves a folder, of which a baseline can be made later (`ddbench qualify --from`).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddbench import units
from ddbench.analysis.gate.noise import FEWEST_REPEATS
from ddbench.errors import DdbenchError, UserError
from ddbench.harness.environment import child_environment

NUM_REPEATS = 5
BENCH: tuple[str, ...] = (sys.executable, "-m", "ddbench", "bench-ops")
LOG = "bench-ops.txt"


@dataclass(frozen=True, slots=True)
class Repeats:
    """What is repeated, and how often."""

    ops: str | None  # as `bench-ops --op` has it
    device: str | None
    number: int

    def __post_init__(self) -> None:
        if self.number < FEWEST_REPEATS:
            raise UserError(
                f"--blocks {self.number}: a noise floor takes at least {FEWEST_REPEATS} repeats; for exact counters "
                f"alone, measure once and say: ddbench qualify --from FOLDER --out FILE"
            )

    @property
    def words(self) -> tuple[str, ...]:
        """What follows `ddbench bench-ops`."""
        given = (("--op", self.ops), ("--device", self.device))
        return ("--ours", *(word for name, value in given if value is not None for word in (name, value)))


class RepeatsInterrupted(DdbenchError):
    """Stopped from outside; finished repeats are kept."""

    exit_code = 130


def run_repeats(
    repeats: Repeats, out: Path, file: Path, say: Callable[[str], None], command: Sequence[str] = BENCH
) -> tuple[Path, ...]:
    """The folders of all repeats, in order. Where one fails, an error says how to come to `file` after all."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folders = tuple(out / f"{stamp}-ops" / f"repeat-{index + 1}" for index in range(repeats.number))
    begin = time.monotonic()
    for index, folder in enumerate(folders):
        try:
            _run(repeats, folder, command)
        except KeyboardInterrupt as error:
            raise RepeatsInterrupted(f"interrupted; {_kept(folders[:index], repeats, file)}") from error
        except DdbenchError as error:
            raise type(error)(f"repeat {index + 1}: {error}; {_kept(folders[:index], repeats, file)}") from error
        spent = time.monotonic() - begin
        left = f", about {units.about(spent / (index + 1) * (repeats.number - index - 1))} left"
        say(f"repeat {index + 1} of {repeats.number}: {folder}, {units.about(spent)} so far{left}")
    return folders


def _run(repeats: Repeats, folder: Path, command: Sequence[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / LOG).open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}): choose another folder with --runs") from error
    words = (*command, *repeats.words, "--format", "json", "--out", str(folder))
    with log:
        done = subprocess.run(
            words, stdout=log, stderr=subprocess.PIPE, text=True, env=child_environment(), check=False
        )
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("error: ")
        wrong = UserError if done.returncode == 2 else DdbenchError
        raise wrong(f"{last} (see {folder / LOG})")


def _kept(folders: Sequence[Path], repeats: Repeats, file: Path) -> str:
    """How to come to the baseline from what there is."""
    if not folders:
        return "nothing is kept"
    given = " ".join(f"--from {shlex.quote(str(folder))}" for folder in folders)
    missing = repeats.number - len(folders)
    one = shlex.join(["ddbench", "bench-ops", *repeats.words, "--out", "FOLDER"])
    return (
        f"{len(folders)} of {repeats.number} repeats are kept. Measure {missing} more with: {one}, and then: "
        f"ddbench qualify {given} --from FOLDER --out {shlex.quote(str(file))}"
    )
