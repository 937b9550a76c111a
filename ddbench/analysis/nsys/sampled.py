"""GPU-metric samples -> what each stage did to the device: bandwidth, SMs, tensor pipes, warps, clock.

A sample is the mean over the interval that begins at its time (nsys 2025.3 on an H200, kernels launched from Python:
SM activity correlates with the kernels' time in that interval by 0.75, with that in the one before it by -0.01), and a
stage may be shorter than that. So each metric comes twice: `mean` over the samples whose whole interval lies within the
stage (not measured where there is none), and `blended` over all that touch it, weighted by the overlap, which
neighbours blur at the edges.

A stage occupies a GPU while its ops run, pauses between two of them included if they are as short as those in a graph;
where ops of two stages run at once the time is `mixed`, and belongs to neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddbench.analysis.intervals import Intervals, union
from ddbench.analysis.nsys.attribution import Attribution
from ddbench.analysis.nsys.export import NsysExport
from ddbench.analysis.nsys.gpu_metrics import METRICS, MetricUnit
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.records import NotMeasured

UNATTRIBUTED, MIXED, IDLE = "unattributed", "mixed", "idle"
LABELS = (*STAGE_NAMES, UNATTRIBUTED, MIXED, IDLE)
_MIXED, _IDLE = LABELS.index(MIXED), LABELS.index(IDLE)
# Between two ops of a stage; longer is idle, whoever comes before and after. On an H200 a graph's kernels follow each
# other within 0.6 us, those launched from Python in no less than 16.
_LONGEST_PAUSE_NS = 5_000
_HERTZ = 1e5  # a clock beyond this many "MHz" is given in Hz, as exports of some releases do


@dataclass(frozen=True, slots=True)
class StageMetric:
    """One metric of one stage on one GPU."""

    gpu: int
    label: str  # a stage, or UNATTRIBUTED, MIXED, IDLE
    metric: str
    unit: MetricUnit
    mean: float | NotMeasured
    blended: float
    num_whole: int
    num_touching: int
    time_ns: int  # of the label, within the samples that touch it: what `blended` is a mean over


def samples_within(samples: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """The samples whose whole interval lies within [start_ns, end_ns]."""
    is_inside = np.zeros(len(samples), bool)
    time = samples["time_ns"].to_numpy()
    for rows in samples.groupby("gpu").indices.values():
        low = np.unique(time[rows])
        high = _interval_ends(low)[np.searchsorted(low, time[rows])]
        is_inside[rows] = (time[rows] >= start_ns) & (high <= end_ns)
    return samples[is_inside].reset_index(drop=True)


def stage_metrics(export: NsysExport, attribution: Attribution) -> tuple[StageMetric, ...] | NotMeasured:
    """Every metric of every label that a sample touches."""
    if attribution.withheld:  # dropped kernels would pass for idle time
        return NotMeasured(not_measured=attribution.withheld)
    if not len(export.samples):
        reason = "no sample of a known GPU metric: capture with --gpu-metrics-devices, as a user who may read counters"
        return NotMeasured(not_measured=reason)
    found: list[StageMetric] = []
    for gpu, rows in export.samples.groupby("gpu").indices.items():
        ops = attribution.ops[(attribution.ops["gpu"] == gpu).to_numpy()]
        found.extend(_of_gpu(int(gpu), export.samples.iloc[rows], stage_spans(ops)))
    return tuple(found)


def dram_bytes_per_s(percent: float, gpu: int, export: NsysExport) -> float | NotMeasured:
    """A share of the DRAM's peak as bytes, by the peak that the export states for the GPU."""
    peak = export.gpus.loc[export.gpus["gpu"] == gpu, "dram_bytes_per_s"].max()
    if not 1e9 < peak < 1e14:  # also where there is no such row: NaN compares false
        return NotMeasured(not_measured=f"the export states no DRAM bandwidth of GPU {gpu}")
    return percent / 100 * float(peak)


# --- who has the GPU when ---


