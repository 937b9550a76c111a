"""Captures of a synthetic case whose truth is known: what ran when and why it waited, and how many bytes it moved.

The window's rounds last `tax` times what they took in the first clean pass. Within a round every stage has its share:
launched op by op each kernel follows its launch call by `LATENCY_NS`; as a graph, one call launches nodes that follow
each other by `NODE_GAP_NS`. Kernels of a stage move `waste` times its fewest bytes; samples say `sampled` times that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from ddbench.analysis.tables import write_capture_table
from ddbench.captured import CAPTURE_TABLES, TABLES_OF, Basis, Capture, CaptureFault, LedgerLine
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured, OkResult
from ddbench.spec import Case, Tool

LATENCY_NS, CALL_NS, NODE_GAP_NS, SYNC_NS = 6_000, 4_000, 500, 9_000
KERNEL_SHARE = 0.7  # of the time from one launch to the next
KERNELS = 3  # of a stage
DRAM_PEAK = 4.8e12
READ_SHARE = 0.75  # of a kernel's bytes
ROUND_SHARES: Mapping[Stage, float] = {
    Stage.DRAFT: 0.2,
    Stage.TREE_BUILD: 0.1,
    Stage.TREE_COMPILE: 0.05,
    Stage.VERIFY: 0.4,
    Stage.ACCEPT: 0.06,
    Stage.COMMIT: 0.06,
    Stage.MATERIALIZE: 0.07,
}
NCU_ROUNDS = 2

Row = dict[str, Any]


@dataclass(frozen=True)
class CapturePlan:
    """What profilers make of one case."""

    tools: tuple[Tool, ...] = ("nsys", "ncu")
    is_graph: bool = False  # the round is one graph
    tax: float = 1.25
    waste: Mapping[str, float] = field(default_factory=dict)  # stage -> bytes of its kernels / its fewest; else 1.5
    sampled: float = 0.9  # sampled bytes / counted ones
    faults: Mapping[Tool, CaptureFault] = field(default_factory=dict)
    lost_replays: int = 0  # of which the device left no record
    prefix: str = ""  # of every name that a kernel, a call or a file has
    cache: Any = "flushed"
    unattributed: int = 0  # kernels per round of which no stage is known
    notes: tuple[str, ...] = ()

    def wasted(self, stage: str) -> float:
        return self.waste.get(stage, 1.5)


@dataclass
class _Timeline:
    """Rows of a window as they come to be."""

    plan: CapturePlan
    ops: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    ranges: list[Row] = field(default_factory=list)

    def call(self, kind: str, name: str, stage: str, step: int, start: int, length: int) -> None:
        at = {"round": step, "thread": 0, "start_ns": start, "end_ns": start + length}
        self.calls.append({"kind": kind, "name": self.plan.prefix + name, "stage": stage, **at})

    def range(self, kind: str, name: str, step: int, start: int, end: int) -> None:
        self.ranges.append({"kind": kind, "name": name, "round": step, "thread": 0, "start_ns": start, "end_ns": end})

    def op(self, kind: str, name: str, stage: str, step: int, start: int, end: int, launch: int, **more: Any) -> None:
        is_replayed = more.pop("is_replayed", False)
        basis = "unattributed" if not stage else "capture" if is_replayed else "launch"
        row = {
            "kind": kind,
            "name": name if kind == "copy" else self.plan.prefix + name,
            "stage": stage,
            "launch_stage": "" if is_replayed else stage,
            "basis": basis,
            "round": step,
            "gpu": 0,
            "stream": 7,
            "start_ns": start,
            "end_ns": end,
            "num_bytes": 0,
            "direction": "",
            "is_replayed": is_replayed,
            "launch_ns": launch,
        }
        self.ops.append({**row, **more})


def write_captures(
    folder: Path, case: Case, result: OkResult, steps: Sequence[tuple[Any, ...]], plan: CapturePlan
) -> None:
    """Write every tool's capture into the case's folder."""
    place = folder / "captures"
    place.mkdir(exist_ok=True)
    clean = {row[2]: row[6] - row[5] for row in steps if row[:2] == ("clean", 0)}
    stages = [cost.stage for cost in result.stage_costs]
    for tool in plan.tools:
        wanted = min(NCU_ROUNDS, case.capture.num_rounds) if tool == "ncu" else case.capture.num_rounds
        first = min(case.capture.first_round, max(clean))
        rounds = {step: int(plan.tax * clean[step]) for step in range(first, first + wanted) if step in clean}
        common: Row = {"tool": tool, "tool_version": "2025.3.1", "seconds": 12.5, "notes": plan.notes}
        if tool in plan.faults:
            capture = Capture(**common, fault=plan.faults[tool])
        else:
            capture, tables = _captured(tool, common, rounds, stages, result, plan)
            for name in TABLES_OF[tool]:
                record = CAPTURE_TABLES[name]
                frame = pd.DataFrame(tables.get(name, []), columns=list(record.model_fields))
                write_capture_table(place / f"{tool}-{name}.parquet", record, frame)
        (place / f"{tool}.json").write_text(capture.model_dump_json(indent=1), encoding="utf-8")


def _captured(
    tool: Tool, common: Row, rounds: Mapping[int, int], stages: Sequence[str], result: OkResult, plan: CapturePlan
) -> tuple[Capture, dict[str, list[Row]]]:
    common = {
        **common,
        "first_round": min(rounds),
        "round_ns": tuple(rounds.values()),
        "num_emitted": 2 * len(rounds),
        "command": f"{tool} {plan.prefix}ddbench",
    }
    if tool == "ncu":
        rows = list(_counters(stages, result, plan, len(rounds)))
        return Capture(**common, cache=plan.cache, raw=(f"{plan.prefix}case.ncu-rep",)), {"counters": rows}
    timeline = _Timeline(plan)
    now = 0
    for place, (step, length) in enumerate(rounds.items()):
        timeline.range("round", "", step, now, now + length)
        is_lost = place < plan.lost_replays
        (_graph_round if plan.is_graph else _eager_round)(timeline, step, now, length, stages, is_lost)
        now += length
    launched = len(rounds) if plan.is_graph else 0
    lost = min(plan.lost_replays, launched)
    capture = Capture(
        **common,
        window_ns=now,
        ledger=_ledger(timeline.ops),
        num_graph_launches=launched,
        num_graph_replays=launched - lost,
        withheld=f"under-recorded: {launched} graph launches, {launched - lost} replays found" if lost else "",
        schema_version="3.20.3",
        dram_peak_bytes_per_s=DRAM_PEAK if tool == "nsys" else NotMeasured(not_measured="torch samples nothing"),
        raw=(f"{plan.prefix}case.nsys-rep" if tool == "nsys" else f"{plan.prefix}case.json.gz",),
    )
    tables = {"ops": sorted(timeline.ops, key=lambda op: op["start_ns"]), "calls": timeline.calls}
    tables["ranges"] = timeline.ranges
    if tool == "nsys":
        tables["samples"] = list(_samples(timeline.ops, result, plan, len(rounds)))
    return capture, tables


def _ledger(ops: Sequence[Row]) -> tuple[LedgerLine, ...]:
    lines = []
    for basis in get_args(Basis):
        own = [op["end_ns"] - op["start_ns"] for op in ops if op["basis"] == basis]
        lines.append(LedgerLine(basis=basis, count=len(own), time_ns=sum(own)))
    return tuple(lines)


# --- rounds -----------------------------------------------------------------------------------------------------------


def _spans(start: int, length: int, stages: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(stage, start, launches apart by) of every stage of a round."""
    now = start
    for stage, share in ROUND_SHARES.items():
        if stage.value in stages:
            apart = int(share * length) // KERNELS
            yield stage.value, now, apart
            now += apart * KERNELS


