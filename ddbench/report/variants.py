"""Section: one factor at a time, each variant of the ablated arm against the setting it was changed from."""

from __future__ import annotations

from ddbench.analysis.contests import Contest, versus
from ddbench.analysis.decompose import decompose
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.values import Estimate
from ddbench.analysis.variants import Variant
from ddbench.records import NotMeasured
from ddbench.report import cells, decomposition
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
        Column("Round cost", "vs base", "round cost of the variant / of the base: below 1 the change is faster"),
        Column("tau", "vs base", "tau of the variant / of the base: a change of how work is done leaves it at 1"),
        cells.metric_column(METRICS["speedup_vs_ar"]),
        Column("n", tip="prompts"),
    )
    rows = tuple(_variant_row(evidence, variant) for variant in evidence.variants)
    arms_ablated = dict.fromkeys(manifest.experiment.ablate_arm for manifest in evidence.frames.manifests)
    intro = (
        f"Each row changes one field of {', '.join(arms_ablated)} and leaves the others as its arm has them. A change "
        "of how work is done leaves tau alone; one of what is emitted (sampling) is not the same work."
    )
    tables = (cells.with_notes(Table("Changes", columns, rows)), *_decomposed(evidence))
    return Section("variants", "Variants", (intro,), tables=tables)


def _decomposed(evidence: Evidence) -> tuple[Table, ...]:
    """Where a change makes the round cheaper or dearer."""
    rows = []
    for variant in evidence.variants:
        found = variant.base if isinstance(variant.base, NotMeasured) else versus(variant.setting, variant.base)
        if isinstance(found, Contest):
            about = (_name_cell(evidence, variant), cells.count_cell(variant.setting.concurrency))
            rows.append(decomposition.Row(about, decompose(found, evidence.shares)))
    columns = (*cells.text_columns("Change"), Column("c", tip="concurrency"))
    table = decomposition.stage_table("What a change adds to the round, stage by stage", columns, rows)
    return () if table is None else (table,)


def _name_cell(evidence: Evidence, variant: Variant) -> Cell:
    run = f" ({evidence.run_names[variant.setting.run]})" if evidence.frames.is_merged else ""
    label = label_cell(evidence, variant.setting)
    return cells.text_cell(f"{variant.axis}={variant.value}{run}", label.tip, label.tone, label.detail)


def _variant_row(evidence: Evidence, variant: Variant) -> tuple[Cell, ...]:
    setting, base = variant.setting, variant.base
    found = base if isinstance(base, NotMeasured) else versus(setting, base)
    if isinstance(found, NotMeasured):
        compared: tuple[Cell, ...] = (cells.missing_cell(found.not_measured),) * 3
        n = cells.missing_cell(found.not_measured)
    else:
        compared = tuple(cells.value_cell(v, where(setting)) for v in (found.speedup, found.cost, found.length))
        ratio = found.speedup
        n = cells.count_cell(ratio.n) if isinstance(ratio, Estimate) else cells.missing_cell(ratio.not_measured)
    return (
        _name_cell(evidence, variant),
        cells.count_cell(setting.concurrency),
        cells.value_cell(evidence.value(setting, "tpot_ms"), where(setting)),
        *compared,
        cells.value_cell(evidence.value(setting, "speedup_vs_ar"), where(setting)),
        n,
    )
