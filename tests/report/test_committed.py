"""Committed evidence is what its rows say: made again, every report is the same to the byte."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import matplotlib as mpl
import pytest

from ddbench import units
from ddbench.report.build import build_report

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = sorted(manifest.parent for manifest in REPORTS.glob("*/manifest.json"))
DRAWN_WITH = "3.11.2"  # another release of matplotlib draws other bytes


def contents(folder: Path, kinds: tuple[str, ...]) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.suffix in kinds}


def difference(name: str, made: bytes, kept: bytes) -> str:
    """Where two texts part, in words that fit a line."""
    at = next((i for i, pair in enumerate(zip(made, kept, strict=False)) if pair[0] != pair[1]), 0)
    around = slice(max(at - 80, 0), at + 80)
    return f"{name}, byte {at}: made {made[around]!r}, kept {kept[around]!r}"


def test_there_is_evidence() -> None:
    assert len(RUNS) >= 4


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_committed_report_is_made_again_of_its_rows(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report"))
    build_report([copy], ("html", "md"))
    kinds = (".md", ".csv") if mpl.__version__ != DRAWN_WITH else (".md", ".csv", ".html", ".svg")
    made, kept = contents(copy / "report", kinds), contents(run / "report", kinds)
    assert made.keys() == kept.keys()
    assert not [difference(name, made[name], kept[name]) for name in kept if made[name] != kept[name]]


def test_last_bits_of_a_number_are_in_no_report() -> None:
    """Products of long vectors end otherwise with another number of threads: seen in one value of four reports."""
    assert units.repeatable(0.07220321396698091) == units.repeatable(0.07220321396698093) == "0.072203213967"
    assert [units.repeatable(value) for value in (3, 2.0, 57_000_000_001.0, "c=1")] == ["3", "2", "57000000001", "c=1"]
    for run in RUNS:
        for path in (run / "report").rglob("*.html"):
            keys = re.findall(r'data-sort="(-?\d*\.\d+)"', path.read_text(encoding="utf-8"))
            assert max(len(key.replace(".", "").lstrip("-0")) for key in keys) <= 12
