"""Section: what a wider tree brings and costs, where an arm ran at several node budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.arms import label_cell, where
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table
from ddbench.report.evidence import Evidence

FEWEST_BUDGETS = 2
TABLE_METRICS: tuple[str, ...] = (
    "nodes_per_round",
    "acceptance_length",
    "round_cost_ms",
    "tpot_ms",
    "speedup_vs_ar",
    "speedup_vs_chain",
)


@dataclass(frozen=True)
class Sweep:
    """Settings that differ in nothing but the node budget, narrow trees first."""

    name: str
    trees: tuple[Setting, ...]
    chain: Setting | None


def budget(evidence: Evidence) -> Section | Skipped:
    """tau, round cost and speedup against the node budget, one line per concurrency."""
    sweeps = _sweeps(evidence)
    if not sweeps:
        return Skipped("budget", "Node budget", f"no arm was measured at {FEWEST_BUDGETS} node budgets or more")
    metric = _speedup_metric(evidence, sweeps)
    intro = (
        "A wider tree verifies more candidates per round: tau can only grow, but so does what a round costs. It pays "
        "while tau grows faster." + _best(evidence, sweeps, metric),
    )
    tables = tuple(_table(evidence, sweep) for sweep in sweeps)
    return Section("budget", "Node budget", intro, tables=tables, figures=(_figure(evidence, sweeps, metric),))


def _sweeps(evidence: Evidence) -> tuple[Sweep, ...]:
    groups: dict[tuple[object, ...], list[Setting]] = {}
    for setting in evidence.study.settings:
        if setting.engine.node_budget > 0 and setting.is_ok:
            alike = setting.engine.model_copy(update={"node_budget": 1}).model_dump_json()
            groups.setdefault((setting.run, setting.arm, alike, setting.workload.model_dump_json()), []).append(setting)
    found = []
    for own in groups.values():
        trees = tuple(sorted(own, key=lambda s: s.engine.node_budget))
        if len({s.engine.node_budget for s in trees}) >= FEWEST_BUDGETS:
            chain = evidence.study.counterpart(trees[0], "chain")
            name = f"concurrency {trees[0].concurrency}" + (
                f" ({evidence.run_names[trees[0].run]})" if evidence.frames.is_merged else ""
            )
            found.append(Sweep(name, trees, None if isinstance(chain, NotMeasured) else chain))
    names = [sweep.name for sweep in found]
    return tuple(replace(sweep, name=_full_name(sweep)) if names.count(sweep.name) > 1 else sweep for sweep in found)


def _full_name(sweep: Sweep) -> str:
    """With what tells sweeps of one concurrency apart: the label without its budget."""
    tree = sweep.trees[0]
    return f"{sweep.name}, {tree.label.replace(f' node_budget={tree.engine.node_budget}', '')}"


def _speedup_metric(evidence: Evidence, sweeps: Sequence[Sweep]) -> str:
    """Over the chain, or over ar where no chain was measured."""
    has_chain = any(isinstance(evidence.value(s, "speedup_vs_chain"), Estimate) for w in sweeps for s in w.trees)
    return "speedup_vs_chain" if has_chain else "speedup_vs_ar"


def _best(evidence: Evidence, sweeps: Sequence[Sweep], metric: str) -> str:
    """The budget with the highest speedup of every sweep."""
    texts = []
    for sweep in sweeps:
        values = [(setting, evidence.value(setting, metric)) for setting in sweep.trees]
        known = [(setting, value) for setting, value in values if isinstance(value, Estimate)]
        if known:
            setting, value = max(known, key=lambda pair: pair[1].value)
            ratio = f"{cells.number(value.value, 'x')} {cells.interval(value)}"
            texts.append(f"{setting.engine.node_budget} at {sweep.name} ({ratio})")
    over = "chain" if metric == "speedup_vs_chain" else "ar"
    return f" The best budget against {over} is {', '.join(texts)}." if texts else ""


def _table(evidence: Evidence, sweep: Sweep) -> Table:
    metrics = cells.metrics_named(TABLE_METRICS)
    best = {
        name: cells.best_of(((s.key, evidence.value(s, name)) for s in sweep.trees), METRICS[name])
        for name in ("tpot_ms", "speedup_vs_ar", "speedup_vs_chain")
    }
    rows = []
    for setting in (*((sweep.chain,) if sweep.chain else ()), *sweep.trees):
        values = [_cell(evidence, setting, metric.name, best.get(metric.name)) for metric in metrics]
        rows.append((label_cell(evidence, setting), *values))
    columns = (Column("Arm", is_number=False), *map(cells.metric_column, metrics))
    return cells.with_notes(Table(sweep.name[:1].upper() + sweep.name[1:], columns, tuple(rows)))


def _cell(evidence: Evidence, setting: Setting, metric: str, best: str | None) -> Cell:
    if metric == f"speedup_vs_{setting.arm}":
        return cells.baseline_cell()
    return cells.value_cell(
        evidence.value(setting, metric), where(setting), "strong" if setting.key == best else "plain"
    )


def _figure(evidence: Evidence, sweeps: Sequence[Sweep], metric: str) -> Figure:
    ticks = sorted({float(setting.engine.node_budget) for sweep in sweeps for setting in sweep.trees})
    colors = plots.colors(len(sweeps))
    panels = []
    titles = {"speedup_vs_chain": "TPOT speedup over chain", "speedup_vs_ar": "TPOT speedup over ar"}
    for name in ("acceptance_length", "round_cost_ms", metric):
        series = [_curve(evidence, sweep, name, colors[place], place) for place, sweep in enumerate(sweeps)]
        if any(line.x for line in series):
            is_ratio = METRICS[name].unit == "x"
            y_label = "ratio of TPOT" if is_ratio else METRICS[name].unit
            reference = 1.0 if is_ratio else None
            svg = plots.lines(series, "node budget", y_label, ticks=ticks, is_log=True, reference=reference)
            panels.append(Panel(f"budget-{name.replace('_', '-')}", titles.get(name, METRICS[name].title), svg))
    legend = tuple(LegendEntry(sweep.name, color) for sweep, color in zip(sweeps, colors, strict=True))
    caption = "What a wider tree gains (tau), what it costs (round cost), and what is left (speedup); dashed: no gain."
    return Figure("What a wider tree gains and costs", caption, tuple(panels), legend)


def _curve(evidence: Evidence, sweep: Sweep, metric: str, color: str, place: int) -> plots.Series:
    """Lines stand a little beside each other, so that equal ones (tau) do not hide each other."""
    pairs = [(setting.engine.node_budget, evidence.value(setting, metric)) for setting in sweep.trees]
    known = [(float(budget), value) for budget, value in pairs if isinstance(value, Estimate)]
    return plots.Series(
        sweep.name,
        color,
        tuple(budget * 1.02**place for budget, _ in known),
        tuple(value.value for _, value in known),
        tuple(value.low for _, value in known),
        tuple(value.high for _, value in known),
    )
