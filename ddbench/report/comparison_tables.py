"""Tables of a comparison: what moved in one match, all matches side by side, counters, what was not compared, places.

Below `comparison`, which puts them in order. A pair that may not be compared is context: numbers without a verdict and
without a colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddbench import units
from ddbench.analysis.compare.comparison import Comparison, Comparisons, Match
from ddbench.analysis.compare.diagnosis import Diagnosis
from ddbench.analysis.compare.judge import COMPARED, REASON_TEXTS
from ddbench.analysis.compare.shifts import Shift
from ddbench.analysis.counters import counter
from ddbench.analysis.effects import Effect
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.paired import Verdict
from ddbench.analysis.values import Value
from ddbench.records import Environment, Manifest, NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Table, Tone

TONES: dict[Verdict, Tone] = {
    "slower": "bad",
    "faster": "good",
    "same": "plain",
    "undecided": "warn",
    "incomparable": "quiet",
}
# What a verdict is called where higher is better.
RATE_WORDS: dict[Verdict, str] = {"slower": "lower", "faster": "higher"}
MAX_PARTS = 4  # of a round, beside what the others make together


def verdict_word(comparison: Comparison) -> str:
    is_rate = comparison.metric.direction == "higher"
    return RATE_WORDS.get(comparison.verdict, comparison.verdict) if is_rate else comparison.verdict


def reasons_text(comparison: Comparison) -> str:
    return "; ".join(REASON_TEXTS.get(code, code.replace("_", " ")) for code in comparison.decision.reasons)


def evidence_table(match: Match) -> Table:
    """Every compared metric of one match."""
    rows = []
    for comparison in match.comparisons.values():
        metric = comparison.metric
        unit = cells.COLUMN_UNITS.get(metric.unit, "")
        rows.append(
            (
                cells.text_cell(
                    f"{metric.title}, {unit}" if unit else metric.title, f"{metric.name}: {metric.formula}"
                ),
                cells.value_cell(comparison.a),
                cells.value_cell(comparison.b),
                *_ratio_cells(comparison),
                Cell(verdict_word(comparison), sort=comparison.verdict, tone=TONES[comparison.verdict]),
                cells.text_cell(reasons_text(comparison)),
            )
        )
    columns = (
        Column("Metric", is_number=False),
        *(Column(title) for title in ("A", "B")),
        Column("B / A", tip="over pairs of interleaved repeats; exact or over prompts for tau"),
        Column("95 % interval"),
        Column("Pairs", is_minor=True),
        Column("Verdict", is_number=False),
        Column("Because", is_number=False, is_minor=True),
    )
    bare = tuple(tuple(_without_detail(cell) for cell in row) for row in rows)
    return cells.with_notes(Table(f"{match.label}, concurrency {match.concurrency}", columns, bare, is_headline=True))


def _without_detail(cell: Cell) -> Cell:
    """One line per row on a screen: the interval of either side's value is left to its tip."""
    return Cell(cell.text, tip=cell.tip, sort=cell.sort, tone=cell.tone)


def _ratio_cells(comparison: Comparison) -> tuple[Cell, Cell, Cell]:
    effect = comparison.decision.effect
    if not isinstance(effect, Effect):
        return (cells.missing_cell(effect.not_measured),) * 3
    q_value = comparison.decision.q_value
    tip = f"q {units.significant(q_value, 2)}" if q_value is not None else ""
    if comparison.basis == "exact":
        span = Cell("exact")
    elif effect.low is None or effect.high is None:
        span = cells.missing_cell(effect.note or "too few pairs for an interval")
    else:
        span = Cell(units.interval(effect.low, effect.high), sort=effect.low)
    return (
        Cell(f"{units.significant(effect.ratio)}x", tip=tip, sort=effect.ratio),
        span,
        Cell(str(effect.n), sort=effect.n),
    )


