"""Section: every arm at every concurrency, its speedup over ar and over chain, and what a speedup is made of."""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.report import cells, decomposition, plots
from ddbench.report.document import Cell, Column, Figure, Panel, Section, Skipped, Table, Tone
from ddbench.report.evidence import Evidence, unusual

ARM_METRICS: tuple[str, ...] = (
    "output_tok_per_s",
    "tpot_ms",
    "ttft_ms",
    "round_ms",
    "steady_round_ms",
    "acceptance_length",
    "acceptance_length_macro",
    "speedup_vs_ar",
    "speedup_vs_chain",
)
MARKED_METRICS: tuple[str, ...] = ("output_tok_per_s", "tpot_ms", "speedup_vs_ar", "speedup_vs_chain")
MINOR_METRICS: tuple[str, ...] = ("ttft_ms", "round_ms", "steady_round_ms", "acceptance_length_macro")
MAX_ROWS_DRAWN = 16  # per panel; the tables hold everything


def arms(evidence: Evidence) -> Section | Skipped:
    """One table per concurrency."""
    if not evidence.study.settings:
        return Skipped("arms", "Arms", "no case has a result")
    tables = [_arms_table(evidence, c) for c in evidence.study.concurrencies]
    tables += _decomposed(evidence)
    intro: tuple[str, ...] = (
        "Speed is read from the clean pass: no stage instrumentation, the host clock at every commit. Below each value "
        "stands its 95 % interval; n counts prompts. Speedups are ratios of TPOT.",
    )
    shared = ", ".join(f"{name}={value}" for name, value in evidence.common_fields.items())
    if shared:
        intro += (f"All of them run with {shared}; a name in a table tells what else its engine was asked for.",)
    figures = (figure for figure in (_speedups(evidence), decomposition.figure(evidence)) if figure is not None)
    return Section("arms", "Arms", intro, tables=tuple(tables), figures=tuple(figures))


def _arms_table(evidence: Evidence, concurrency: int) -> Table:
    settings = evidence.arms_at(concurrency)
    metrics = [metric for metric in cells.metrics_named(ARM_METRICS) if _has_column(evidence, metric.name, settings)]
    candidates = [s for s in settings if evidence.may_be_best(s)]
    best = {
        (run, name): cells.best_of(
            ((s.key, evidence.value(s, name)) for s in candidates if s.run == run), METRICS[name]
        )
        for run in evidence.runs
        for name in MARKED_METRICS
    }
    rows = []
    for setting in settings:
        values = [arm_cell(evidence, setting, metric.name, best.get((setting.run, metric.name))) for metric in metrics]
        tpot = evidence.value(setting, "tpot_ms")
        n = cells.count_cell(tpot.n) if isinstance(tpot, Estimate) else cells.missing_cell(setting.reason or "no TPOT")
        rows.append((label_cell(evidence, setting), *values, n))
    measured = (cells.metric_column(metric, metric.name in MINOR_METRICS) for metric in metrics)
    columns = (Column("Arm", is_number=False), *measured, Column("n", tip="prompts"))
    table = Table(f"Concurrency {concurrency}", columns, tuple(rows), is_headline=True)
    return cells.with_notes(table)


def _has_column(evidence: Evidence, metric: str, settings: Sequence[Setting]) -> bool:
    """A minor metric has one where a setting has a value: on a CPU, say, no host runs ahead and no round is steady."""
    values = (evidence.value(setting, metric) for setting in settings)
    return metric not in MINOR_METRICS or any(isinstance(value, Estimate) for value in values)


def arm_cell(evidence: Evidence, setting: Setting, metric: str, best_key: str | None) -> Cell:
    if setting.is_ok and metric == f"speedup_vs_{setting.arm}":
        return cells.baseline_cell()
    value = evidence.value(setting, metric)
    # A ratio whose interval holds 1 is no gain that anyone should see from afar.
    is_gain = not isinstance(value, Estimate) or value.unit != "x" or _least(value) > 1
    tone: Tone = "strong" if setting.key == best_key and is_gain else "plain"
    return cells.value_cell(value, where(setting), tone)


def _least(value: Estimate) -> float:
    return value.value if value.low is None else value.low


def _decomposed(evidence: Evidence) -> list[Table]:
    """Speedups taken apart: longer acceptance over dearer rounds, and the rounds stage by stage."""
    rows = []
    for setting in evidence.study.settings:
        for against in ("ar", "prompt_lookup", "chain"):
            found = evidence.decompositions.get((setting.key, against))
            if found is not None:
                about = (label_cell(evidence, setting), cells.count_cell(setting.concurrency), cells.text_cell(against))
                rows.append(decomposition.Row(about, found))
    columns = (Column("Arm", is_number=False), Column("c", tip="concurrency"), Column("Against", is_number=False))
    if not rows:
        return []
    stages = decomposition.stage_table("What makes its round dearer, stage by stage", columns, rows)
    tables = [decomposition.made_of_table("What a speedup is made of: tau over round cost", columns, rows)]
    return tables if stages is None else [*tables, stages]


def where(setting: Setting) -> str:
    return f"{setting.engine.device} {setting.engine.dtype}"


def label_cell(evidence: Evidence, setting: Setting, is_about_time: bool = True) -> Cell:
    """The setting's name with what is to be known about it; warnings only where times are shown."""
    flags = []
    if not setting.is_ok:
        flags.append(setting.reason.partition(":")[0].replace("_", " "))
    elif not evidence.is_trusted(setting):
        flags.append("a book-keeping check fails")
    if setting.is_ok and evidence.is_degenerate(setting):
        flags.append("outputs loop")
    if any(result.parity.status == "near_tie" for result in setting.results):
        flags.append("parity up to a near tie")
    warned = evidence.own_warnings(setting) if is_about_time else ()
    if warned:
        flags.append("warned, see Environment")
    tip = " ".join(f"{text}." for text in warned) + " " if warned else ""
    own = (f"{name}={value}" for name, value in unusual(setting.engine) if name not in evidence.common_fields)
    tip += ", ".join(own)
    return cells.text_cell(evidence.name(setting), tip, "warn" if flags else "plain", ", ".join(flags))


def _speedups(evidence: Evidence) -> Figure | None:
    """Speedup over ar, one panel per concurrency, all on one scale."""
    points: dict[int, list[plots.Point]] = {}
    for concurrency in evidence.study.concurrencies:
        for setting in evidence.arms_at(concurrency):
            value = evidence.value(setting, "speedup_vs_ar")
            if isinstance(value, Estimate):
                color = plots.ARM_COLORS.get(setting.arm, plots.GREY)
                point = plots.Point(evidence.name(setting), value.value, value.low, value.high, color)
                points.setdefault(concurrency, []).append(point)
    if not points:
        return None
    limits = plots.limits([point for group in points.values() for point in group], 1.0)
    panels = []
    for concurrency, group in points.items():
        fastest = sorted(group, key=lambda point: -point.value)[:MAX_ROWS_DRAWN]
        drawn = [point for point in group if point in fastest]  # in one order, the same in every panel
        svg = plots.forest(drawn, "speedup over ar (ratio of TPOT)", limits, reference=1.0)
        panels.append(Panel(f"speedup-c{concurrency}", f"Concurrency {concurrency}", svg))
    caption = "Dot: ratio of median TPOT; line: 95 % interval over prompts, resampled in pairs; dashed: no gain."
    if any(len(group) > MAX_ROWS_DRAWN for group in points.values()):
        caption += f" The {MAX_ROWS_DRAWN} fastest of each concurrency are drawn; the tables hold all."
    return Figure("Speedup over autoregressive decoding", caption, tuple(panels))
