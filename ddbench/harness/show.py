"""Tables on the console: what there is, what a plan would do, what the checks found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ddbench.harness.plan import Plan
from ddbench.harness.profilers.drive import fault_before, tools_of
from ddbench.spec import ARMS, AXIS_MODELS, PART_FIELDS, EngineSpec

if TYPE_CHECKING:
    from ddbench.harness.check import Row

_STATUS_COLOURS = {"ok": "green", "failed": "red", "skipped": "yellow"}


def listing() -> Iterator[Table]:
    """Arms, parts, targets, experiments, axes."""
    yield _arms_table()
    yield _parts_table()
    yield _targets_table()
    yield _experiments_table()
    yield _axes_table()


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: object, style: str | None = None) -> None:
    """Cells as they are: nothing in them is markup."""
    table.add_row(*(Text(str(cell)) for cell in cells), style=style)


def _arms_table() -> Table:
    table = _table("Arms", "arm", "what it pins")
    for arm, pins in ARMS.items():
        _row(table, arm, ", ".join(f"{name}={value}" for name, value in pins.items()))
    return table


def _parts_table() -> Table:
    from ddbench.engine.parts import PARTS

    table = _table("Parts (axes of the engine, * the default)", "part", "variant", "what it does")
    for part in PART_FIELDS:
        default = EngineSpec.model_fields[part].default
        for number, (name, kind) in enumerate(PARTS[part].items()):
            text = (kind.__doc__ or "").strip().partition("\n")[0]
            text = f"{text} Needs a CUDA device." if kind.needs_cuda else text
            shown = f"{name} *" if name == default else name
            _row(table, "" if number else part, shown, text, style="dim" if kind.needs_cuda else None)
    return table


def _targets_table() -> Table:
    from ddbench.models.catalog import catalog

    table = _table("Targets (or a checkpoint folder; more: ddbench models list)", "target", "weights", "drafter")
    for entry in catalog():
        _row(table, entry.name, entry.weights, "yes" if entry.has_drafter else "no")
    return table


def _experiments_table() -> Table:
    from ddbench.experiment_file import experiment_files, find_experiment

    table = _table("Experiments (or a .toml file)", "experiment", "question")
    for name in sorted(experiment_files()):
        _row(table, name, find_experiment(name).question)
    return table


def _axes_table() -> Table:
    table = _table("Axes (--set AXIS=VALUE[,VALUE...])", "of", "axis", "default", "what it is")
    for owner, model in AXIS_MODELS.items():
        names = [name for name in model.model_fields if name not in (*PART_FIELDS, "device")]
        for number, name in enumerate(names):
            info = model.model_fields[name]
            default = "" if info.default in (None, ()) else info.default
            _row(table, "" if number else owner, name, default, info.description or "")
    return table


def show_plan(console: Console, plan: Plan, with_cases: bool) -> None:
    """The question, the cases in execution order where they are wanted, and what is skipped and why."""
    experiment, engine = plan.experiment, plan.experiment.engine
    console.print(Text(f"{experiment.name}: {experiment.question}", style="bold"), soft_wrap=not console.is_terminal)
    count = f"{len(plan.cases)} case{'' if len(plan.cases) == 1 else 's'}, {len(plan.skipped)} skipped"
    facts = f"{count}; target {engine.target}, device {engine.device}, {engine.dtype}, order seed {experiment.seed}"
    console.print(Text(facts), soft_wrap=not console.is_terminal)
    if with_cases and plan.cases:
        table = _table("Cases in the order in which they run", "#", "block", "case")
        for number, case in enumerate(plan.cases, start=1):
            _row(table, number, case.block, case.label)
        console.print(table)
    for note in capture_notes(plan):
        console.print(Text(note), soft_wrap=not console.is_terminal)
    reasons: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.label)
    for reason, labels in reasons.items():
        text = Text("skipped ", style=_STATUS_COLOURS["skipped"])
        text.append(f"{_together(labels)}: {reason}", style="default")
        console.print(text, soft_wrap=not console.is_terminal)


def capture_notes(plan: Plan) -> list[str]:
    """How many passes under which profiler there will be, and which of them cannot be."""
    numbers: dict[str, int] = {}
    for case in plan.cases:
        for tool in tools_of(case):
            fault = fault_before(case, tool)
            text = f"captured by {tool}" if fault is None else f"not captured by {tool}: {fault.what}: {fault.cure}"
            numbers[text] = numbers.get(text, 0) + 1
    return [f"{number} {'case' if number == 1 else 'cases'} {text}" for text, number in numbers.items()]


def _together(labels: Sequence[str]) -> str:
    """Labels that differ in their concurrency only as one: `ar c=1, c=4`."""
    concurrencies: dict[str, list[str]] = {}
    for label in labels:
        name, _, concurrency = label.rpartition(" ")
        concurrencies.setdefault(name, []).append(concurrency)
    return "; ".join(f"{name} {', '.join(values)}" for name, values in concurrencies.items())


def show_checks(console: Console, rows: Iterable[Row]) -> list[Row]:
    """Every check as it finishes, in a table whose rows appear one by one; all rows come back."""
    table = _table("Checks", "status", "suite", "what", "detail")
    seen = []
    with Live(table, console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for row in rows:
            seen.append(row)
            table.add_row(
                Text(row.status, style=_STATUS_COLOURS[row.status]), row.suite, Text(row.subject), Text(row.detail)
            )
            live.refresh()
    if not console.is_terminal:
        console.print()
    counts = {status: sum(row.status == status for row in seen) for status in _STATUS_COLOURS}
    console.print(", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing to check")
    return seen
