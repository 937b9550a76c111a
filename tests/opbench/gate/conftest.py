"""Made-up runs of `bench-ops` whose noise is known: the times and the spreads are those of the committed H200 report.

A process multiplies every time by a factor of its own, lognormal, as wide as `width` times the interval of the median
within a process; and all of them by a common one. Ceilings move by 0.2 %. What is slow, or what the machine does, is a
factor on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddbench.opbench.gate.baseline import OpsBaseline, ops_baseline, read_ops
from ddbench.opbench.records import OkRow, OpsFile
from ddbench.records import Ceilings, CeilingSample

REPORT = sorted(Path(__file__).resolve().parents[3].glob("reports/*bench-ops-h200"))[-1]
CEILINGS = {"read cold": 4.2e12, "read hot": 1.1e13, "matmul": 7.5e14, "replay": 1300.0, "launch": 5000.0}
TIMES = ("replay", "launch")
COMMON = 0.001  # of a process: all of its times together


@dataclass(frozen=True)
class Plan:
    """One process: its seed is its moment too."""

    seed: int
    width: float = 2.0
    slow: Mapping[str, float] = field(default_factory=dict)  # op -> factor
    drift: Mapping[str, float] = field(default_factory=dict)  # bound, or "" for all -> factor of times and ceilings
    is_seen: bool = True  # by the ceilings and by torch's own


class Maker:
    """Files and baselines of them."""

    def __init__(self, make: SimpleNamespace) -> None:
        self._make = make

    @cached_property
    def rows(self) -> tuple[OkRow, ...]:
        found = [row for row in read_ops(REPORT).rows if isinstance(row, OkRow)]
        ours = [row for row in found if row.kind == "ours"]
        torch = [row for row in found if row.op == "linear" and row.implementation == "linear"]
        return (*ours, *torch)

    @cached_property
    def restless(self) -> set[str]:
        """Labels of times above 10 us whose interval within one process of the report is wider than +-0.5 %."""
        pairs = zip(self.rows, self._spreads, strict=True)
        wide = [row for row, spread in pairs if row.time_ns > 1e4 and 1.96 * spread > 0.005]
        return {" ".join((row.op, row.shape, row.implementation, row.cache)) for row in wide}

    @cached_property
    def _spreads(self) -> np.ndarray:
        """Standard deviations of the medians, in logs."""
        widths = [(float(row.high_ns) - float(row.low_ns)) / row.time_ns for row in self.rows]  # type: ignore[arg-type]
        return np.maximum(np.array(widths) / 2 / 1.96, 5e-4)

    @cached_property
    def _bounds(self) -> list[str]:
        return [row.bound for row in self.baseline(range(1), 0.0).rows]

    def file(self, seed: int, **plan: Any) -> OpsFile:
        asked = Plan(seed, **plan)
        random = np.random.default_rng(seed)
        noise = random.normal(0, asked.width * self._spreads) + random.normal(0, COMMON * bool(asked.width))
        rows = []
        for i, row in enumerate(self.rows):
            factor = math.exp(noise[i]) * asked.slow.get(row.op, 1.0)
            if asked.drift and (row.kind == "ours" or asked.is_seen):
                factor *= asked.drift.get("", 1.0) * asked.drift.get(self._bounds[i], 1.0)
            rows.append(row.model_copy(update={"time_ns": row.time_ns * factor}))
        file = self._make.file(*rows)
        created_at = f"2026-01-01T{seed // 3600:02d}:{seed // 60 % 60:02d}:{seed % 60:02d}+00:00"
        return file.model_copy(update={"created_at": created_at, "ceilings": self._ceilings(asked, random)})

    def _ceilings(self, asked: Plan, random: np.random.Generator) -> Ceilings:
        samples = []
        for when in ("before", "after"):
            for label, amount in CEILINGS.items():
                kind, _, cache = label.partition(" ")
                slower = asked.drift.get("", 1.0) * asked.drift.get(label, 1.0) if asked.is_seen else 1.0
                slower *= math.exp(random.normal(0, 0.002 * bool(asked.width)))
                value = amount * slower if label in TIMES else amount / slower
                facts = {"when": when, "dtype": "float32", "num_threads": 1, "working_set_bytes": 1, "num_samples": 5}
                samples.append(
                    CeilingSample(kind=kind, cache=cache or "none", amount=value, low=value, high=value, **facts)
                )
        return Ceilings(device="made up", last_level_cache_bytes=1 << 20, samples=tuple(samples))

    def baseline(self, seeds: range, width: float = 2.0) -> OpsBaseline:
        return ops_baseline([self.file(seed, width=width) for seed in seeds])


@pytest.fixture
def maker(make: SimpleNamespace) -> Maker:
    return Maker(make)
