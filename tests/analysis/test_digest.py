"""The digest's entry: one account whatever was there, tables whole or not at all, an older digest never left beside."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddbench.analysis import digest as entry
from ddbench.analysis.digest import READERS, digest, main
from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Capture, CapturedRun, CaptureStart, KernelCounter
from ddbench.records import NotMeasured

COUNTER = {
    "index": 0,
    "name": "gemm<'|,\n>",
    "stage": "verify",
    "basis": "launch",
    "is_replayed": False,
    "metric": "dram_read_bytes",
    "unit": "byte",
    "value": 2.5,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Captures of a case after ncu's driver."""
    (tmp_path / "raw").mkdir()
    start = CaptureStart(
        tool="ncu", tool_version="2025.3.1", seconds=4.0, reads="ncu.csv", raw=("ncu.ncu-rep",), notes=("2 rounds",)
    )
    run = CapturedRun(first_round=4, round_ns=(900, 800), num_emitted=5, outputs={"0": (1,)})
    (tmp_path / "ncu.start.json").write_text(start.model_dump_json())
    (tmp_path / "ncu.run.json").write_text(run.model_dump_json())
    return tmp_path


def read_by(monkeypatch: pytest.MonkeyPatch, reader: Any) -> None:
    monkeypatch.setitem(READERS, "ncu", reader)


def counters(*rows: dict[str, Any]) -> Digested:
    frame = pd.DataFrame([{**COUNTER, **row} for row in rows], columns=list(KernelCounter.model_fields))
    return Digested({"counters": frame}, {"withheld": "", "notes": ("as read",)})


def test_there_is_a_reader_for_every_tool() -> None:
    assert READERS.keys() == TABLES_OF.keys()
    assert {name for names in TABLES_OF.values() for name in names} == set(CAPTURE_TABLES)


def test_a_digest_joins_what_driver_run_and_reader_know(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H30: a name with anything in it comes back as it is."""
    read_by(monkeypatch, lambda _: counters({}, {"index": 1, "value": 0.0}))
    capture = digest(folder, "ncu")
    assert Capture.model_validate_json((folder / "ncu.json").read_text()) == capture
    assert (capture.tool_version, capture.raw, capture.notes) == ("2025.3.1", ("ncu.ncu-rep",), ("2 rounds", "as read"))
    assert (capture.first_round, capture.round_ns, capture.num_emitted) == (4, (900, 800), 5)
    assert capture.fault is None
    assert capture.seconds > 4.0
    table = pd.read_parquet(folder / "ncu-counters.parquet")
    assert table.astype(object).to_dict("records")[0] == COUNTER
    assert not list(folder.glob(".partial*"))


def test_a_problem_becomes_the_fault_and_an_older_digest_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by(monkeypatch, lambda _: counters({}))
    digest(folder, "ncu")

    def failing(_: Path) -> Digested:
        assert not list(folder.glob("ncu-*.parquet"))
        assert not (folder / "ncu.json").exists()
        raise CaptureProblem("no_permission", "no permission for GPU counters", "run as root")

    read_by(monkeypatch, failing)
    capture = digest(folder, "ncu")
    assert capture.fault is not None
    assert (capture.fault.reason, capture.fault.cure) == ("no_permission", "run as root")
    assert (capture.tool_version, capture.round_ns) == ("2025.3.1", (900, 800))
    assert not list(folder.glob("*.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("ncu.start.json", None, "crash"),
        ("ncu.start.json", "{", "unreadable"),
        ("ncu.start.json", '{"tool": "dtrace"}', "unreadable"),
        ("ncu.run.json", None, "crash"),
        ("ncu.run.json", "[]", "unreadable"),
    ],
)
def test_damaged_accounts_are_a_fault(
    name: str, content: str | None, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(monkeypatch, lambda _: counters({}))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    capture = digest(folder, "ncu")
    assert capture.fault is not None
    assert capture.fault.reason == reason
    assert name in capture.fault.what
    assert isinstance(capture.tool_version, NotMeasured) == (name == "ncu.start.json")
    assert str(folder) not in (folder / "ncu.json").read_text()


def test_a_window_without_rounds_is_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by(monkeypatch, lambda _: counters({}))
    run = json.loads((folder / "ncu.run.json").read_text())
    (folder / "ncu.run.json").write_text(json.dumps({**run, "round_ns": []}))
    capture = digest(folder, "ncu")
    assert capture.fault is not None
    assert (capture.fault.reason, capture.fault.what) == ("nothing", "no round ran from round 4 on")


def test_a_full_disk_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    read_by(monkeypatch, lambda _: counters({}))
    monkeypatch.setattr(entry, "write_capture_table", full)
    capture = digest(folder, "ncu")
    assert capture.fault is not None
    assert capture.fault.reason == "disk"
    assert not [place for place in folder.iterdir() if "counters" in place.name]


@pytest.mark.parametrize(
    "broken",
    [
        Digested({}),
        Digested({"counters": pd.DataFrame({"index": [1]})}),
        Digested({"counters": pd.DataFrame([{**COUNTER, "stage": None}])}),
    ],
)
def test_a_reader_that_breaks_the_contract_is_a_bug(
    broken: Digested, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(monkeypatch, lambda _: broken)
    with pytest.raises(AssertionError):
        digest(folder, "ncu")
    assert not (folder / "ncu.json").exists()


def test_the_command_says_0_where_there_is_an_account(folder: Path) -> None:
    (folder / "nsys.start.json").write_text((folder / "ncu.start.json").read_text().replace('"ncu"', '"nsys"'))
    (folder / "nsys.run.json").write_text((folder / "ncu.run.json").read_text())
    command = [sys.executable, "-m", "ddbench.analysis.digest", str(folder), "nsys"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((folder / "nsys.json").read_text())["fault"]["reason"] == "unreadable"


def test_the_command_says_2_where_it_was_not_understood(folder: Path) -> None:
    for arguments in ([str(folder)], [str(folder), "dtrace"], [str(folder / "none"), "nsys"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


def test_no_value_is_changed_by_the_way_to_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.1, 1e-300, 1e300, float(np.nextafter(1, 2))]
    read_by(monkeypatch, lambda _: counters(*({"value": value} for value in values)))
    digest(folder, "ncu")
    assert pd.read_parquet(folder / "ncu-counters.parquet")["value"].tolist() == values
