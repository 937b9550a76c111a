"""Committed evidence is what its rows say: made again, every report is the same to the byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib as mpl
import pytest

from ddbench.report.build import build_report

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = sorted(manifest.parent for manifest in REPORTS.glob("*/manifest.json"))
DRAWN_WITH = "3.11.2"  # another release of matplotlib draws other bytes


def contents(folder: Path, kinds: tuple[str, ...]) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.suffix in kinds}


def test_there_is_evidence() -> None:
    assert len(RUNS) >= 4


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_committed_report_is_made_again_of_its_rows(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report"))
    build_report([copy], ("html", "md"))
    kinds = (".md", ".csv") if mpl.__version__ != DRAWN_WITH else (".md", ".csv", ".html", ".svg")
    assert contents(copy / "report", kinds) == contents(run / "report", kinds)
