"""Makes a fixture of a real SQLite export: what readers need, in and before the window, nothing that names a machine.

    python tests/analysis/nsys/cut_export.py EXPORT.sqlite FIXTURE [--form sqlite|parquet] [--samples-ms FROM TO]

Kept: rows of the captured process from the first captured graph node on (or from the window, where no graph was
captured), texts that such rows refer to, warnings without paths, GPU metrics of the window (or of some milliseconds of
it). Environment variables, host, user, paths and output streams lie in tables that are not copied.
"""

import argparse
import re
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId greenContextId streamId correlationId globalPid "
    "demangledName shortName gridX blockX graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId streamId correlationId globalPid bytes copyKind srcKind dstKind "
    "graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId streamId correlationId globalPid value bytes graphNodeId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "CUDA_GRAPH_NODE_EVENTS": "start end nameId globalTid graphNodeId originalGraphNodeId",
    "NVTX_EVENTS": "start end eventType text globalTid endGlobalTid textId domainId",
    "GPU_METRICS": "rawTimestamp timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId metricId metricName",
    "TARGET_INFO_GPU": "id name memoryBandwidth smCount",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "DIAGNOSTIC_EVENT": "timestamp source severity text",
}
NAMES = {"demangledName", "shortName", "nameId", "textId"}  # ids of texts
VERSIONS = ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION")
METRICS = "GPC Clock%|SMs Active%|Tensor Active%|Compute Warps%|DRAM %|PCIe RX%"
Rows = list[tuple[Any, ...]]


def cut(source: Path, samples_ms: tuple[float, float] | None) -> dict[str, tuple[list[str], Rows]]:
    """Tables of the fixture: columns and rows."""
    database = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    window = database.execute(
        "SELECT n.start, n.end FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "WHERE coalesce(n.text, s.value) = 'window'"
    ).fetchone()
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    first = window[0]
    if "CUDA_GRAPH_NODE_EVENTS" in tables:
        first = min(first, *database.execute("SELECT min(start) FROM CUDA_GRAPH_NODE_EVENTS").fetchone())
    low, high = (window[0] + int(ms * 1e6) for ms in samples_ms) if samples_ms else window
    chosen = " OR ".join(f"metricName LIKE '{name}'" for name in METRICS.split("|"))
    wheres = {
        "TARGET_INFO_GPU_METRICS": chosen,
        "GPU_METRICS": f"timestamp BETWEEN {low} AND {high} AND "
        f"metricId IN (SELECT metricId FROM TARGET_INFO_GPU_METRICS WHERE {chosen})",
        "NVTX_EVENTS": "1",  # ranges of a capture begin before its first node
        "TARGET_INFO_GPU": "1",
        "TARGET_INFO_CUDA_DEVICE": "1",
        "DIAGNOSTIC_EVENT": "text NOT LIKE '%/%'",
        # of what is captured the calls that follow, and of what is replayed outside of the window nothing
        "CUPTI_ACTIVITY_KIND_KERNEL": f"start BETWEEN {window[0]} AND {window[1]}",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"start BETWEEN {window[0]} AND {window[1]}",
    }
    found: dict[str, tuple[list[str], Rows]] = {}
    used: set[int] = set()
    for table, names in COLUMNS.items():
        if table not in tables:
            continue
        there = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
        columns = [name for name in names.split() if name in there]
        where = wheres.get(table, f"start >= {first}")
        listed = ", ".join(f'"{name}"' for name in columns)
        rows = database.execute(f'SELECT {listed} FROM "{table}" WHERE {where} ORDER BY rowid').fetchall()
        found[table] = columns, rows
        for place in (index for index, name in enumerate(columns) if name in NAMES):
            used.update(row[place] for row in rows if row[place] is not None)
    listed = ", ".join(map(str, sorted(used)))
    texts = database.execute(f"SELECT id, value FROM StringIds WHERE id IN ({listed}) ORDER BY id").fetchall()
    found["StringIds"] = ["id", "value"], texts
    marks = ", ".join(f"'{name}'" for name in VERSIONS)
    versions = database.execute(f"SELECT name, value FROM META_DATA_EXPORT WHERE name IN ({marks})").fetchall()
    found["META_DATA_EXPORT"] = ["name", "value"], versions
    cells = (str(cell) for _, rows in found.values() for row in rows for cell in row)
    assert not any(re.search(r"/(home|tmp|root|opt|usr)/", cell) for cell in cells), "a path"
    return found


def write_sqlite(tables: dict[str, tuple[list[str], Rows]], place: Path) -> None:
    place.unlink(missing_ok=True)
    with sqlite3.connect(place) as database:
        for name, (columns, rows) in tables.items():
            listed = ", ".join(f'"{column}"' for column in columns)
            database.execute(f'CREATE TABLE "{name}" ({listed})')
            database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', rows)
    database.close()


def write_parquet(tables: dict[str, tuple[list[str], Rows]], place: Path) -> None:
    place.mkdir(exist_ok=True)
    for name, (columns, rows) in tables.items():
        if rows:
            cells = [pa.array(column) for column in zip(*rows, strict=True)]
            pq.write_table(pa.table(cells, names=columns), place / f"{name}.parquet", compression="zstd")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Cut a fixture out of a real export.")
    parser.add_argument("export", type=Path)
    parser.add_argument("fixture", type=Path)
    parser.add_argument("--form", choices=("sqlite", "parquet"), default="sqlite")
    parser.add_argument("--samples-ms", type=float, nargs=2)
    asked = parser.parse_args()
    {"sqlite": write_sqlite, "parquet": write_parquet}[asked.form](cut(asked.export, asked.samples_ms), asked.fixture)
