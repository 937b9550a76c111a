"""A run in which every text that is free to be anything holds a mark, and an export of nsys that does."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.harness.store import TABLES, RunFolder, open_run
from ddbench.records import (
    Ceilings,
    CeilingSample,
    Divergence,
    FailedResult,
    IncorrectResult,
    Manifest,
    NotMeasured,
    OkResult,
    Parity,
    ResultFile,
    SkippedCase,
)

MARK = "Mark7q"
SKIPPED_FIELDS = ("case_id", "case_ids")  # also names of folders: planted by a test of their own


@pytest.fixture(autouse=True)
def _nobody_in_particular(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine is called may be a word of a run's."""
    monkeypatch.setattr("ddbench.scrub.folder.names_here", frozenset)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as a sweep writes it: no text in it is a stranger's."""
    plan = SyntheticPlan(cases=make_cases(arms=("ar", "ddtree")))
    return build_run(tmp_path_factory.mktemp("plain"), plan)


@pytest.fixture(scope="session")
def marked(plain_run: Path) -> dict[str, Any]:
    """Name of a file -> its JSON with the mark wherever the record takes it, or a table with the mark in its texts."""
    run = open_run(plain_run)
    skipped = SkippedCase(arm="x", label="x", reason="x")
    manifest = run.manifest.model_copy(update={"skipped": (skipped,), "interleaved_with": "x"})
    files: dict[str, Any] = {"manifest.json": planted(Manifest, manifest.model_dump(mode="json"))}
    sample = {"kind": "read", "cache": "hot", "when": "before", "dtype": "x", "num_threads": 1, "working_set_bytes": 1}
    sample |= {"amount": 1.0, "low": 1.0, "high": 1.0, "num_samples": 1}
    ceilings = Ceilings(
        device="x",
        last_level_cache_bytes=NotMeasured(not_measured="x"),
        samples=(CeilingSample.model_validate(sample),),
        faults=("x",),
    )
    files["ceilings.json"] = planted(Ceilings, ceilings.model_dump(mode="json"))
    for case_id, result in zip(run.done, _endings(run), strict=False):
        files[f"cases/{case_id}/result.json"] = planted(ResultFile, {"result": result.model_dump(mode="json")})
        for name in TABLES if isinstance(result, OkResult) else ():
            files[f"cases/{case_id}/{name}.parquet"] = run.table(case_id, name)
    return files


def _endings(run: RunFolder) -> Iterator[OkResult | FailedResult | IncorrectResult]:
    """One case of each kind, with something in every field."""
    results = list(run.results())
    assert len(results) >= 3
    ok, failed, incorrect = results[0], results[1], results[2]
    assert isinstance(ok, OkResult)
    yield ok.model_copy(update={"warnings": ("x",), "path_used": {MARK: "x"}, "counters": {MARK: 1}})
    common = {"case": failed.case, "started_at": "x", "seconds": 1.0, "warnings": ("x",)}
    yield FailedResult(case_id=failed.case_id, outcome="error", reason="x", log_tail="x\nx", **common)
    first = Divergence(prompt_id="x", position=1, expected=1, got=2, logit_margin=NotMeasured(not_measured="x"))
    parity = Parity(status="diverged", num_prompts=1, num_tokens=1, divergences=(first,), detail="x")
    yield IncorrectResult(
        case_id=incorrect.case_id, case=incorrect.case, started_at="x", seconds=1.0, parity=parity, models=ok.models
    )


def planted(model: type[Any], values: Any) -> Any:
    """The values with the mark in every text where the record accepts it."""
    for path, key, text in list(_texts(values)):
        if (path and path[-1] in SKIPPED_FIELDS) or key in SKIPPED_FIELDS:
            continue
        holder = values
        for step in path:
            holder = holder[step]
        holder[key] = MARK
        try:
            model.model_validate_json(json.dumps(values))
        except ValueError:
            holder[key] = text
    return values


def _texts(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, str]]:
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in list(items):
        if isinstance(value, str):
            yield path, key, value
        elif isinstance(value, dict | list):
            yield from _texts(value, (*path, key))


def write_run(folder: Path, files: dict[str, Any], secret: str) -> Path:
    """The marked run with the secret in place of the mark, and in texts of its tables."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(with_texts(content, secret), path)
        else:
            path.write_text(json.dumps(content).replace(MARK, json.dumps(secret)[1:-1]), encoding="utf-8")
    return folder


def with_texts(table: pa.Table, secret: str) -> pa.Table:
    """Every cell of every text column is the secret; and it is in the metadata, and in a column of its own."""
    columns = {
        field.name: pa.array([secret] * table.num_rows) if pa.types.is_string(field.type) else table.column(field.name)
        for field in table.schema
    }
    extra = {**columns, "extra": pa.array([secret] * table.num_rows)}
    return pa.table(extra).replace_schema_metadata({"made by": secret})


def write_export(path: Path, secret: str) -> Path:
    """An nsys export in miniature with the secret in every table, as a column's text, as bytes and in free pages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        execute = database.execute
        execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER, note TEXT)")
        execute("CREATE TABLE NVTX_EVENTS (start INTEGER, text TEXT, textId INTEGER, binaryData BLOB)")
        execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        execute("CREATE TABLE ProcessStreams (content TEXT)")
        execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT)")
        execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        strings = [(1, "void add_kernel<float, 4>(float*)"), (2, secret), (3, "verify"), (4, f"/home/{secret}/x.py")]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings)
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", [(1, 2, 1, secret), (3, 4, 4, secret)]
        )
        execute("INSERT INTO NVTX_EVENTS VALUES (1, ?, 3, ?)", (secret, secret.encode()))
        execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('TOKEN', ?)", (secret,))
        execute("INSERT INTO ProcessStreams VALUES (?)", (secret,))
        execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', ?)", (secret,))
        database.executemany(
            "INSERT INTO META_DATA_EXPORT VALUES (?, ?)", [("EXPORT_SCHEMA_VERSION", "3.20.3"), ("host", secret)]
        )
        execute("CREATE TABLE gone (text TEXT)")
        execute("INSERT INTO gone VALUES (?)", (secret * 50,))
        database.commit()
        execute("DROP TABLE gone")
        database.commit()
    return path


def everything_in(folder: Path) -> str:
    """Names of all files, their bytes, and what is packed inside tables and databases."""
    parts = []
    for path in sorted(folder.rglob("*")):
        parts.append(path.name)
        if path.is_file():
            parts.append(path.read_bytes().decode("latin-1"))
            parts.append(path.read_bytes().decode("utf-8", errors="replace"))
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            parts.append(f"{table.to_pylist()} {table.schema.metadata}")
        elif path.suffix == ".json":
            parts.append(str(json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def words_of(secret: str) -> list[str]:
    """What must not be found: the secret, and each word of it that is none of ours."""
    return [secret, *(word for word in re.findall(r"[^\W_]+", secret) if "zq" in word)]
