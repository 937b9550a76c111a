"""Section: where the time of a round goes, from the attributed pass, and what attributing it cost."""

from __future__ import annotations

from collections.abc import Sequence

from ddbench import units
from ddbench.analysis.breakdown import Breakdown
from ddbench.analysis.settings import Setting
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.arms import MAX_ROWS_DRAWN, label_cell
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table
from ddbench.report.evidence import Evidence

Measured = Sequence[tuple[Setting, Breakdown]]


def stages(evidence: Evidence) -> Section | Skipped:
    """Mean time per round of each stage, from the attributed pass."""
    found = [(setting, evidence.breakdowns[setting.key]) for setting in evidence.study.settings]
    measured = [(setting, value) for setting, value in found if isinstance(value, Breakdown)]
    if not measured:
        reasons = dict.fromkeys(value.not_measured for _, value in found if isinstance(value, NotMeasured))
        return Skipped("stages", "Stages", "; ".join(reasons) or "no case has a result")
    concurrencies = sorted({setting.concurrency for setting, _ in measured})
    tables = [_stage_table(evidence, c, measured) for c in concurrencies]
    intro = (
        "Mean microseconds per round of the whole batch, and the share of the round, from the attributed pass. Host "
        "gap is what no stage accounts for. Tax is how much longer that pass took than the clean one: the shares are "
        "what this pass is for, speed is not read from it.",
    )
    return Section("stages", "Stages", intro, tables=tuple(tables), figures=(_stage_figure(evidence, measured),))


def _stage_table(evidence: Evidence, concurrency: int, measured: Measured) -> Table:
    columns = (
        Column("Arm", is_number=False),
        Column("Round", "us"),
        *(Column(stage.value.replace("_", " "), "us") for stage in ROUND_STAGES),
        Column("Host gap", "us"),
        Column("Prefill", "us/request", tip="stages before a request's first round, per request and not per round"),
        Column("Tax", "%", tip="attributed wall time / clean wall time - 1"),
        Column("Rounds", tip="rounds of the attributed pass"),
    )
    rows = []
    for setting, value in measured:
        if setting.concurrency == concurrency:
            times = [_stage_cell(value, stage.value) for stage in ROUND_STAGES]
            gap = _time_cell(value.gap_ms, value.gap_ms / value.round_ms)
            tax = value.tax
            tax_cell = cells.missing_cell(tax.not_measured) if isinstance(tax, NotMeasured) else _tax_cell(tax)
            whole = Cell(_us(value.round_ms), tip=f"{value.clock} clock", sort=value.round_ms)
            label = label_cell(evidence, setting)
            rows.append((label, whole, *times, gap, _prefill_cell(value), tax_cell, cells.count_cell(value.num_rounds)))
    return cells.with_notes(Table(f"Concurrency {concurrency}", columns, tuple(rows)))


def _us(milliseconds: float) -> str:
    return units.microseconds(1e3 * milliseconds)


def _stage_cell(value: Breakdown, stage: str) -> Cell:
    if stage not in value.stage_ms:
        return cells.missing_cell("the arm has no such stage")
    return _time_cell(value.stage_ms[stage], value.share(stage))


def _time_cell(milliseconds: float, share: float) -> Cell:
    percent = f"{100 * share:.0f}" if abs(share) >= 0.0095 else units.significant(100 * share, 1)
    return Cell(_us(milliseconds), f"{percent} %", sort=milliseconds)


def _prefill_cell(value: Breakdown) -> Cell:
    if not value.outside_ms:
        return cells.missing_cell("no stage was timed before the first rounds")
    total = sum(value.outside_ms.values())
    tip = ", ".join(f"{stage.replace('_', ' ')} {_us(own)} us" for stage, own in value.outside_ms.items())
    return Cell(_us(total), tip=tip, sort=total)


def _tax_cell(tax: float) -> Cell:
    return Cell(f"{100 * tax:+.1f}", sort=tax)


def _stage_figure(evidence: Evidence, measured: Measured) -> Figure:
    panels = []
    is_cut = False
    for concurrency in sorted({setting.concurrency for setting, _ in measured}):
        own = [(setting, value) for setting, value in measured if setting.concurrency == concurrency]
        is_cut |= len(own) > MAX_ROWS_DRAWN
        stacks = [_stack(evidence, setting, value) for setting, value in own[:MAX_ROWS_DRAWN]]
        svg = plots.stacked_bars(stacks, "ms per round", max(value.round_ms for _, value in own))
        panels.append(Panel(f"stages-c{concurrency}", f"Concurrency {concurrency}", svg))
    ran = {stage for _, value in measured for stage in value.stage_ms}
    legend = [
        LegendEntry(s.value.replace("_", " "), plots.STAGE_COLORS[s.value]) for s in ROUND_STAGES if s.value in ran
    ]
    caption = "Mean round of the attributed pass, split by stage; every panel has a scale of its own."
    if is_cut:
        caption += f" The first {MAX_ROWS_DRAWN} settings of each concurrency are drawn; the tables hold all."
    return Figure("Where a round's time goes", caption, tuple(panels), (*legend, LegendEntry("host gap", plots.GREY)))


def _stack(evidence: Evidence, setting: Setting, value: Breakdown) -> plots.Stack:
    segments = [(stage, time, plots.STAGE_COLORS[stage]) for stage, time in value.stage_ms.items()]
    if value.gap_ms > 0:
        segments.append(("host gap", value.gap_ms, plots.GREY))
    return plots.Stack(evidence.name(setting), tuple(segments))
