"""The command: what it writes, what it shows, and its exit codes. Ceilings are made up, so that it takes no time."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.opbench import command
from ddbench.opbench.document import CSV_COLUMNS, ops_csv, ops_report
from ddbench.opbench.records import IncorrectRow, Kind, NotMeasuredRow, OpsFile, Target
from ddbench.opbench.timing import HostWatch
from ddbench.ops import OPS, why_not
from ddbench.report.document import Section
from ddbench.report.markdown import render_markdown
from ddbench.spec import from_json

NO_TRITON = why_not(OPS["rms_norm"], "triton", "cpu")  # no triton here, or no GPU


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: SimpleNamespace) -> None:
    monkeypatch.setattr(command, "measure", lambda device, when, asked: make.ceilings())
    monkeypatch.setattr(command, "watch_of", lambda device, cache: HostWatch(1 << 16, torch.zeros(1 << 16)))
    monkeypatch.setattr(command, "QUICK", make.fast)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the device's lock: no one else's


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench-ops", *arguments])


def test_it_explains_itself_with_an_example() -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert "ddbench bench-ops --quick" in result.output
    assert "bench-ops" in CliRunner().invoke(main, ["--help"]).output


def test_a_cpu_is_quick_says_so_and_writes_three_files(tmp_path: Path) -> None:
    result = call("--device", "cpu", "--op", "rms_norm,tree_compile", "--out", str(tmp_path / "ops"))
    assert result.exit_code == 0, result.output
    assert "Quick: tiny shapes and few samples." in result.output
    assert f"not measured: {NO_TRITON}" in result.output
    file = from_json(OpsFile, (tmp_path / "ops" / "ops.json").read_text(encoding="utf-8"), "ops.json")
    assert file.selection == "quick"
    assert {row.op for row in file.rows} == {"rms_norm", "tree_compile"}
    assert {row.status for row in file.rows} == {"ok", "not_measured"}
    assert file.ceilings.samples
    assert "## rms\\_norm" in (tmp_path / "ops" / "ops.md").read_text(encoding="utf-8")
    rows = list(csv.DictReader((tmp_path / "ops" / "ops.csv").open(encoding="utf-8")))
    assert len(rows) == len(file.rows)


def test_only_the_formats_asked_for_are_written(tmp_path: Path) -> None:
    result = call("--device", "cpu", "--op", "swiglu", "--out", str(tmp_path / "ops"), "--format", "csv")
    assert result.exit_code == 0
    assert [path.name for path in (tmp_path / "ops").iterdir()] == ["ops.csv"]
    assert "Overview" not in result.output


def test_an_interruption_ends_in_one_line_and_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr("ddbench.opbench.run._rows", interrupted)
    result = call("--device", "cpu", "--op", "swiglu", "--out", str(tmp_path / "ops"))
    assert result.exit_code == 130
    assert result.stderr == "error: interrupted; what was measured by then is kept\n"
    assert (tmp_path / "ops" / "ops.json").exists()


def test_a_dry_run_shows_the_points_and_writes_nothing(tmp_path: Path) -> None:
    result = call("--device", "cpu", "--op", "commit_kv", "--full", "--dry-run", "--out", str(tmp_path / "ops"))
    assert result.exit_code == 0
    assert "commit_kv kimi-k2.6-b16-a7" in result.output
    assert f"triton (ours): {NO_TRITON}" in result.output
    assert not (tmp_path / "ops").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--op", "tree_buld"), "unknown op 'tree_buld': did you mean 'tree_build'?"),
        (("--quick", "--full"), "--quick and --full ask for opposite things"),
        (("--format", "htm"), "unknown format 'htm'"),
        (("--op", " , "), "--op names nothing"),
        (("--shape", "n64-b61"), "unknown shape 'n64-b61': did you mean 'n64-b1"),
    ],
)
def test_a_wrong_request_is_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = call("--device", "cpu", "--out", str(tmp_path / "ops"), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "ops" / "ops.json").exists()


def test_nothing_measured_is_exit_code_4(tmp_path: Path) -> None:
    result = call("--device", "cpu", "--op", "swiglu", "--implementation", "triton", "--out", str(tmp_path / "ops"))
    assert result.exit_code == 4
    assert (tmp_path / "ops" / "ops.md").exists(), "published first, failed last"


@pytest.mark.parametrize(("kind", "code"), [("ours", 1), ("torch", 1), ("peer", 0)])
def test_something_incorrect_of_ours_is_exit_code_1(make: SimpleNamespace, kind: Kind, code: int) -> None:
    wrong = IncorrectRow(op="copy", shape="small", about="", implementation="x", kind=kind, detail="off by one")
    assert command.exit_code(make.file(make.row(), wrong)) == code
    assert command.exit_code(make.file(make.row())) == 0
    assert command.exit_code(make.file(wrong)) == (code or 4), "and nothing was measured"


def test_a_target_of_a_row_without_a_time_is_counted_and_not_met(make: SimpleNamespace) -> None:
    targets = (Target(metric="time_us", limit=1000.0),)
    names = {"op": "copy", "about": "", "implementation": "triton", "kind": "ours", "targets": targets}
    wrong = IncorrectRow(**names, shape="wrong", detail="off by one")
    absent = NotMeasuredRow(**names, shape="absent", reason="out of memory")
    text = render_markdown(ops_report(make.file(make.row(targets=targets), wrong, absent)))[0]
    assert "1 of 3" in text
    assert "unknown: the result is incorrect" in text
    assert "unknown: not measured: out of memory" in text


def whole(make: SimpleNamespace) -> OpsFile:
    targets = (Target(metric="time_us", limit=80.0), Target(metric="share_of_floor", limit=0.4))
    names = {"op": "copy", "shape": "small", "about": "4 numbers", "kind": "peer"}
    return make.file(
        make.row(targets=targets),
        make.row(implementation="torch", kind="torch", time_ns=250_000.0, clock="host"),
        IncorrectRow(**names, implementation="wrong", detail="result: 3 of 4 differ"),
        NotMeasuredRow(**names, implementation="flex", reason="a | pipe"),
        make.row(op="other", num_bytes=2e5, time_ns=1e5),
    )


def test_the_report_shows_every_row_every_target_and_every_reason(make: SimpleNamespace) -> None:
    report = ops_report(whole(make))
    sections = [section for section in report.sections if isinstance(section, Section)]
    assert [section.name for section in sections] == ["overview", "copy", "other", "ceilings"]
    (table,) = sections[1].tables
    titles = [column.title for column in table.columns]
    cells = {row[0].text: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert cells["triton"]["of floor"].text == "50.0"
    assert cells["triton"]["target"].text == "missed", "the worst of its targets"
    assert cells["torch"]["time"].text == "250 h"
    assert cells["torch"]["vs ours"].text == "2.50"
    assert (cells["wrong"]["cache"].text, cells["wrong"]["time"].text) == ("incorrect", "-")
    assert table.notes == (
        "wrong: incorrect: result: 3 of 4 differ",
        "flex: not measured: a | pipe",
    )
    targets = [row[3].text for row in sections[0].tables[0].rows]
    assert targets == ["missed: 100 us (at most 80.0)", "met: 50.0 % of floor (at least 40.0)"]
    (other,) = sections[2].tables
    assert dict(zip(titles, other.rows[0], strict=True))["of floor"].tone == "warn", "faster than the floor is a fault"
    assert "missed: 100 us" in render_markdown(report)[0]


def test_the_csv_holds_exact_values_and_leaves_out_what_is_missing(make: SimpleNamespace) -> None:
    rows = list(csv.DictReader(ops_csv(whole(make)).splitlines()))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert float(rows[0]["floor_ns"]) == pytest.approx(50_000)
    assert rows[0]["bound"] == "bytes"
    assert rows[2]["reason"] == "result: 3 of 4 differ"
    assert (rows[3]["time_ns"], rows[3]["reason"]) == ("", "a | pipe")


def test_the_record_survives_its_file(make: SimpleNamespace) -> None:
    file = whole(make)
    assert from_json(OpsFile, file.model_dump_json(), "ops.json") == file
