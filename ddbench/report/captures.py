"""Section: what profilers recorded of which cases, whether all of it is there and accounted for, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddbench import units
from ddbench.analysis.profile.agreement import TOLERANCE, WHOLE, Agreement, agreements
from ddbench.analysis.profile.captured_case import CapturedCase, ToolPass
from ddbench.analysis.profile.tax import tax_of
from ddbench.captured import Basis, Capture, LedgerLine
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Cell, Column, Section, Skipped, Table
from ddbench.report.evidence import Evidence
from ddbench.report.profiled import labelled, ratio_cell, share_cell, skipped, stage_cell, table, us_cell, viewer_of

TITLE = "Captures"
BASIS_TIPS: dict[Basis, str] = {
    "launch": "the stage around the call that launched it",
    "capture": "the stage in which its node of a graph was recorded",
    "approximate": "weaker evidence: a range that was never closed, or a graph recorded before the capture",
    "unattributed": "no stage is known",
}


def captures(evidence: Evidence) -> Section | Skipped:
    """One row per case and tool, the ledger, what failed, and the files to look at."""
    own = [(label, profile.case, one) for label, profile in labelled(evidence) for one in profile.case.passes.values()]
    if not own:
        return skipped(evidence, "captures", TITLE, ())
    intro = (
        "A capture is one more run of a case under a profiler: it says where time and bytes went, never how fast the "
        "case is. Read first whether it is whole (replays seen of those launched, a ledger that adds up to 100 % with "
        "little unattributed), then the tax: how much longer its rounds took than the same rounds of the clean pass.",
    )
    tables = (
        *table("What was recorded", _pass_columns(), [_pass_row(*one) for one in own]),
        *_ledger(own),
        *_faults(own),
        *_agreement(evidence),
        *_files(own),
        *_notes(own),
    )
    return Section("captures", TITLE, intro, tables=tables)


Own = list[tuple[Cell, CapturedCase, ToolPass]]


def _pass_columns() -> tuple[Column, ...]:
    return (
        *cells.text_columns("Case", "Tool"),
        Column("State", is_number=False),
        Column("Rounds", tip="in its window"),
        Column("Round", "us", "mean on the host, under the tool"),
        Column("Clean", "us", "the same rounds of the clean pass"),
        Column("Tax", tip="round under the tool / clean"),
        Column("Replays seen", tip="graph launches of which the device left a record, of all graph launches"),
        Column("Pass", "s", "all of it, start of the process to tables on disk"),
    )


def _pass_row(label: Cell, case: CapturedCase, one: ToolPass) -> tuple[Cell, ...]:
    capture, tax = one.capture, tax_of(case, one)
    tool = (label, _tool_cell(capture), _state_cell(one))
    seconds = Cell(units.significant(capture.seconds), sort=capture.seconds)
    if capture.fault is not None:
        absent = cells.missing_cell(capture.fault.what)
        return (*tool, *(absent,) * 5, seconds)
    last = capture.first_round + one.num_rounds - 1
    span = f"{capture.first_round} to {last}" if one.num_rounds else ""
    rounds = Cell(str(one.num_rounds), span, f"{capture.num_emitted} tokens", one.num_rounds)
    if isinstance(tax, NotMeasured):
        times = (cells.missing_cell(tax.not_measured),) * 3
    else:
        times = (us_cell(tax.captured_ns), us_cell(tax.clean_ns), ratio_cell(tax.ratio))
    return (*tool, rounds, *times, _replays_cell(capture), seconds)


def _tool_cell(capture: Capture) -> Cell:
    version = capture.tool_version
    if isinstance(version, NotMeasured):
        return cells.text_cell(capture.tool, tip=f"version: {version.not_measured}")
    return cells.text_cell(capture.tool, detail=version)


def _state_cell(one: ToolPass) -> Cell:
    if one.capture.fault is not None:
        return cells.text_cell("failed", one.capture.fault.what, "bad", one.capture.fault.reason.replace("_", " "))
    if one.unusable:
        return cells.text_cell("withheld", one.unusable, "warn")
    if one.capture.counted_kernels:
        tip = f"by choice, kernels named {one.capture.counted_kernels} alone: no sum over a stage is formed"
        return cells.text_cell("some kernels", tip)
    return cells.text_cell("whole", tone="good")


def _replays_cell(capture: Capture) -> Cell:
    if not capture.num_graph_launches:
        return cells.missing_cell("no graph was launched in the window")
    seen, launched = capture.num_graph_replays, capture.num_graph_launches
    return Cell(f"{seen} of {launched}", sort=seen / launched, tone="bad" if seen < launched else "plain")


def _ledger(own: Own) -> Iterator[Table]:
    """Device time by what its stage rests on: percent, and the count; a line sums them up."""
    rows = []
    for label, _, one in own:
        lines = {line.basis: line for line in one.capture.ledger}
        total = sum(line.time_ns for line in lines.values())
        if not lines:
            continue
        shares = [
            cells.missing_cell("nothing of the device took time")
            if not total
            else share_cell(lines[basis].time_ns / total if basis in lines else 0.0, _ops(lines, basis))
            for basis in BASIS_TIPS
        ]
        count = sum(line.count for line in lines.values())
        whole = [share_cell(1.0 if total else 0.0, _counted(one.capture, count)), us_cell(total)]
        rows.append((label, cells.text_cell(one.tool), *shares, *whole))
    columns = (
        *cells.text_columns("Case", "Tool"),
        *(Column(f"By {basis}" if basis in ("launch", "capture") else basis.capitalize(), "%", tip)
          for basis, tip in BASIS_TIPS.items()),
        Column("Sum", "%"),
        Column("Device time", "us", "of all ops in the window"),
    )  # fmt: skip
    yield from table("Ledger: what the stage of device time rests on", columns, rows)


def _counted(capture: Capture, count: int) -> str:
    """How many ops the ledger is of; of all, where some were left out on purpose."""
    if not capture.counted_kernels:
        return f"{units.grouped(count)} ops"
    if isinstance(capture.num_left_out, NotMeasured):
        return f"{units.grouped(count)} kernels, by choice"
    return f"{units.grouped(count)} of {units.grouped(count + capture.num_left_out)} kernels, by choice"


def _ops(lines: Mapping[Basis, LedgerLine], basis: Basis) -> str:
    line = lines.get(basis)
    return f"{units.grouped(line.count)} ops" if line is not None else "0 ops"


def _faults(own: Own) -> Iterator[Table]:
    rows = []
    for label, _, one in own:
        fault = one.capture.fault
        if fault is not None:
            about = (cells.text_cell(fault.reason.replace("_", " "), tone="bad"), cells.text_cell(fault.what))
            rows.append((label, cells.text_cell(one.tool), *about, cells.text_cell(fault.cure)))
        elif one.unusable:
            what = one.capture.withheld or one.unusable
            about = (cells.text_cell("withheld", tone="warn"), cells.text_cell(what))
            rows.append((label, cells.text_cell(one.tool), *about, cells.text_cell("no total is read from it")))
    columns = cells.text_columns("Case", "Tool", "Reason", "What happened", "What to do")
    yield from table("Passes that nothing is read from", columns, rows)


def _agreement(evidence: Evidence) -> Iterator[Table]:
    """Two clocks on the same stages."""
    rows: list[tuple[Cell, ...]] = []
    is_sound = True
    for label, profile in labelled(evidence):
        found = agreements(profile.case)
        if not isinstance(found, NotMeasured):
            rows += [_agreement_row(label, one) for one in found]
            is_sound &= all(one.is_ok for one in found)
    columns = (
        *cells.text_columns("Case", "Stage"),
        Column("Device time", "us", "at least one of its ops runs: per round of the capture"),
        Column("Other pass", "us", "the stage in the attributed pass; of the whole round, the clean pass"),
        Column("Share", "%", "device time / time of the other pass: what is left is idle"),
        Column("Verdict", is_number=False, tip=f"longer than the other pass x tax by more than {TOLERANCE:.0%}: wrong"),
    )
    yield from table("Stages of the capture against the other passes", columns, rows, is_folded=is_sound)


def _agreement_row(label: Cell, one: Agreement) -> tuple[Cell, ...]:
    verdict = cells.text_cell("holds", tone="good") if one.is_ok else cells.text_cell("too long", tone="bad")
    share = one.captured_ns / one.other_ns if one.other_ns > 0 else cells.missing_cell("the other pass took no time")
    return (
        label,
        cells.text_cell(one.stage) if one.stage == WHOLE else stage_cell(one.stage),
        us_cell(one.captured_ns),
        us_cell(one.other_ns),
        share if isinstance(share, Cell) else share_cell(share),
        verdict,
    )


def _files(own: Own) -> Iterator[Table]:
    """Paths are those from the run's folder; nothing of them is in the report."""
    rows = []
    for label, case, one in own:
        command = cells.text_cell(one.capture.command)
        for name in one.capture.raw:
            path = f"cases/{case.case_id}/captures/raw/{name}"
            kind = "comma-separated text" if name.endswith(".csv") else "a viewer of Chrome traces (Perfetto)"
            shown = cells.text_cell(f"{viewer_of(name) or f'{kind}:'} {path}", "from the run's folder")
            rows.append((label, cells.text_cell(one.tool), cells.text_cell(name), shown, command))
    columns = cells.text_columns("Case", "Tool", "File", "Open it with", "Recorded by")
    yield from table("Files of the tools, to be opened from the run's folder", columns, rows, is_folded=True)


def _notes(own: Own) -> Iterator[Table]:
    rows = [
        (label, cells.text_cell(one.tool), cells.text_cell(note)) for label, _, one in own for note in one.capture.notes
    ]
    yield from table("What the readers noticed", cells.text_columns("Case", "Tool", "Note"), rows, is_folded=True)
