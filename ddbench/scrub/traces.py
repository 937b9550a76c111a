"""An nsys export without what names a machine: tables that are known, numbers as they are, text only where it may stay.

The copy is a new database, filled row by row: nothing of the old file's free pages comes along. Columns that no reader
of ddbench knows are left out; names of kernels and API calls stay, since they are what a trace is about.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ddbench.errors import SchemaError
from ddbench.scrub.words import Redactor

KEPT = re.compile(
    r"CUPTI_ACTIVITY_KIND_(KERNEL|RUNTIME|MEMCPY|MEMSET|SYNCHRONIZATION|GRAPH_TRACE|OVERHEAD)"
    r"|CUDA_GRAPH_(NODE_)?EVENTS|NVTX_EVENTS|StringIds|GPU_METRICS|TARGET_INFO_GPU(_METRICS)?"
    r"|TARGET_INFO_CUDA_DEVICE|DIAGNOSTIC_EVENT|PROFILER_OVERHEAD|META_DATA_EXPORT|ENUM_\w+"
)
COLUMNS = frozenset(
    """start end deviceId contextId greenContextId streamId correlationId globalPid globalTid endGlobalTid pid
    demangledName shortName mangledName nameId graphNodeId originalGraphNodeId graphId graphExecId originalGraphId
    registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory
    localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted launchType clusterX clusterY clusterZ
    eventClass returnValue bytes copyKind srcKind dstKind copyCount value memKind syncType eventId
    eventType rangeId category color text textId domainId timestamp rawTimestamp typeId sourceId typeName metricId
    metricName severity source id name label chipName l2CacheSize memoryBandwidth clockRate smCount totalMemory
    computeMajor computeMinor maxWarpsPerSm gpuId cudaId""".split()
)
SYMBOLS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "CUDA_GRAPH_NODE_EVENTS": ("nameId",),
}  # columns that hold ids of such names
ROWS_AT_ONCE = 50_000


def scrub_sqlite(source: Path, copy: Path, redactor: Redactor, where: str) -> tuple[str, ...]:
    """Write the copy; the names of the tables that were left out come back."""
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(copy)) as new,
        ):
            old.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
            new.execute("PRAGMA journal_mode = OFF")
            names = [
                name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            ]
            kept = [name for name in names if KEPT.fullmatch(name)]
            symbols = _symbol_ids(old, kept)
            for name in kept:
                _copy_table(old, new, name, symbols, redactor, where)
            new.commit()
    except sqlite3.Error as error:
        raise SchemaError(f"{source.name}: no SQLite export that can be read ({error}): --drop-traces") from error
    return tuple(name for name in names if name not in kept)


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")') if row[1] in COLUMNS]


def _symbol_ids(database: sqlite3.Connection, tables: list[str]) -> frozenset[int]:
    found: set[int] = set()
    for table in tables:
        for column in SYMBOLS.get(table, ()):
            if column in _columns(database, table):
                found.update(number for (number,) in database.execute(f'SELECT DISTINCT "{column}" FROM "{table}"'))
    return frozenset(found)


def _copy_table(
    old: sqlite3.Connection,
    new: sqlite3.Connection,
    table: str,
    symbols: frozenset[int],
    redactor: Redactor,
    where: str,
) -> None:
    columns = _columns(old, table)
    if not columns:
        return
    listed = ", ".join(f'"{column}"' for column in columns)
    new.execute(f'CREATE TABLE "{table}" ({listed})')
    rows = old.execute(f'SELECT {listed} FROM "{table}" ORDER BY rowid')
    insert = f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})'
    while some := rows.fetchmany(ROWS_AT_ONCE):
        new.executemany(insert, _scrubbed(some, columns, table, symbols, redactor, where))


def _scrubbed(
    rows: list[Any], columns: list[str], table: str, symbols: frozenset[int], redactor: Redactor, where: str
) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        if not any(isinstance(cell, str | bytes) for cell in row):
            yield row
            continue
        is_symbol = table == "StringIds" and "id" in columns and row[columns.index("id")] in symbols
        yield tuple(_cell(cell, table, is_symbol, redactor, where) for cell in row)


def _cell(cell: Any, table: str, is_symbol: bool, redactor: Redactor, where: str) -> Any:
    if isinstance(cell, bytes):
        return None
    if not isinstance(cell, str):
        return cell
    if is_symbol:
        return redactor.symbol(cell, where)
    return redactor.hardware(cell, where) if table == "TARGET_INFO_GPU" else redactor.text(cell, where)
