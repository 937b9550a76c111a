"""The rows as a report, for the terminal and for Markdown, and as CSV. No torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ddbench import units
from ddbench.opbench.derived import Derived, Outcome, TargetResult, derive
from ddbench.opbench.records import Cache, IncorrectRow, NotMeasuredRow, OkRow, OpRow, OpsFile
from ddbench.records import CeilingSample, NotMeasured
from ddbench.report.document import Cell, Column, Fact, Report, Section, Table, Tone

Row = OpRow | Derived
COLUMNS = (
    Column("implementation", is_number=False),
    Column("kind", is_number=False, is_minor=True),
    Column("cache", is_number=False),
    Column("time", "us", tip="median per call, and the 95 % interval of the median"),
    Column("eager", "us", tip="per call, launched from the host back to back", is_minor=True),
    Column("launches", is_minor=True),
    Column("moved", "GB/s", tip="fewest bytes / time"),
    Column("rate", "TFLOP/s", tip="flops / time", is_minor=True),
    Column("floor", "us"),
    Column("bound", is_number=False),
    Column("of floor", "%", tip="floor / time"),
    Column("vs ours", "x", tip="time / time of our kernel with the same cache"),
    Column("target", is_number=False, is_minor=True),
)
TONES: dict[Outcome, Tone] = {"met": "good", "missed": "bad", "unknown": "warn"}
NONE = Cell("-", tone="quiet")


def ops_report(file: OpsFile) -> Report:
    """One section for every op, one table for every shape."""
    rows = derive(file)
    sections = [_overview(file, rows)]
    for op, of_op in groupby(rows, key=lambda row: _plain(row).op):
        tables = tuple(_table(tuple(of_shape)) for _, of_shape in groupby(of_op, key=lambda row: _plain(row).shape))
        sections.append(Section(name=op, title=op, tables=tables))
    sections.append(_ceilings(file))
    environment = file.environment
    origin = f"ddbench {file.ddbench_version}, {file.created_at}, {environment.device}, {_libraries(file)}"
    question = "How long does each op take at the shapes of the product, and how far is that from the least possible?"
    title = f"Single ops on {environment.device}"
    return Report(title=title, question=question, origin=origin, sections=tuple(sections))


def _plain(row: Row) -> OpRow:
    return row.row if isinstance(row, Derived) else row


def _libraries(file: OpsFile) -> str:
    libraries = file.environment.libraries
    return ", ".join(f"{name} {libraries[name]}" for name in ("torch", "triton", "cuda") if name in libraries)


def targets_of(rows: Sequence[Row]) -> list[tuple[OpRow, TargetResult]]:
    """All targets with their rows; those of a row without a time are unknown, and not forgotten."""
    return [(_plain(row), result) for row in rows for result in _results(row)]


def _results(row: Row) -> Sequence[TargetResult]:
    if isinstance(row, Derived):
        return row.targets
    why = f"not measured: {row.reason}" if isinstance(row, NotMeasuredRow) else "the result is incorrect"
    return [TargetResult(target, NotMeasured(not_measured=why)) for target in row.targets]


def _overview(file: OpsFile, rows: Sequence[Row]) -> Section:
    outcomes = [result.outcome for _, result in targets_of(rows)]
    num_bad = sum(isinstance(row, IncorrectRow) for row in rows)
    num_missing = sum(isinstance(row, NotMeasuredRow) for row in rows)
    num_ok = len({(row.row.op, row.row.shape, row.row.implementation) for row in rows if isinstance(row, Derived)})
    facts = [
        Fact("Measured", str(num_ok), "implementations at a shape", _others(num_bad, num_missing)),
        *([Fact("Targets met", f"{outcomes.count('met')} of {len(outcomes)}")] if outcomes else []),
        Fact("Took", units.about(file.seconds), f"{file.selection} selection, {file.dtype}"),
    ]
    notes = [
        "Time is per call: on a GPU inside a replayed CUDA graph of many calls, otherwise by the host's clock "
        "(marked h).",
        "Cold: inputs come from memory, in turns over several sets; hot: the same set again and again, in the cache. "
        "A set larger than the last-level cache has no hot time.",
        "The floor is the longest of fewest bytes at the measured read ceiling, flops at the measured matmul ceiling, "
        "and one launch. Intervals cover this process only.",
    ]
    if file.selection == "quick":
        notes.insert(0, "Quick: tiny shapes and few samples. These times say that it works, not how fast it is.")
    return Section("overview", "Overview", facts=tuple(facts), notes=tuple(notes), tables=_target_tables(rows))


TARGET_COLUMNS = tuple(Column(title, is_number=False) for title in ("op", "shape", "implementation", "target"))


def _target_tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """Every target with what was reached, row by row."""
    cells = tuple(
        (
            *(Cell(text) for text in (row.op, row.shape, row.implementation)),
            Cell(target_text(result), tone=TONES[result.outcome]),
        )
        for row, result in targets_of(rows)
    )
    return (Table(title="Targets, with a cold cache", columns=TARGET_COLUMNS, rows=cells),) if cells else ()


def _others(num_bad: int, num_missing: int) -> tuple[str, ...]:
    return tuple(f"{count} {what}" for count, what in ((num_bad, "incorrect"), (num_missing, "not measured")) if count)


def _table(rows: Sequence[Row]) -> Table:
    first = _plain(rows[0])
    ours: dict[Cache, float] = {
        row.row.cache: row.row.time_ns for row in reversed(rows) if isinstance(row, Derived) and row.row.kind == "ours"
    }
    notes: list[str] = []
    cells = tuple(_cells(row, ours, notes) for row in rows)
    return Table(title=f"{first.shape}: {first.about}", columns=COLUMNS, rows=cells, notes=tuple(notes))


def _cells(row: Row, ours: Mapping[Cache, float], notes: list[str]) -> tuple[Cell, ...]:
    plain = _plain(row)
    names = (Cell(plain.implementation, tone="strong" if plain.kind == "ours" else "plain"), Cell(plain.kind))
    if isinstance(row, Derived):
        return (*names, *_numbers(row, ours))
    reason = plain.reason if isinstance(plain, NotMeasuredRow) else getattr(plain, "detail", "")
    is_wrong = isinstance(plain, IncorrectRow)
    notes.append(f"{plain.implementation}: {'incorrect' if is_wrong else 'not measured'}: {reason}")
    status = Cell("incorrect", tone="bad") if is_wrong else Cell("n/m", tone="quiet")
    return (*names, status, *(NONE,) * (len(COLUMNS) - 3))


def _numbers(derived: Derived, ours: Mapping[Cache, float]) -> Iterator[Cell]:
    row, floor = derived.row, derived.floor
    yield Cell(row.cache)
    yield _time(row)
    yield NONE if isinstance(row.eager_ns, NotMeasured) else Cell(units.microseconds(row.eager_ns / 1e3))
    yield NONE if isinstance(row.launches, NotMeasured) else Cell(str(row.launches))
    yield Cell(units.significant(derived.bytes_per_s / 1e9))
    yield Cell(units.significant(derived.flops_per_s / 1e12)) if row.num_flops else NONE
    if isinstance(floor, NotMeasured):
        yield from (NONE, NONE, NONE)
    else:
        yield Cell(units.microseconds(floor.floor_ns / 1e3))
        yield Cell(floor.bound)
        yield Cell(units.significant(100 * floor.share), tone="warn" if floor.share > 1 else "plain")
    yield Cell(units.significant(row.time_ns / ours[row.cache])) if row.cache in ours else NONE
    yield _targets(derived.targets)


def _time(row: OkRow) -> Cell:
    text = units.microseconds(row.time_ns / 1e3) + (" h" if row.clock == "host" else "")
    if isinstance(row.low_ns, NotMeasured) or isinstance(row.high_ns, NotMeasured):
        return Cell(text)
    return Cell(text, detail=units.interval(row.low_ns / 1e3, row.high_ns / 1e3))


def _targets(results: Sequence[TargetResult]) -> Cell:
    if not results:
        return NONE
    worst: Outcome = min((result.outcome for result in results), key=("missed", "unknown", "met").index)
    return Cell(worst, tone=TONES[worst], tip="; ".join(target_text(result) for result in results))


def target_text(result: TargetResult) -> str:
    """`met: 41.2 us (at most 80)`."""
    target = result.target
    if isinstance(result.value, NotMeasured):
        return f"unknown: {result.value.not_measured}"
    scale, unit = {
        "time_us": (1.0, " us"),
        "launches": (1.0, " launches"),
        "speedup": (1.0, f" times {' or '.join(target.against)}"),
        "share_of_floor": (100.0, " % of floor"),
        "share_of_read": (100.0, " % of read"),
    }[target.metric]
    reached, limit = (units.significant(scale * value) for value in (result.value, target.limit))
    return f"{result.outcome}: {reached}{unit} (at {'most' if target.is_ceiling else 'least'} {limit})"


def _ceilings(file: OpsFile) -> Section:
    columns = (
        Column("what", is_number=False),
        Column("cache", is_number=False),
        Column("when", is_number=False),
        Column("median"),
    )
    rows = tuple(
        (Cell(sample.kind), Cell(sample.cache), Cell(sample.when), Cell(_ceiling(sample)))
        for sample in file.ceilings.samples
    )
    table = Table(title="Measured before and after the ops", columns=columns, rows=rows, notes=file.ceilings.faults)
    return Section(name="ceilings", title="Ceilings", tables=(table,))


def _ceiling(sample: CeilingSample) -> str:
    if sample.kind in ("launch", "replay"):
        return units.duration(sample.amount)
    return units.rate(sample.amount, "FLOP/s" if sample.kind == "matmul" else "B/s")


# ------------------------------------------------------------------------------------------------------------------ CSV

CSV_COLUMNS = (
    *("op", "shape", "implementation", "kind", "status", "reason", "cache", "clock", "time_ns", "low_ns", "high_ns"),
    *("num_samples", "calls_per_sample", "num_sets", "eager_ns", "launches", "num_bytes", "num_flops", "bytes_per_s"),
    *("flops_per_s", "floor_ns", "bound", "share_of_floor", "share_of_read", "targets", "error", "tolerance"),
)


def ops_csv(file: OpsFile) -> str:
    """Every row with exact values; what is missing is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in derive(file):
        writer.writerow(_csv_values(row))
    return text.getvalue()


def _csv_values(row: Row) -> dict[str, object]:
    plain = _plain(row)
    values: dict[str, object] = {
        name: value for name, value in plain.model_dump().items() if name in CSV_COLUMNS and not isinstance(value, dict)
    }
    if isinstance(plain, IncorrectRow):
        values["reason"] = plain.detail
    values["targets"] = ""
    if isinstance(row, Derived):
        values |= {"bytes_per_s": row.bytes_per_s, "flops_per_s": row.flops_per_s}
        values["targets"] = "; ".join(target_text(result) for result in row.targets)
        if not isinstance(row.floor, NotMeasured):
            values |= {"floor_ns": row.floor.floor_ns, "bound": row.floor.bound}
            values |= {"share_of_floor": row.floor.share, "share_of_read": row.floor.share_of_read}
    return values