def stage_table(found: Diagnosis) -> Table | None:
    """The parts of a round that moved most, and what is left."""
    shift = found.round
    if shift is None:
        return None
    parts = sorted(shift.parts, key=lambda part: -abs(part.delta_us))
    rows = [_part_row(part) for part in parts[:MAX_PARTS]]
    rest = parts[MAX_PARTS:]
    if rest:
        before, after = sum(part.a_us for part in rest), sum(part.b_us for part in rest)
        shares = [part.share for part in rest if part.share is not None]
        share = sum(shares) if shares else None
        rows.append(_part_row(Shift(f"{len(rest)} others", before, after, None, None, share), is_rest=True))
    columns = (
        Column("Part of a round", is_number=False, tip="host gap: what no stage accounts for"),
        *(Column(title, "us") for title in ("A", "B", "B - A")),
        Column("95 % interval", tip="blocks drawn again, those of one block together"),
        Column("Share", "%", tip="of the difference of the whole round"),
    )
    whole = f"{units.microseconds(shift.a_us)} -> {units.microseconds(shift.b_us)} us"
    return cells.with_notes(
        Table(f"Where a round's time went ({whole}, attributed pass)", columns, tuple(rows), is_headline=True)
    )


def _part_row(part: Shift, is_rest: bool = False) -> tuple[Cell, ...]:
    if part.low is None or part.high is None:
        span = Cell("") if is_rest else cells.missing_cell("fewer than 3 repeats")
    else:
        span = Cell(f"[{units.microseconds(part.low)}, {units.microseconds(part.high)}]", sort=part.low)
    share = Cell("") if part.share is None else Cell(str(round(100 * part.share)), sort=part.share)
    return (
        cells.text_cell(part.part.replace("_", " ")),
        *(Cell(units.microseconds(time), sort=time) for time in (part.a_us, part.b_us)),
        Cell(f"{'+' if part.delta_us > 0 else ''}{units.microseconds(part.delta_us)}", sort=part.delta_us),
        span,
        share,
    )


def match_tables(found: Comparisons) -> Iterator[Table]:
    """One table per concurrency: a row per match, a ratio per metric."""
    columns = (
        *cells.text_columns("Setting", "Verdict"),
        *(Column(METRICS[name].title, "B / A", f"{name}: {METRICS[name].formula}") for name in COMPARED),
        Column("Remarks", is_number=False, is_minor=True),
    )
    for concurrency in sorted({match.concurrency for match in found.matches}):
        rows = tuple(_match_row(match) for match in found.matches if match.concurrency == concurrency)
        yield cells.with_notes(Table(f"Concurrency {concurrency}", columns, rows))


def _match_row(match: Match) -> tuple[Cell, ...]:
    tone = TONES[match.verdict]
    said = "; ".join(reason.text for reason in (*match.obstacles, *match.remarks))
    return (
        cells.text_cell(match.label),
        Cell(match.verdict, sort=match.verdict, tone=tone),
        *(_match_cell(match, name) for name in COMPARED),
        cells.text_cell(said),
    )


def _match_cell(match: Match, name: str) -> Cell:
    comparison = match.comparisons.get(name)
    if comparison is None:
        return cells.missing_cell("nothing is drafted")
    one, other = (value_text(value) for value in (comparison.a, comparison.b))
    unit = cells.COLUMN_UNITS.get(comparison.metric.unit, "")
    if match.obstacles:
        return Cell(f"{one} / {other}", tip=f"A / B in {unit}: context, not compared", tone="quiet")
    effect = comparison.decision.effect
    if not isinstance(effect, Effect):
        return cells.missing_cell(effect.not_measured)
    has_span = effect.low is not None and effect.high is not None
    detail = "exact" if comparison.basis == "exact" else units.interval(effect.low, effect.high) if has_span else ""  # type: ignore[arg-type]
    tip = "; ".join(filter(None, (f"{one} -> {other} {unit}", comparison.verdict, reasons_text(comparison))))
    return Cell(f"{units.significant(effect.ratio)}x", detail, tip, effect.ratio, TONES[comparison.verdict])


def value_text(value: Value) -> str:
    return cells.DASH if isinstance(value, NotMeasured) else units.significant(value.value)


def context_table(found: Comparisons) -> Table:
    """The numbers of both sides where nothing may be compared: no ratio, no verdict, no colour."""
    names = ("output_tok_per_s", "tpot_ms", "acceptance_length")
    rows = [
        (
            Cell(match.label, sort=match.label, tone="quiet"),
            Cell(str(match.concurrency), sort=match.concurrency, tone="quiet"),
            *(_match_cell(match, name) for name in names),
        )
        for match in found.matches
    ]
    columns = (
        Column("Setting", is_number=False),
        Column("c", tip="concurrency"),
        *(Column(METRICS[name].title, f"{cells.COLUMN_UNITS[METRICS[name].unit]}, A / B") for name in names),
    )
    return cells.with_notes(Table("Context: both sides' numbers, not compared", columns, tuple(rows), is_headline=True))


