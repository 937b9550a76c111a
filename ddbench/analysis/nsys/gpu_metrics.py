"""The sampled GPU metrics that a stage is judged by, and how chips spell them.

nsys calls a metric `Title [Unit]`; titles differ between chips. One row per metric here, whatever it is called there.
`[Avg]` beside `[Avg Warps per Cycle]` is none of them: on an H200 it is a sum over the cycles of the interval.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MetricUnit = Literal["%", "warps", "MHz"]
_NAME = re.compile(r"(?P<title>.*?)\s*\[(?P<unit>.*)\]\s*")


@dataclass(frozen=True, slots=True)
class GpuMetric:
    """A metric: its titles (any chip), its unit in the export, and the unit that it is given in."""

    titles: tuple[str, ...]
    exported: tuple[str, ...]
    unit: MetricUnit
    meaning: str


_PERCENT = ("Throughput %", "%")
METRICS: dict[str, GpuMetric] = {
    "dram_read": GpuMetric(("DRAM Read Bandwidth", "DRAM Read Throughput"), _PERCENT, "%", "of the DRAM's peak, read"),
    "dram_write": GpuMetric(
        ("DRAM Write Bandwidth", "DRAM Write Throughput"), _PERCENT, "%", "of the DRAM's peak, written"
    ),
    "sm_active": GpuMetric(("SMs Active", "SM Active"), _PERCENT, "%", "of the SMs have a warp resident"),
    "tensor_active": GpuMetric(
        ("Tensor Active", "Tensor Active / FP16 Active"), _PERCENT, "%", "of cycles the tensor pipes are busy"
    ),
    "warps_share": GpuMetric(("Compute Warps in Flight",), _PERCENT, "%", "of the warp slots hold a warp"),
    "warps_in_flight": GpuMetric(
        ("Compute Warps in Flight",), ("Avg Warps per Cycle",), "warps", "warps resident on an SM in a cycle"
    ),
    "clock": GpuMetric(("GPC Clock Frequency",), ("MHz",), "MHz", "clock of the SMs"),
}


def metric_key(name: str) -> str | None:
    """Which row of `METRICS` an exported metric is; None: none of them."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    for key, metric in METRICS.items():
        if found["title"] in metric.titles and found["unit"] in metric.exported:
            return key
    return None
