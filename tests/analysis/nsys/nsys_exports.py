"""Makes exports as nsys writes them: a recorder of events, written as SQLite or parquetdir in several schema versions.

Loaded by path (`runpy`), since test folders are no packages. Knows the documented tables with some of the columns that
nobody reads, so that a reader which takes columns by place would fail.
"""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ddbench.analysis.nsys.attribution import Attribution, attributed_ops, concluded
from ddbench.analysis.nsys.export import NsysExport

VERSIONS = ("3.7.2", "3.11.1", "3.20.3", "3.25.0")
DOMAIN_ID = 1
COPY_KINDS = {"host_to_device": 1, "device_to_host": 2, "device_to_device": 8}

_DEVICE = "start end deviceId contextId greenContextId streamId correlationId globalPid"
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DEVICE} demangledName shortName mangledName launchType gridX blockX graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DEVICE} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DEVICE} value bytes memKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_DEVICE} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "CUDA_GRAPH_NODE_EVENTS": "start end nameId globalTid graphNodeId originalGraphNodeId",
    "CUDA_GRAPH_EVENTS": "start end nameId globalTid graphId originalGraphId graphExecId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId jsonText",
    "StringIds": "id value",
    "GPU_METRICS": "rawTimestamp timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName metricId metricName",
    "TARGET_INFO_GPU": "id name uuid memoryBandwidth smCount",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid",
    "DIAGNOSTIC_EVENT": "timestamp source severity text globalPid",
    "META_DATA_EXPORT": "name value",
}
_TEXT = {"text", "value", "name", "typeName", "metricName", "uuid", "jsonText"}
_NUMBER_VALUES = {"CUPTI_ACTIVITY_KIND_MEMSET", "GPU_METRICS"}


def thread_id(pid: int, thread: int) -> int:
    return (1 << 56) | (pid << 24) | thread


def columns_of(table: str, version: str) -> list[str]:
    """Column names as that version has them."""
    names = COLUMNS[table].split()
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < (3, 11) and table == "CUDA_GRAPH_EVENTS":  # it held nodes then
        names = COLUMNS["CUDA_GRAPH_NODE_EVENTS"].split()
    if numbers < (3, 11):
        names = [name for name in names if name not in ("greenContextId", "returnValue")]
    if numbers < (3, 20):
        names = [name for name in names if name != "rawTimestamp"]
    if numbers >= (3, 24) and table == "CUPTI_ACTIVITY_KIND_KERNEL":
        names = [*names, "graphId", "clusterX"]
    return names


