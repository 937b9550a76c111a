"""The body of `ddbench timeline`: run folder and words in, console text and files out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from ddbench import units
from ddbench.analysis.frames import load_run
from ddbench.errors import UserError, refuse_unknown
from ddbench.files import write_out
from ddbench.harness.store import check_run_folder
from ddbench.report.console import print_report
from ddbench.report.document import Cell, Column, Report, Section, Table
from ddbench.spec import Tool
from ddbench.timeline.choose import Candidate, candidates_of, chosen, tool_of
from ddbench.timeline.chrome import trace_json
from ddbench.timeline.show import own_files, report_of
from ddbench.timeline.summary import Summary, summary_of
from ddbench.timeline.window import window_of


def _page(summaries: Sequence[Summary]) -> str:
    """Imported here: its palette brings matplotlib along, which the other formats do without."""
    from ddbench.timeline.page import render_page

    return render_page(summaries)


FILES: dict[str, Callable[[Sequence[Summary]], str]] = {"html": _page, "json": trace_json}
FORMATS: tuple[str, ...] = ("console", *FILES)
_KINDS: dict[str, str] = {"html": "timeline", "json": "trace for ui.perfetto.dev"}
MOST_NAMED = 8  # cases in a message
PLACE = "timeline"  # below the run, where no other place is given


def show_timeline(
    console: Console, run: Path, asked: Sequence[str], tool: Tool | None, formats: Sequence[str], out: Path | None
) -> list[Path]:
    """Print and write what is asked for; the files come back.

    Without a case, and with several to choose from, they are listed; files of none of them are a UserError.
    """
    _check_formats(formats)
    check_run_folder(run)
    frames = load_run(run)
    candidates = candidates_of(frames)
    found = chosen(candidates, asked, str(run))
    if not found:
        _refuse_files(run, candidates, formats)
        print_report(_listing(candidates), console, is_compact=False)
        return []
    tools = [tool_of(candidate, tool) for candidate in found]
    summaries = [
        summary_of(window_of(frames, run, (candidate.run, candidate.case_id), candidate.label, own))
        for candidate, own in zip(found, tools, strict=True)
    ]
    if "console" in formats:
        print_report(report_of(summaries), console, is_compact=False)
        for path, viewer in (file for summary in summaries for file in own_files(summary)):
            _print_line(console, f"open: {viewer} {path}" if viewer else f"the tool's own file: {path}")
    place = out if out is not None else run / PLACE
    stem = "-".join(["timeline", *(candidate.case_id for candidate in found)])
    written = []
    for name in dict.fromkeys(formats):
        if name in FILES:
            written.append(write_out(place / f"{stem}.{name}", FILES[name](summaries)))
            _print_line(console, f"{_KINDS[name]}: {written[-1]}")
    return written


def _print_line(console: Console, text: str) -> None:
    """Whole, whatever the terminal's width: it is there to be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _check_formats(formats: Sequence[str]) -> None:
    refuse_unknown("format", formats, FORMATS)
    if not formats:
        raise UserError(f"--format names no format: {', '.join(FORMATS)}")


def _refuse_files(run: Path, candidates: Sequence[Candidate], formats: Sequence[str]) -> None:
    """A file shows one case or two, and which of several is not for us to say."""
    asked = [name for name in formats if name in FILES]
    if asked:
        named = [f"{one.number} ({one.label})" for one in candidates if one.is_usable]
        more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
        raise UserError(
            f"{run}: --format {','.join(asked)} shows one case or two, {len(named)} could be: say which with --case: "
            f"{units.listed([*named[:MOST_NAMED], *more])}"
        )


def _listing(candidates: Sequence[Candidate]) -> Report:
    columns = (
        Column("Case"),
        Column("Label", is_number=False),
        Column("Id", is_number=False),
        Column("Captured", is_number=False),
    )
    rows = tuple(
        (Cell(str(one.number)), Cell(one.label), Cell(one.case_id), Cell(one.describe())) for one in candidates
    )
    table = Table("Cases with captures", columns, rows)
    return Report(
        title=f"{len(candidates)} cases have captures.",
        question="Choose one with --case, or two to have them side by side: a number, a label, the start of an id.",
        origin="",
        sections=(Section("cases", "Captures", tables=(table,)),),
    )
