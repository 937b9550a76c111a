"""Bodies of `ddbench qualify` and `ddbench gate` as far as single ops are concerned: by what a folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from ddbench.analysis.gate.baseline import kept_kind
from ddbench.analysis.gate.policies import Request
from ddbench.analysis.gate.result import gate_folders
from ddbench.analysis.gate.rows import GateResult
from ddbench.errors import UserError
from ddbench.opbench.gate.baseline import FILE, ops_baseline_of_folders, write_ops_baseline
from ddbench.opbench.gate.document import ops_baseline_report
from ddbench.opbench.gate.qualify import NUM_REPEATS, Repeats, run_repeats
from ddbench.opbench.gate.result import gate_ops_folders
from ddbench.report.console import print_report


def holds_ops(folder: Path) -> bool:
    """Whether a folder is one of `ddbench bench-ops`."""
    return (folder / FILE).is_file()


def hold_ops(folders: Sequence[Path]) -> bool:
    """Whether all these are; they may not be mixed with runs."""
    found = [holds_ops(folder) for folder in folders]
    if any(found) and not all(found):
        other = folders[found.index(False)]
        raise UserError(f"--from {other}: holds no {FILE}, and others do: give folders of `ddbench bench-ops` only")
    return any(found)


def qualify_ops(
    console: Console,
    folders: Sequence[Path],
    out: Path,
    file: Path,
    op: str | None = None,
    device: str | None = None,
    blocks: int | None = None,
) -> None:
    """A baseline of single ops: of finished folders, or of new repeats."""
    say = partial(console.out, highlight=False)
    if not folders:
        folders = run_repeats(Repeats(op, device, blocks or NUM_REPEATS), out, file, say)
    baseline = ops_baseline_of_folders(folders)
    write_ops_baseline(file, baseline)
    print_report(ops_baseline_report(baseline), console, is_compact=False)
    say(f"baseline: {file}")


def gated(run: Path, baseline: Path, request: Request, confirm: Path | None) -> GateResult:
    """A run folder or one of `bench-ops`, held against a baseline of its kind."""
    from ddbench.harness.store import check_run_folder

    is_no_run = run.is_dir() and not (run / "manifest.json").is_file()
    if holds_ops(run) or (is_no_run and kept_kind(baseline) == "ops"):
        return gate_ops_folders(run, baseline, request, confirm)
    if request.ops:
        raise UserError(f"--op is about single ops, and {run} holds no {FILE} of `ddbench bench-ops`")
    for folder in filter(None, (run, confirm)):
        check_run_folder(folder)
    return gate_folders(run, baseline, request, confirm)
