"""A run folder -> a copy that may be given away: records rewritten field by field, everything else left out or refused.

Reports and gates are left out, since they are made again from the records; logs are emptied. A file that is not known
here stops the copy, unless what cannot be scrubbed is to be dropped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from ddbench.analysis.captures import Tools, load_captures
from ddbench.errors import UserError
from ddbench.files import PARTIAL, read_text, write_atomically
from ddbench.harness.store import TABLES, RunFolder, json_text, open_run, table_schema
from ddbench.parquet_files import write_parquet
from ddbench.records import Ceilings, OkResult, ResultFile
from ddbench.scrub.captures import capture_files, write_captures
from ddbench.scrub.traces import scrub_sqlite
from ddbench.scrub.words import Redactor, names_here, vocabulary
from ddbench.spec import Record, RecordT, first_message, from_json

DERIVED = ("report", "gate", "timeline")  # folders that the records are enough to make again
_EMPTIED = ("log_tail",)
_DIGESTS = (
    *("code_digest", "commit", "target_digest", "drafter_digest", "output_digest", "case_id", "case_ids"),
    *("set_digest", "framing_digest"),
)
_HARDWARE = ("cpu_model", "device", "driver", "platform", "machine")
_RUNS = ("run_id", "interleaved_with")
_NAMES = ("name", "target", "drafter", "prompts", "prompt_id", "kind", "kinds")


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The copy, and what is not in it."""

    path: Path
    num_pieces: dict[str, int]  # field or file -> pieces of text replaced
    left_out: tuple[str, ...]  # files and tables, or how many of them


def scrub(run: Path, out: Path | None, also: Sequence[str], drop_traces: bool) -> Scrubbed:
    """Write the copy; a place that is taken, or a file that cannot be scrubbed, is a UserError and leaves nothing."""
    source = open_run(run)
    redactor = Redactor(vocabulary(), (*names_here(), *also))
    run_id = redactor.run_name(source.manifest.run_id, "run_id")
    copy = out or run.parent / f"{run_id}-scrubbed"
    if copy.exists():
        raise UserError(f"{copy}: is there already: remove it, or choose another place with --out")
    captures, _ = load_captures(source.path, source.done)
    others, left_out = _other_files(source, captures, drop_traces)
    unfinished = copy.with_name(f"{PARTIAL}{os.getpid()}-scrub")
    try:
        (unfinished / "cases").mkdir(parents=True)
        _write_records(source, captures, unfinished, redactor)
        for number, file in enumerate(others, start=1):
            (unfinished / "traces").mkdir(exist_ok=True)
            tables = scrub_sqlite(file, unfinished / "traces" / f"trace-{number}.sqlite", redactor, "traces")
            left_out += [f"{len(tables)} tables of trace-{number}.sqlite"] * bool(tables)
        os.replace(unfinished, copy)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Scrubbed(copy, dict(sorted(redactor.removed.items())), tuple(left_out))


def _other_files(source: RunFolder, captures: Mapping[str, Tools], drop_traces: bool) -> tuple[list[Path], list[str]]:
    """Exports to be scrubbed, and what is left out in words; a file that is neither is refused."""
    known = {"manifest.json", "ceilings.json", *capture_files(captures)}
    for case_id in source.done:
        known |= {f"cases/{case_id}/{name}" for name in ("result.json", *(f"{table}.parquet" for table in TABLES))}
    exports, refused, num_derived = [], [], 0
    for path in sorted(path for path in source.path.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = path.relative_to(source.path).as_posix()
        if name.partition("/")[0] in DERIVED or any(part.startswith(PARTIAL) for part in name.split("/")):
            num_derived += 1
        elif path.suffix == ".sqlite" and not path.is_symlink():
            exports.append(path)
        elif name not in known or path.is_symlink():
            refused.append(name)
    if refused and not drop_traces:
        raise UserError(
            f"{len(refused)} files cannot be scrubbed, the first is {refused[0]}: --drop-traces leaves them out"
        )
    left_out = [f"{num_derived} files of reports (made again: ddbench report)"] * bool(num_derived)
    return exports, left_out + [f"{len(refused)} files that cannot be scrubbed"] * bool(refused)


def _write_records(source: RunFolder, captures: Mapping[str, Tools], copy: Path, redactor: Redactor) -> None:
    _write(copy / "manifest.json", source.manifest, redactor)
    ceilings = source.path / "ceilings.json"
    if ceilings.is_file():
        _write(copy / "ceilings.json", from_json(Ceilings, read_text(ceilings), str(ceilings)), redactor)
    for case_id in source.done:
        result = source.result(case_id)
        folder = copy / "cases" / redactor.digest(case_id, "case_id")
        folder.mkdir()
        text = json_text(scrubbed_record(ResultFile(result=result), redactor))
        write_atomically(folder / "result.json", on_one_line(text))
        for name in TABLES if isinstance(result, OkResult) else ():
            table = scrubbed_table(source.table(case_id, name), TABLES[name], redactor)
            write_parquet(folder / f"{name}.parquet", table)
        if case_id in captures:
            here, there = source.case_folder(case_id) / "captures", folder / "captures"
            write_captures(here, there, captures[case_id], redactor, partial(_write, redactor=redactor))


def _write(path: Path, record: Record, redactor: Redactor) -> None:
    write_atomically(path, json_text(scrubbed_record(record, redactor)))


def on_one_line(text: str) -> str:
    """JSON without its layout, which is a quarter of a result's bytes: copies are kept, in Git and elsewhere."""
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) + "\n"


def scrubbed_record(record: RecordT, redactor: Redactor) -> RecordT:
    """The same record with every text in it scrubbed, and still one that is read."""
    values = _scrubbed(record.model_dump(mode="json"), "", redactor)
    try:
        return type(record).model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(f"--also names a word that records cannot do without: {first_message(error)}") from error


def _scrubbed(value: Any, field: str, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        names = {key: redactor.name(key, f"{field} (keys)") for key in value}
        return {name: _scrubbed(value[key], name, redactor) for key, name in names.items()}
    if isinstance(value, list):
        return [_scrubbed(item, field, redactor) for item in value]
    return scrubbed_text(value, field, redactor) if isinstance(value, str) else value


def scrubbed_text(text: str, field: str, redactor: Redactor) -> str:
    """What stays of a text depends on the field that it stands in."""
    if field in _EMPTIED:
        redactor.removed[field] += bool(text)
        return ""
    kinds = ((_DIGESTS, redactor.digest), (_HARDWARE, redactor.hardware), (_RUNS, redactor.run_name))
    for fields, scrubbing in (*kinds, (_NAMES, redactor.name)):
        if field in fields:
            return scrubbing(text, field)
    return redactor.text(text, field)


def scrubbed_table(table: pa.Table, record: type[Record], redactor: Redactor) -> pa.Table:
    """The rows with every text scrubbed, in a table that holds nothing beside them."""
    schema = table_schema(record)
    columns = {}
    for field in schema:
        values = table.column(field.name).to_pylist() if pa.types.is_string(field.type) else None
        columns[field.name] = (
            table.column(field.name)
            if values is None
            else [scrubbed_text(text, field.name, redactor) for text in values]
        )
    return pa.table(columns, schema=schema)
