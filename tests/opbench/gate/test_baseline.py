"""The baseline of ops: what it holds and leaves out, its file, small and the same every time, and what refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.gate.baseline import kept_kind, read_baseline
from ddbench.errors import DdbenchError, SchemaError, UserError
from ddbench.opbench.gate.baseline import (
    OpsBaseline,
    ops_baseline,
    ops_baseline_of_folders,
    ops_baseline_text,
    read_ops_baseline,
    write_ops_baseline,
)
from ddbench.opbench.gate.document import ops_baseline_report
from ddbench.opbench.records import IncorrectRow, NotMeasuredRow
from ddbench.records import NotMeasured
from ddbench.report.markdown import render_markdown


def test_it_holds_what_is_ours_with_a_floor_and_what_is_torchs_as_a_control(maker: Any) -> None:
    base = maker.baseline(range(5))
    assert {row.kind for row in base.rows} == {"ours", "peer"}
    for row in base.rows:
        assert len(row.times_ns) == 5
        assert min(row.times_ns) <= row.typical_ns <= max(row.times_ns)
        assert isinstance(row.floor, NotMeasured) == row.is_control
        assert set(row.counters) == {"launches", "num_bytes", "num_flops"}
    assert {row.bound for row in base.rows} == {"read cold", "read hot", "matmul", "replay"}
    assert set(base.ceilings) == {"read cold", "read hot", "matmul", "replay", "launch"}


def test_of_a_whole_run_it_keeps_the_foremost_kind_and_one_control(make: Any) -> None:
    names = {"op": "linear", "kind": "peer", "cache": "cold"}
    file = make.file(
        make.row(implementation="triton"),
        make.row(implementation="triton_bits"),
        make.row(implementation="plain", kind="torch"),
        make.row(implementation="sdpa", kind="peer"),
        make.row(op="other", implementation="plain", kind="torch"),
        make.row(op="other", implementation="sdpa", kind="peer"),
        make.row(**names, implementation="linear"),
        make.row(**{**names, "cache": "hot"}, implementation="linear"),
        make.row(**names, implementation="laid_out"),
    )
    kept = [(row.op, row.implementation, row.cache) for row in ops_baseline([file]).rows]
    assert kept == [
        ("copy", "triton", "cold"),
        ("copy", "triton_bits", "cold"),
        ("other", "plain", "cold"),
        ("linear", "linear", "cold"),
        ("linear", "linear", "hot"),
    ]


def test_its_file_is_small_names_nobody_and_is_the_same_every_time(tmp_path: Path, maker: Any) -> None:
    base = maker.baseline(range(5))
    text = ops_baseline_text(base)
    assert len(text) < 100_000
    assert text == ops_baseline_text(maker.baseline(range(5)))
    assert json.loads(text) == base.model_dump(mode="json")
    assert not any(word in text for word in ("/home", "/root", "/tmp", "runs/"))
    write_ops_baseline(tmp_path / "kept" / "ops.json", base)
    assert read_ops_baseline(tmp_path / "kept" / "ops.json") == base
    assert kept_kind(tmp_path / "kept" / "ops.json") == "ops"


def test_the_two_kinds_of_baselines_are_told_apart(tmp_path: Path, maker: Any) -> None:
    write_ops_baseline(tmp_path / "ops.json", maker.baseline(range(3)))
    with pytest.raises(SchemaError, match=r"a baseline of single ops .*, to be held against runs of an experiment"):
        read_baseline(tmp_path / "ops.json")
    (tmp_path / "runs.json").write_text('{"schema_version": 1, "shapes": []}', encoding="utf-8")
    with pytest.raises(SchemaError, match=r"a baseline of runs of an experiment .*, to be held against single ops"):
        read_ops_baseline(tmp_path / "runs.json")
    assert kept_kind(tmp_path / "runs.json") == "runs"
    assert kept_kind(tmp_path / "absent.json") is None


def damaged(base: OpsBaseline, **row: Any) -> str:
    data = base.model_dump(mode="json")
    data["rows"][0] |= row
    return json.dumps(data)


@pytest.mark.parametrize(
    "row", [{"times_ns": []}, {"times_ns": [1.0, -1.0, 1.0]}, {"times_ns": [1.0]}, {"floor": 0}, {"unknown": 1}]
)
def test_values_that_cannot_be_are_refused_when_read(tmp_path: Path, maker: Any, row: dict[str, Any]) -> None:
    path = tmp_path / "ops.json"
    path.write_text(damaged(maker.baseline(range(3)), **row), encoding="utf-8")
    with pytest.raises(SchemaError, match="damaged or from another version") as caught:
        read_ops_baseline(path)
    assert "ddbench qualify --ops" in str(caught.value)


def test_counters_that_repeats_do_not_agree_on_are_no_exact_numbers(make: Any) -> None:
    files = [
        make.file(make.row(launches=launches)).model_copy(update={"created_at": str(launches)}) for launches in (1, 2)
    ]
    (row,) = ops_baseline(files).rows
    assert isinstance(row.counters["launches"], NotMeasured)
    assert row.counters["num_bytes"] == 50_000
    assert isinstance(row.floor, NotMeasured), "two repeats are too few"


def test_a_baseline_with_holes_is_not_made(make: Any) -> None:
    names = {"op": "copy", "shape": "large", "about": "", "implementation": "triton", "kind": "ours"}
    whole, later = make.file(make.row(), make.row(shape="large")), {"created_at": "later"}
    wrong = make.file(make.row(), IncorrectRow(**names, detail="off by one"))
    with pytest.raises(DdbenchError, match="copy large triton is incorrect \\(off by one\\)"):
        ops_baseline([wrong])
    hole = make.file(make.row(), NotMeasuredRow(**names, reason="out of memory")).model_copy(update=later)
    with pytest.raises(UserError, match="copy large triton cold is in one of them only \\(out of memory\\)"):
        ops_baseline([whole, hole])
    with pytest.raises(UserError, match="a repeat is there twice"):
        ops_baseline([whole, whole])
    other = whole.environment.model_copy(update={"code_digest": "1"})
    with pytest.raises(UserError, match="are of different code"):
        ops_baseline([whole, whole.model_copy(update={"environment": other, **later})])
    with pytest.raises(UserError, match="were measured at different places: dtype"):
        ops_baseline([whole, whole.model_copy(update={"dtype": "bfloat16", **later})])
    with pytest.raises(DdbenchError, match="nothing of ours was measured"):
        ops_baseline([make.file(make.row(kind="peer"))])


def test_folders_are_read_and_a_missing_record_says_how_to_get_one(tmp_path: Path, maker: Any) -> None:
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "ops.json").write_text(maker.file(seed).model_dump_json(), encoding="utf-8")
    assert ops_baseline_of_folders([tmp_path / str(seed) for seed in range(3)]) == maker.baseline(range(3))
    with pytest.raises(SchemaError, match=r"holds no ops.json; measure it with: ddbench bench-ops --ours"):
        ops_baseline_of_folders([tmp_path])


def test_its_document_shows_every_floor_and_how_many_see_five_percent(maker: Any) -> None:
    base = maker.baseline(range(5))
    text = render_markdown(ops_baseline_report(base))[0]
    assert text.count("moe\\_experts\\_int4") == sum(row.op == "moe_experts_int4" for row in base.rows)
    floors = {row.key: row.floor for row in base.rows if isinstance(row.floor, float)}
    seen = sum(max(floors[row.key], 200 / row.typical_ns) <= 0.05 for row in base.rows if row.key in floors)
    assert 0 < seen < len(floors)
    (fact,) = (fact for fact in ops_baseline_report(base).sections[0].facts if fact.label == "See 5.00 %")
    assert (fact.value, fact.subject) == (str(seen), f"of {len(floors)} times")
    assert "matmul" in text
