"""`qualify --ops`, `bench-ops --ours` and `gate` together, on real ops that run here; ceilings are made up."""

from __future__ import annotations

import json
import runpy
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.opbench import command
from ddbench.opbench.table import BENCH_OPS, Selection
from ddbench.opbench.timing import HostWatch

PLANTED = Path(__file__).resolve().parents[2] / "gpu" / "planted.py"
OP = "tree_compile"
OPS = f"{OP},rms_norm,linear"
GROSS = ("--threshold", "time_us=5000")  # of a machine that does other things too


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: SimpleNamespace) -> None:
    monkeypatch.setattr(command, "measure", lambda device, when, asked: make.ceilings())
    monkeypatch.setattr(command, "watch_of", lambda device, cache: HostWatch(1 << 20, torch.zeros(1 << 16)))
    monkeypatch.setattr(command, "QUICK", make.fast)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the device's lock: no one else's
    monkeypatch.setitem(BENCH_OPS, OP, BENCH_OPS[OP])  # type: ignore[misc]


def call(*words: object) -> Result:
    clean = {"GITHUB_STEP_SUMMARY": None, "GITHUB_ACTIONS": None}
    return CliRunner().invoke(main, [str(word) for word in words], env=clean)


def bench(folder: Path, index: int, ops: str = OPS) -> Path:
    """A run, dated apart from the others."""
    words = ("--ours", "--device", "cpu", "--op", ops, "--format", "json", "--out", folder)
    result = call("bench-ops", *words)
    assert result.exit_code == 0, result.output
    path = folder / "ops.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["created_at"] = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=index)).isoformat()
    path.write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    froms = [word for index in range(3) for word in ("--from", bench(tmp_path / f"repeat-{index}", index))]
    result = call("qualify", *froms, "--out", tmp_path / "base.json")
    assert result.exit_code == 0, result.output
    assert "Noise floors" in result.output
    return tmp_path / "base.json"


def verdicts(folder: Path, kind: str) -> dict[str, str]:
    rows = json.loads((folder / "gate" / "gate.json").read_text(encoding="utf-8"))["rows"]
    return {row["shape"] + " " + row["name"]: row["verdict"] for row in rows if row["kind"] == kind}


def test_the_same_code_passes_and_everything_is_published(tmp_path: Path, base: Path) -> None:
    run = bench(tmp_path / "now", 10)
    result = call("gate", run, "--baseline", base, *GROSS)
    assert result.exit_code == 0, result.output
    assert "gate passed (exit 0)" in result.output
    assert {path.name for path in (run / "gate").iterdir()} == {
        *("gate.html", "gate.md", "gate.json", "comment.md", "junit.xml")
    }
    names = {"launches": "not_gated", "num_bytes": "same", "num_flops": "same"}
    found = verdicts(run, "counter")
    assert all(names[label.rpartition(" ")[2]] == verdict for label, verdict in found.items())
    assert len(found) == 3 * len(verdicts(run, "timing"))


def test_a_planted_slowdown_fails_by_its_time_and_is_named(tmp_path: Path, base: Path) -> None:
    plant = runpy.run_path(str(PLANTED))["plant"]
    words = plant([OP, "--percent", "100000", "--", "--out", "elsewhere"])
    assert words == ["--out", "elsewhere"]
    run = bench(tmp_path / "slow", 11)
    result = call("gate", run, "--baseline", base, *GROSS)
    assert result.exit_code == 1, result.output
    bad = {label for label, verdict in verdicts(run, "timing").items() if verdict == "regression"}
    assert {label.split()[0] for label in bad} == {OP}
    assert set(verdicts(run, "counter").values()) <= {"same", "not_gated"}, "the counters are as they were"


def test_a_longer_context_is_planted_behind_the_same_shape_and_cost() -> None:
    module = runpy.run_path(str(PLANTED))
    op = BENCH_OPS["tree_attention"]
    longer = module["with_longer_context"](op, 0.5)
    (shape,) = (shape for shape in op.shapes if shape.tier == "quick")
    place = command.place_of("cpu")
    inputs = longer.build(place, 1, **shape.dims)
    assert inputs["k"].shape[1] == 1.5 * shape.dims["context"] + shape.dims["nodes"] + 1
    assert longer.cost(inputs) == op.cost(op.build(place, 1, **shape.dims))
    with pytest.raises(SystemExit, match="has no context that could be longer"):
        module["with_longer_context"](BENCH_OPS[OP], 0.5)


def test_a_part_of_the_run_is_gated_when_asked(tmp_path: Path, base: Path) -> None:
    part = bench(tmp_path / "part", 12, OP)
    assert call("gate", part, "--baseline", base, *GROSS).exit_code == 4
    assert call("gate", part, "--baseline", base, *GROSS, "--op", OP).exit_code == 0


def test_ours_on_a_cpu_is_our_plain_torch_and_one_control() -> None:
    kinds = {
        (point.op.name, one.kind)
        for point in Selection("quick", ours_on="cpu").points()
        for one in point.implementations
    }
    assert kinds == {(op, "peer" if op == "linear" else "torch") for op in BENCH_OPS}
    (linear,) = (point for point in Selection("quick", ours_on="cpu").points() if point.op.name == "linear")
    assert [one.name for one in linear.implementations] == ["linear"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("qualify", "--ops", "--blocks", "2", "--out", "b.json"), "a noise floor takes at least 3 repeats"),
        (("qualify", "smoke", "--ops", "--out", "b.json"), "--ops repeats `ddbench bench-ops`: leave out EXPERIMENT"),
        (("qualify", "--ops", "--set", "seed=1", "--out", "b.json"), "leave out --set"),
        (("qualify", "--op", "swiglu", "--out", "b.json"), "--op is about single ops: say --ops too"),
        (("qualify", "--from", "x", "--op", "swiglu", "--out", "b.json"), "takes finished runs as they are"),
        (("gate", "x", "--baseline", "b.json", "--op", "swiglu"), "--op is about single ops, and x holds no ops.json"),
        (("gate", "x", "--baseline", "b.json", "--op", ","), "--op names nothing"),
    ],
)
def test_a_wrong_request_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_folders_of_both_kinds_are_not_mixed(tmp_path: Path, base: Path) -> None:
    (tmp_path / "run").mkdir()
    result = call("qualify", "--from", tmp_path / "repeat-0", "--from", tmp_path / "run", "--out", tmp_path / "b.json")
    assert result.exit_code == 2
    assert "give folders of `ddbench bench-ops` only" in result.stderr


def test_a_folder_without_its_record_is_not_measured(tmp_path: Path, base: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = call("gate", tmp_path / "empty", "--baseline", base)
    assert result.exit_code == 4
    assert "holds no ops.json" in result.output
    assert (tmp_path / "empty" / "gate" / "gate.html").is_file(), "published first, failed last"


def test_the_help_has_examples(tmp_path: Path) -> None:
    helps: dict[str, Any] = {name: call(name, "--help").output for name in ("gate", "qualify", "bench-ops")}
    assert "ddbench gate ops --baseline" in helps["gate"]
    assert "ddbench qualify --ops --out" in helps["qualify"]
    assert "--ours" in helps["bench-ops"]
