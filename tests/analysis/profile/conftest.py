"""Passes of a profiler made by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest

from ddbench.analysis.profile.captured_case import ToolPass
from ddbench.captured import Capture, DeviceOp, HostCall, HostRange, KernelCounter, StageSamples

OP = {
    "kind": "kernel",
    "name": "k",
    "stage": "verify",
    "launch_stage": "verify",
    "basis": "launch",
    "round": 0,
    "gpu": 0,
    "stream": 7,
    "num_bytes": 0,
    "direction": "",
    "is_replayed": False,
    "launch_ns": -1,
}
CALL = {"kind": "launch", "name": "cudaLaunchKernel", "stage": "", "round": 0, "thread": 0}
RANGE = {"kind": "stage", "name": "verify", "round": 0, "thread": 0}

MakePass = Callable[..., ToolPass]


def frame(record: type, rows: Sequence[dict[str, Any]], usual: dict[str, Any]) -> pd.DataFrame:
    found = pd.DataFrame([{**usual, **row} for row in rows], columns=list(record.model_fields))
    if not len(found):
        numbers = [name for name, field in record.model_fields.items() if field.annotation is int]
        found = found.astype({**dict.fromkeys(numbers, "int64")})
    return found.astype({"is_replayed": bool}) if "is_replayed" in found else found


@pytest.fixture
def make_pass() -> MakePass:
    def build(
        ops: Sequence[dict[str, Any]] = (),
        calls: Sequence[dict[str, Any]] = (),
        ranges: Sequence[dict[str, Any]] = (),
        samples: Sequence[dict[str, Any]] = (),
        counters: Sequence[dict[str, Any]] = (),
        **fields: Any,
    ) -> ToolPass:
        values = {"tool": "nsys", "tool_version": "2025.3.1", "seconds": 1.0, "round_ns": (100,), "window_ns": 100}
        return ToolPass(
            Capture(**{**values, **fields}),
            frame(DeviceOp, ops, OP),
            frame(HostCall, calls, CALL),
            frame(HostRange, ranges, RANGE),
            frame(StageSamples, samples, {}),
            frame(KernelCounter, counters, {"basis": "launch", "is_replayed": False, "unit": ""}),
        )

    return build
