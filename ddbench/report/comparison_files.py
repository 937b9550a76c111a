"""`ddbench compare` from its words to its files: which runs, which question, which formats.

Between the command line and `comparison`. JSON is the same comparison for programs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddbench.analysis.compare.comparison import (
    Comparison,
    Comparisons,
    Match,
    compare_arms,
    compare_parts,
    compare_runs,
)
from ddbench.analysis.compare.diagnosis import Diagnosis, diagnose
from ddbench.analysis.compare.judge import Floors
from ddbench.analysis.frames import load_run
from ddbench.analysis.gate.baseline import Baseline, read_baseline
from ddbench.errors import UserError, did_you_mean, shown
from ddbench.files import write_out
from ddbench.records import NotMeasured
from ddbench.report.comparison import comparison_report
from ddbench.report.console import print_report
from ddbench.report.document import Report
from ddbench.report.html import render_html
from ddbench.report.markdown import FIGURES, render_markdown
from ddbench.spec import EngineSpec, parse_axis

FORMATS: tuple[str, ...] = ("html", "md", "console", "json")
FILES: tuple[str, ...] = ("html", "md")  # formats that need a place


def compare_folders(
    runs: Sequence[Path],
    *,
    arms: Sequence[str] = (),
    where: str | None = None,
    floors: Path | None = None,
    **options: Any,
) -> Comparisons:
    """What the command line asks for: two runs, or two arms or two variants of one."""
    one_run = bool(arms) + bool(where)
    if one_run > 1:
        raise UserError("--arms and --where are two questions: ask one at a time")
    if one_run and len(runs) != 1:
        raise UserError(f"{'--arms' if arms else '--where'} compares within one run: got {len(runs)} run folders")
    if not one_run and len(runs) != 2:
        raise UserError(
            f"expected two run folders, A (before) and B (after), got {len(runs)}; within one run: --arms chain,ddtree"
        )
    if len(runs) == 2 and runs[0].resolve() == runs[1].resolve():
        raise UserError(f"{runs[0]} is both A and B: give two run folders, or one with --arms chain,ddtree")
    loaded = [load_run(run) for run in runs]
    if floors is not None:
        options["floors"] = floors_of(read_baseline(floors))
    if arms:
        if len(arms) != 2:
            raise UserError(f"--arms: expected two arms, the base first (chain,ddtree), got {len(arms)}")
        return compare_arms(loaded[0], *arms, **options)
    if where:
        return compare_parts(loaded[0], *_parts(where), **options)
    return compare_runs(loaded[0], loaded[1], **options)


def floors_of(baseline: Baseline) -> Floors:
    """Noise floors between runs of the same code, where the baseline has seen several."""
    return {
        (shape.key, name): samples.floor.value
        for shape in baseline.shapes
        for name, samples in shape.metrics.items()
        if not isinstance(samples.floor, NotMeasured) and not isinstance(samples.floor.runs, NotMeasured)
    }


def _parts(where: str) -> tuple[str, Any, Any]:
    name, equals, values = where.partition("=")
    axis = parse_axis(name.strip(), values) if equals else None
    if axis is None or len(axis.values) != 2 or axis.name not in EngineSpec.model_fields:
        raise UserError(f"--where: expected ENGINE_FIELD=BASE,CANDIDATE (tree_build=heap,device), got {shown(where)}")
    return axis.name, axis.values[0], axis.values[1]


# --- where it goes ----------------------------------------------------------------------------------------------------


def check_formats(formats: Sequence[str], out: Path | None) -> None:
    """Before anything is read: formats that exist, and a place for those that need one."""
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"unknown format {shown(name)}: {did_you_mean(name, FORMATS)}")
    homeless = [name for name in formats if name in FILES]
    if not formats:
        raise UserError(f"--format names no format: {', '.join(FORMATS)}")
    if homeless and out is None:
        raise UserError(f"--format {','.join(homeless)}: say where the comparison goes with --out FOLDER")


def publish(found: Comparisons, formats: Sequence[str], out: Path | None) -> tuple[list[Path], str]:
    """Print and write every format; -> the files, and the JSON text where it has no file to go to."""
    check_formats(formats, out)
    report = comparison_report(found)
    files: list[Path] = []
    for name in dict.fromkeys(formats):
        if name == "console":
            print_report(report)
        elif out is not None:
            files += [write_out(out / path, text) for path, text in _contents(name, found, report).items()]
    return files, comparison_json(found) if "json" in formats and out is None else ""


def _contents(name: str, found: Comparisons, report: Report) -> dict[str, str]:
    """The files of one format: path below the folder -> text."""
    if name == "html":
        return {"comparison.html": render_html(report)}
    if name == "json":
        return {"comparison.json": comparison_json(found)}
    text, images = render_markdown(report)
    return {"comparison.md": text, **{f"{FIGURES}/{image}": svg for image, svg in sorted(images.items())}}


def comparison_json(found: Comparisons) -> str:
    """The same for programs: verdicts, reasons, effects, counters, cause."""
    diagnosis = diagnose(found)
    record = {
        "verdict": found.verdict,
        "exit_code": found.exit_code,
        "sides": {side.letter: {"title": side.title, "run": side.manifest.run_id} for side in found.sides},
        "is_interleaved": found.is_interleaved,
        "min_effect": found.min_effect,
        "lost": found.lost,
        "matches": [_match_record(match) for match in found.matches],
        "unmatched": [asdict(one) for one in found.unmatched],
        "diagnosis": None if diagnosis is None else _diagnosis_record(diagnosis),
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _match_record(match: Match) -> dict[str, Any]:
    return {
        "label": match.label,
        "concurrency": match.concurrency,
        "verdict": match.verdict,
        "obstacles": [asdict(reason) for reason in match.obstacles],
        "remarks": [asdict(reason) for reason in match.remarks],
        "metrics": {name: _comparison_record(comparison) for name, comparison in match.comparisons.items()},
        "counters": [asdict(change) for change in match.counters],
    }


def _comparison_record(comparison: Comparison) -> dict[str, Any]:
    effect, decision = comparison.decision.effect, comparison.decision
    values = {
        side: {"not_measured": value.not_measured} if isinstance(value, NotMeasured) else value.value
        for side, value in (("a", comparison.a), ("b", comparison.b))
    }
    shown = {"not_measured": effect.not_measured} if isinstance(effect, NotMeasured) else asdict(effect)
    judged = {"verdict": decision.verdict, "reasons": decision.reasons, "q_value": decision.q_value}
    return {**values, **judged, "basis": comparison.basis, "effect": shown}


def _diagnosis_record(found: Diagnosis) -> dict[str, Any]:
    return {
        "label": found.match.label,
        "concurrency": found.match.concurrency,
        "cause": found.cause,
        "control": found.control,
        "sentences": found.sentences,
        "cautions": found.cautions,
        "next_step": found.next_step,
        "round": None if found.round is None else asdict(found.round),
    }
