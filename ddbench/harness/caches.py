"""The last-level cache of the device: what decides whether a ceiling, or a stage's bytes, are hot or cold.

Read by `ceilings.py` in its own process. Linux describes the CPUs' caches below /sys, torch a GPU's L2.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from ddbench.records import NotMeasured


@dataclass(frozen=True, slots=True)
class LastLevelCache:
    """`count` caches of `each` bytes: some CPUs have several beside each other, and a core reaches one of them."""

    each: int
    count: int = 1

    @property
    def num_bytes(self) -> int:
        return self.each * self.count

    def reached_by(self, num_threads: int) -> int:
        return self.each * min(self.count, num_threads)


def last_level_cache(device: str) -> LastLevelCache | NotMeasured:
    """The GPU's L2, or what the system says of the CPUs that this process may use."""
    if device == "cuda":
        size = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        return LastLevelCache(size) if size else NotMeasured(not_measured="torch does not tell the size of the L2")
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return host_cache(Path("/sys/devices/system/cpu"), cpus)


def host_cache(root: Path, cpus: Collection[int]) -> LastLevelCache | NotMeasured:
    """The highest level of data cache that Linux describes below `root`; what CPUs share counts once."""
    found: dict[tuple[int, str], int] = {}
    try:
        for cpu in cpus:
            for index in (root / f"cpu{cpu}" / "cache").glob("index*"):
                names = ("level", "type", "size", "shared_cpu_list")
                level, kind, size, shared = ((index / name).read_text(encoding="ascii").strip() for name in names)
                if kind != "Instruction":
                    found[int(level), shared] = _size(size)
    except (OSError, ValueError):
        return NotMeasured(not_measured="the system's description of its caches could not be read")
    if not found:
        return NotMeasured(not_measured="the system does not describe its caches")
    top = max(level for level, _ in found)
    sizes = [size for (level, _), size in found.items() if level == top]
    return LastLevelCache(max(sizes), len(sizes))


def _size(text: str) -> int:
    """`32768K` in bytes."""
    shifts = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << shifts[text[-1]] if text[-1:] in shifts else int(text)
