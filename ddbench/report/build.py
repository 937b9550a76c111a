"""Run folders -> reports on disk or on the terminal: what `ddbench report` does, and `ddbench sweep` at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ddbench.analysis.frames import load_run, merge_runs
from ddbench.errors import UserError, did_you_mean
from ddbench.report.console import print_report
from ddbench.report.document import Report
from ddbench.report.evidence import evidence_of
from ddbench.report.html import render_html
from ddbench.report.markdown import FIGURES, render_markdown
from ddbench.report.sections import make_report


def build_report(run_folders: Sequence[Path], formats: Sequence[str], out: Path | None = None) -> list[Path]:
    """Render the runs in every format; returns the files. Default place: `report/` inside the run's own folder."""
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"unknown report format '{name}': {did_you_mean(name, FORMATS)}")
    if not run_folders:
        raise UserError("no run folder to report on: give one or more folders below runs/")
    if out is None and len(run_folders) > 1 and set(formats) != {"console"}:
        raise UserError(f"{len(run_folders)} runs in one report: say where it goes with --out FOLDER")
    report = report_on(run_folders)
    place = out if out is not None else run_folders[0] / "report"
    return [path for name in dict.fromkeys(formats) for path in FORMATS[name](report, place)]


def report_on(run_folders: Sequence[Path]) -> Report:
    """The document, before any format."""
    return make_report(evidence_of(merge_runs([load_run(folder) for folder in run_folders])))


def _write_html(report: Report, place: Path) -> list[Path]:
    return [_write(place / "report.html", render_html(report))]


def _write_markdown(report: Report, place: Path) -> list[Path]:
    text, images = render_markdown(report)
    return [
        _write(place / "report.md", text),
        *(_write(place / FIGURES / name, svg) for name, svg in sorted(images.items())),
    ]


def _print(report: Report, place: Path) -> list[Path]:
    print_report(report, is_compact=False)
    return []


def _write(path: Path, text: str) -> Path:
    """Write so that a reader sees the old file or the whole new one."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): choose another folder with --out") from error
    return path


FORMATS: dict[str, Callable[[Report, Path], list[Path]]] = {
    "html": _write_html,
    "md": _write_markdown,
    "console": _print,
}
