"""Section: one factor at a time, each variant of the ablated arm against the setting it was changed from."""

from __future__ import annotations

from collections.abc import Callable

from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.speed import tpot_ratio
from ddbench.analysis.values import Estimate, to_estimate
from ddbench.analysis.variants import Variant
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.arms import label_cell, where
from ddbench.report.document import Cell, Column, Section, Skipped, Table
from ddbench.report.evidence import Evidence


def variants(evidence: Evidence) -> Section | Skipped:
    """One factor at a time: each variant against the setting it was changed from."""
    if not evidence.variants:
        has_axes = any(manifest.experiment.ablate for manifest in evidence.frames.manifests)
        why = "no variant has a result" if has_axes else "the experiment ablates nothing"
        return Skipped("variants", "Variants", why)
    columns = (
        *cells.text_columns("Change"),
        Column("c", tip="concurrency"),
        cells.metric_column(METRICS["tpot_ms"]),
        Column("vs base", tip="TPOT of the base / TPOT of the variant: above 1 the change is faster"),
        Column("Round vs base", tip="median round of the variant / of the base: below 1 the change is faster"),
        Column("tau vs base", "tokens", "difference in acceptance_length: a change of how work is done leaves it at 0"),
        Column("n", tip="prompts"),
    )
    rows = tuple(_variant_row(evidence, variant) for variant in evidence.variants)
    arms_ablated = dict.fromkeys(manifest.experiment.ablate_arm for manifest in evidence.frames.manifests)
    intro = f"Each row changes one field of {', '.join(arms_ablated)} and leaves the others at their defaults."
    return Section("variants", "Variants", (intro,), tables=(cells.with_notes(Table("Changes", columns, rows)),))


def _variant_row(evidence: Evidence, variant: Variant) -> tuple[Cell, ...]:
    setting, base = variant.setting, variant.base
    name = f"{variant.axis}={variant.value}" + (f" ({setting.run})" if evidence.frames.is_merged else "")
    tpot = evidence.value(setting, "tpot_ms")
    if isinstance(base, NotMeasured) or not (base.is_ok and setting.is_ok):
        reason = base.not_measured if isinstance(base, NotMeasured) else setting.reason or base.reason
        compared = (cells.missing_cell(reason),) * 3
        n = cells.missing_cell(reason)
    else:
        ratio = to_estimate(tpot_ratio(base, setting), "x", "clean")
        rounds = _combined(evidence, setting, base, "round_ms", lambda ours, theirs: ours / theirs)
        taus = _combined(evidence, setting, base, "acceptance_length", lambda ours, theirs: ours - theirs)
        compared = (
            cells.value_cell(ratio, where(setting)),
            rounds if isinstance(rounds, Cell) else Cell(cells.number(rounds, "x"), sort=rounds),
            taus if isinstance(taus, Cell) else Cell(f"{taus:+.2f}", sort=taus),
        )
        n = cells.count_cell(ratio.n) if isinstance(ratio, Estimate) else cells.missing_cell(ratio.not_measured)
    label = label_cell(evidence, setting)
    return (
        cells.text_cell(name, label.tip, label.tone, label.detail),
        cells.count_cell(setting.concurrency),
        cells.value_cell(tpot, where(setting)),
        *compared,
        n,
    )


def _combined(
    evidence: Evidence, setting: Setting, base: Setting, metric: str, combine: Callable[[float, float], float]
) -> float | Cell:
    ours, theirs = evidence.value(setting, metric), evidence.value(base, metric)
    if isinstance(ours, NotMeasured):
        return cells.missing_cell(ours.not_measured)
    if isinstance(theirs, NotMeasured):
        return cells.missing_cell(theirs.not_measured)
    return combine(ours.value, theirs.value)
