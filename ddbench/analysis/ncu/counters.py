"""The hardware counters that a stage is judged by: one row each, whatever a chip calls them; and units in one spelling.

A generation that renames a counter gets another name in its row. A counter that none of its names gives is not
supported by the chip: noted by the reader, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddbench.spec import Counters


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter: its names from the newest generation to the oldest, and the unit that it is given in."""

    names: tuple[str, ...]
    unit: str  # ns, bytes, %, waves


COUNTERS: dict[str, Counter] = {
    "time": Counter(("gpu__time_duration.sum",), "ns"),  # of the kernel, alone on the device
    "dram_read": Counter(("dram__bytes_read.sum", "dram__bytes_op_read.sum"), "bytes"),
    "dram_write": Counter(("dram__bytes_write.sum", "dram__bytes_op_write.sum"), "bytes"),
    "dram_share": Counter(  # of the DRAM's peak, over the kernel's time
        (
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
        "%",
    ),
    "l2_hits": Counter(("lts__t_sector_hit_rate.pct",), "%"),  # of the sectors asked of L2 were in it
    # of the warp slots of SMs at work held a warp, and can be held by blocks of this shape
    "occupancy": Counter(("sm__warps_active.avg.pct_of_peak_sustained_active",), "%"),
    "occupancy_limit": Counter(("sm__maximum_warps_per_active_cycle_pct",), "%"),
    "tensor": Counter(  # of the cycles of SMs at work their tensor pipes were busy
        (
            "sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        ),
        "%",
    ),
    "waves": Counter(("launch__waves_per_multiprocessor",), "waves"),  # of blocks, one after the other on the SMs
}
BYTE_COUNTERS = ("time", "dram_read", "dram_write")  # one run of a kernel counts them all
# DRAM's peak is the product of the two: bytes per cycle, cycles per second.
DRAM_PEAK = ("dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second")
# All that a capture asks for. What a chip does not know is to be left out of the request, or ncu refuses it.
METRIC_NAMES: tuple[str, ...] = (*(name for counter in COUNTERS.values() for name in counter.names), *DRAM_PEAK)


def counters_of(choice: Counters) -> Mapping[str, Counter]:
    """Those that a capture asks for."""
    return COUNTERS if choice == "all" else {key: COUNTERS[key] for key in BYTE_COUNTERS}


_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}  # ncu's are decimal, of bytes as well
_SECONDS = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0,
}  # fmt: skip


def factor(unit: str, wanted: str) -> float | None:
    """What a value in ncu's `unit` is multiplied with to be in `wanted`; None: the two are no units of one thing.

    ncu spells a unit in two ways, in its pages (`Mbyte`, `usecond`) and in its Python module (`MB`, `us`).
    """
    if wanted == "ns":
        return _SECONDS[unit] * 1e9 if unit in _SECONDS else None
    if wanted == "bytes":
        return _scaled(unit, ("byte", "B"))
    if wanted == "bytes per cycle":
        return _scaled(unit, ("byte/cycle", "B/cycle"))
    if wanted == "cycles per second":
        by_time = {f"cycle/{name}": 1 / seconds for name, seconds in _SECONDS.items()}
        return by_time.get(unit) or _scaled(unit, ("hz", "Hz"))
    if wanted == "waves":
        return 1.0 if unit in ("", "waves", "wave") else None
    return 1.0 if wanted == unit == "%" else None


def _scaled(unit: str, bases: tuple[str, ...]) -> float | None:
    for base in bases:
        if unit.endswith(base):
            return _PREFIXES.get(unit.removesuffix(base).upper())
    return None
