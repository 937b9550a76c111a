"""The run folder: whole cases or none, damage named, nothing read that was not finished."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.errors import SchemaError, UserError
from ddbench.harness import store
from ddbench.harness.store import CaseTables, RunFolder, case_id, create_run, open_run, write_case
from ddbench.records import CaseResult, Environment, FailedResult, RequestRecord, RoundRecord
from ddbench.spec import Case

MakeResult = Callable[[str, Case], CaseResult]


def put(run: RunFolder, one: str, result: CaseResult, tables: CaseTables | None) -> None:
    with run.new_case_folder(one) as folder:
        write_case(folder, result, tables)
        run.keep(folder, one)


def failed(one: str, case: Case) -> FailedResult:
    return FailedResult(case_id=one, case=case, started_at="", seconds=1.0, outcome="timeout", reason="late")


def test_what_is_written_is_read_back(run: RunFolder, ok_result: MakeResult, tables: CaseTables) -> None:
    result = ok_result("a", run.case("a"))
    put(run, "a", result, tables)
    again = open_run(run.path)
    assert again.manifest == run.manifest
    assert again.done == ("a",)
    assert again.result("a") == result
    rows = again.table("a", "requests").to_pylist()
    assert [RequestRecord(**row) for row in rows] == tables.requests
    assert [RoundRecord(**row) for row in again.table("a", "rounds").to_pylist()] == tables.rounds
    assert again.table("a", "stages").column("duration_ns").to_pylist() == [3]


def test_empty_tables_keep_their_columns(run: RunFolder, ok_result: MakeResult) -> None:
    put(run, "a", ok_result("a", run.case("a")), CaseTables())
    assert run.table("a", "requests").schema.field("tokens").type == pa.list_(pa.int64())
    assert run.table("a", "requests").num_rows == 0


def test_a_case_that_was_not_finished_does_not_exist(
    run: RunFolder, ok_result: MakeResult, tables: CaseTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H64: a process killed at any moment of the writing leaves nothing that is read."""
    result = ok_result("a", run.case("a"))
    real_write_table = store.write_table
    for stop_after in range(len(store.TABLES) + 1):
        folder = run.path / "cases" / f".partial-a-{stop_after}"
        folder.mkdir()
        written = 0

        def write_table(path: Path, record: type, rows: list, stop: int = stop_after) -> None:
            nonlocal written
            if written == stop:
                path.write_bytes(b"half a fi")
                raise SystemExit("killed")
            written += 1
            real_write_table(path, record, rows)

        with monkeypatch.context() as patched:
            patched.setattr(store, "write_table", write_table)
            if stop_after < len(store.TABLES):
                with pytest.raises(SystemExit):
                    write_case(folder, result, tables)
            else:
                write_case(folder, result, tables)  # complete, but never moved to its place
        again = open_run(run.path)
        assert again.done == ()
        assert again.missing() == ("a", "b", "c")
    run.sweep_leftovers()
    assert list((run.path / "cases").iterdir()) == []


def test_a_kill_between_moving_away_and_moving_in_means_missing(run: RunFolder, ok_result: MakeResult) -> None:
    put(run, "a", failed("a", run.case("a")), None)
    run.case_folder("a").rename(run.path / "cases" / ".partial-old-a")
    assert open_run(run.path).missing() == ("a", "b", "c")


def test_a_failed_case_is_run_again_and_replaced(run: RunFolder, ok_result: MakeResult, tables: CaseTables) -> None:
    put(run, "a", failed("a", run.case("a")), None)
    assert run.done == ("a",)
    assert run.missing() == ("a", "b", "c")
    put(run, "a", ok_result("a", run.case("a")), tables)
    assert run.missing() == ("b", "c")
    assert sorted(path.name for path in (run.path / "cases").iterdir()) == ["a"]


def test_an_exception_while_writing_leaves_no_folder(run: RunFolder) -> None:
    with pytest.raises(RuntimeError), run.new_case_folder("a"):
        raise RuntimeError
    assert list((run.path / "cases").iterdir()) == []


def test_damage_names_the_file(run: RunFolder, ok_result: MakeResult, tables: CaseTables) -> None:
    put(run, "a", ok_result("a", run.case("a")), tables)
    folder = run.case_folder("a")
    whole = (folder / "requests.parquet").read_bytes()
    (folder / "requests.parquet").write_bytes(whole[:40])
    with pytest.raises(SchemaError, match=r"requests\.parquet: damaged"):
        run.table("a", "requests")
    pq.write_table(pa.table({"step": [1]}), folder / "rounds.parquet")
    with pytest.raises(SchemaError, match=r"rounds\.parquet: column 'pass_name' is missing"):
        run.table("a", "rounds")
    columns = run.table("a", "steps").set_column(0, "pass_name", pa.array(["clean"])).to_pydict()
    pq.write_table(pa.table({**columns, "start_ns": ["soon"]}), folder / "steps.parquet")
    with pytest.raises(SchemaError, match=r"steps\.parquet: columns of another type"):
        run.table("a", "steps")
    (folder / "stages.parquet").unlink()
    with pytest.raises(SchemaError, match=r"stages\.parquet: missing"):
        run.result("a")
    (folder / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(SchemaError, match=r"result\.json: damaged"):
        run.result("a")
    (folder / "result.json").unlink()
    with pytest.raises(SchemaError, match=r"result\.json: cannot be read"):
        run.result("a")


def test_a_result_of_another_case_is_damage(run: RunFolder, ok_result: MakeResult, tables: CaseTables) -> None:
    put(run, "a", ok_result("b", run.case("b")), tables)
    with pytest.raises(SchemaError, match="holds case 'b', expected 'a'"):
        run.result("a")


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(SchemaError, match="not a run folder"):
        open_run(tmp_path)
    (run.path / "manifest.json").write_text('{"schema_version": 1}', encoding="utf-8")
    with pytest.raises(SchemaError, match=r"manifest\.json: damaged"):
        open_run(run.path)


def test_a_place_that_cannot_be_written_is_a_user_error(tmp_path: Path, run: RunFolder) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be written.*--out") as caught:
        create_run(tmp_path / "file" / "below", run.manifest)
    assert caught.value.exit_code == 2


def test_a_case_id_follows_everything_that_matters(environment: Environment) -> None:
    """H65: another question, weights, code or machine is another case."""
    key = {"arm": "ar", "block": 0}
    others = [
        case_id({**key, "block": 1}, "w", environment),
        case_id(key, "w2", environment),
        case_id(key, "w", environment.model_copy(update={"code_digest": "other"})),
        case_id(key, "w", environment.model_copy(update={"device": "another GPU"})),
    ]
    assert len({case_id(key, "w", environment), *others}) == 5
    assert case_id(key, "w", environment.model_copy(update={"is_dirty": True})) == case_id(key, "w", environment)


def test_files_are_the_same_whenever_they_are_written(
    run: RunFolder, ok_result: MakeResult, tables: CaseTables, tmp_path: Path
) -> None:
    """H71: equal records give equal bytes."""
    contents = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        write_case(folder, ok_result("a", run.case("a")), tables)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]


def test_the_store_needs_no_torch() -> None:
    code = "import sys, ddbench.harness.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
