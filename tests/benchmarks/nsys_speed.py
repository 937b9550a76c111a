"""Times the way from an export of nsys to tables: 1,000,000 kernels and 8,000,000 samples, wanted under 15 s and 2 GB.

    PYTHONPATH=. python tests/benchmarks/nsys_speed.py [NUM_KERNELS] [NUM_SAMPLES] [--form parquet|sqlite]

Builds a synthetic export first: rounds of 100 kernels in seven stages, every other round a replayed graph, eight GPU
metrics, one window around all of it. Reading, attribution and the join with the samples happen in a process of their
own, the whole digest with its tables in another, so that their peak memory is theirs. Prints wall and CPU seconds of
every phase and the peak memory up to its end. Not a test: times on a shared machine prove nothing; that every kernel
finds its stage is checked.
"""

import argparse
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from ddbench.analysis.nsys.gpu_metrics import METRICS
from ddbench.analysis.nsys.names import WINDOW
from ddbench.captured import CapturedRun, CaptureStart
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured

WANTED = "wanted for 1,000,000 kernels and 8,000,000 samples: under 15 s and 2 GB on two cores"
KERNELS_PER_ROUND = 100
KERNEL_NS, GAP_NS = 8_000, 2_000
THREAD = (1 << 56) | (4242 << 24) | 4242
PROCESS = THREAD & ~0xFFFFFF
CLONED = 1 << 33  # node ids of the instantiated graph
Tables = dict[str, dict[str, np.ndarray | list[str | None]]]


