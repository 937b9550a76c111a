"""Captures of a run in its frames: with their case and tool, whole or a SchemaError, absent without a trace."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.analysis.frames import CONTEXT_COLUMNS, load_run, merge_runs
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.analysis.tables import write_capture_table
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Capture, CaptureFault, LedgerLine
from ddbench.errors import SchemaError
from ddbench.spec import Tool

FRAMES = {
    "ops": "device_ops",
    "calls": "host_calls",
    "ranges": "host_ranges",
    "samples": "stage_samples",
    "counters": "kernel_counters",
}
OP = {"kind": "kernel", "name": "gemm", "stage": "verify", "launch_stage": "", "basis": "capture", "round": 4, "gpu": 0}
OP |= {"stream": 7, "start_ns": 10, "end_ns": 30, "num_bytes": 0, "direction": "", "is_replayed": True, "launch_ns": 5}
CALL = {
    "kind": "graph_launch",
    "name": "cudaGraphLaunch",
    "stage": "",
    "round": 4,
    "thread": 0,
    "start_ns": 5,
    "end_ns": 9,
}
RANGE = {"kind": "round", "name": "", "round": 4, "thread": 0, "start_ns": 0, "end_ns": 50}
SAMPLE = {"gpu": 0, "label": "verify", "metric": "dram_read", "unit": "%", "mean": 3.0, "blended": 2.5}
SAMPLE |= {"num_whole": 1, "num_touching": 2, "time_ns": 20}
COUNTER = {"index": 0, "name": "gemm", "stage": "verify", "basis": "launch", "is_replayed": False}
COUNTER |= {"metric": "dram_read_bytes", "unit": "byte", "value": 1.0}
ROWS: dict[str, dict[str, Any]] = {"ops": OP, "calls": CALL, "ranges": RANGE, "samples": SAMPLE, "counters": COUNTER}


def add_capture(case: Path, tool: Tool, names: tuple[str, ...] = ("gemm",), fault: CaptureFault | None = None) -> Path:
    """A capture with one op per name and one row in every other table."""
    folder = case / "captures"
    folder.mkdir(exist_ok=True)
    lines = (LedgerLine(basis="capture", count=len(names), time_ns=20 * len(names)),) if tool != "ncu" else ()
    capture = Capture(tool=tool, tool_version="1", seconds=1.0, fault=fault, ledger=() if fault else lines)
    (folder / f"{tool}.json").write_text(capture.model_dump_json())
    for table in () if fault else TABLES_OF[tool]:
        rows = [{**OP, "name": name} for name in names] if table == "ops" else [ROWS[table]]
        write_capture_table(folder / f"{tool}-{table}.parquet", CAPTURE_TABLES[table], pd.DataFrame(rows))
    return folder


@pytest.fixture
def run(synthetic_folder: Path, tmp_path: Path) -> Path:
    """A copy to add captures to."""
    return without_captures(Path(shutil.copytree(synthetic_folder, tmp_path / "run")))


def without_captures(run: Path) -> Path:
    for folder in run.glob("cases/*/captures"):
        shutil.rmtree(folder)
    return run


def cases_of(run: Path) -> list[Path]:
    return [run / "cases" / case_id for case_id in load_run(run).cases["case_id"]]


def test_a_run_without_captures_has_the_same_columns(run: Path) -> None:
    without = load_run(run)
    assert without.captures == {}
    for tool in TABLES_OF:
        add_capture(cases_of(run)[0], tool)
    full = load_run(run)
    for name, record in CAPTURE_TABLES.items():
        empty, filled = getattr(without, FRAMES[name]), getattr(full, FRAMES[name])
        assert len(empty) == 0
        assert len(filled) > 0
        assert list(empty.columns) == list(filled.columns)
        own = set(record.model_fields)
        assert not own & {*CONTEXT_COLUMNS, "tool"}
        assert {*own, *CONTEXT_COLUMNS, "tool"} == set(empty.columns)
        for column in empty.columns:
            assert (empty[column].dtype == "category") == (filled[column].dtype == "category"), column


def test_rows_know_their_case_and_their_tool(run: Path) -> None:
    first, second, third, *_ = cases_of(run)
    add_capture(second, "nsys", ("gemm", "a <b> | 'c'\n"))
    add_capture(second, "torch", ("gemm",))
    add_capture(first, "nsys", ("other", "gemm", "gemm"))
    add_capture(third, "ncu")
    frames = load_run(run)
    run_id = frames.manifests[0].run_id
    assert {key: set(tools) for key, tools in frames.captures.items()} == {
        (run_id, first.name): {"nsys"},
        (run_id, second.name): {"nsys", "torch"},
        (run_id, third.name): {"ncu"},
    }
    ops = frames.device_ops
    assert ops.astype(object)[["case_id", "tool", "name"]].values.tolist() == [
        [first.name, "nsys", "other"],
        [first.name, "nsys", "gemm"],
        [first.name, "nsys", "gemm"],
        [second.name, "nsys", "gemm"],
        [second.name, "nsys", "a <b> | 'c'\n"],
        [second.name, "torch", "gemm"],
    ]
    cases = frames.cases.set_index("case_id")
    for column in ("run", "block", "setting"):
        assert (ops[column].astype(object) == ops["case_id"].map(cases[column]).astype(object)).all()
    assert frames.kernel_counters["case_id"].tolist() == [third.name]
    assert set(frames.stage_samples["label"]) == {"verify"}
    assert list(ops["name"].cat.categories) == sorted(ops["name"].cat.categories)


def test_a_fault_has_no_tables_and_a_capture_under_way_is_none(run: Path) -> None:
    first, second, *_ = cases_of(run)
    add_capture(first, "nsys", fault=CaptureFault(reason="importer", what="it lacks libdw.so.1", cure="install it"))
    (second / "captures").mkdir()
    (second / "captures" / "nsys.start.json").write_text("{}")
    frames = load_run(run)
    assert [set(tools) for tools in frames.captures.values()] == [{"nsys"}]
    assert len(frames.device_ops) == 0


def test_runs_merge_with_their_captures(run: Path, tmp_path: Path) -> None:
    plan = SyntheticPlan(cases=make_cases(node_budgets=(8,), num_requests=4, max_new_tokens=8), name="other")
    other = without_captures(build_run(tmp_path / "other", plan))
    add_capture(cases_of(run)[0], "nsys", ("gemm",))
    add_capture(cases_of(other)[1], "nsys", ("copy", "gemm"))
    merged = merge_runs([load_run(run), load_run(other)])
    assert len(merged.captures) == 2
    assert merged.device_ops["run"].nunique() == 2
    assert merged.device_ops["name"].astype(str).tolist() == ["gemm", "copy", "gemm"]


def as_other_kind(table: pa.Table) -> pa.Table:
    return table.set_column(0, "kind", [pa.array(["teapot"] * table.num_rows)])


def with_hole(table: pa.Table) -> pa.Table:
    return table.set_column(table.schema.get_field_index("start_ns"), "start_ns", [pa.array([None], pa.int64())])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "nsys-ops.parquet").unlink(), "nsys-ops.parquet: missing although its capture"),
        (lambda folder: (folder / "nsys-calls.parquet").write_bytes(b"PAR1"), "nsys-calls.parquet: not a readable"),
        (lambda folder: (folder / "nsys.json").write_text("{"), "nsys.json: damaged"),
        (lambda folder: (folder / "nsys.json").write_bytes(b"\xff\xfe"), "nsys.json: cannot be read"),
        (lambda folder: (folder / "nsys.json").rename(folder / "torch.json"), "torch.json: of the tool 'nsys'"),
        (
            lambda folder: rewrite(folder / "nsys-ops.parquet", lambda table: table.slice(1)),
            "nsys-ops.parquet: 0 rows, nsys.json tells of 1",
        ),
        (lambda folder: rewrite(folder / "nsys-ranges.parquet", as_other_kind), "'kind' holds 'teapot', expected one"),
        (lambda folder: rewrite(folder / "nsys-ops.parquet", with_hole), "'start_ns' holds empty values"),
        (
            lambda folder: rewrite(folder / "nsys-samples.parquet", lambda table: table.drop_columns("mean")),
            "column 'mean' is missing",
        ),
    ],
)
def test_damage_names_the_file_and_what_to_do(damage: Any, words: str, run: Path) -> None:
    damage(add_capture(cases_of(run)[0], "nsys"))
    with pytest.raises(SchemaError) as caught:
        load_run(run)
    assert words in str(caught.value)
    assert str(run) in str(caught.value)


def rewrite(path: Path, change: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def test_plain_text_columns_are_read_as_well(run: Path) -> None:
    folder = add_capture(cases_of(run)[0], "nsys", ("gemm", "copy"))
    before = load_run(run).device_ops
    rewrite(folder / "nsys-ops.parquet", lambda table: pa.Table.from_pandas(table.to_pandas().astype({"name": str})))
    pd.testing.assert_frame_equal(load_run(run).device_ops, before)
