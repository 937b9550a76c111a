"""Reading exports: both forms and all schema versions say the same, and every failure is told apart."""

import runpy
import sqlite3
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.analysis.nsys import failures
from ddbench.analysis.nsys.export import NsysExport, read_export

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("nsys_exports.py"))))
FORMS = ("sqlite", "parquet")
MAIN = made.MAIN
BROKEN = failures.ExportError


def assert_same(left: NsysExport, right: NsysExport) -> None:
    for field in fields(NsysExport):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a, b, obj=field.name, check_categorical=False)


# --- what is right ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("version", made.VERSIONS)
def test_every_version_and_form_reads_the_same(form: str, version: str, tmp_path: Path) -> None:
    """H16: what a table means is decided by its columns; H24: a version's further columns are passed over."""
    expected = read_export(made.small_capture().write_sqlite(tmp_path / "expected.sqlite"))
    export = read_export(made.small_capture().write(tmp_path, form, version))
    assert_same(export, expected)
    assert export.schema_version == version
    assert export.notes == ()
    assert len(export.node_events) == 4


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_is_what_was_recorded(form: str, tmp_path: Path) -> None:
    export = read_export(made.small_capture().write(tmp_path, form))
    assert export.kernels["name"].tolist() == ["draft<gemm, 'x'>", "verify_gemm"] * 2
    assert export.kernels["start_ns"].tolist() == [10_000, 20_000, 100_000, 120_000]
    assert export.kernels["graph_node"].tolist() == [0, 0, (2 << 32) | 1, (2 << 32) | 2]
    assert export.copies[["direction", "num_bytes"]].values.tolist() == [["device to host", 4096]]
    assert export.memsets["num_bytes"].tolist() == [64]
    assert export.api_calls["name"].tolist()[3] == "cudaGraphLaunch_v10000"
    assert export.node_events["original"].tolist() == [0, 0, (1 << 32) | 1, (1 << 32) | 2]
    assert export.ranges["name"].tolist() == ["draft", "verify", "round/0", "draft", "verify", "round/1"]
    assert set(export.ranges["domain"]) == {"ddbench"}
    assert export.samples["metric"].value_counts().loc[["dram_read", "clock"]].tolist() == [20, 20]
    assert len(export.samples) == 40  # PCIe is nobody's metric
    assert export.gpus["dram_bytes_per_s"].tolist() == [4_800_000_000_000]
    assert export.diagnostics == ("buffers were flushed late",)


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_table_means_the_same_as_an_absent_one(form: str, tmp_path: Path) -> None:
    (tmp_path / "lazy").mkdir()
    lazy = read_export(made.small_capture().write(tmp_path / "lazy", form))
    assert_same(read_export(made.small_capture().write(tmp_path, form, is_lazy=False)), lazy)


@pytest.mark.parametrize("form", FORMS)
def test_large_numbers_are_exact(form: str, tmp_path: Path) -> None:
    """Node ids carry the graph in their high half, beyond what a float holds."""
    rec = made.Recorder()
    node, start = (77 << 32) | 12_345, (1 << 59) + 3
    rec.kernel(MAIN, 1, start, start + 1, graphNodeId=node)
    export = read_export(rec.write(tmp_path, form))
    assert export.kernels[["graph_node", "start_ns", "end_ns"]].values.tolist() == [[node, start, start + 1]]


