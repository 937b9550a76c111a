"""Two codes measured in turns: another checkout ('before') and this one ('after'), case by case on the same machine.

Two runs of the same plan, one after the other, differ by what the machine did in between. Here every case of one run
stands right beside its twin of the other, in ABBA order over the blocks, so that a steady drift cancels in every pair.
Both run folders say whom they ran in turns with; `ddbench compare BEFORE AFTER` pairs them block by block.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ddbench.errors import DdbenchError, UserError
from ddbench.harness.bracket import CEILINGS, around
from ddbench.harness.environment import asked_environment, environment_of, module_of
from ddbench.harness.interrupt import resumable
from ddbench.harness.lock import device_lock
from ddbench.harness.plan import Plan
from ddbench.harness.profilers.drive import known_captures
from ddbench.harness.profilers.errand import MODULE as CAPTURE_MODULE
from ddbench.harness.progress import SweepDisplay
from ddbench.harness.run import WORKER
from ddbench.harness.store import RunFolder, create_run, open_run
from ddbench.harness.sweep import Leg, Tally, as_it_was, device_of, manifest_of, tell_capture_faults
from ddbench.records import Environment, Manifest

WORKER_MODULE = "ddbench.harness.worker"
BEFORE, AFTER = "before", "after"  # roles, part of the run ids


@dataclass(frozen=True, slots=True)
class Turns:
    """The two runs and how their cases ended, both counted together."""

    before: RunFolder
    after: RunFolder
    tally: Tally


def run_in_turns(
    plan: Plan,
    out: Path,
    checkout: Path,
    console: Console,
    command: Sequence[str] = WORKER,
    ceilings: Sequence[str] | None = CEILINGS,
    lock_folder: Path | None = None,
) -> Turns:
    """Two new runs of one plan. `command` starts a case of this code; both runs share their machine's ceilings."""
    device = plan.experiment.engine.device
    with device_lock(device, f"sweep '{plan.experiment.name}' against other code", lock_folder):
        before = manifest_of(plan, environment_of_checkout(checkout, device), BEFORE)
        _check_can_capture(plan, checkout)
        after = manifest_of(plan, environment_of(device), AFTER)
        runs = (
            create_run(out, _paired(before, after)),
            create_run(out, _paired(after, before)),
        )
        return _execute(runs, checkout, console, command, ceilings)


def resume_in_turns(
    path: Path,
    checkout: Path,
    console: Console,
    command: Sequence[str] = WORKER,
    ceilings: Sequence[str] | None = CEILINGS,
    lock_folder: Path | None = None,
) -> Turns:
    """The rest of two such runs; `path` is either of them. A pair of which one half is missing is measured again."""
    runs = _pair_of(path)
    device = device_of(runs[1])
    with device_lock(device, f"sweep '{runs[1].manifest.experiment.name}' against other code", lock_folder):
        as_it_was(runs[0], environment_of_checkout(checkout, device)).sweep_leftovers()
        as_it_was(runs[1], environment_of(device)).sweep_leftovers()
        return _execute(runs, checkout, console, command, ceilings)


def environment_of_checkout(checkout: Path, device: str) -> Environment:
    """This machine as the other checkout sees it: its own code digest and commit."""
    if not (checkout / "ddbench" / "harness" / "worker.py").is_file():
        raise UserError(f"--against {checkout}: no checkout of ddbench there (no ddbench/harness/worker.py)")
    found = asked_environment(module_of(checkout.resolve(), "ddbench.harness.environment"), device)
    if found.parts_origin != "checkout":
        raise DdbenchError(f"--against {checkout}: its kernels are taken from an installed package, not from there")
    return found


def _paired(manifest: Manifest, other: Manifest) -> Manifest:
    return manifest.model_copy(update={"interleaved_with": other.run_id})


def _pair_of(path: Path) -> tuple[RunFolder, RunFolder]:
    """(before, after) from the folder of either."""
    one = open_run(path)
    name = one.manifest.interleaved_with
    if name is None:
        raise UserError(f"{path}: did not run in turns with other code: leave out --against")
    if not (path.parent / name / "manifest.json").is_file():
        raise UserError(f"{path}: ran in turns with {name}, which is not beside it: put it there")
    other = open_run(path.parent / name)
    is_before = one.manifest.run_id.split("-")[-2] == BEFORE
    return (one, other) if is_before else (other, one)


def _execute(
    runs: tuple[RunFolder, RunFolder],
    checkout: Path,
    console: Console,
    command: Sequence[str],
    ceilings: Sequence[str] | None,
) -> Turns:
    legs = (
        Leg(runs[0], console, *(module_of(checkout.resolve(), name) for name in (WORKER_MODULE, CAPTURE_MODULE))),
        Leg(runs[1], console, command),
    )
    turns = list(_turns(legs))
    display = SweepDisplay(console, [case for run in runs for case in run.manifest.cases], len(turns))
    words = f" --against {shlex.quote(str(checkout))}"
    with resumable(runs[1], words), display, around(runs, bool(turns), console, ceilings):
        for leg, one in turns:
            leg.measure(one, display)
    tally = Tally()
    for run in runs:
        for result in run.results():
            tally.add(result, known_captures(run.case_folder(result.case_id), result.case))
    tell_capture_faults(tally, console)
    return Turns(runs[0], runs[1], tally)


def _check_can_capture(plan: Plan, checkout: Path) -> None:
    """Code that is older than captures refuses a case that asks for one."""
    tools = sorted({tool for case in plan.cases for tool in case.capture.tools})
    if tools and not checkout.joinpath(*CAPTURE_MODULE.split(".")).with_suffix(".py").is_file():
        raise UserError(f"--against {checkout}: its code has no captures: leave {', '.join(tools)} out of --capture")


def _turns(legs: tuple[Leg, Leg]) -> Iterator[tuple[Leg, str]]:
    """Every case of one run beside its twin, the other one first in odd blocks; both halves of a broken pair."""
    before, after = (leg.run.manifest for leg in legs)
    for case, *twins in zip(after.cases, before.case_ids, after.case_ids, strict=True):
        if any(one in leg.missing for leg, one in zip(legs, twins, strict=True)):
            pair = list(zip(legs, twins, strict=True))
            yield from reversed(pair) if case.block % 2 else pair
