"""`Summary` -> sections: what the console and the foot of the HTML page say about a captured window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddbench import units
from ddbench.records import NotMeasured
from ddbench.report.document import Cell, Column, Fact, Report, Section, Table
from ddbench.report.profiled import us_cell, viewer_of, words
from ddbench.timeline.summary import Summary
from ddbench.timeline.tables import count_cell, percent, tables_of


def report_of(summaries: Sequence[Summary]) -> Report:
    """One section a case, and one that compares two."""
    windows = [summary.window for summary in summaries]
    letters = "AB" if len(summaries) > 1 else ""
    sections = [_section(summary, letters[place : place + 1]) for place, summary in enumerate(summaries)]
    if len(summaries) == 2:
        sections.insert(0, _comparison(summaries[0], summaries[1]))
    what = "cases" if letters else "case"
    tools = units.listed(list(dict.fromkeys(window.capture.tool for window in windows)))
    return Report(
        title=f"Timeline: {windows[0].label}" if len(windows) == 1 else "Timeline: two cases side by side",
        question=f"Where the time of captured rounds goes, as {tools} saw it. Speed is read from clean passes only.",
        origin=f"run {windows[0].run}, {what} {units.listed([window.case_id for window in windows])}",
        sections=tuple(sections),
        runs=tuple(dict.fromkeys(window.run for window in windows)),
    )


def own_files(summary: Summary) -> list[tuple[Path, str]]:
    """The tool's own files that are still there, each with the viewer that opens it ('': any)."""
    return [(path, viewer_of(path.name)) for path in summary.window.raw]


def _file_notes(summary: Summary) -> list[str]:
    """By their place in the run's folder: a page may be given away, and names no other place."""
    notes = []
    for path, viewer in own_files(summary):
        how = f"with {viewer}" if viewer else "in ui.perfetto.dev" if ".json" in path.suffixes else "with the tool"
        notes.append(f"{'/'.join(path.parts[-5:])}: to be opened {how}")
    gone = [name for name in summary.window.capture.raw if name not in {path.name for path in summary.window.raw}]
    return [*notes, f"{units.listed(gone)}: not in captures/raw/ any more"] if gone else notes


# --- one case ---


def _section(summary: Summary, letter: str) -> Section:
    window = summary.window
    title = f"{letter}: {window.label}" if letter else window.label
    name = f"case-{letter.lower() or 'a'}"
    notes = (*_ledger_notes(summary), *window.capture.notes, *_file_notes(summary))
    if window.capture.withheld:
        withheld = Fact("Totals", "withheld", details=(window.capture.withheld,), tone="bad")
        return Section(name, title, facts=(withheld, _tax_fact(summary)), notes=notes)
    return Section(name, title, facts=_facts(summary), notes=notes, tables=tables_of(summary))


def _facts(summary: Summary) -> tuple[Fact, ...]:
    rounds, period = summary.rounds, summary.rounds.period_ns
    what = "Device" if summary.window.has_device else "Operators"
    if rounds.is_split:
        count = f"median of {len(period)} rounds, {units.duration(period.min())} to {units.duration(period.max())}"
        first = Fact("Round", units.duration(summary.period_ns), details=(f"{count}, on the tool's clock",))
    else:
        first = Fact("Window", units.duration(summary.period_ns), details=("no op belongs to a round",))
    idle = [units.duration(summary.idle_ns(is_between)) for is_between in (False, True)]
    split = f"{units.duration(summary.busy_ns)} a round; idle {idle[0]} inside of it and {idle[1]} before it"
    busy = Fact(f"{what} busy", percent(summary.busy_share), details=(split,))
    return (first, busy, *_token_facts(summary), _tax_fact(summary))


def _token_facts(summary: Summary) -> list[Fact]:
    known = [tokens for tokens in summary.rounds.tokens if tokens is not None]
    if not known:
        return []
    emitted = sum(tokens.num_emitted for tokens in known) / len(known)
    accepted = sum(tokens.num_accepted for tokens in known) / len(known)
    detail = f"mean over all requests in the clean pass; {units.significant(accepted)} of them were drafted"
    return [Fact("Tokens a round", units.significant(emitted), details=(detail,))]


def _tax_fact(summary: Summary) -> Fact:
    tool, tax = summary.window.capture.tool, summary.window.tax
    if isinstance(tax, NotMeasured):
        return Fact(f"Tax of {tool}", "not measured", details=(tax.not_measured,), tone="quiet")
    times = (
        f"host time of a round {units.duration(tax.captured_ns)}, in the clean passes {units.duration(tax.clean_ns)}"
    )
    return Fact(f"Tax of {tool}", f"{100 * (tax.ratio - 1):+.0f} %", details=(f"mean {times}",))


def _ledger_notes(summary: Summary) -> list[str]:
    capture = summary.window.capture
    total = sum(line.time_ns for line in capture.ledger)
    notes = []
    if total:
        parts = [f"{percent(line.time_ns / total)} by {line.basis}" for line in capture.ledger if line.count]
        count = sum(line.count for line in capture.ledger)
        notes.append(f"Ledger: {units.grouped(count)} ops, {units.duration(total)}: {', '.join(parts)}.")
        if (count, total) != (len(summary.window.ops), sum(line.total_ns for line in summary.stages)):
            notes.append("The table of ops does not add up to the ledger: the capture is damaged.")
    if capture.num_graph_launches:
        seen = f"{capture.num_graph_replays} of {capture.num_graph_launches} graph launches left records"
        notes.append(f"{seen} on the device.")
    return notes


# --- two cases ---


def _comparison(one: Summary, other: Summary) -> Section:
    columns = (Column("Of a round", is_number=False), Column("A"), Column("B"), Column("B - A"))
    withheld = [summary.window.label for summary in (one, other) if summary.window.capture.withheld]
    if withheld:
        note = f"Not compared: the totals of {units.listed(withheld)} are withheld."
        return Section("side-by-side", "Side by side", notes=(note,))
    rows = [_pair("round, us", one.period_ns, other.period_ns)]
    rows.append(_pair("busy, us", one.busy_ns, other.busy_ns))
    rows += [
        _pair(f"idle {where}, us", one.idle_ns(is_between), other.idle_ns(is_between))
        for where, is_between in (("inside the round", False), ("before the round", True))
    ]
    mine, theirs = ({line.stage: line.busy_ns for line in summary.stages} for summary in (one, other))
    for stage in dict.fromkeys([*mine, *theirs]):
        rows.append(_pair(f"{words(stage)}, us", mine.get(stage, 0.0), theirs.get(stage, 0.0)))
    for what, direction in (("copies to the host", "device to host"), ("syncs", "")):
        rows.append(_pair(what, _number_of(one, direction), _number_of(other, direction), is_count=True))
    labels = (f"A: {one.window.label}", f"B: {other.window.label}")
    table = Table("Medians over rounds", columns, tuple(rows), notes=labels)
    return Section("side-by-side", "Side by side", tables=(table,))


def _number_of(summary: Summary, direction: str) -> float:
    """Copies in a direction, or calls that wait where none is given."""
    if direction:
        return sum(line.num_per_round for line in summary.traffic if direction in line.what)
    return sum(line.num_per_round for line in summary.traffic if line.bytes_per_round is None)


def _pair(what: str, mine: float, theirs: float, is_count: bool = False) -> tuple[Cell, ...]:
    cell = count_cell if is_count else us_cell
    difference = cell(abs(theirs - mine))
    sign = "+" if theirs > mine else "-" if theirs < mine else ""
    return Cell(what), cell(mine), cell(theirs), Cell(sign + difference.text, sort=theirs - mine)