def make_tables(num_kernels: int, num_samples: int) -> Tables:
    """All tables of an export, as columns."""
    num_rounds = max(2, num_kernels // KERNELS_PER_ROUND)
    step = np.repeat(np.arange(num_rounds), KERNELS_PER_ROUND)
    place = np.tile(np.arange(KERNELS_PER_ROUND), num_rounds)
    start = (10_000_000 + np.arange(len(step)) * (KERNEL_NS + GAP_NS)).astype(np.int64)
    is_replay = step % 2 == 1
    names = [f"kernel_{index}" for index in range(40)]
    texts = [
        *names,
        "cudaLaunchKernel_v7000",
        "cudaGraphLaunch_v10000",
        *(stage.value for stage in ROUND_STAGES),
        WINDOW,
    ]
    rounds = [f"round/{index}" for index in range(num_rounds)]
    # One call per eager kernel, one per replay: the first kernel's place in time.
    is_call = ~is_replay | (place == 0)
    call_of = np.cumsum(is_call)
    calls = start[is_call] - 5_000
    return {
        "META_DATA_EXPORT": {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["3.20.3"]},
        "StringIds": {"id": np.arange(len(texts) + num_rounds), "value": [*texts, *rounds]},
        "CUPTI_ACTIVITY_KIND_KERNEL": {
            "start": start,
            "end": start + KERNEL_NS,
            **{name: np.full(len(step), value) for name, value in (("deviceId", 0), ("contextId", 1), ("streamId", 7))},
            "correlationId": call_of,
            "globalPid": np.full(len(step), PROCESS),
            "demangledName": place % len(names),
            "shortName": place % len(names),
            "graphNodeId": np.where(is_replay, CLONED + place + 1, 0),
        },
        "CUPTI_ACTIVITY_KIND_RUNTIME": {
            "start": calls,
            "end": calls + 1_000,
            "globalTid": np.full(len(calls), THREAD),
            "correlationId": np.arange(1, len(calls) + 1),
            "nameId": np.where(is_replay[is_call], len(names) + 1, len(names)),
            "returnValue": np.zeros(len(calls), np.int64),
        },
        "CUDA_GRAPH_NODE_EVENTS": node_events(),
        "NVTX_EVENTS": nvtx_events(num_rounds, start, len(names) + 2, len(texts)),
        **metric_tables(num_samples, int(start[-1])),
    }


def stage_of(place: np.ndarray) -> np.ndarray:
    return place * len(ROUND_STAGES) // KERNELS_PER_ROUND


def node_events() -> dict[str, np.ndarray]:
    """The capture, 10 us a node, then the clones."""
    place = np.arange(KERNELS_PER_ROUND)
    at = np.concatenate([1_000_000 + place * 10_000, np.full(KERNELS_PER_ROUND, 5_000_000)])
    return {
        "start": at,
        "end": at + 100,
        "globalTid": np.full(len(at), THREAD),
        "graphNodeId": np.concatenate([place + 1, CLONED + place + 1]),
        "originalGraphNodeId": np.concatenate([np.zeros(KERNELS_PER_ROUND, np.int64), place + 1]),
    }


def nvtx_events(
    num_rounds: int, start: np.ndarray, first_stage: int, first_round: int
) -> dict[str, np.ndarray | list[str | None]]:
    """Stage ranges of the capture and of eager rounds, and a range around every round."""
    place = np.arange(KERNELS_PER_ROUND)
    firsts = np.searchsorted(stage_of(place), np.arange(len(ROUND_STAGES)))
    lasts = np.append(firsts[1:], KERNELS_PER_ROUND) - 1
    eager = np.arange(0, num_rounds, 2)[:, None] * KERNELS_PER_ROUND
    stages = np.tile(np.arange(len(ROUND_STAGES)), len(eager))
    low = [1_000_000 + firsts * 10_000 - 2_000, start[(eager + firsts).ravel()] - 5_500]
    high = [1_000_000 + lasts * 10_000 + 2_000, start[(eager + lasts).ravel()] - 3_500]
    steps = np.arange(num_rounds)
    low.append(start[steps * KERNELS_PER_ROUND] - 6_000)
    high.append(start[steps * KERNELS_PER_ROUND + KERNELS_PER_ROUND - 1] - 3_000)
    low.append(start[:1] - 8_000)
    high.append(start[-1:] + KERNEL_NS)
    kinds = [np.arange(len(ROUND_STAGES)) + first_stage, first_stage + stages, first_round + steps, [first_round - 1]]
    text_ids = np.concatenate(kinds)
    num = len(text_ids)
    return {
        "start": np.append(0, np.concatenate(low)),
        "end": np.append(0, np.concatenate(high)),
        "eventType": np.append(75, np.full(num, 59)),
        "text": ["ddbench", *[None] * num],
        "textId": np.append(-1, text_ids),
        "globalTid": np.full(num + 1, THREAD),
        "domainId": np.ones(num + 1, np.int64),
    }


def metric_tables(num_samples: int, until: int) -> Tables:
    """Every known metric and one that nobody reads."""
    names = [f"{metric.titles[0]} [{metric.exported[0]}]" for metric in METRICS.values()]
    names.append("PCIe RX Throughput [Throughput %]")
    moments = np.linspace(0, until, num_samples // len(names)).astype(np.int64)
    metric = np.tile(np.arange(len(names)), len(moments))
    type_id = np.full(len(names), 5 << 32)
    return {
        "TARGET_INFO_GPU_METRICS": {"typeId": type_id, "metricId": np.arange(len(names)), "metricName": names},
        "GPU_METRICS": {
            "rawTimestamp": np.repeat(moments, len(names)),
            "timestamp": np.repeat(moments, len(names)),
            "typeId": np.full(len(metric), 5 << 32),
            "metricId": metric,
            "value": (np.arange(len(metric)) * 7919) % 101,
        },
    }


def write(tables: Tables, form: str, folder: Path) -> Path:
    if form == "parquet":
        place = folder / "capture_pqtdir"
        place.mkdir()
        for name, columns in tables.items():
            pq.write_table(pa.table(columns), place / f"{name}.parquet")
        return place
    place = folder / "capture.sqlite"
    database = sqlite3.connect(place)
    for name, columns in tables.items():
        types = ", ".join(f'"{column}" {_sql_type(values)}' for column, values in columns.items())
        database.execute(f'CREATE TABLE "{name}" ({types})')
        rows = zip(*[v if isinstance(v, list) else v.tolist() for v in columns.values()], strict=True)
        database.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', rows)
    database.commit()
    database.close()
    return place


def _sql_type(values: np.ndarray | list[str | None]) -> str:
    return "TEXT" if isinstance(values, list) else "INTEGER"


class Laps:
    """Seconds of phases and the peak memory up to the end of each, as a table."""

    def __init__(self) -> None:
        self.table = Table("phase", "wall s", "CPU s", "peak GB", box=None)
        self.begun = self.since = time.perf_counter(), time.process_time()

    def lap(self, name: str, since: tuple[float, float] | None = None) -> None:
        now = time.perf_counter(), time.process_time()
        since = since or self.since
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1e-9 if sys.platform == "darwin" else 1e-6)
        self.table.add_row(name, f"{now[0] - since[0]:.2f}", f"{now[1] - since[1]:.2f}", f"{peak:.2f}")
        self.since = now


def measure(place: Path, console: Console) -> None:
    """Phase by phase, and whether every kernel found its stage."""
    from ddbench.analysis.nsys.attribution import attributed_ops, concluded
    from ddbench.analysis.nsys.export import read_export
    from ddbench.analysis.nsys.sampled import stage_metrics

    laps = Laps()
    export = read_export(place)
    laps.lap("read")
    attribution = concluded(export, attributed_ops(export))
    laps.lap("attribute")
    metrics = stage_metrics(export, attribution)
    laps.lap("samples")
    laps.lap("all", laps.begun)
    console.print(laps.table)
    assert not isinstance(metrics, NotMeasured), metrics
    console.print(f"{len(attribution.ops)} ops, {len(export.samples)} samples of known metrics, {len(metrics)} results")
    total = sum(line.time_ns for line in attribution.ledger)
    for line in attribution.ledger:
        console.print(f"{line.basis}: {line.count} ops, {line.time_ns / total:.1%} of device time")
    assert not attribution.ledger[-1].time_ns, "a kernel without its stage"


def measure_digest(place: Path, console: Console) -> None:
    """Everything that a sweep does with an export: its tables and its account in the captures folder."""
    from ddbench.analysis.digest import digest

    folder = place.parent.parent
    laps = Laps()
    capture = digest(folder, "nsys")
    laps.lap("digest")
    console.print(laps.table)
    assert capture.fault is None, capture.fault
    assert not capture.withheld, capture.withheld
    kept = sum(file.stat().st_size for file in folder.glob("*.parquet"))
    console.print(f"{sum(line.count for line in capture.ledger)} ops in tables of {kept / 1e6:.1f} MB")


def captures_folder(folder: Path, tables: Tables, form: str) -> Path:
    """The export where a driver leaves it, beside the accounts that go with it."""
    (folder / "raw").mkdir(parents=True)
    place = write(tables, form, folder / "raw")
    num_rounds = len(tables["CUPTI_ACTIVITY_KIND_KERNEL"]["start"]) // KERNELS_PER_ROUND
    start = CaptureStart(tool="nsys", tool_version="2025.3", seconds=0.0, reads=place.name, raw=())
    run = CapturedRun(first_round=0, round_ns=(1_000_000,) * num_rounds, num_emitted=1, outputs={})
    (folder / "nsys.start.json").write_text(start.model_dump_json())
    (folder / "nsys.run.json").write_text(run.model_dump_json())
    return place


def main(num_kernels: int, num_samples: int, form: str) -> None:
    """Build here, measure in two other processes."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        place = captures_folder(Path(folder, "captures"), make_tables(num_kernels, num_samples), form)
        Console().print(f"{form} export built in {time.perf_counter() - started:.1f} s")
        for asked in ("--measure", "--digest"):
            subprocess.run([sys.executable, __file__, asked, str(place)], check=True)
    Console().print(WANTED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Seconds and memory from an export of nsys to attributed stages.")
    parser.add_argument("num_kernels", nargs="?", type=int, default=1_000_000)
    parser.add_argument("num_samples", nargs="?", type=int, default=8_000_000)
    parser.add_argument("--form", choices=("parquet", "sqlite"), default="parquet")
    parser.add_argument("--measure", type=Path, metavar="EXPORT", help=argparse.SUPPRESS)
    parser.add_argument("--digest", type=Path, metavar="EXPORT", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure, Console())
    elif asked.digest:
        measure_digest(asked.digest, Console())
    else:
        main(asked.num_kernels, asked.num_samples, asked.form)
