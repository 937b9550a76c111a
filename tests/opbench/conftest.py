"""What the tests of the op benchmark share: made-up rows, ceilings, and an op small enough to be known by heart."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddbench.opbench.records import OkRow, OpRow, OpsFile
from ddbench.opbench.shapes import BenchOp, Implementation, Place, Shape
from ddbench.opbench.timing import Budget, HostWatch
from ddbench.records import Ceilings, CeilingSample, Environment, NotMeasured

CPU = Place("cpu", torch.float32)
MISSING = NotMeasured(not_measured="made up")
FAST = Budget(seconds=0.0, sample_s=1e-5, most_sets=3)


def make_ceilings() -> Ceilings:
    """1 GB/s from memory, 10 GB/s from the cache, 1 TFLOP/s, 5 us a launch, 1 us a node of a graph."""
    amounts = {"read-cold": 1e9, "read-hot": 1e10, "matmul-none": 1e12, "launch-none": 5000, "replay-none": 1000}
    samples = []
    for key, amount in amounts.items():
        kind, cache = key.split("-")
        shared = {"when": "before", "dtype": "float32", "num_threads": 1, "working_set_bytes": 1, "num_samples": 5}
        samples.append(CeilingSample(kind=kind, cache=cache, amount=amount, low=amount, high=amount, **shared))
    return Ceilings(device="made up", last_level_cache_bytes=1 << 20, samples=tuple(samples))


def make_row(**changes: Any) -> OkRow:
    """100 us for 50 kB and 1 MFLOP of our kernel, in a graph, from memory."""
    values: dict[str, Any] = {
        "op": "copy",
        "shape": "small",
        "about": "4 numbers",
        "implementation": "triton",
        "kind": "ours",
        "cache": "cold",
        "num_bytes": 50_000,
        "num_flops": 1_000_000,
        "time_ns": 100_000.0,
        "low_ns": 90_000.0,
        "high_ns": 110_000.0,
        "num_samples": 9,
        "calls_per_sample": 4,
        "num_sets": 2,
        "clock": "graph",
        "eager_ns": 120_000.0,
        "launches": 1,
        "error": 0.0,
        "tolerance": 0.004,
    }
    return OkRow(**values | changes)


def make_file(*rows: OpRow, device: str = "Some GPU") -> OpsFile:
    environment = Environment(
        platform="Linux-6.1",
        machine="x86_64",
        cpu_model="some",
        num_cpus=1,
        memory_bytes=1,
        device=device,
        device_memory_bytes=MISSING,
        driver=MISSING,
        power_cap_w=MISSING,
        libraries={"torch": "2.11"},
        num_threads=1,
        code_digest="0",
        commit=MISSING,
        is_dirty=MISSING,
        parts_origin="checkout",
    )
    facts = {"ddbench_version": "0", "created_at": "2025-01-01T00:00:00+00:00", "selection": "default"}
    return OpsFile(**facts, dtype="float32", seconds=12.0, environment=environment, ceilings=make_ceilings(), rows=rows)


def implementation(name: str, function: Any, kind: Any = "torch", **more: Any) -> Implementation:
    return Implementation(name, kind, lambda inputs: lambda: function(inputs["x"]), **more)


def make_op(implementations: Sequence[Implementation], **changes: Any) -> BenchOp:
    """y = 2 x over `count` numbers."""
    shapes = (Shape("small", "4 numbers", "quick", {"count": 4}), Shape("large", "64", "default", {"count": 64}))
    return BenchOp(
        **{
            "name": "double",
            "build": lambda place, seed, count: {"x": place.randn(place.generator(seed), count)},
            "cost": lambda inputs: {"bytes": 8 * inputs["x"].numel(), "flops": inputs["x"].numel()},
            "oracle": lambda inputs: inputs["x"] * 2,
            "implementations": tuple(implementations),
            "shapes": shapes,
            **changes,
        }
    )


@pytest.fixture
def watch() -> HostWatch:
    """A cache of 1 kB."""
    return HostWatch(1024, torch.zeros(1024))


@pytest.fixture
def make() -> SimpleNamespace:
    """The makers above: tests cannot import one another."""
    return SimpleNamespace(
        row=make_row,
        file=make_file,
        op=make_op,
        implementation=implementation,
        ceilings=make_ceilings,
        cpu=CPU,
        fast=FAST,
    )
