"""What a report of Nsight Compute holds, whichever way it was read: kernels in the order of launch, each with values.

`Profile` is where the two readers (`page`, `report`) meet; everything after them is the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ddbench.analysis.digested import CaptureProblem
from ddbench.analysis.ncu.counters import COUNTERS, DRAM_PEAK, factor

AGAIN = "capture again with --capture ncu"


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of one kernel as ncu gives it; None: it says that there is no value."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One profiled launch. `ranges`: names of the push/pop ranges of our domain around it, the outermost first."""

    name: str
    ranges: tuple[str, ...]
    metrics: Mapping[str, Measured]  # those of METRIC_NAMES that the report has


@dataclass(frozen=True, slots=True)
class Profile:
    """One report."""

    kernels: tuple[Kernel, ...]
    chip: str  # compute capability; '' where the report names none


def counted(kernel: Kernel) -> dict[str, float]:
    """The kernel's counters by their key in `COUNTERS`, in their unit. Raises `CaptureProblem` for an unknown unit."""
    found = {}
    for key, counter in COUNTERS.items():
        present = [kernel.metrics[name] for name in counter.names if name in kernel.metrics]
        values = [one for one in present if one.value is not None]
        if values:
            found[key] = _converted(values[0], counter.unit)
    return found


def dram_peak_bytes_per_s(profile: Profile) -> float | None:
    """The median over kernels (clocks move) of bytes per cycle times cycles per second; None: not in the report."""
    peaks = []
    for kernel in profile.kernels:
        per_cycle, clock = (kernel.metrics.get(name, Measured(None, "")) for name in DRAM_PEAK)
        if per_cycle.value is not None and clock.value is not None:
            peaks.append(_converted(per_cycle, "bytes per cycle") * _converted(clock, "cycles per second"))
    peaks.sort()
    return peaks[len(peaks) // 2] if peaks and peaks[0] > 0 else None


def _converted(measured: Measured, wanted: str) -> float:
    assert measured.value is not None, "a missing value is not converted"
    by = factor(measured.unit, wanted)
    value = math.nan if by is None else measured.value * by
    if not math.isfinite(value) or value < 0:
        shown = f"{measured.value} {measured.unit}".rstrip()
        raise CaptureProblem("unreadable", f"a counter of {shown}, expected {wanted}", f"{AGAIN}, --print-units base")
    return value
