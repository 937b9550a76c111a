"""Sections: was it correct, does the book-keeping hold, what is missing and why."""

from __future__ import annotations

from ddbench import units
from ddbench.analysis.identities import IDENTITIES
from ddbench.records import FailedResult, NotMeasured, Parity
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Listing, Section, Skipped, Table
from ddbench.report.evidence import Evidence

MAX_LOGS = 20  # shown whole; an engine that always crashes always says the same
PARITY_WORDS: dict[str, str] = {
    "identical": "identical",
    "near_tie": "near tie",
    "diverged": "diverged",
    "not_applicable": "not applicable",
}
PARITY_COLUMNS: tuple[Column, ...] = (
    *cells.text_columns("Case", "Output"),
    Column("Prompts"),
    Column("Tokens"),
    Column("First divergence", is_number=False),
    Column("Logit margin", tip="gap between the target's two best logits there"),
    Column("Detail", is_number=False),
)


def parity(evidence: Evidence) -> Section | Skipped:
    """Speculative output against autoregressive output, checked before any timing."""
    results = [(key, r) for key, r in evidence.frames.results.items() if not isinstance(r, FailedResult)]
    if not results:
        return Skipped("parity", "Parity", "no case got as far as its parity check")
    labels = evidence.case_labels
    rows: dict[str, list[tuple[Cell, ...]]] = {"identical": [], "other": [], "not_applicable": []}
    for key, result in results:
        status = result.parity.status
        rows[status if status in rows else "other"].append(_parity_row(labels[key], result.parity))
    compared = len(results) - len(rows["not_applicable"])
    tables = []
    if rows["other"]:
        tables.append(Table("Not identical", PARITY_COLUMNS, tuple(rows["other"])))
    if rows["not_applicable"]:
        bare = tuple((row[0], row[-1]) for row in rows["not_applicable"])
        title = f"Nothing to compare with ({len(bare)})"
        tables.append(Table(title, cells.text_columns("Case", "Why"), bare))
    if rows["identical"]:
        title = f"Identical ({len(rows['identical'])})"
        tables.append(Table(title, PARITY_COLUMNS, tuple(rows["identical"]), is_folded=True))
    intro = (
        f"{len(rows['identical'])} of {compared} cases that can be compared emit exactly the tokens of plain "
        "autoregressive decoding. A case that diverges is incorrect and has no timings; a near tie is a place where "
        "the target's two best logits are as good as equal.",
    )
    return Section("parity", "Parity", intro, tables=tuple(tables))


def _parity_row(label: str, parity: Parity) -> tuple[Cell, ...]:
    first, margin = "", cells.text_cell("")
    if parity.divergences:
        gap = parity.divergences[0]
        first = f"prompt {gap.prompt_id}, position {gap.position}: {gap.expected} became {gap.got}"
        if isinstance(gap.logit_margin, NotMeasured):
            margin = cells.missing_cell(gap.logit_margin.not_measured)
        else:
            margin = Cell(units.significant(gap.logit_margin), sort=gap.logit_margin)
    tone = {"identical": "good", "near_tie": "warn", "diverged": "bad"}.get(parity.status, "quiet")
    return (
        cells.text_cell(label),
        Cell(PARITY_WORDS[parity.status], sort=parity.status, tone=tone),  # type: ignore[arg-type]
        cells.count_cell(parity.num_prompts),
        cells.count_cell(parity.num_tokens),
        cells.text_cell(first),
        margin,
        cells.text_cell(parity.detail),
    )


def identities(evidence: Evidence) -> Section | Skipped:
    """Each identity once, and every case in which one fails."""
    if not evidence.identities:
        return Skipped("identities", "Identities", "no case has measurements to check")
    rows = []
    for name, (statement, _) in IDENTITIES.items():
        own = [row for row in evidence.identities if row.identity == name]
        wrong = sum(not row.is_ok for row in own)
        verdict = "not applicable" if not own else f"{wrong} fail" if wrong else "holds"
        tone = "quiet" if not own else "bad" if wrong else "good"
        verdict_cell = Cell(verdict, sort=wrong, tone=tone)  # type: ignore[arg-type]
        rows.append((cells.text_cell(statement, tip=name), cells.count_cell(len(own)), verdict_cell))
    columns = (Column("Identity", is_number=False), Column("Cases"), Column("Verdict", is_number=False))
    tables = [Table("Checks", columns, tuple(rows))]
    failing = [row for row in evidence.identities if not row.is_ok]
    if failing:
        sides = (Column("Left"), Column("Right"), Column("Detail", is_number=False))
        broken = tuple(
            (
                cells.text_cell(row.label, tip=row.case_id),
                cells.text_cell(row.identity, tip=IDENTITIES[row.identity][0]),
                Cell(units.significant(row.left, 6), sort=row.left),
                Cell(units.significant(row.right, 6), sort=row.right),
                cells.text_cell(row.detail),
            )
            for row in failing
        )
        tables.insert(0, Table("Failing", (*cells.text_columns("Case", "Identity"), *sides), broken))
    intro = ("Book-keeping that must hold in every case. A failing check means that something miscounts.",)
    return Section("identities", "Identities", intro, tables=tuple(tables))


def skipped(evidence: Evidence) -> Section | Skipped:
    """Points of the plan that cannot be run here, with the reason."""
    rows = evidence.frames.skipped
    if rows.empty:
        return Skipped("skipped", "Skipped cases", "every point of the plan can be run here")
    table = Table(
        "Cannot run here",
        cells.text_columns("Case", "Reason"),
        tuple((cells.text_cell(row.label), cells.text_cell(row.reason)) for row in rows.itertuples()),
    )
    return Section("skipped", "Skipped cases", tables=(table,))


def failures(evidence: Evidence) -> Section | Skipped:
    """Cases without timings: their process failed, their output was wrong, or they have not run yet."""
    rows = evidence.frames.failures
    if rows.empty:
        return Skipped("failures", "Failures", "every case of the plan delivered")
    labels = evidence.case_labels
    table = Table(
        "Without timings",
        cells.text_columns("Case", "Outcome", "Reason", "Last line of its log"),
        tuple(
            (
                cells.text_cell(labels.get((row.run, row.case_id), row.label), tip=row.case_id),
                cells.text_cell(row.outcome.replace("_", " "), tone="warn" if row.outcome == "not_run" else "bad"),
                cells.text_cell(row.reason),
                cells.text_cell(_last_line(row.log_tail)),
            )
            for row in rows.itertuples()
        ),
    )
    logs = [
        Listing(
            f"Log of {labels.get((row.run, row.case_id), row.label)}: {row.outcome.replace('_', ' ')}", row.log_tail
        )
        for row in rows.itertuples()
        if len(row.log_tail.strip().splitlines()) > 1
    ]
    more = len(logs) - MAX_LOGS
    notes = (f"{more} more logs are in failures.csv below.",) if more > 0 else ()
    return Section("failures", "Failures", tables=(table,), notes=notes, listings=tuple(logs[:MAX_LOGS]))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
