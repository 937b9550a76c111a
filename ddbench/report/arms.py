"""Section: every arm at every concurrency, with its speedup over ar and over chain."""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.report import cells, plots
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table, Tone
from ddbench.report.evidence import Evidence

ARM_METRICS: tuple[str, ...] = (
    "output_tok_per_s",
    "tpot_ms",
    "ttft_ms",
    "round_ms",
    "acceptance_length",
    "acceptance_length_macro",
    "speedup_vs_ar",
    "speedup_vs_chain",
)
MARKED_METRICS: tuple[str, ...] = ("output_tok_per_s", "tpot_ms", "speedup_vs_ar", "speedup_vs_chain")
MINOR_METRICS: tuple[str, ...] = ("ttft_ms", "round_ms", "acceptance_length_macro")
MAX_ROWS_DRAWN = 16  # per panel; the tables hold everything


def arms(evidence: Evidence) -> Section | Skipped:
    """One table per concurrency."""
    if not evidence.study.settings:
        return Skipped("arms", "Arms", "no case has a result")
    tables = tuple(_arms_table(evidence, c) for c in evidence.study.concurrencies)
    intro = (
        "Speed is read from the clean pass: no stage instrumentation, the host clock at every commit. Below each value "
        "stands its 95 % interval. n counts prompts; for output it counts passes. Speedups are ratios of TPOT.",
    )
    figures = tuple(figure for figure in (_speedups(evidence), _budget_curves(evidence)) if figure is not None)
    return Section("arms", "Arms", intro, tables=tables, figures=figures)


def _arms_table(evidence: Evidence, concurrency: int) -> Table:
    settings = evidence.arms_at(concurrency)
    metrics = cells.metrics_named(ARM_METRICS)
    candidates = [s for s in settings if evidence.may_be_best(s)]
    best = {
        name: cells.best_of(((s.key, evidence.value(s, name)) for s in candidates), METRICS[name])
        for name in MARKED_METRICS
    }
    rows = []
    for setting in settings:
        values = [_arm_cell(evidence, setting, metric.name, best.get(metric.name)) for metric in metrics]
        tpot = evidence.value(setting, "tpot_ms")
        n = cells.count_cell(tpot.n) if isinstance(tpot, Estimate) else cells.missing_cell(setting.reason or "no TPOT")
        rows.append((label_cell(evidence, setting), *values, n))
    measured = (cells.metric_column(metric, metric.name in MINOR_METRICS) for metric in metrics)
    columns = (Column("Arm", is_number=False), *measured, Column("n", tip="prompts"))
    table = Table(f"Concurrency {concurrency}", columns, tuple(rows), is_headline=True)
    return cells.with_notes(table)


def _arm_cell(evidence: Evidence, setting: Setting, metric: str, best_key: str | None) -> Cell:
    if setting.is_ok and metric == f"speedup_vs_{setting.arm}":
        return cells.baseline_cell()
    value = evidence.value(setting, metric)
    is_loss = isinstance(value, Estimate) and value.unit == "x" and value.value <= 1
    tone: Tone = "strong" if setting.key == best_key and not is_loss else "plain"
    return cells.value_cell(value, where(setting), tone)


def where(setting: Setting) -> str:
    return f"{setting.engine.device} {setting.engine.dtype}"


def label_cell(evidence: Evidence, setting: Setting) -> Cell:
    flags = []
    if not setting.is_ok:
        flags.append(setting.reason.partition(":")[0].replace("_", " "))
    elif not evidence.is_trusted(setting):
        flags.append("a book-keeping check fails")
    if setting.is_ok and evidence.is_degenerate(setting):
        flags.append("outputs loop")
    if any(result.parity.status == "near_tie" for result in setting.results):
        flags.append("parity up to a near tie")
    tip = ", ".join(f"{name}={value}" for name, value in setting.engine.model_dump().items() if value is not None)
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
    limits = _limits([point for group in points.values() for point in group])
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


def _limits(points: Sequence[plots.Point]) -> tuple[float, float]:
    lows = [point.value if point.low is None else point.low for point in points]
    highs = [point.value if point.high is None else point.high for point in points]
    low, high = min(1.0, *lows), max(1.0, *highs)
    margin = 0.06 * (high - low) or 0.1
    return low - margin, high + margin


def _budget_curves(evidence: Evidence) -> Figure | None:
    """What a wider tree brings and costs; only where one arm ran at three budgets or more."""
    groups: dict[int, list[Setting]] = {}
    for concurrency in evidence.study.concurrencies:
        trees = [s for s in evidence.arms_at(concurrency) if s.engine.node_budget > 0 and s.is_ok]
        plain = [s for s in trees if _is_budget_only(s, trees)]
        if len({s.engine.node_budget for s in plain}) >= 3:
            groups[concurrency] = sorted(plain, key=lambda s: s.engine.node_budget)
    if not groups or evidence.frames.is_merged:
        return None
    wanted = (
        ("acceptance_length", "tokens"),
        ("round_ms", "ms"),
        ("speedup_vs_chain", "ratio of TPOT"),
    )
    budgets = sorted({float(s.engine.node_budget) for group in groups.values() for s in group})
    colors = {c: plots.PALETTE[index % len(plots.PALETTE)] for index, c in enumerate(groups)}
    panels = []
    for name, y_label in wanted:
        series = [_curve(evidence, c, groups[c], name, color) for c, color in colors.items()]
        if any(line.x for line in series):
            svg = plots.lines(series, "node budget", y_label, ticks=budgets, is_log=True)
            panels.append(Panel(f"budget-{name.replace('_', '-')}", METRICS[name].title, svg))
    legend = tuple(LegendEntry(f"concurrency {c}", color) for c, color in colors.items())
    caption = "What a wider tree gains (tau), what it costs (round), and what is left (speedup over chain)."
    return Figure("Node budget", caption, tuple(panels), legend)


def _is_budget_only(setting: Setting, trees: Sequence[Setting]) -> bool:
    """True if the setting differs from the first of `trees` in nothing but the budget."""
    return setting.engine.model_copy(update={"node_budget": trees[0].engine.node_budget}) == trees[0].engine


def _curve(evidence: Evidence, concurrency: int, group: Sequence[Setting], metric: str, color: str) -> plots.Series:
    pairs = [(s.engine.node_budget, evidence.value(s, metric)) for s in group]
    known = [(float(budget), value) for budget, value in pairs if isinstance(value, Estimate)]
    return plots.Series(
        f"concurrency {concurrency}",
        color,
        tuple(budget for budget, _ in known),
        tuple(value.value for _, value in known),
        tuple(value.low for _, value in known),
        tuple(value.high for _, value in known),
    )