def stage_spans(ops: pd.DataFrame) -> pd.DataFrame:
    """Disjoint spans (start_ns, end_ns, code into LABELS) in which a GPU works for one label, in their order."""
    codes = ops["stage"].cat.codes.to_numpy().astype(np.int64)
    codes[codes < 0] = LABELS.index(UNATTRIBUTED)
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    times, changes, bits = [], [], []
    for code in np.unique(codes):
        own = union(start[codes == code], end[codes == code])
        times += [own.start, own.end]
        changes += [np.ones(len(own.start), np.int64), -np.ones(len(own.end), np.int64)]
        bits += [np.full(2 * len(own.start), 1 << code, np.int64)]
    if not times:
        return pd.DataFrame({name: np.empty(0, np.int64) for name in ("start_ns", "end_ns", "code")})
    time, change = np.concatenate(times), np.concatenate(changes) * np.concatenate(bits)
    order = np.argsort(time, kind="stable")
    edges, firsts = np.unique(time[order], return_index=True)
    active = np.cumsum(np.add.reduceat(change[order], firsts))[:-1]
    label = np.where(active == 0, _IDLE, _MIXED)
    for code in np.unique(codes):
        label[active == 1 << code] = code
    return _merged(edges[:-1], edges[1:], _without_pauses(label, np.diff(edges)))


def _without_pauses(label: np.ndarray, length: np.ndarray) -> np.ndarray:
    before, after = np.append(_IDLE, label[:-1]), np.append(label[1:], _IDLE)
    is_pause = (label == _IDLE) & (before == after) & (length <= _LONGEST_PAUSE_NS)
    return np.where(is_pause, before, label)


def _merged(start: np.ndarray, end: np.ndarray, label: np.ndarray) -> pd.DataFrame:
    """Neighbours of one label as one span; idle time between spans is left out."""
    firsts = np.flatnonzero(np.append(True, label[1:] != label[:-1])[: len(label)])
    lasts = np.append(firsts[1:], len(label))[: len(firsts)] - 1
    spans = pd.DataFrame({"start_ns": start[firsts], "end_ns": end[lasts], "code": label[firsts]})
    return spans[(spans["code"] != _IDLE).to_numpy()].reset_index(drop=True)


# --- samples ---


def _of_gpu(gpu: int, samples: pd.DataFrame, spans: pd.DataFrame) -> list[StageMetric]:
    time, codes, value = (
        samples["time_ns"].to_numpy(),
        samples["metric"].cat.codes.to_numpy(),
        samples["value"].to_numpy(),
    )
    low = np.unique(time)
    high = _interval_ends(low)
    overlaps = _overlaps(spans, low, high)
    place = np.searchsorted(low, time)
    keys = list(samples["metric"].cat.categories)
    found = []
    for metric_code in np.unique(codes):
        own = codes == metric_code
        at, values = place[own], value[own]
        key = keys[metric_code]
        if METRICS[key].unit == "MHz":
            values = np.where(np.abs(values) > _HERTZ, values / 1e6, values)
        for code, overlap in overlaps.items():
            weight = overlap[at]
            touching = weight > 0
            if touching.any():
                whole = weight == (high - low)[at]
                found.append(_summary(gpu, LABELS[code], key, values, weight, whole & touching))
    return found


def _summary(gpu: int, label: str, key: str, values: np.ndarray, weight: np.ndarray, whole: np.ndarray) -> StageMetric:
    num_whole = int(np.count_nonzero(whole))
    mean: float | NotMeasured = NotMeasured(
        not_measured=f"no sample lies wholly within {label}: it is shorter than the sampling interval"
    )
    if num_whole:
        mean = float(values[whole].mean())
    return StageMetric(
        gpu=gpu,
        label=label,
        metric=key,
        unit=METRICS[key].unit,
        mean=mean,
        blended=float(np.average(values, weights=weight)),
        num_whole=num_whole,
        num_touching=int(np.count_nonzero(weight)),
        time_ns=int(weight.sum()),
    )


def _interval_ends(low: np.ndarray) -> np.ndarray:
    """Where the interval of each sample ends: at the sample after it, unless samples are missing in between."""
    if len(low) < 2:
        return low + 1
    period = max(1, int(np.median(np.diff(low))))
    after = np.append(low[1:], low[-1] + period)
    return np.where(after - low > 2 * period, low + period, after)


def _overlaps(spans: pd.DataFrame, low: np.ndarray, high: np.ndarray) -> dict[int, np.ndarray]:
    """For each label the time that it has of each interval; idle is what nobody has."""
    found: dict[int, np.ndarray] = {}
    left = high - low
    for code in np.unique(spans["code"].to_numpy()):
        own = spans[(spans["code"] == code).to_numpy()]
        found[int(code)] = Intervals(own["start_ns"].to_numpy(), own["end_ns"].to_numpy()).within(low, high)
        left = left - found[int(code)]
    return {**found, _IDLE: left}
