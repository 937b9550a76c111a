"""Section: what a wider tree brings and costs, where an arm ran at several node budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddbench import units
from ddbench.analysis.findings.answers import told
from ddbench.analysis.findings.compute import Choice, choose
from ddbench.analysis.findings.frontier import FEWEST_BUDGETS, Sweep, steps_of, sweeps_of
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured
from ddbench.report import cells, plots
from ddbench.report.arms import label_cell, where
from ddbench.report.document import Cell, Column, Figure, LegendEntry, Panel, Section, Skipped, Table
from ddbench.report.evidence import Evidence

MAX_LINES = 8  # as many as there are colours and markers; the tables hold all
TABLE_METRICS: tuple[str, ...] = (
    "nodes_per_round",
    "acceptance_length",
    "round_cost_ms",
    "tpot_ms",
    "speedup_vs_ar",
    "speedup_vs_chain",
)


@dataclass(frozen=True)
class Named:
    """A sweep with its name in this report."""

    name: str
    sweep: Sweep

    @property
    def trees(self) -> tuple[Setting, ...]:
        return self.sweep.trees


def budget(evidence: Evidence) -> Section | Skipped:
    """tau, round cost and speedup against the node budget, one line per concurrency."""
    sweeps = _sweeps(evidence)
    if not sweeps:
        return Skipped("budget", "Node budget", f"no arm was measured at {FEWEST_BUDGETS} node budgets or more")
    metric = _speedup_metric(evidence, sweeps)
    intro = (
        "A wider tree verifies more candidates per round: tau can only grow, but so does what a round costs. It pays "
        "while tau grows faster." + _best(evidence, sweeps),
    )
    tables = (*(_table(evidence, sweep) for sweep in sweeps), *_steps(evidence, sweeps))
    return Section("budget", "Node budget", intro, tables=tables, figures=(_figure(evidence, sweeps, metric),))


def _sweeps(evidence: Evidence) -> tuple[Named, ...]:
    found = []
    for sweep in sweeps_of(evidence.study):
        run = f" ({evidence.run_names[sweep.trees[0].run]})" if evidence.frames.is_merged else ""
        found.append(Named(f"concurrency {sweep.concurrency}{run}", sweep))
    names = [one.name for one in found]
    return tuple(replace(one, name=_full_name(one)) if names.count(one.name) > 1 else one for one in found)


def _full_name(one: Named) -> str:
    """With what tells sweeps of one concurrency apart: the label without its budget."""
    tree = one.trees[0]
    return f"{one.name}, {tree.label.replace(f' node_budget={tree.engine.node_budget}', '')}"


def _speedup_metric(evidence: Evidence, sweeps: Sequence[Named]) -> str:
    """Over the chain, or over ar where no chain was measured."""
    has_chain = any(isinstance(evidence.value(s, "speedup_vs_chain"), Estimate) for w in sweeps for s in w.trees)
    return "speedup_vs_chain" if has_chain else "speedup_vs_ar"


def _best(evidence: Evidence, sweeps: Sequence[Named]) -> str:
    """The fastest budget of every sweep, with what cannot be told from it."""
    texts = []
    for one in sweeps:
        usable = tuple(tree for tree in one.trees if evidence.may_be_best(tree))
        chain = one.sweep.chain
        if not isinstance(chain, NotMeasured) and not evidence.may_be_best(chain):
            chain = NotMeasured(not_measured="the chain is not to be trusted")
        found = choose(replace(one.sweep, trees=usable, chain=chain)) if len(usable) >= FEWEST_BUDGETS else None
        if not isinstance(found, Choice):
            continue
        text = f"{found.best.engine.node_budget} at {one.name}"
        if isinstance(found.over_chain, Estimate):
            text += f" ({told(found.over_chain)} over the chain)"
        tied = [tree.engine.node_budget for tree in found.tied]
        texts.append(
            text + (f", with {units.listed(tied)} not told from it" if tied else ", told apart from the others")
        )
    if not texts:
        return ""
    return (
        f" The fastest budget is {'; '.join(texts)}. All budgets of a concurrency are compared with each other and "
        "with the chain at once, by intervals widened so that all of them hold together."
    )


def _table(evidence: Evidence, sweep: Named) -> Table:
    metrics = cells.metrics_named(TABLE_METRICS)
    best = {
        name: cells.best_of(((s.key, evidence.value(s, name)) for s in sweep.trees), METRICS[name])
        for name in ("tpot_ms", "speedup_vs_ar", "speedup_vs_chain")
    }
    rows = []
    for setting in sweep.sweep.everyone:
        values = [_cell(evidence, setting, metric.name, best.get(metric.name)) for metric in metrics]
        rows.append((label_cell(evidence, setting), *values))
    columns = (Column("Arm", is_number=False), *map(cells.metric_column, metrics))
    return cells.with_notes(Table(sweep.name[:1].upper() + sweep.name[1:], columns, tuple(rows)))


def _steps(evidence: Evidence, sweeps: Sequence[Named]) -> tuple[Table, ...]:
    """What each widening brings and costs."""
    rows = []
    for one in sweeps:
        for step in steps_of(one.sweep):
            narrow, wide = step.contest.base, step.contest.setting
            parts = (step.contest.length, step.contest.cost, step.tau_per_node, step.ms_per_node, step.contest.speedup)
            named = cells.text_cell(f"{_width(narrow)} to {_width(wide)}")
            nodes = Cell(cells.number(step.nodes, "nodes"), sort=step.nodes)
            values = (cells.value_cell(value, where(wide)) for value in parts)
            rows.append((cells.text_cell(one.name), named, nodes, *values))
    if not rows:
        return ()
    columns = (
        *cells.text_columns("Sweep", "Step"),
        Column("Nodes", tip="verified per request and round, more than before"),
        Column("tau", tip="tau of the wider / of the narrower"),
        Column("Round cost", tip="of the wider / of the narrower: the step pays while tau grows faster"),
        Column("tau per node", "tokens", tip="what a further node adds to tau"),
        Column("Cost per node", "ms", tip="what a further node adds to the round cost"),
        Column("Speedup", tip="TPOT of the narrower / of the wider: above 1 the step pays"),
    )
    return (cells.with_notes(Table("What each step to a wider tree brings and costs", columns, tuple(rows))),)


def _width(setting: Setting) -> str:
    return str(setting.engine.node_budget) if setting.engine.node_budget else setting.arm


def _cell(evidence: Evidence, setting: Setting, metric: str, best: str | None) -> Cell:
    if metric == f"speedup_vs_{setting.arm}":
        return cells.baseline_cell()
    return cells.value_cell(
        evidence.value(setting, metric), where(setting), "strong" if setting.key == best else "plain"
    )


def _figure(evidence: Evidence, found: Sequence[Named], metric: str) -> Figure:
    sweeps = found[:MAX_LINES]
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
    if len(found) > MAX_LINES:
        caption += f" The first {MAX_LINES} of {len(found)} are drawn."
    return Figure("What a wider tree gains and costs", caption, tuple(panels), legend)


def _curve(evidence: Evidence, sweep: Named, metric: str, color: str, place: int) -> plots.Series:
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
