"""GateResult -> files: gate.html, gate.md, gate.json, comment.md, JUnit XML, the step's summary.

Everything is written before anybody fails: the report of a run that failed is the one that is needed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ddbench.analysis.gate.rows import GateResult
from ddbench.files import write_atomically
from ddbench.report.gate_report import attention_lines, gate_report, lean
from ddbench.report.github import annotation_lines, comment_text, summary_text
from ddbench.report.html import render_html
from ddbench.report.junit import junit_text
from ddbench.report.markdown import render_markdown


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files go."""

    folder: Path
    junit: Path | None = None  # without: junit.xml in the folder
    summary: Path | None = None  # appended to


@dataclass(frozen=True, slots=True)
class Published:
    """The files, and why others could not be written."""

    files: tuple[Path, ...]
    faults: tuple[str, ...]

    def exit_code(self, result: GateResult) -> int:
        """A regression stays one; otherwise a report that nobody can read is a failure of its own."""
        return 4 if self.faults and result.exit_code != 1 else result.exit_code


def publish(result: GateResult, places: Places) -> Published:
    """Write everything. One file that cannot be written does not keep the others from it."""
    report = gate_report(result)
    short, _ = render_markdown(lean(report))
    texts = {
        places.folder / "gate.html": render_html(report),
        places.folder / "gate.md": render_markdown(report)[0],
        places.folder / "gate.json": gate_json(result),
        places.folder / "comment.md": comment_text(short),
        places.junit or places.folder / "junit.xml": junit_text(result),
    }
    files, faults = [], []
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text, errors="replace")
            files.append(path)
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
    if places.summary is not None:
        try:
            _append(places.summary, short)
        except OSError as error:
            faults.append(f"{places.summary}: {error.strerror}")
    return Published(tuple(files), tuple(faults))


def lines(result: GateResult, published: Published, has_annotations: bool) -> list[str]:
    """What standard output says after the report: what needs a look, the files, and the verdict last."""
    found = attention_lines(result)
    found += annotation_lines(result) if has_annotations else ()
    found += [f"gate: {file}" for file in published.files]
    found += [f"cannot be written: {fault}" for fault in published.faults]
    code = published.exit_code(result)
    last = "" if code == result.exit_code else f"; exit {code}: not every file could be written"
    return [*found, result.headline + last]


def gate_json(result: GateResult) -> str:
    """The result for programs."""
    data = {**result.model_dump(mode="json"), "exit_code": result.exit_code, "headline": result.headline}
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _append(path: Path, markdown: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    used = path.stat().st_size if path.exists() else 0
    with path.open("ab") as file:
        file.write(summary_text(markdown, used).encode("utf-8", "replace"))
