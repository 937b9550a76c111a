"""Truncated and bit-flipped exports: a typed error or an answer that holds together, never another exception."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ddbench.analysis.nsys.export import read_export
from ddbench.analysis.nsys.failures import ExportError
from ddbench.analysis.nsys.sampled import stage_metrics

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("nsys_exports.py"))))


def outcome(path: Path) -> str:
    """The whole way; attribution asserts that its ledger adds up."""
    try:
        export = read_export(path)
    except ExportError as error:
        return type(error).__name__
    attribution = made.attribute(export)
    stage_metrics(export, attribution)
    assert sum(line.count for line in attribution.ledger) == len(attribution.ops)
    assert sum(line.time_ns for line in attribution.ledger) >= 0
    return "read"


def flipped(content: bytes, rng: np.random.Generator, num_bits: int) -> bytes:
    damaged = bytearray(content)
    for bit in rng.integers(0, 8 * len(content), num_bits):
        damaged[bit // 8] ^= 1 << (bit % 8)
    return bytes(damaged)


def test_truncated_sqlite_never_reads(tmp_path: Path) -> None:
    whole = made.small_capture().write_sqlite(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    for length in np.linspace(0, len(whole) - 1, 60).astype(int):
        path.write_bytes(whole[:length])
        assert outcome(path) == "TruncatedExport"


def test_truncated_parquet_never_reads(tmp_path: Path) -> None:
    folder = made.small_capture().write_parquet(tmp_path / "capture")
    for place in sorted(folder.iterdir()):
        whole = place.read_bytes()
        for length in np.linspace(0, len(whole) - 1, 8).astype(int):
            place.write_bytes(whole[:length])
            found = outcome(folder)
            assert found == "TruncatedExport" or (place.stem.startswith("CUDA_GRAPH") and found == "read"), place
        place.write_bytes(whole)
    assert outcome(folder) == "read"


@pytest.mark.parametrize("num_bits", [1, 20])
def test_flipped_bits_in_sqlite(num_bits: int, tmp_path: Path) -> None:
    """SQLite has no checksum: a flipped digit of a time is another time, and only what contradicts itself is found."""
    whole = made.small_capture().write_sqlite(tmp_path / "whole.sqlite").read_bytes()
    rng, path, outcomes = np.random.default_rng(num_bits), tmp_path / "flipped.sqlite", set()
    for _ in range(40):
        path.write_bytes(flipped(whole, rng, num_bits))
        outcomes.add(outcome(path))
    assert "read" in outcomes or num_bits > 1


@pytest.mark.parametrize("num_bits", [1, 20])
def test_flipped_bits_in_parquet(num_bits: int, tmp_path: Path) -> None:
    folder = made.small_capture().write_parquet(tmp_path / "capture")
    rng, outcomes = np.random.default_rng(num_bits), set()
    for place in sorted(folder.iterdir()):
        whole = place.read_bytes()
        for _ in range(4):
            place.write_bytes(flipped(whole, rng, num_bits))
            outcomes.add(outcome(folder))
        place.write_bytes(whole)
    assert "DamagedExport" in outcomes


@pytest.mark.parametrize("seed", range(3))
def test_wild_numbers_in_sound_files(seed: int, tmp_path: Path) -> None:
    """Cells that decode but cannot be: every number of every table in turn may be any 64 bits."""
    rng = np.random.default_rng(seed)
    outcomes = set()
    for attempt in range(30):
        rec = made.small_capture()
        table = rec.tables[rng.choice(sorted(rec.tables))]
        row = table[rng.integers(len(table))]
        numbers = sorted(name for name, cell in row.items() if isinstance(cell, int))
        if numbers:
            wild = [-1, 0, 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
            row[rng.choice(numbers)] = wild[rng.integers(len(wild))]
            outcomes.add(outcome(rec.write_sqlite(tmp_path / f"{attempt}.sqlite")))
    assert "DamagedExport" in outcomes
    assert "read" in outcomes
