"""The ceilings of the machine around the cases of a run: asked for before the first case and after the last one.

Around the loop over the cases in `sweep.py`. A process of its own measures (`ceilings.py`), so that the one that starts
the cases never holds device memory; what it answers is kept in the run folder's `ceilings.json`. A sweep never ends
because of it: whatever goes wrong is one line on the console and a fault in the file.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from ddbench.errors import SchemaError
from ddbench.files import write_atomically
from ddbench.harness.environment import child_environment
from ddbench.harness.progress import escaped
from ddbench.harness.run import scrubbed
from ddbench.harness.store import RunFolder
from ddbench.records import Ceilings, NotMeasured, When
from ddbench.spec import from_json

FILE = "ceilings.json"
CEILINGS: tuple[str, ...] = (sys.executable, "-m", "ddbench.harness.ceilings")
TIMEOUT_S = 60.0


@contextmanager
def around(
    runs: Sequence[RunFolder], is_any_left: bool, console: Console, command: Sequence[str] | None = CEILINGS
) -> Iterator[None]:
    """Measure before and after the cases that are executed within, of one run or of several that run in turns.

    A resumed run keeps its first `before`; one that ends early has no `after`. Without a command nothing is measured.
    """
    if command is not None and is_any_left and not all(_has(run, "before") for run in runs):
        keep(runs, "before", console, command)
    yield
    if command is not None and (is_any_left or not all(_has(run, "after") for run in runs)):
        keep(runs, "after", console, command)


def _has(run: RunFolder, when: When) -> bool:
    return any(sample.when == when for sample in known_ceilings(run).samples)


def keep(runs: Sequence[RunFolder], when: When, console: Console, command: Sequence[str] = CEILINGS) -> None:
    """Measure once, and put the samples into every run's file in place of older ones of the same moment."""
    found = _measured(runs, when, command)
    if isinstance(found, NotMeasured):
        found = Ceilings(
            device=runs[0].manifest.environment.device,
            last_level_cache_bytes=found,
            samples=(),
            faults=(f"{when} the cases: {found.not_measured}",),
        )
    for fault in found.faults:
        console.print(f"a ceiling was not measured {escaped(fault)}", highlight=False, soft_wrap=True)
    for run in runs:
        whole = _merged(known_ceilings(run), found, when)
        write_atomically(run.path / FILE, whole.model_dump_json(indent=1) + "\n")


def _merged(known: Ceilings, found: Ceilings, when: When) -> Ceilings:
    samples = tuple(sample for sample in known.samples if sample.when != when) + found.samples
    faults = tuple(fault for fault in known.faults if not fault.startswith(when)) + found.faults
    place = known if known.samples and not found.samples else found
    return place.model_copy(update={"samples": samples, "faults": faults})


def known_ceilings(run: RunFolder) -> Ceilings:
    """What the run knows so far. A damaged file is as good as none: it is measured again."""
    try:
        return from_json(Ceilings, (run.path / FILE).read_text(encoding="utf-8"), FILE)
    except (FileNotFoundError, UnicodeDecodeError, SchemaError):
        unknown = NotMeasured(not_measured="not looked at yet")
        return Ceilings(device=run.manifest.environment.device, last_level_cache_bytes=unknown, samples=())


def _measured(runs: Sequence[RunFolder], when: When, command: Sequence[str]) -> Ceilings | NotMeasured:
    """Ask the process for the dtypes and thread counts of all cases."""
    engines = [case.engine for run in runs for case in run.manifest.cases]
    asked = sorted({f"{engine.dtype}:{engine.num_threads or 0}" for engine in engines})
    call = (*command, engines[0].device, when, *asked)
    try:
        done = subprocess.run(
            call, capture_output=True, text=True, env=child_environment(), check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return NotMeasured(not_measured=f"not finished after {TIMEOUT_S:.0f} s")
    except OSError as error:
        return NotMeasured(not_measured=f"no process could be started ({error.strerror})")
    if done.returncode:
        last = scrubbed((done.stderr.strip().splitlines() or ["no message"])[-1])
        return NotMeasured(not_measured=f"the process ended with exit code {done.returncode} ({last})")
    try:
        return from_json(Ceilings, done.stdout, "the answer")
    except SchemaError as error:
        return NotMeasured(not_measured=str(error))