@dataclass
class Recorder:
    """Events in the order in which they are told; `thread` and `process` are global ids."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    correlation: int = 0

    def add(self, table: str, **cells: Any) -> None:
        self.tables.setdefault(table, []).append(cells)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def domain(self, thread: int, name: str = "ddbench", domain: int = DOMAIN_ID) -> None:
        self.add("NVTX_EVENTS", start=0, eventType=75, text=name, globalTid=thread, domainId=domain)

    def nvtx(self, thread: int, name: str, start: int, end: int | None, **cells: Any) -> None:
        """A registered push/pop range of our domain, unless `cells` says otherwise."""
        row = {"eventType": 59, "textId": self.string(name), "domainId": DOMAIN_ID, **cells}
        self.add("NVTX_EVENTS", start=start, end=end, globalTid=thread, **row)

    def call(self, thread: int, start: int, end: int, name: str = "cudaLaunchKernel_v7000", **cells: Any) -> int:
        """An API call; gives its correlation id."""
        self.correlation += 1
        row = {"correlationId": self.correlation, "nameId": self.string(name), "eventClass": 0, **cells}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, globalTid=thread, **row)
        return int(row["correlationId"])

    def kernel(self, thread: int, correlation: int, start: int, end: int, name: str = "gemm", **cells: Any) -> None:
        row = {"demangledName": self.string(name), "shortName": self.string(name), **self._on_device(thread), **cells}
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, correlationId=correlation, **row)

    def copy(self, thread: int, correlation: int, start: int, end: int, num_bytes: int, **cells: Any) -> None:
        row = {"bytes": num_bytes, "copyKind": COPY_KINDS["device_to_host"], **self._on_device(thread), **cells}
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, correlationId=correlation, **row)

    def memset(self, thread: int, correlation: int, start: int, end: int, num_bytes: int, **cells: Any) -> None:
        row = {"bytes": num_bytes, **self._on_device(thread), **cells}
        self.add("CUPTI_ACTIVITY_KIND_MEMSET", start=start, end=end, correlationId=correlation, **row)

    def graph_trace(self, thread: int, correlation: int, start: int, end: int) -> None:
        row = {"graphId": 1, **self._on_device(thread)}
        self.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=end, correlationId=correlation, **row)

    def node(self, thread: int, node: int, at: int, original: int | None = None) -> None:
        row = {"nameId": self.string("cudaGraphAddKernelNode"), "graphNodeId": node, "originalGraphNodeId": original}
        self.add("CUDA_GRAPH_NODE_EVENTS", start=at, end=at, globalTid=thread, **row)

    def metric(self, metric_id: int, name: str, type_id: int = 5 << 32) -> None:
        self.add("TARGET_INFO_GPU_METRICS", typeId=type_id, metricId=metric_id, metricName=name, sourceId=0)

    def sample(self, at: int, metric_id: int, value: float, type_id: int = 5 << 32) -> None:
        self.add("GPU_METRICS", timestamp=at, rawTimestamp=at, typeId=type_id, metricId=metric_id, value=value)

    @staticmethod
    def _on_device(thread: int) -> dict[str, Any]:
        return {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": thread & ~0xFFFFFF}

    def rows(self, table: str, version: str) -> list[dict[str, Any]]:
        if version == "3.7.2" and table == "CUDA_GRAPH_EVENTS":
            return self.tables.get("CUDA_GRAPH_NODE_EVENTS", [])
        if version == "3.7.2" and table == "CUDA_GRAPH_NODE_EVENTS":
            return []
        if table == "META_DATA_EXPORT":
            stamp = [{"name": "EXPORT_SCHEMA_VERSION", "value": version}]
            return [*stamp, {"name": "EXPORT_PRODUCT_VERSION", "value": "2025.3.1.0"}, *self.tables.get(table, [])]
        return self.tables.get(table, [])

    def write_sqlite(self, path: Path, version: str = "3.20.3", is_lazy: bool = True) -> Path:
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA synchronous = OFF")  # waiting for the disk is most of a test's time
            database.execute("BEGIN")
            for table in COLUMNS:
                rows = self.rows(table, version)
                if rows or not is_lazy:
                    names = columns_of(table, version)
                    types = ", ".join(f'"{name}" {"TEXT" if _is_text(table, name) else "INTEGER"}' for name in names)
                    database.execute(f'CREATE TABLE "{table}" ({types})')
                    holes = ", ".join("?" * len(names))
                    cells = [[row.get(name) for name in names] for row in rows]
                    database.executemany(f'INSERT INTO "{table}" VALUES ({holes})', cells)
        database.close()
        return path

    def write_parquet(self, folder: Path, version: str = "3.20.3", is_lazy: bool = True) -> Path:
        folder.mkdir()
        for table in COLUMNS:
            rows = self.rows(table, version)
            if rows or not is_lazy:
                columns = {
                    name: pa.array(
                        [row.get(name) for row in rows],
                        pa.string() if _is_text(table, name) else pa.float64() if name == "value" else pa.int64(),
                    )
                    for name in columns_of(table, version)
                }
                pq.write_table(pa.table(columns), folder / f"{table}.parquet")
        return folder

    def write(self, folder: Path, form: str, version: str = "3.20.3", is_lazy: bool = True) -> Path:
        """`form`: sqlite or parquet."""
        if form == "sqlite":
            return self.write_sqlite(folder / "capture.sqlite", version, is_lazy)
        return self.write_parquet(folder / "capture_pqtdir", version, is_lazy)


def _is_text(table: str, column: str) -> bool:
    return column in _TEXT and not (column == "value" and table in _NUMBER_VALUES)


MAIN = thread_id(4242, 4242)
US = 1000


def small_capture() -> Recorder:
    """One eager round and one replayed round, with everything that a reader has to understand.

    Eager: draft 10 us kernel, verify 40 us kernel and a copy of 5 us. The graph, captured before: a draft node and a
    verify node, replayed once as kernels of 20 us and 30 us. One memset of 1 us under no stage.
    """
    rec = Recorder()
    rec.domain(MAIN)
    rec.nvtx(MAIN, "draft", 100, 200)  # the capture
    rec.node(MAIN, (1 << 32) | 1, 150)
    rec.nvtx(MAIN, "verify", 210, 300)
    rec.node(MAIN, (1 << 32) | 2, 250)
    rec.node(MAIN, (2 << 32) | 1, 400, original=(1 << 32) | 1)  # instantiated
    rec.node(MAIN, (2 << 32) | 2, 400, original=(1 << 32) | 2)
    rec.nvtx(MAIN, "round/0", 1000, 5000)
    rec.nvtx(MAIN, "draft", 1100, 1900)
    rec.kernel(MAIN, rec.call(MAIN, 1200, 1300), 10 * US, 20 * US, "draft<gemm, 'x'>")
    rec.nvtx(MAIN, "verify", 2000, 4900)
    rec.kernel(MAIN, rec.call(MAIN, 2100, 2200), 20 * US, 60 * US, "verify_gemm")
    rec.copy(MAIN, rec.call(MAIN, 2300, 2400, "cudaMemcpyAsync_v3020"), 60 * US, 65 * US, 4096)
    rec.nvtx(MAIN, "round/1", 6000, 9000)
    launch = rec.call(MAIN, 6100, 6200, "cudaGraphLaunch_v10000")
    rec.kernel(MAIN, launch, 100 * US, 120 * US, "draft<gemm, 'x'>", graphNodeId=(2 << 32) | 1)
    rec.kernel(MAIN, launch, 120 * US, 150 * US, "verify_gemm", graphNodeId=(2 << 32) | 2)
    rec.memset(MAIN, rec.call(MAIN, 9500, 9600, "cudaMemsetAsync_v3020"), 160 * US, 161 * US, 64)
    rec.metric(3, "DRAM Read Bandwidth [Throughput %]")
    rec.metric(4, "GPC Clock Frequency [MHz]")
    rec.metric(9, "PCIe RX Throughput [Throughput %]")
    for index in range(20):
        rec.sample(index * 10 * US, 3, 50 + index)
        rec.sample(index * 10 * US, 4, 1_980_000_000)
        rec.sample(index * 10 * US, 9, 99)
    rec.add("TARGET_INFO_GPU", id=0, name="NVIDIA H200", memoryBandwidth=4_800_000_000_000)
    rec.add("DIAGNOSTIC_EVENT", timestamp=0, source=1, severity=2, text="buffers were flushed late", globalPid=0)
    rec.call(MAIN, 9900, 10_000, "cudaDeviceSynchronize_v3020")
    return rec


def attribute(export: NsysExport) -> Attribution:
    """Of all that an export holds, as the digest does it for a window."""
    return concluded(export, attributed_ops(export))
