"""GPU metrics joined to stages by time: by hand, against a nanosecond-by-nanosecond oracle, and what is withheld."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.analysis.nsys.export import read_export
from ddbench.analysis.nsys.gpu_metrics import METRICS, metric_key
from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.analysis.nsys.sampled import IDLE, MIXED, UNATTRIBUTED, StageMetric, dram_bytes_per_s, stage_metrics
from ddbench.records import NotMeasured

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("nsys_exports.py"))))
MAIN = made.MAIN
PERIOD = 10  # ns between samples
GPU_TYPE = 5 << 32  # the GPU's number is in the low byte


def capture_of(kernels: list[tuple[str, int, int]], values: list[float]) -> Any:
    """Kernels as (stage or "", start, end) and samples of DRAM reads of 0 to 10, 10 to 20, ..."""
    rec = made.Recorder()
    rec.domain(MAIN)
    for index, (stage, start, end) in enumerate(kernels):
        at = -1_000_000 + 100 * index
        if stage:
            rec.nvtx(MAIN, stage, at, at + 50)
        rec.kernel(MAIN, rec.call(MAIN, at + 10, at + 20), start, end)
    rec.call(MAIN, 10**6, 10**6 + 1)
    rec.metric(3, "DRAM Read Bandwidth [Throughput %]", GPU_TYPE)
    for index, value in enumerate(values):
        rec.sample(index * PERIOD, 3, value, GPU_TYPE)
    return rec


def found_in(rec: Any, folder: Path, form: str = "parquet") -> dict[tuple[int, str, str], StageMetric]:
    export = read_export(rec.write(folder, form))
    metrics = stage_metrics(export, made.attribute(export))
    assert not isinstance(metrics, NotMeasured), metrics
    return {(metric.gpu, metric.label, metric.metric): metric for metric in metrics}


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_samples_within_a_stage_and_at_its_edges(form: str, tmp_path: Path) -> None:
    """Draft runs 0-25, verify 25-60 with a pause of its own, nothing after that."""
    kernels = [("draft", 0, 25), ("verify", 25, 40), ("verify", 45, 60)]
    found = found_in(capture_of(kernels, [10, 20, 30, 40, 50, 60, 70]), tmp_path, form)
    draft, verify, idle = (found[0, label, "dram_read"] for label in ("draft", "verify", IDLE))
    assert (draft.mean, draft.num_whole, draft.num_touching) == (15.0, 2, 3)
    assert draft.blended == pytest.approx((10 * 10 + 20 * 10 + 30 * 5) / 25)
    assert (verify.mean, verify.num_whole, verify.num_touching) == (50.0, 3, 4)
    assert (idle.mean, idle.num_whole) == (70.0, 1)
    assert {metric.unit for metric in found.values()} == {"%"}


def test_a_stage_shorter_than_the_interval_has_no_mean(tmp_path: Path) -> None:
    accept = found_in(capture_of([("accept", 12, 18)], [10, 20, 30]), tmp_path)[0, "accept", "dram_read"]
    assert isinstance(accept.mean, NotMeasured)
    assert "shorter than the sampling interval" in accept.mean.not_measured
    assert (accept.blended, accept.num_touching) == (20.0, 1)


def test_two_stages_at_once_are_neithers(tmp_path: Path) -> None:
    found = found_in(capture_of([("draft", 0, 20), ("verify", 10, 30)], [10, 20, 30]), tmp_path)
    assert {label: metric.mean for (_, label, _), metric in found.items()} == {"draft": 10, MIXED: 20, "verify": 30}


def test_a_long_pause_is_idle_whoever_is_around_it(tmp_path: Path) -> None:
    rec = capture_of([("verify", 0, 10), ("verify", 2_000_000, 2_000_010)], [10.0])
    for at in range(10, 2_000_001, PERIOD * 1000 - PERIOD):
        rec.sample(at, 3, 1.0, GPU_TYPE)
    found = found_in(rec, tmp_path)
    assert found[0, IDLE, "dram_read"].num_whole > 100


def test_missing_samples_are_not_stretched_over_the_gap(tmp_path: Path) -> None:
    """A sample tells of one period, even where those before it were lost."""
    rec = capture_of([("draft", 0, 30), ("verify", 30, 100)], [10, 20, 30])
    for at in (90, 100, 110):
        rec.sample(at, 3, 90, GPU_TYPE)
    found = found_in(rec, tmp_path)
    assert (found[0, "verify", "dram_read"].mean, found[0, "verify", "dram_read"].num_touching) == (90.0, 1)


def test_each_gpu_has_its_own_samples(tmp_path: Path) -> None:
    rec = capture_of([("draft", 0, 30)], [10, 20, 30])
    rec.metric(3, "DRAM Read Bandwidth [Throughput %]", GPU_TYPE | 1)
    for at in (10, 20, 30):
        rec.sample(at, 3, 77, GPU_TYPE | 1)
    found = found_in(rec, tmp_path)
    assert found[0, "draft", "dram_read"].mean == 20
    assert found[1, IDLE, "dram_read"].mean == 77
    assert (1, "draft", "dram_read") not in found


def test_metric_ids_are_those_of_their_type(tmp_path: Path) -> None:
    """The same id on another GPU may be another metric."""
    rec = capture_of([("draft", 0, 30)], [10, 20, 30])
    rec.metric(3, "SMs Active [Throughput %]", GPU_TYPE | 1)
    for at in (10, 20, 30):
        rec.sample(at, 3, 77, GPU_TYPE | 1)
    assert set(found_in(rec, tmp_path)) == {(0, "draft", "dram_read"), (1, IDLE, "sm_active")}


@pytest.mark.parametrize("exported", [1980, 1_980_000_000])
def test_clocks_are_megahertz_however_they_are_stored(exported: int, tmp_path: Path) -> None:
    """Some releases store Hz under a name that says MHz."""
    rec = capture_of([("draft", 0, 30)], [])
    rec.metric(1, "GPC Clock Frequency [MHz]", GPU_TYPE)
    for at in (10, 20, 30):
        rec.sample(at, 1, exported, GPU_TYPE)
    clock = found_in(rec, tmp_path)[0, "draft", "clock"]
    assert (clock.mean, clock.unit) == (1980.0, "MHz")


def test_every_metric_is_found_under_every_title() -> None:
    for key, metric in METRICS.items():
        for title in metric.titles:
            for unit in metric.exported:
                assert metric_key(f"{title} [{unit}]") == key
    for name in ("", "SMs Active", "PCIe RX Throughput [Throughput %]", "Unallocated Warps in Active SMs [Avg]"):
        assert metric_key(name) is None


def test_without_samples_or_whole_recording_nothing_is_told(tmp_path: Path) -> None:
    for index, (samples, launches, words) in enumerate(((0, 0, "--gpu-metrics-devices"), (3, 1, "under-recorded"))):
        rec = capture_of([("draft", 0, 30)], [50.0] * samples)
        for _ in range(launches):
            rec.call(MAIN, 500, 510, "cudaGraphLaunch_v10000")
        export = read_export(rec.write_parquet(tmp_path / str(index)))
        found = stage_metrics(export, made.attribute(export))
        assert isinstance(found, NotMeasured)
        assert words in found.not_measured


def test_bandwidth_in_bytes_needs_a_peak(tmp_path: Path) -> None:
    export = read_export(made.small_capture().write_parquet(tmp_path / "capture"))
    assert dram_bytes_per_s(50.0, 0, export) == 2.4e12
    assert isinstance(dram_bytes_per_s(50.0, 1, export), NotMeasured)


# --- against an oracle that looks at every nanosecond ---

kernel_rows = st.tuples(st.sampled_from(["draft", "verify", ""]), st.integers(0, 90), st.integers(0, 25))


@given(
    kernels=st.lists(kernel_rows, min_size=1, max_size=12),
    values=st.lists(st.integers(0, 100), min_size=3, max_size=12),
)
def test_join_equals_looking_at_every_nanosecond(
    kernels: list[tuple[str, int, int]], values: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [(stage, start, start + length) for stage, start, length in kernels]
    until = len(values) * PERIOD
    owner = []
    for moment in range(max(until, *(end for _, _, end in rows)) + 1):
        running = {stage or UNATTRIBUTED for stage, start, end in rows if start <= moment < end}
        owner.append(running.pop() if len(running) == 1 else MIXED if running else IDLE)
    for moment in range(1, len(owner)):  # a pause between two of the same is theirs
        after = next((label for label in owner[moment:] if label != IDLE), None)
        if owner[moment] == IDLE and after is not None and owner[moment - 1] == after:
            owner[moment] = after
    found = found_in(capture_of(rows, [float(value) for value in values]), tmp_path_factory.mktemp("capture"))
    for label in (*STAGE_NAMES, UNATTRIBUTED, MIXED, IDLE):
        weights = np.array([owner[at : at + PERIOD].count(label) for at in range(0, until, PERIOD)])
        if not weights.any():
            assert (0, label, "dram_read") not in found
            continue
        metric = found[0, label, "dram_read"]
        assert metric.blended == pytest.approx(np.average(values, weights=weights))
        assert metric.num_touching == np.count_nonzero(weights)
        whole = pd.Series(values)[weights == PERIOD]
        assert metric.num_whole == len(whole)
        assert isinstance(metric.mean, NotMeasured) if whole.empty else metric.mean == pytest.approx(whole.mean())
