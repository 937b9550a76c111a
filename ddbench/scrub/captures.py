"""Captures of a case -> their copies: accounts field by field, tables text by text. Names of kernels and calls stay.

The tools' own files stay behind: a report of nsys or ncu holds the environment of the process. Exports of nsys are
copied by `traces.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_origin

import pyarrow as pa

from ddbench.analysis.captures import Tools
from ddbench.analysis.tables import capture_schema, read_capture_table
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Capture
from ddbench.parquet_files import write_parquet
from ddbench.scrub.words import Redactor
from ddbench.spec import Record, Tool

_SYMBOLS = ("ops", "calls", "counters")  # tables whose names are those of kernels and calls
_CURE = "remove it to do without it"


def capture_files(captures: Mapping[str, Tools]) -> Iterator[str]:
    """Every file of these captures (case -> tool -> account) by its place in the run."""
    for case_id, by_tool in captures.items():
        for tool, capture in by_tool.items():
            yield f"cases/{case_id}/captures/{tool}.json"
            yield from (f"cases/{case_id}/captures/{tool}-{name}.parquet" for name in _tables_of(tool, capture))


def _tables_of(tool: Tool, capture: Capture) -> tuple[str, ...]:
    return TABLES_OF[tool] if capture.fault is None else ()


def write_captures(
    source: Path, copy: Path, by_tool: Tools, redactor: Redactor, write: Callable[[Path, Record], None]
) -> None:
    """From one captures folder to another; `write` scrubs and writes a record."""
    copy.mkdir()
    for tool, capture in by_tool.items():
        write(copy / f"{tool}.json", capture.model_copy(update={"raw": ()}))
        for name in _tables_of(tool, capture):
            record = CAPTURE_TABLES[name]
            table = read_capture_table(source / f"{tool}-{name}.parquet", record, _CURE)
            scrub_name = redactor.symbol if name in _SYMBOLS else redactor.name
            columns = [_scrubbed(table, column, record, redactor, scrub_name) for column in table.column_names]
            write_parquet(copy / f"{tool}-{name}.parquet", pa.table(columns, schema=capture_schema(record)))


def _scrubbed(
    table: pa.Table, column: str, record: type[Record], redactor: Redactor, scrub_name: Callable[[str, str], str]
) -> pa.ChunkedArray | pa.Array:
    """A column; of a choice between few words it was checked that it holds no other."""
    cells = table[column]
    if not pa.types.is_dictionary(cells.type) or get_origin(record.model_fields[column].annotation) is Literal:
        return cells
    texts = cells.cast(pa.string()).to_pylist()
    scrubbing = scrub_name if column == "name" else redactor.name
    plain = {text: scrubbing(text, f"captures.{column}") for text in dict.fromkeys(texts)}
    return pa.array([plain[text] for text in texts], pa.string()).dictionary_encode()