def _eager_round(timeline: _Timeline, step: int, start: int, length: int, stages: Sequence[str], is_lost: bool) -> None:
    for stage, begin, apart in _spans(start, length, stages):
        timeline.range("stage", stage, step, begin, begin + KERNELS * apart)
        for place in range(KERNELS):
            launch = begin + place * apart
            busy = int(KERNEL_SHARE * apart)
            timeline.call("launch", "cudaLaunchKernel", stage, step, launch, CALL_NS)
            name, first = f"{stage}_kernel_{place}", launch + LATENCY_NS
            timeline.op("kernel", name, stage, step, first, first + busy - LATENCY_NS, launch)
        _crossings(timeline, stage, step, begin + KERNELS * apart - 2 * SYNC_NS)
    for place in range(timeline.plan.unattributed):
        first = start + length - 20_000 + 3_000 * place
        timeline.op("kernel", "stray_kernel", "", step, first, first + 2_000, -1)


def _crossings(timeline: _Timeline, stage: str, step: int, launch: int) -> None:
    """What a stage copies at its end, and the sync after it."""
    copies = {
        Stage.TREE_BUILD.value: (("device to host", 3584), ("host to device", 512)),
        Stage.ACCEPT.value: (("device to host", 64),),
        Stage.COMMIT.value: (("device to device", 4096),),
    }
    for place, (direction, size) in enumerate(copies.get(stage, ())):
        asked, took = launch + place * 3_000, 1_000
        timeline.call("copy", "cudaMemcpyAsync", stage, step, asked, 1_500)
        more = {"num_bytes": size, "direction": direction}
        timeline.op("copy", f"copy {direction}", stage, step, asked + 1_800, asked + 1_800 + took, asked, **more)
    if stage in (Stage.TREE_BUILD.value, Stage.ACCEPT.value):
        timeline.call("sync", "cudaStreamSynchronize", stage, step, launch + SYNC_NS, SYNC_NS)


