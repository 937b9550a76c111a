"""The ceilings of a run as tables, and what is to be known about them: part of the roofline section."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ddbench import units
from ddbench.analysis.roofline import Drift, drifts, identity
from ddbench.records import Ceilings, CeilingSample, NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Table
from ddbench.report.evidence import Evidence

CEILING_WORDS: dict[str, str] = {
    "read": "one stream in",
    "copy": "bytes read plus bytes written",
    "matmul": "the best of a few square sizes, in the dtype of the cases",
    "launch": "the smallest op from the host, back to back",
    "replay": "the smallest op as a node of a replayed CUDA graph",
}


def ceiling_notes(evidence: Evidence) -> Iterator[str]:
    """What was not measured, and whether the machine was in one state."""
    for run, ceilings in _ceilings(evidence):
        large = [drift for drift in drifts(ceilings) if drift.is_large]
        if large:
            changes = ", ".join(f"{_name(drift.before)} {_change(drift)}" for drift in large)
            yield (
                f"{evidence.of_run(run)}Ceilings changed between the first case and the last one ({changes}): others "
                "used the machine, or its clocks moved. The better one counts, and distances are as uncertain as that."
            )
        moments = {sample.when for sample in ceilings.samples}
        if len(moments) == 1:
            yield f"{evidence.of_run(run)}Ceilings were measured {moments.pop()} the cases only."
        yield from (f"{evidence.of_run(run)}A ceiling was not measured {fault}." for fault in ceilings.faults)


def _ceilings(evidence: Evidence) -> list[tuple[str, Ceilings]]:
    every = ((run, evidence.frames.ceilings[run]) for run in evidence.runs)
    return [(run, one) for run, one in every if isinstance(one, Ceilings)]


def ceiling_tables(evidence: Evidence) -> Iterator[Table]:
    """One table per run."""
    columns = (
        *cells.text_columns("Ceiling"),
        Column("Dtype", is_number=False),
        Column("Threads"),
        Column("Working set"),
        Column("Before", "quartiles"),
        Column("After", "quartiles"),
        Column("Change", "after / before"),
    )
    for run, ceilings in _ceilings(evidence):
        size = ceilings.last_level_cache_bytes
        cache = (
            f"last-level cache: not measured ({size.not_measured})"
            if isinstance(size, NotMeasured)
            else f"last-level cache {units.byte_count(size)}"
        )
        rows = tuple(_ceiling_row(ceilings, one) for one in _distinct(ceilings))
        title = f"{evidence.of_run(run)}What this machine can do, {cache}"
        yield cells.with_notes(Table(title, columns, rows))


def _distinct(ceilings: Ceilings) -> Iterator[CeilingSample]:
    """One sample of each ceiling."""
    found: dict[Hashable, CeilingSample] = {}
    for sample in ceilings.samples:
        found.setdefault(identity(sample), sample)
    yield from found.values()


def _ceiling_row(ceilings: Ceilings, one: CeilingSample) -> tuple[Cell, ...]:
    same = {sample.when: sample for sample in ceilings.samples if identity(sample) == identity(one)}
    if len(same) == 2:
        drift = Drift(same["before"], same["after"])
        change = Cell(_change(drift), sort=drift.change, tone="warn" if drift.is_large else "plain")
    else:
        change = cells.missing_cell("measured once only")
    return (
        cells.text_cell(_name(one), CEILING_WORDS[one.kind]),
        cells.text_cell(one.dtype),
        cells.count_cell(one.num_threads),
        Cell(units.byte_count(one.working_set_bytes), sort=one.working_set_bytes),
        *(_amount_cell(same.get(when), when) for when in ("before", "after")),
        change,
    )


def _amount_cell(sample: CeilingSample | None, when: str) -> Cell:
    if sample is None:
        return cells.missing_cell(f"not measured {when} the cases")
    detail = f"{_amount(sample, sample.low)} to {_amount(sample, sample.high)}"
    return Cell(_amount(sample, sample.amount), detail, f"n={sample.num_samples} samples", sample.amount)


def _amount(sample: CeilingSample, amount: float) -> str:
    if sample.kind in ("launch", "replay"):
        return units.duration(amount)
    return units.rate(amount, "flop/s" if sample.kind == "matmul" else "B/s")


def _name(sample: CeilingSample) -> str:
    return sample.kind if sample.cache == "none" else f"{sample.kind}, {sample.cache}"


def _change(drift: Drift) -> str:
    return units.ratio(1 + drift.change)
