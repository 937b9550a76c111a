"""Repeats of one code for a baseline: a sweep whose blocks are all the same code, finished and without a hole.

Above `sweep.py`. What differs between the blocks of such a run is noise, and its size is what a gate must know; the
analysis of it is `ddbench.analysis.gate.baseline`.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from ddbench.errors import DdbenchError, UserError
from ddbench.harness.interrupt import SweepInterrupted
from ddbench.harness.lock import device_lock
from ddbench.harness.plan import Plan
from ddbench.harness.run import WORKER
from ddbench.harness.store import RunFolder
from ddbench.harness.sweep import execute, new_run

NUM_BLOCKS = 12
FEWEST_BLOCKS = 6  # the analysis' own: below, nothing can be told from noise


def check_blocks(plan: Plan) -> Plan:
    """The plan, if it repeats often enough."""
    blocks = plan.experiment.num_blocks
    if blocks < FEWEST_BLOCKS:
        raise UserError(
            f"--blocks {blocks}: a noise floor takes at least {FEWEST_BLOCKS} repeats; for exact counters alone, sweep "
            f"once and say: ddbench qualify --from RUN --out FILE"
        )
    return plan


def run_repeats(
    plan: Plan,
    out: Path,
    file: Path,
    console: Console,
    lock_folder: Path | None = None,
) -> RunFolder:
    """Run all of it. Stopped or with a failed case, it ends in an error that says how to come to `file` after all."""
    experiment = plan.experiment
    with device_lock(experiment.engine.device, f"qualification of '{experiment.name}'", lock_folder):
        run = new_run(plan, out)
        then = f"ddbench qualify --from {shlex.quote(str(run.path))} --out {shlex.quote(str(file))}"
        try:
            tally = execute(run, console, WORKER)
        except SweepInterrupted as error:
            raise SweepInterrupted(f"{error}, and then: {then}") from error
    if tally.exit_code:
        raise DdbenchError(
            f"{tally}: no baseline is made of a run with holes; go on with: "
            f"ddbench sweep --resume {shlex.quote(str(run.path))}, and then: {then}"
        )
    return run
