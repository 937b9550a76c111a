"""What a profiler's pass over a case recorded, digested: frozen records and the rows of its tables.

A case folder may hold, beside its result, one capture per tool:

    captures/<tool>.json            `Capture`: what was recorded, how it adds up, or why there is nothing
    captures/<tool>-<table>.parquet rows of `CAPTURE_TABLES`, those that the tool can fill
    captures/raw/                   the tool's own files: looked at in its own viewer, never part of a report

While it is made, <tool>.run.json (`CapturedRun`) and <tool>.start.json (`CaptureStart`) are there, too.

A capture is a run of its own of the same case: never a source of speed, which is read from the clean pass alone.
Standard library and pydantic only. Times of rows are nanoseconds since the captured window began, on one clock.
"""

from __future__ import annotations

from typing import Literal

from ddbench.records import NotMeasured
from ddbench.spec import Counters, Record, Tool

Basis = Literal["launch", "capture", "approximate", "unattributed"]
OUTSIDE_ROUNDS = -1  # the step of what belongs to no round, such as a prefill

FaultReason = Literal[
    "tool_missing",  # not installed
    "unsupported",  # this tool cannot serve the case (ncu on a CPU)
    "no_device",
    "driver_down",
    "driver_mismatch",
    "no_permission",  # for counters
    "importer",  # of nsys: lacks a library or is not there
    "lock",  # another ncu, or its stale lock file
    "busy",  # another client of the profiling interface
    "disk",
    "truncated",  # a file that ends before its end
    "unreadable",  # an export that is no export, or of an unknown schema
    "nothing",  # a sound file in which nothing was recorded
    "other_output",  # the case generated other tokens than in its clean pass
    "timeout",
    "crash",
]


class CaptureFault(Record):
    """Why a tool's pass gave nothing: one reason, one line, one cure."""

    reason: FaultReason
    what: str
    cure: str


class LedgerLine(Record):
    """Device ops of the window whose stage is known in one way; the lines of a capture add up to all of its ops."""

    basis: Basis
    count: int
    time_ns: int


class CapturedRun(Record):
    """What the process under the tool itself saw of the window; written by it."""

    first_round: int  # step of the first round in the window, as in the clean pass
    round_ns: tuple[int, ...]  # host time of every round in the window, under the tool
    num_emitted: int  # tokens, in these rounds
    outputs: dict[str, tuple[int, ...]]  # request id -> all tokens that the process generated for it


class CaptureStart(Record):
    """What only the driver of a tool knows, written for the digest of its files; gone once they are digested."""

    tool: Tool
    tool_version: str | NotMeasured
    seconds: float  # so far: from the start of the process to the files in captures/raw/
    reads: str  # name in captures/raw/ of what is digested: nsys-export (a parquetdir), ncu.csv, torch.json.gz
    raw: tuple[str, ...]  # names in captures/raw/ that stay there
    command: str = ""  # of the tool, without what names a machine
    cache: Literal["as it ran", "flushed"] = "as it ran"
    counted_kernels: str = ""  # as `CaptureSpec` says, of ncu
    counters: Counters = "all"
    notes: tuple[str, ...] = ()  # what the driver had to do without, such as GPU metrics


class Capture(Record):
    """One tool's pass over a case."""

    tool: Tool
    tool_version: str | NotMeasured
    seconds: float  # of the whole pass: start of the process to tables on disk
    fault: CaptureFault | None = None  # then there are no tables
    first_round: int = 0
    round_ns: tuple[int, ...] = ()
    num_emitted: int = 0
    window_ns: int = 0  # length of the window on the tool's clock
    ledger: tuple[LedgerLine, ...] = ()  # empty where the tool gives no device times
    num_graph_launches: int = 0
    num_graph_replays: int = 0  # launches of which the device left at least one record
    withheld: str = ""  # why no totals may be read from the tables (under-recorded); empty: they may
    schema_version: str | NotMeasured = NotMeasured(not_measured="the tool states none")
    dram_peak_bytes_per_s: float | NotMeasured = NotMeasured(not_measured="the tool does not state the DRAM's peak")
    cache: Literal["as it ran", "flushed"] = "as it ran"  # before every kernel (ncu can flush it)
    counted_kernels: str = ""  # names of the kernels that were counted, by choice; empty: all were
    num_left_out: int | NotMeasured = 0  # kernels of its rounds that were not, by that choice
    counters: Counters = "all"
    notes: tuple[str, ...] = ()  # what the reader could not take at face value; the tool's own warnings
    command: str = ""  # of the tool, without what names a machine
    raw: tuple[str, ...] = ()  # names of the files in captures/raw/


class DeviceOp(Record):
    """A kernel, copy or memset of the window (torch on a CPU: an operator), in the order of their start."""

    kind: Literal["kernel", "copy", "memset", "graph", "operator"]  # graph: a replay recorded as a whole
    name: str  # of a kernel: the demangled name; of a copy: `copy device to host`, ...
    stage: str  # '' where none is known
    launch_stage: str  # of the launch alone: for an op of a replayed graph the stage around the replay, if any
    basis: Basis
    round: int  # step; OUTSIDE_ROUNDS
    gpu: int
    stream: int
    start_ns: int
    end_ns: int
    num_bytes: int  # of copies and memsets; 0 for kernels
    direction: str  # of copies: 'host to device', 'device to host', 'device to device', ...; else ''
    is_replayed: bool  # a node of a graph
    launch_ns: int  # start of the host's call that launched it; -1: not recorded


class HostCall(Record):
    """A call into CUDA by the host, in the window."""

    kind: Literal["launch", "graph_launch", "copy", "memset", "sync", "memory", "other"]
    name: str
    stage: str
    round: int
    thread: int  # 0, 1, ... in the order of appearance
    start_ns: int
    end_ns: int


class HostRange(Record):
    """A stage or a round on the host's clock."""

    kind: Literal["stage", "round"]
    name: str  # of the stage; '' for a round
    round: int
    thread: int
    start_ns: int
    end_ns: int


class StageSamples(Record):
    """One sampled GPU metric over one stage, or over 'idle', 'mixed', 'unattributed' time."""

    gpu: int
    label: str
    metric: str  # a key of `analysis.nsys.gpu_metrics.METRICS`
    unit: str
    mean: float  # over samples wholly within the stage; meaningless where num_whole is 0
    blended: float  # over all samples that touch it, by overlap
    num_whole: int
    num_touching: int
    time_ns: int = 0  # of the label, in the samples that touch it: what `blended` is the mean over


class KernelCounter(Record):
    """One hardware counter of one profiled kernel launch."""

    index: int  # of the kernel in the order of launch
    name: str
    stage: str
    basis: Basis
    is_replayed: bool
    metric: str  # a key of `analysis.ncu.COUNTERS`
    unit: str
    value: float


CAPTURE_TABLES: dict[str, type[Record]] = {
    "ops": DeviceOp,
    "calls": HostCall,
    "ranges": HostRange,
    "samples": StageSamples,
    "counters": KernelCounter,
}
TABLES_OF: dict[Tool, tuple[str, ...]] = {
    "nsys": ("ops", "calls", "ranges", "samples"),
    "torch": ("ops", "calls", "ranges"),
    "ncu": ("counters",),
}
