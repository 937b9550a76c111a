"""Section: how much of the device each stage keeps busy: SMs, tensor pipes, warps, clock, and occupancy by kernel."""

from __future__ import annotations

from collections.abc import Iterator

from ddbench import units
from ddbench.analysis.nsys.gpu_metrics import METRICS
from ddbench.analysis.profile.occupancy import (
    SHOWN,
    KernelOccupancy,
    Sampled,
    kernel_occupancy,
    sampled_metrics,
)
from ddbench.analysis.profile.profile import Profile
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Section, Skipped, Table
from ddbench.report.evidence import Evidence
from ddbench.report.profiled import (
    CASE_STAGE,
    labelled,
    number_cell,
    per_round_cell,
    skipped,
    stage_cell,
    table,
    us_cell,
)

TITLE = "Occupancy"
MAX_KERNELS = 12
TITLES: dict[str, str] = {
    "sm_active": "SMs active",
    "tensor_active": "Tensor active",
    "warps_share": "Warp slots",
    "warps_in_flight": "Warps in flight",
    "clock": "Clock",
}


def occupancy(evidence: Evidence) -> Section | Skipped:
    """Sampled by stage, counted by kernel; whichever is there."""
    own = list(labelled(evidence))
    tables = (*_sampled(own), *_kernels(own))
    if not tables:
        found = [part(profile.case) for _, profile in own for part in (sampled_metrics, kernel_occupancy)]
        reasons = [one.not_measured for one in found if isinstance(one, NotMeasured)]
        return skipped(evidence, "occupancy", TITLE, reasons)
    intro = (
        "What a stage leaves unused. Few SMs active: too little work at once, or gaps. Many active and tensor pipes "
        "idle: the time goes to memory or latency, not to arithmetic. Achieved occupancy far below the theoretical: "
        "blocks end unevenly or are too few; a low theoretical one: registers or shared memory limit it.",
    )
    return Section("occupancy", TITLE, intro, tables=tables)


def _sampled(own: list[tuple[Cell, Profile]]) -> Iterator[Table]:
    rows, is_blurred = [], False
    for label, profile in own:
        found = sampled_metrics(profile.case)
        if isinstance(found, NotMeasured):
            continue
        for stage, metrics in found.items():
            values = [_sampled_cell(metrics.get(metric), metric) for metric in SHOWN]
            is_blurred |= any(not one.num_whole for one in metrics.values())
            most = max(metrics.values(), key=lambda one: one.num_touching)
            rows.append((label, stage_cell(stage), *values, _samples_cell(most)))
    columns = (
        *CASE_STAGE,
        *(Column(TITLES[name], METRICS[name].unit, METRICS[name].meaning) for name in SHOWN),
        Column("Samples", tip="wholly within the stage"),
    )
    yield from table("Sampled while the case ran", columns, rows)


def _sampled_cell(one: Sampled | None, metric: str) -> Cell:
    if one is None:
        return cells.missing_cell(f"no sample of this metric there: {TITLES[metric].lower()}")
    detail = "" if one.num_whole else "blurred"
    tip = "" if one.num_whole else "shorter than the sampling interval: blurred by what ran beside it"
    return Cell(units.significant(one.value), detail, tip, one.value)


def _samples_cell(one: Sampled) -> Cell:
    return Cell(units.grouped(one.num_whole), tip=f"{units.grouped(one.num_touching)} touch it", sort=one.num_whole)


def _kernels(own: list[tuple[Cell, Profile]]) -> Iterator[Table]:
    rows = []
    for label, profile in own:
        found = kernel_occupancy(profile.case)
        if not isinstance(found, NotMeasured):
            rows += [_kernel_row(label, one) for one in found[:MAX_KERNELS]]
    columns = (
        *cells.text_columns("Case", "Stage", "Kernel"),
        Column("Launches", "per round"),
        Column("Alone", "us", "its time under the counters, alone on the device, per round"),
        Column("Achieved", "%", "warp slots filled while it ran"),
        Column("Theoretical", "%", "warp slots that its registers, shared memory and block size allow"),
        Column("Tensor", "%", "of cycles in which the tensor pipes are busy"),
    )
    yield from table(f"Occupancy of the longest kernels (at most {MAX_KERNELS} of a case)", columns, rows)


def _kernel_row(label: Cell, one: KernelOccupancy) -> tuple[Cell, ...]:
    return (
        label,
        stage_cell(one.stage),
        cells.text_cell(units.shortened(one.name, 60), tip=one.name),
        per_round_cell(one.num_launches),
        us_cell(one.time_ns),
        *(number_cell(value) for value in (one.achieved, one.theoretical, one.tensor)),
    )
