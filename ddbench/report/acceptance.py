"""Section: how long the accepted paths are, by depth, by text, and against what the draft expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ddbench.analysis import acceptance as counts
from ddbench.analysis import stats
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import missing, to_estimate
from ddbench.report import cells, plots
from ddbench.report.arms import label_cell, where
from ddbench.report.calibration import CAPTION, Measured, calibration_panel, calibration_table, measured_bins
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table
from ddbench.report.evidence import Evidence

LENGTH_METRICS: tuple[str, ...] = (
    "acceptance_length",
    "acceptance_length_macro",
    "acceptance_length_uncut",
    "acceptance_length_novel",
    "acceptance_length_repeated",
    "expected_length",
    "calibration",
    "degenerate_share",
)
SHAPE_METRICS: tuple[str, ...] = (
    "nodes_per_round",
    "padding_share",
    "identity_path_share",
    "mean_batch_size",
    "peak_memory_bytes",
)
Depths = Mapping[str, tuple[stats.Summary, ...]]  # setting key -> conditional acceptance at depth 1, 2, ...

MAX_DEPTH_COLUMNS = 16
MAX_PANELS = 8


def acceptance(evidence: Evidence) -> Section | Skipped:
    """Acceptance is a property of draft, target and text, so one concurrency is enough for the drawings."""
    drafting = [s for s in evidence.study.settings if s.is_ok and s.has_draft and len(s.rounds)]
    if not drafting:
        return Skipped("acceptance", "Acceptance", "no measured case drafts anything")
    lowest = min(s.concurrency for s in drafting)
    shown = [s for s in drafting if s.concurrency == lowest]
    others = [s for s in drafting if s.concurrency != lowest]
    main = [s for s in evidence.arms_at(lowest) if s in shown] or shown
    depths = {setting.key: counts.by_depth(setting) for setting in main}
    tables = [_metric_table(evidence, shown, LENGTH_METRICS, f"Lengths at concurrency {lowest}")]
    tables += [_depth_table(evidence, main, depths), *_kind_tables(evidence, main)]
    calibrated = measured_bins(main)
    if calibrated:
        tables.append(calibration_table(evidence, calibrated))
    curves = _curves(evidence, main[:MAX_PANELS], depths, calibrated, _cut(main))
    figures = (curves, _histograms(evidence, main))
    tables.append(_metric_table(evidence, drafting, SHAPE_METRICS, "Trees and batches", is_folded=True))
    intro = (
        "tau counts what reached the output per round, the bonus token included and the prefill token not. Pooled tau "
        "is what throughput follows; macro tau is what papers report; they differ.",
    )
    notes: tuple[str, ...] = ()
    if others:
        tables.append(_metric_table(evidence, others, LENGTH_METRICS, "Lengths at other concurrencies", is_folded=True))
        notes = (f"What is drawn and split up here was run at concurrency {lowest}.",)
    return Section("acceptance", "Acceptance", intro, tables=tuple(tables), figures=figures, notes=notes)


def _metric_table(
    evidence: Evidence, settings: Sequence[Setting], names: Sequence[str], title: str, is_folded: bool = False
) -> Table:
    metrics = cells.metrics_named(names)
    is_mixed = len({s.concurrency for s in settings}) > 1
    rows = []
    for setting in settings:
        values = [cells.value_cell(evidence.value(setting, metric.name), where(setting)) for metric in metrics]
        concurrency = [cells.count_cell(setting.concurrency)] if is_mixed else []
        rows.append((label_cell(evidence, setting, is_about_time=False), *concurrency, *values))
    concurrency_column = [Column("c", tip="concurrency")] if is_mixed else []
    columns = (Column("Arm", is_number=False), *concurrency_column, *map(cells.metric_column, metrics))
    return cells.with_notes(Table(title, columns, tuple(rows), is_folded=is_folded))


def _depth_table(evidence: Evidence, settings: Sequence[Setting], found: Depths) -> Table:
    """Conditional acceptance: of the rounds that accepted d - 1 tokens, the share that accepted the d-th."""
    deepest = min(MAX_DEPTH_COLUMNS, max((len(depths) for depths in found.values()), default=0))
    rows = []
    for setting in settings:
        depths = found[setting.key]
        shares = [cells.value_cell(to_estimate(depth, "share", "clean")) for depth in depths[:deepest]]
        unreached = [cells.missing_cell("no round got this deep")] * (deepest - len(shares))
        rows.append((label_cell(evidence, setting, is_about_time=False), *shares, *unreached))
    tip = "P(accepted >= d | accepted >= d - 1)"
    columns = (Column("Arm", is_number=False), *(Column(f"d={d + 1}", "%", tip) for d in range(deepest)))
    return cells.with_notes(Table("Conditional acceptance by depth", columns, tuple(rows)))


def _kind_tables(evidence: Evidence, settings: Sequence[Setting]) -> list[Table]:
    """tau by category of prompt; nothing where there is only one."""
    kinds = sorted({str(kind) for s in settings for kind in set(s.rounds["kind"])})
    if len(kinds) < 2:
        return []
    rows = []
    for setting in settings:
        values = [_kind_cell(setting, kind) for kind in kinds]
        rows.append((label_cell(evidence, setting, is_about_time=False), *values))
    columns = (Column("Arm", is_number=False), *(Column(kind or "(none)", "tokens") for kind in kinds))
    return [cells.with_notes(Table("tau by kind of prompt", columns, tuple(rows)))]


def _kind_cell(setting: Setting, kind: str) -> Cell:
    is_own = setting.rounds["kind"] == kind
    if not is_own.any():
        return cells.value_cell(missing("no round of this kind"))
    summary = stats.ratio_of_sums(*counts.prompt_sums(setting, "num_emitted", "", rows=is_own))
    return cells.value_cell(to_estimate(summary, METRICS["acceptance_length"].unit, "clean"), where(setting))


def _histograms(evidence: Evidence, settings: Sequence[Setting]) -> Figure:
    shares = {s.key: _shares(s) for s in settings[:MAX_PANELS]}
    top = max(float(share.max()) for share in shares.values())
    num_bins = max(len(share) for share in shares.values())
    panels = []
    for index, setting in enumerate(settings[:MAX_PANELS]):
        color = plots.ARM_COLORS.get(setting.arm, plots.GREY)
        svg = plots.histogram(shares[setting.key].tolist(), color, top, num_bins)
        panels.append(Panel(f"accepted-{index}", evidence.name(setting), svg))
    caption = "Accepted drafted tokens per round before any cut; a round also emits one token of the target itself."
    return Figure("Accepted tokens per round", caption + _cut(settings), tuple(panels))


def _shares(setting: Setting) -> np.ndarray:
    histogram = counts.histogram(setting)
    return histogram / histogram.sum()


def _curves(evidence: Evidence, drawn: Sequence[Setting], depths: Depths, measured: Measured, cut: str) -> Figure:
    """Acceptance by depth; beside it, for drafts that give probabilities, whether these are right."""
    colors = dict(zip((s.key for s in drawn), plots.series_colors([s.arm for s in drawn]), strict=True))
    panels = [Panel("depth", "Conditional acceptance by depth", _depth_curves(evidence, drawn, depths, colors))]
    caption = "Of the rounds that accepted d - 1 tokens, the share that accepted the d-th as well."
    if own := [(setting, bins) for setting, bins in measured if setting.key in colors]:
        panels.append(calibration_panel(evidence, own, colors))
        caption += CAPTION
    legend = tuple(LegendEntry(evidence.name(s), colors[s.key]) for s in drawn)
    return Figure("What is accepted, and what the draft expects", caption + cut, tuple(panels), legend)


def _depth_curves(evidence: Evidence, drawn: Sequence[Setting], found: Depths, colors: Mapping[str, str]) -> str:
    series = []
    for index, setting in enumerate(drawn):
        depths = found[setting.key]
        beside = 0.08 * (index - (len(drawn) - 1) / 2)  # so that equal lines do not hide each other
        places = tuple(d + 1 + beside for d in range(len(depths)))
        lows, highs = tuple(d.low for d in depths), tuple(d.high for d in depths)
        values = tuple(d.value for d in depths)
        series.append(plots.Series(evidence.name(setting), colors[setting.key], places, values, lows, highs))
    deepest = max((len(line.x) for line in series), default=0)
    ticks = [float(d) for d in range(1, deepest + 1, max(1, deepest // 10))]
    return plots.lines(series, "depth d", "share", ticks=ticks)


def _cut(settings: Sequence[Setting]) -> str:
    return f" The first {MAX_PANELS} of {len(settings)} are drawn." if len(settings) > MAX_PANELS else ""