def test_more_rows_than_one_text_holds(tmp_path: Path) -> None:
    """SQLite is read in pieces by row number; gaps between the numbers lose nothing."""
    path = made.small_capture().write_sqlite(tmp_path / "capture.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("DELETE FROM GPU_METRICS")
        rows = [(1 + 7 * index, index, 5 << 32, 3, index % 101) for index in range(60_000)]
        database.executemany(
            "INSERT INTO GPU_METRICS (rowid, timestamp, typeId, metricId, value) VALUES (?, ?, ?, ?, ?)", rows
        )
    database.close()
    samples = read_export(path).samples
    assert samples["time_ns"].tolist() == list(range(60_000))
    assert samples["value"].tolist() == [index % 101 for index in range(60_000)]


@pytest.mark.parametrize("form", FORMS)
def test_a_newer_version_is_read_by_its_columns_and_noted(form: str, tmp_path: Path) -> None:
    """H24."""
    export = read_export(made.small_capture().write(tmp_path, form, "4.1.0"))
    assert len(export.kernels) == 4
    assert "4.1.0" in export.notes[0]


@pytest.mark.parametrize("form", FORMS)
def test_names_come_from_text_or_string_id_or_say_that_there_is_none(form: str, tmp_path: Path) -> None:
    """H5."""
    rec = made.Recorder()
    rec.domain(MAIN)
    rec.nvtx(MAIN, "registered", 10, 20)
    rec.nvtx(MAIN, "passed over", 30, 40, text="verify")
    rec.nvtx(MAIN, "lost", 50, 60, textId=None)
    rec.kernel(MAIN, 1, 10, 20, demangledName=999)
    export = read_export(rec.write(tmp_path, form))
    assert export.ranges["name"].tolist() == ["registered", "verify", "<unnamed>"]
    assert export.kernels["name"].tolist() == ["<unnamed>"]
    assert export.notes == ("1 string ids have no text: read as <unnamed>",)


@pytest.mark.parametrize("form", FORMS)
def test_a_domain_is_that_of_its_own_process(form: str, tmp_path: Path) -> None:
    """H6: ids of domains are numbered per process; the default domain was never created."""
    rec, other = made.Recorder(), made.thread_id(99, 1)
    rec.domain(MAIN, "ddbench", 1)
    rec.domain(other, "NCCL", 1)
    rec.nvtx(MAIN, "verify", 10, 20)
    rec.nvtx(other, "verify", 10, 20)
    rec.nvtx(MAIN, "verify", 30, 40, domainId=0)
    rec.nvtx(MAIN, "verify", 50, 60, domainId=7)
    ranges = read_export(rec.write(tmp_path, form)).ranges
    assert ranges["domain"].tolist() == ["ddbench", "NCCL", "", "<domain 7>"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", [None, 500])
def test_a_range_that_was_not_closed_is_marked(form: str, end: int | None, tmp_path: Path) -> None:
    """H2: nsys ends it with its process and says nothing."""
    rec = made.Recorder()
    rec.domain(MAIN)
    rec.nvtx(MAIN, "draft", 10, 20)
    rec.nvtx(MAIN, "verify", 30, end)
    rec.call(MAIN, 40, 450)
    ranges = read_export(rec.write(tmp_path, form)).ranges
    assert ranges["is_unclosed"].tolist() == [False, True]
    assert ranges["end_ns"].tolist() == [20, 500 if end else 450]


@pytest.mark.parametrize("form", FORMS)
def test_a_capture_without_a_device_is_sound(form: str, tmp_path: Path) -> None:
    """H25."""
    rec = made.Recorder()
    rec.nvtx(MAIN, "verify", 10, 20)
    export = read_export(rec.write(tmp_path, form))
    assert export.is_cpu_only
    assert len(export.ranges) == 1


def narrowed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values as an exporter may well type them: unsigned, small, without a type where no cell is filled."""
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))])
    if column.type == pa.string():
        return column.cast(pa.large_string())
    for kind in (pa.uint8(), pa.uint32(), pa.uint64(), pa.int64()) if column.type == pa.int64() else ():
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column


def test_numbers_of_any_width_and_sign_read_the_same(tmp_path: Path) -> None:
    folder = made.small_capture().write_parquet(tmp_path / "capture")
    expected = read_export(folder)
    kinds = set()
    for place in folder.iterdir():
        table = pq.read_table(place)
        columns = [narrowed(column) for column in table.columns]
        kinds.update(str(column.type) for column in columns)
        pq.write_table(pa.table(columns, names=table.column_names), place)
    assert {"null", "uint8", "uint32", "uint64", "large_string"} <= kinds
    assert_same(read_export(folder), expected)


# --- what is wrong ---


def edited(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        for statement in statements:
            database.execute(statement)
    database.close()
    return path


def raised(path: Path) -> BROKEN:
    with pytest.raises(BROKEN) as caught:
        read_export(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 4
    return caught.value


def test_missing_and_raw_files_are_told_apart(tmp_path: Path) -> None:
    """H26."""
    assert type(raised(tmp_path / "none.sqlite")) is failures.MissingExport
    for suffix, cure in ((".nsys-rep", "nsys export"), (".qdstrm", "libdw1")):
        path = tmp_path / f"capture{suffix}"
        path.write_bytes(b"anything")
        error = raised(path)
        assert type(error) is failures.RawReport
        assert cure in str(error)


def test_what_is_no_export_is_called_that(tmp_path: Path) -> None:
    text = tmp_path / "capture.sqlite"
    text.write_text("Time (%),Total Time (ns)\n" * 10)
    other = edited(tmp_path / "other.sqlite", "CREATE TABLE songs (title TEXT)")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    pq.write_table(pa.table({"title": ["x"]}), tmp_path / "foreign" / "songs.parquet")
    for path in (text, other, tmp_path / "empty", tmp_path / "foreign"):
        assert type(raised(path)) is failures.NotAnExport


def test_sqlite_that_was_cut_off_is_incomplete(tmp_path: Path) -> None:
    """H26: also one of no bytes, and one whose writer left its journal."""
    whole = made.small_capture().write_sqlite(tmp_path / "whole.sqlite").read_bytes()
    for length in (0, 10, 99, 100, 4096, len(whole) - 1):
        path = tmp_path / f"cut_{length}.sqlite"
        path.write_bytes(whole[:length])
        assert type(raised(path)) is failures.TruncatedExport
    (tmp_path / "whole.sqlite-wal").write_bytes(b"frames")
    assert type(raised(tmp_path / "whole.sqlite")) is failures.TruncatedExport


def test_parquet_that_was_cut_off_is_incomplete(tmp_path: Path) -> None:
    folder = made.small_capture().write_parquet(tmp_path / "capture")
    place = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    whole = place.read_bytes()
    for length in (0, 3, len(whole) // 2, len(whole) - 1):
        place.write_bytes(whole[:length])
        assert type(raised_at(folder, place)) is failures.TruncatedExport


def raised_at(path: Path, place: Path) -> BROKEN:
    with pytest.raises(BROKEN, match=place.name) as caught:
        read_export(path)
    return caught.value


@pytest.mark.parametrize("form", FORMS)
def test_a_needed_column_that_is_absent_is_named(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H24: refused only then, with the version and what to export with."""
    path = made.small_capture().write(tmp_path, form)
    if form == "sqlite":
        edited(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN correlationId")
    else:
        place = path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
        pq.write_table(pq.read_table(place).drop_columns("correlationId"), place)
    error = raised(path)
    assert type(error) is failures.UnknownSchema
    assert "correlationId" in str(error)
    assert "3.20.3" in str(error)


@pytest.mark.parametrize("form", FORMS)
def test_an_export_of_nothing_says_so(form: str, tmp_path: Path) -> None:
    rec = made.Recorder()
    rec.string("unused")
    assert type(raised(rec.write(tmp_path, form))) is failures.EmptyExport


DAMAGES: dict[str, str] = {
    "text for a number": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 2",
    "half a number": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 1.5 WHERE rowid = 2",
    "no number": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL WHERE rowid = 2",
    "ends before its start": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE rowid = 2",
    "beyond any capture": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807 WHERE rowid = 2",
    "number for a text": "UPDATE StringIds SET value = x'ff' WHERE rowid = 1",
    "one id twice": "UPDATE StringIds SET id = 1",
    "bytes below nothing": "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -5",
    "sample of text": "UPDATE GPU_METRICS SET value = 'n/a' WHERE rowid = 5",
}


@pytest.mark.parametrize("statement", DAMAGES.values(), ids=DAMAGES.keys())
def test_cells_that_cannot_be_are_damage(statement: str, tmp_path: Path) -> None:
    path = edited(made.small_capture().write_sqlite(tmp_path / "capture.sqlite"), statement)
    assert type(raised(path)) is failures.DamagedExport


@pytest.mark.parametrize("column", ["start", "graphNodeId"])
def test_parquet_columns_of_another_type_are_damage(column: str, tmp_path: Path) -> None:
    folder = made.small_capture().write_parquet(tmp_path / "capture")
    place = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pq.read_table(place)
    texts: Any = pa.array(["x"] * len(table))
    pq.write_table(table.set_column(table.column_names.index(column), column, texts), place)
    assert type(raised_at(folder, place)) is failures.DamagedExport


def test_reading_leaves_the_export_as_it_was(tmp_path: Path) -> None:
    path = made.small_capture().write_sqlite(tmp_path / "capture.sqlite")
    before = path.read_bytes()
    read_export(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["capture.sqlite"]
