"""The body of `ddbench bench-ops`: ceilings, all points, ceilings again; then the files and the tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import ddbench
from ddbench import units
from ddbench.errors import UserError, refuse_unknown
from ddbench.files import write_atomically
from ddbench.harness.ceilings import measure
from ddbench.harness.environment import read_environment
from ddbench.harness.lock import device_lock
from ddbench.harness.progress import escaped
from ddbench.opbench.document import ops_csv, ops_report
from ddbench.opbench.records import IncorrectRow, NotMeasuredRow, OkRow, OpRow, OpsFile
from ddbench.opbench.run import INTERRUPTED, Bench, run_points
from ddbench.opbench.shapes import Implementation, Place, Tier
from ddbench.opbench.table import Point, Selection
from ddbench.opbench.timing import Budget, watch_of
from ddbench.records import Ceilings
from ddbench.report.console import print_report
from ddbench.report.markdown import render_markdown
from ddbench.spec import Device

FORMATS = ("console", "json", "md", "csv")
QUICK = Budget(seconds=0.02, sample_s=0.001, most_sets=4)


def bench_ops(
    console: Console,
    asked: Selection,
    device: Device,
    out: Path,
    formats: Sequence[str],
) -> tuple[OpsFile, tuple[Path, ...]]:
    """Measure a selection, show it and write its files."""
    refuse_unknown("format", formats, FORMATS)
    place = place_of(device)
    points = asked.points()
    _writable(out)
    with device_lock(place.device, "bench-ops"):
        file = measured(console, points, asked.tier, place)
    if "console" in formats:
        print_report(ops_report(file), console, is_compact=False)
    return file, written(file, out, formats)


def place_of(device: Device) -> Place:
    """bf16 on a GPU; fp32 on a CPU, whose bf16 is emulated."""
    return Place(device, torch.bfloat16 if device == "cuda" else torch.float32)


def show_points(console: Console, points: Sequence[Point], device: Device) -> None:
    """What would be measured, and what would not and why."""
    for point in points:
        console.print(escaped(f"{point.op.name} {point.shape.name}: {point.shape.about}"), highlight=False)
        for one in point.implementations:
            reason = one.why_not(point.shape, device)
            console.print(escaped(f"  {one.name} ({one.kind})" + (f": {reason}" if reason else "")), highlight=False)


def exit_code(file: OpsFile) -> int:
    """130: interrupted; 1: something of ours is incorrect (a peer may be wrong); 4: nothing was measured."""
    if any(isinstance(row, NotMeasuredRow) and row.reason == INTERRUPTED for row in file.rows):
        return 130
    if any(isinstance(row, IncorrectRow) and row.kind != "peer" for row in file.rows):
        return 1
    return 0 if any(isinstance(row, OkRow) for row in file.rows) else 4


def measured(console: Console, points: Sequence[Point], tier: Tier, place: Place) -> OpsFile:
    """The record of a run. Nothing but what is needed for a point is in memory while it is measured."""
    begin = time.monotonic()
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    dtype = str(place.dtype).removeprefix("torch.")
    environment = read_environment(place.device)  # type: ignore[arg-type]
    before = measure(place.device, "before", [(dtype, 0)])
    bench = Bench(place, watch_of(place.device, before.last_level_cache_bytes), QUICK if tier == "quick" else Budget())
    with torch.no_grad(), Display(console, sum(len(point.implementations) for point in points)) as display:
        rows = run_points(points, bench, display.started, display.finished)
    after = measure(place.device, "after", [(dtype, 0)])
    return OpsFile(
        ddbench_version=ddbench.__version__,
        created_at=created_at,
        selection=tier,
        dtype=dtype,
        seconds=time.monotonic() - begin,
        environment=environment,
        ceilings=_together(before, after),
        rows=rows,
    )


def _together(before: Ceilings, after: Ceilings) -> Ceilings:
    return before.model_copy(update={"samples": before.samples + after.samples, "faults": before.faults + after.faults})


# ---------------------------------------------------------------------------------------------------------------- files


def _writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}): choose another folder with --out") from error


def written(file: OpsFile, out: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """ops.json, ops.md and ops.csv, as far as they are asked for."""
    makers: dict[str, Any] = {
        "json": lambda: file.model_dump_json() + "\n",
        "md": lambda: render_markdown(ops_report(file))[0],
        "csv": lambda: ops_csv(file),
    }
    paths = []
    for name, make in makers.items():
        if name in formats:
            paths.append(out / f"ops.{name}")
            write_atomically(paths[-1], make())
    return tuple(paths)


# ------------------------------------------------------------------------------------------------------------- progress


class Display:
    """A bar with the time left on a terminal; a line for every implementation at a shape."""

    def __init__(self, console: Console, num_all: int) -> None:
        self._console = console
        self._num_all, self._num_done = num_all, 0
        self._begin = time.monotonic()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            refresh_per_second=2,
            disable=not self._is_live,
        )
        self._task = self._bar.add_task("", total=num_all, left="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, point: Point, implementation: Implementation) -> None:
        text = f"{point.op.name} {point.shape.name} {implementation.name}"
        self._bar.update(self._task, description=escaped(units.shortened(text, 60)))

    def finished(self, rows: Sequence[OpRow]) -> None:
        self._num_done += 1
        spent = time.monotonic() - self._begin
        left = f"about {units.about(spent / self._num_done * (self._num_all - self._num_done))} left"
        self._bar.update(self._task, completed=self._num_done, left=left)
        place = f"[{self._num_done:>{len(str(self._num_all))}}/{self._num_all}]"
        names = f"{rows[0].op} {rows[0].shape} {rows[0].implementation}"
        line = f"{place} {names}  {_told(rows)}" + ("" if self._is_live else f"  ({left})")
        self._console.print(escaped(line), highlight=False, soft_wrap=True)


def _told(rows: Sequence[OpRow]) -> str:
    first = rows[0]
    if isinstance(first, NotMeasuredRow):
        return f"not measured: {first.reason}"
    if isinstance(first, IncorrectRow):
        return f"INCORRECT: {first.detail}"
    return ", ".join(f"{row.cache} {units.duration(row.time_ns)}" for row in rows if isinstance(row, OkRow))