def counter_table(found: Comparisons) -> Table:
    """Exact numbers that differ."""
    tones: dict[str, Tone] = {"worse": "bad", "better": "good", "changed": "warn"}
    rows = []
    for match in found.comparable:
        for change in match.counters:
            own = counter(change.name)
            stage = change.name.partition(".")[2].replace("_", " ")
            rates = change.rates
            per_round = (
                [Cell("")] * 2 if rates is None else [Cell(units.significant(rate), sort=rate) for rate in rates]
            )
            ratio = change.ratio
            moved = Cell("") if ratio is None else Cell(f"{100 * (ratio - 1):+.2f}", sort=ratio)
            rows.append(
                (
                    cells.text_cell(match.label),
                    cells.count_cell(match.concurrency),
                    cells.text_cell(f"{own.title}{', ' + stage if stage else ''}", f"{change.name}: {own.meaning}"),
                    cells.count_cell(change.a),
                    cells.count_cell(change.b),
                    *per_round,
                    moved,
                    Cell(change.verdict, sort=change.verdict, tone=tones[change.verdict]),
                )
            )
    columns = (
        Column("Setting", is_number=False),
        Column("c", tip="concurrency"),
        Column("Counter", is_number=False),
        *(Column(title) for title in ("A", "B")),
        *(Column(title, "per round") for title in ("A", "B")),
        Column("Change", "%", tip="per round where the counter grows with the rounds"),
        Column("Verdict", is_number=False, tip="of the change; changed: as many per round, or without a better side"),
    )
    return Table("Counters that differ", columns, tuple(rows))


def left_out_table(found: Comparisons) -> Table:
    """What was not compared, and why: the code is for programs."""
    rows = [
        (
            cells.text_cell(match.label),
            cells.count_cell(match.concurrency),
            cells.text_cell(reason.code.replace("_", " ")),
            cells.text_cell(reason.text),
        )
        for match in found.matches
        for reason in match.obstacles
    ]
    rows += [
        (
            cells.text_cell(f"{one.label} ({one.side})"),
            cells.count_cell(one.concurrency),
            cells.text_cell(one.reason.code.replace("_", " ")),
            cells.text_cell(one.reason.text),
        )
        for one in found.unmatched
    ]
    columns = (
        Column("Setting", is_number=False),
        Column("c", tip="concurrency"),
        *cells.text_columns("Reason", "In words"),
    )
    return Table("Not compared", columns, tuple(rows))


def place_table(sides: Sequence[Manifest]) -> Table:
    """Both runs' places side by side; what differs is marked."""
    columns = [dict(_facts(manifest)) for manifest in sides]
    rows = []
    for name in {**columns[0], **columns[1]}:
        values = [column.get(name, "absent") for column in columns]
        tone: Tone = "warn" if values[0] != values[1] and name not in ("Run", "Started") else "plain"
        rows.append((cells.text_cell(name), *(cells.text_cell(value, tone=tone) for value in values)))
    return Table("Code and place", cells.text_columns("Fact", "A", "B"), tuple(rows))


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    place: Environment = manifest.environment
    yield "Run", manifest.run_id
    yield "Started", manifest.created_at
    yield "Code digest", place.code_digest[:16]
    commit = place.commit if isinstance(place.commit, NotMeasured) else place.commit[:12]
    yield "Commit", _known(commit) + (" with uncommitted changes" if place.is_dirty is True else "")
    yield "ddbench", f"{manifest.ddbench_version}, {place.parts_origin}"
    yield "Device", place.device
    yield "Driver", _known(place.driver)
    yield "Power cap", _known(place.power_cap_w, " W")
    yield "Host", f"{place.cpu_model}, {place.num_cpus} CPUs, {place.machine}, {place.platform}"
    yield "Threads", str(place.num_threads)
    yield from sorted(place.libraries.items())


def _known(value: object, unit: str = "") -> str:
    return f"unknown: {value.not_measured}" if isinstance(value, NotMeasured) else f"{value}{unit}"