def _graph_round(timeline: _Timeline, step: int, start: int, length: int, stages: Sequence[str], is_lost: bool) -> None:
    launch = start + 2_000
    timeline.call("graph_launch", "cudaGraphLaunch", "", step, launch, 20_000)
    now = launch + LATENCY_NS
    for stage, _, apart in _spans(start, length, stages):
        for place in range(KERNELS):
            end = now + int(KERNEL_SHARE * apart)
            if not is_lost:
                timeline.op("kernel", f"{stage}_kernel_{place}", stage, step, now, end, launch, is_replayed=True)
            now = end + NODE_GAP_NS
    asked = now + 5_000
    commit = Stage.COMMIT.value  # the copy of the round's report
    timeline.call("copy", "cudaMemcpyAsync", commit, step, asked, 1_500)
    more = {"num_bytes": 64, "direction": "device to host"}
    timeline.op("copy", "copy device to host", commit, step, asked + 1_800, asked + 2_800, asked, **more)
    timeline.call("sync", "cudaEventSynchronize", "", step, asked + 2_000, SYNC_NS)


# --- bytes ------------------------------------------------------------------------------------------------------------


def kernels_bytes(result: OkResult, stage: str, plan: CapturePlan) -> float:
    """What the kernels of a stage move per round."""
    return plan.wasted(stage) * next(cost.fewest_bytes for cost in result.stage_costs if cost.stage == stage)


def _samples(ops: Sequence[Row], result: OkResult, plan: CapturePlan, num_rounds: int) -> Iterator[Row]:
    for stage in dict.fromkeys(op["stage"] for op in ops if op["stage"]):
        busy = sum(op["end_ns"] - op["start_ns"] for op in ops if op["stage"] == stage) / num_rounds
        share = 100 * plan.sampled * kernels_bytes(result, stage, plan) / (DRAM_PEAK * busy / 1e9)
        values = {
            "dram_read": ("%", READ_SHARE * share),
            "dram_write": ("%", (1 - READ_SHARE) * share),
            "sm_active": ("%", 62.5),
            "tensor_active": ("%", 4.2 if stage == Stage.VERIFY.value else 0.5),
            "warps_share": ("%", 21.0),
            "clock": ("MHz", 1980.0),
        }
        whole = 0 if stage == Stage.TREE_COMPILE.value else 40
        covered = {"num_touching": whole + 7, "time_ns": int(busy * num_rounds)}
        for metric, (unit, value) in values.items():
            row = {"gpu": 0, "label": stage, "metric": metric, "unit": unit, "mean": value if whole else 0.0}
            yield {**row, "blended": value, "num_whole": whole, **covered}
    idle = {"gpu": 0, "label": "idle", "metric": "sm_active", "unit": "%", "mean": 0.0, "blended": 0.0}
    yield {**idle, "num_whole": 90, "num_touching": 97, "time_ns": 1_000_000}


def _counters(stages: Sequence[str], result: OkResult, plan: CapturePlan, num_rounds: int) -> Iterator[Row]:
    index = 0
    for _ in range(num_rounds):
        for stage in stages:
            for place in range(KERNELS):
                moved = kernels_bytes(result, stage, plan) / KERNELS
                values = {
                    "time": ("ns", 10_000.0 * (1 + place)),
                    "dram_read": ("bytes", READ_SHARE * moved),
                    "dram_write": ("bytes", (1 - READ_SHARE) * moved),
                    "occupancy": ("%", 20.0 + place),
                    "occupancy_limit": ("%", 50.0),
                    "tensor": ("%", 12.0 if stage == Stage.VERIFY.value else 0.0),
                }
                name = f"{plan.prefix}{stage}_kernel_{place}"
                about = {
                    "index": index,
                    "name": name,
                    "stage": stage,
                    "basis": "capture" if plan.is_graph else "launch",
                }
                for metric, (unit, value) in values.items():
                    yield {**about, "is_replayed": plan.is_graph, "metric": metric, "unit": unit, "value": value}
                index += 1
