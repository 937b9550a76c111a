"""What each stage did to the SMs: sampled while the case ran, and counted kernel by kernel.

Sampled: SMs with a warp, tensor pipes, warps in flight, clock. Counted: how many of the warp slots a kernel filled
while it ran, against how many its registers, shared memory and block size allow at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.nsys.gpu_metrics import METRICS
from ddbench.analysis.profile.captured_case import KERNEL_TIME, CapturedCase, ToolPass
from ddbench.analysis.profile.moved import kernel_time, wide_counters
from ddbench.analysis.values import missing
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

ACHIEVED, THEORETICAL, TENSOR = "occupancy", "occupancy_limit", "tensor"  # keys of ncu COUNTERS, %
LABELS: tuple[str, ...] = (*(stage.value for stage in Stage), "mixed", "idle", "unattributed")
SHOWN: tuple[str, ...] = ("sm_active", "tensor_active", "warps_share", "warps_in_flight", "clock")


@dataclass(frozen=True, slots=True)
class Sampled:
    """One metric of one label: the mean over samples wholly within it, where there are any, else over all, blurred."""

    value: float
    num_whole: int  # samples wholly within the label; 0: blurred by what ran beside it
    num_touching: int


@dataclass(frozen=True, slots=True)
class KernelOccupancy:
    """One kernel of one stage, means over its launches weighted by their time; percent."""

    stage: str
    name: str
    num_launches: float  # per round
    time_ns: float | NotMeasured  # per round
    achieved: float | NotMeasured
    theoretical: float | NotMeasured
    tensor: float | NotMeasured


def sampled_metrics(case: CapturedCase) -> Mapping[str, Mapping[str, Sampled]] | NotMeasured:
    """Label -> metric -> value, in the order of `LABELS`. Several GPUs: the mean, weighted by their samples."""
    one = case.timeline
    if isinstance(one, NotMeasured):
        return one
    found: dict[str, dict[str, list[Sampled]]] = {}
    for row in one.samples.itertuples(index=False):
        if row.metric in METRICS and row.label in LABELS:
            level = float(row.mean if row.num_whole else row.blended)
            value = Sampled(level, int(row.num_whole), int(row.num_touching))
            found.setdefault(str(row.label), {}).setdefault(str(row.metric), []).append(value)
    if not found:
        return missing(f"no GPU metric was sampled: {one.why_not_sampled}")
    return {label: {metric: _joined(own) for metric, own in found[label].items()} for label in LABELS if label in found}


def _joined(values: list[Sampled]) -> Sampled:
    weights = [max(1, one.num_touching) for one in values]
    mean = float(np.average([one.value for one in values], weights=weights))
    return Sampled(mean, sum(o.num_whole for o in values), sum(o.num_touching for o in values))


def kernel_occupancy(case: CapturedCase) -> tuple[KernelOccupancy, ...] | NotMeasured:
    """Kernels with counters, the longest first."""
    one = case.counted
    if isinstance(one, NotMeasured):
        return one
    kernels = wide_counters(one)
    found = [_kernel(one, str(stage), str(name), rows) for (stage, name), rows in kernels.groupby(["stage", "name"])]
    return tuple(
        sorted(found, key=lambda own: (-own.time_ns if isinstance(own.time_ns, float) else 0.0, own.stage, own.name))
    )


def _kernel(one: ToolPass, stage: str, name: str, rows: pd.DataFrame) -> KernelOccupancy:
    took = kernel_time(rows, one)
    weights = np.ones(len(rows)) if isinstance(took, NotMeasured) else rows[KERNEL_TIME].to_numpy()
    achieved, theoretical, tensor = (_mean(one, rows, metric, weights) for metric in (ACHIEVED, THEORETICAL, TENSOR))
    return KernelOccupancy(stage, name, len(rows) / one.num_rounds, took, achieved, theoretical, tensor)


def _mean(one: ToolPass, rows: pd.DataFrame, metric: str, weights: np.ndarray) -> float | NotMeasured:
    """Over the launches that have the counter."""
    if metric not in rows and one.capture.counters == "bytes":
        return missing("only time and bytes were counted, by choice")
    if metric not in rows:
        return missing(f"the counters have no {metric.replace('_', ' ')}")
    values = rows[metric].to_numpy(np.float64)
    known = ~np.isnan(values)
    if not known.any():
        return missing(f"no launch of the kernel has a count of its {metric.replace('_', ' ')}")
    if weights[known].sum() <= 0:
        return float(values[known].mean())
    return float(np.average(values[known], weights=weights[known]))
