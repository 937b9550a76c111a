"""The run folder: what a sweep writes and everything later reads. No torch.

    runs/<UTC stamp>-<experiment>-<digest>/
        manifest.json
        cases/<case_id>/result.json  requests.parquet  rounds.parquet  steps.parquet  stages.parquet

A case folder is written under a temporary name beside its place and moved there in one step, so that a process killed
at any moment leaves either the whole case or none; leftovers are ignored by readers and removed when a run resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq

from ddbench.errors import SchemaError, UserError, did_you_mean
from ddbench.files import PARTIAL, read_text, write_atomically
from ddbench.parquet_files import write_parquet
from ddbench.records import (
    MANIFEST_CURE,
    CaseResult,
    Environment,
    FailedResult,
    Manifest,
    OkResult,
    RequestRecord,
    ResultFile,
    RoundRecord,
    StageSample,
    StepRecord,
)
from ddbench.spec import Case, Record, from_json

TABLES: dict[str, type[Record]] = {
    "requests": RequestRecord,
    "rounds": RoundRecord,
    "steps": StepRecord,
    "stages": StageSample,
}
_ARROW_TYPES = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}


@dataclass(frozen=True, slots=True)
class CaseTables:
    """The rows of one case, pass after pass."""

    requests: list[RequestRecord] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    stages: list[StageSample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run on disk. Everything read is checked; damage is a SchemaError that names the file."""

    path: Path
    manifest: Manifest

    @property
    def done(self) -> tuple[str, ...]:
        """Ids of the cases that have a result, in execution order."""
        return tuple(case_id for case_id in self.manifest.case_ids if self.case_folder(case_id).is_dir())

    def case_folder(self, case_id: str) -> Path:
        return self.path / "cases" / case_id

    def case(self, case_id: str) -> Case:
        """What was planned under this id."""
        return dict(zip(self.manifest.case_ids, self.manifest.cases, strict=True))[case_id]

    def result(self, case_id: str) -> CaseResult:
        return read_result(self.case_folder(case_id), case_id)

    def results(self) -> Iterator[CaseResult]:
        """Results of the finished cases, in execution order."""
        return (self.result(case_id) for case_id in self.done)

    def damaged(self) -> dict[str, str]:
        """Cases that have a folder which cannot be read as a whole, and what is wrong with it."""
        faults = {}
        for case_id in self.done:
            try:
                if isinstance(self.result(case_id), OkResult):
                    for name in TABLES:
                        self.table(case_id, name)
            except SchemaError as error:
                faults[case_id] = str(error)
        return faults

    def missing(self) -> tuple[str, ...]:
        """Cases that a resumed run has to execute: without a result, damaged, or failed in their process."""
        damaged = self.damaged()
        readable = [case_id for case_id in self.done if case_id not in damaged]
        done = {case_id for case_id in readable if not isinstance(self.result(case_id), FailedResult)}
        return tuple(case_id for case_id in self.manifest.case_ids if case_id not in done)

    def table(self, case_id: str, name: str) -> pa.Table:
        """One of `TABLES` of an ok case, with exactly the columns of its record."""
        return read_table(self.case_folder(case_id) / f"{name}.parquet", table_schema(TABLES[name]))

    @contextmanager
    def new_case_folder(self, case_id: str) -> Iterator[Path]:
        """A temporary folder to write a case into; `keep` moves it to its place. Removed if it is still there."""
        folder = self.path / "cases" / f"{PARTIAL}{case_id}-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path, case_id: str) -> None:
        """Put a complete case folder in its place; a failed result that stood there makes room first."""
        place = self.case_folder(case_id)
        if place.exists():
            aside = place.with_name(f"{PARTIAL}old-{case_id}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        os.replace(folder, place)

    def sweep_leftovers(self) -> None:
        """Remove what a killed process left behind."""
        for folder in (self.path / "cases").glob(f"{PARTIAL}*"):
            shutil.rmtree(folder, ignore_errors=True)


# -------------------------------------------------------------------------------------------------------- run folders


def create_run(out: Path, manifest: Manifest) -> RunFolder:
    """Make the folder of a new run below `out`. A place that cannot be written is a UserError."""
    path, partial = out / manifest.run_id, out / f"{PARTIAL}{manifest.run_id}"
    try:
        (partial / "cases").mkdir(parents=True)
        write_atomically(partial / "manifest.json", json_text(manifest))
        os.rename(partial, path)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}): choose another folder with --out") from error
    return RunFolder(path, manifest)


def check_run_folder(path: Path) -> None:
    """Refuse a folder that is none of ours, and name one that may be meant."""
    if (path / "manifest.json").is_file():
        return
    inside = _runs_in(path)
    if inside:
        raise SchemaError(f"{path}: not a run folder but one of runs: give one of them, the last is {inside[-1]}")
    beside = [run.name for run in _runs_in(path.parent)]
    hint = f"in {path.parent}: {did_you_mean(path.name, beside)}" if beside else "give a folder below runs/"
    fault = "not a run folder (no manifest.json there)" if path.exists() else "there is no such run folder"
    raise SchemaError(f"{path}: {fault}: {hint}")


