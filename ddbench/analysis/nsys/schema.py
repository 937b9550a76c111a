"""Which tables and columns of an export are read, under which names, and what an empty cell means.

Read by introspection: a table may have several names, a column several spellings (newest first), and either may be
absent; only an absent column that is `needed`, in a table that is there, makes a schema unknown. A table that is absent
means the same as an empty one, since exports leave tables without rows out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SERIOUS = (2, 3)  # severities of a diagnostic: warning, error; 1 informs, 4 is verbose

Kind = Literal["int", "float", "text", "string"]  # string: stored as an id of StringIds


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frame and where it comes from."""

    name: str
    sources: tuple[str, ...]
    kind: Kind = "int"
    needed: bool = True
    empty: int | None = None  # what an empty cell or an absent column reads as; None: a cell may not be empty


@dataclass(frozen=True, slots=True)
class Table:
    """A frame: one row per row of the first of `names` that is there with its `marked_by` column."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    marked_by: str = ""  # tells apart tables whose meaning changed under one name


def _optional(name: str, source: str, empty: int = 0) -> Column:
    return Column(name, (source,), needed=False, empty=empty)


_START, _END = Column("start_ns", ("start",)), Column("end_ns", ("end",))
_THREAD = Column("thread", ("globalTid",))
_ON_DEVICE = (
    _START,
    _END,
    Column("device", ("deviceId",)),
    Column("stream", ("streamId",)),
    Column("correlation", ("correlationId",), empty=0),
    Column("process", ("globalPid",)),
)
_NODE = _optional("graph_node", "graphNodeId")  # 0: not launched by a graph

TABLES: dict[str, Table] = {
    "kernels": Table(
        ("CUPTI_ACTIVITY_KIND_KERNEL",),
        (*_ON_DEVICE, Column("name", ("demangledName", "shortName"), "string"), _NODE),
    ),
    "copies": Table(
        ("CUPTI_ACTIVITY_KIND_MEMCPY",),
        (*_ON_DEVICE, Column("num_bytes", ("bytes",)), Column("copy_kind", ("copyKind",)), _NODE),
    ),
    "memsets": Table(("CUPTI_ACTIVITY_KIND_MEMSET",), (*_ON_DEVICE, Column("num_bytes", ("bytes",)), _NODE)),
    "graph_traces": Table(("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",), _ON_DEVICE),
    "api_calls": Table(
        ("CUPTI_ACTIVITY_KIND_RUNTIME",),
        (
            _START,
            _END,
            _THREAD,
            Column("correlation", ("correlationId",), empty=0),
            Column("name", ("nameId",), "string"),
        ),
    ),
    "node_events": Table(
        ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"),
        (
            _START,
            Column("end_ns", ("end",), empty=-1),
            _THREAD,
            Column("node", ("graphNodeId",)),
            _optional("original", "originalGraphNodeId"),  # 0: created, not cloned
        ),
        marked_by="graphNodeId",
    ),
    "nvtx": Table(
        ("NVTX_EVENTS",),
        (
            _START,
            Column("end_ns", ("end",), empty=-1),  # -1: never closed
            Column("event_type", ("eventType",)),
            Column("text", ("text",), "text", needed=False),
            _optional("text_id", "textId", empty=-1),
            Column("thread", ("globalTid",), empty=0),
            _optional("end_thread", "endGlobalTid", empty=0),  # 0: ended where it was opened
            _optional("domain_id", "domainId"),
        ),
    ),
    "samples": Table(
        ("GPU_METRICS",),
        (
            Column("time_ns", ("timestamp",)),
            Column("type_id", ("typeId",)),
            Column("metric_id", ("metricId",)),
            Column("value", ("value",), "float"),
        ),
    ),
    "metric_names": Table(
        ("TARGET_INFO_GPU_METRICS",),
        (Column("type_id", ("typeId",)), Column("metric_id", ("metricId",)), Column("name", ("metricName",), "text")),
    ),
    "gpus": Table(
        ("TARGET_INFO_GPU",),
        (Column("gpu", ("id",)), _optional("dram_bytes_per_s", "memoryBandwidth")),
    ),
    "cuda_devices": Table(
        ("TARGET_INFO_CUDA_DEVICE",),
        (Column("gpu", ("gpuId",)), Column("device", ("cudaId",)), Column("pid", ("pid",))),
    ),
    "diagnostics": Table(
        ("DIAGNOSTIC_EVENT",),
        (_optional("severity", "severity", empty=SERIOUS[0]), Column("text", ("text",), "text", needed=False)),
    ),
}

# Every copyKind that CUPTI numbers; anything else reads as `other`.
COPY_DIRECTIONS: dict[int, str] = {
    1: "host to device",
    2: "device to host",
    3: "host to array",
    4: "array to host",
    5: "array to array",
    6: "array to device",
    7: "device to array",
    8: "device to device",
    9: "host to host",
    10: "peer to peer",
}