def _runs_in(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("*/manifest.json") if file.is_file())


def open_run(path: Path) -> RunFolder:
    """A run folder to read."""
    check_run_folder(path)
    file = path / "manifest.json"
    manifest = from_json(Manifest, read_text(file), str(file), MANIFEST_CURE)
    expected = Manifest.model_fields["schema_version"].default
    if manifest.schema_version != expected:
        raise SchemaError(
            f"{file}: schema version {manifest.schema_version}, this ddbench reads {expected}: "
            f"use ddbench {manifest.ddbench_version}, or start a new run"
        )
    if manifest.cases and len(manifest.cases) != len(manifest.case_ids):
        wrong = f"{len(manifest.case_ids)} case ids for {len(manifest.cases)} cases"
        raise SchemaError(f"{file}: {wrong}: damaged: {MANIFEST_CURE}")
    if (path / "cases").exists() and not (path / "cases").is_dir():
        raise SchemaError(f"{path / 'cases'}: expected a folder, got a file: damaged")
    return RunFolder(path, manifest)


def run_id(stamp: str, name: str, digest: str) -> str:
    """`20251129T151400Z-default-1a2b3c4d`: sorts by time, tells the experiment, differs between plans."""
    safe = "".join(char if char.isalnum() or char in "-_" else "-" for char in name)
    return f"{stamp}-{safe}-{digest[:8]}"


def case_id(key: dict[str, Any], models: str, environment: Environment) -> str:
    """Content address of a case: what was asked, of which weights, by which code, where."""
    text = json.dumps([key, models, environment.code_digest, environment.fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# -------------------------------------------------------------------------------------------------------------- cases


def write_case(folder: Path, result: CaseResult, tables: CaseTables | None = None) -> None:
    """Write a case into an existing folder: tables first, result.json last."""
    if tables is not None:
        for name, record in TABLES.items():
            write_table(folder / f"{name}.parquet", record, getattr(tables, name))
    write_result(folder, result)


def write_result(folder: Path, result: CaseResult) -> None:
    write_atomically(folder / "result.json", json_text(ResultFile(result=result)))


def read_result(folder: Path, case_id: str) -> CaseResult:
    """The result of a case; a folder without one, or with another case's, is damaged."""
    path = folder / "result.json"
    result = from_json(ResultFile, read_text(path), str(path)).result
    if result.case_id != case_id:
        raise SchemaError(f"{path}: holds case '{result.case_id}', expected '{case_id}'")
    if isinstance(result, OkResult):
        for name in TABLES:
            if not (folder / f"{name}.parquet").is_file():
                raise SchemaError(f"{folder / f'{name}.parquet'}: missing although its case is ok")
    return result


# ------------------------------------------------------------------------------------------------------------- tables


def table_schema(record: type[Record]) -> pa.Schema:
    """Columns of a record's table, in the order of its fields, none of them nullable."""
    return pa.schema(
        [pa.field(name, _arrow_type(info.annotation), nullable=False) for name, info in record.model_fields.items()]
    )


def _arrow_type(annotation: Any) -> pa.DataType:
    if get_origin(annotation) is Literal:
        return _ARROW_TYPES[type(get_args(annotation)[0])]
    if get_origin(annotation) is tuple:
        return pa.list_(_arrow_type(get_args(annotation)[0]))
    return _ARROW_TYPES[annotation]


def write_table(path: Path, record: type[Record], rows: Sequence[Record]) -> None:
    schema = table_schema(record)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    write_parquet(path, pa.table(columns, schema=schema))


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """A table with exactly `schema`; an absent, damaged or differently shaped file is a SchemaError naming it."""
    if not path.is_file():
        raise SchemaError(f"{path}: missing")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise SchemaError(f"{path}: damaged: {_first_line(error)}") from error
    lost = [name for name in schema.names if name not in table.column_names]
    if lost:
        raise SchemaError(f"{path}: column '{lost[0]}' is missing: written by another version")
    try:
        return table.select(schema.names).cast(schema)
    except (ValueError, pa.ArrowException) as error:
        raise SchemaError(f"{path}: columns of another type: {_first_line(error)}") from error


def clean_requests(path: Path) -> dict[int, dict[str, Any]]:
    """Rows of the first clean pass in a case's requests.parquet, by request id."""
    rows = read_table(path, table_schema(RequestRecord)).to_pylist()
    return {row["request_id"]: row for row in rows if row["pass_name"] == "clean" and row["pass_index"] == 0}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# --------------------------------------------------------------------------------------------------------------- text


def json_text(record: Record) -> str:
    return json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
