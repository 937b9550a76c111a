"""The table of checks: what is looked at, and what it is good for. `ddbench doctor` is this table, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ddbench.doctor import host, profilers
from ddbench.doctor.finding import Finding, Status
from ddbench.doctor.machine import Machine

Purpose = Literal["sweep", "nsys", "ncu"]
ALL: tuple[Purpose, ...] = ("sweep", "nsys", "ncu")
PROFILERS: tuple[Purpose, ...] = ("nsys", "ncu")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor. `serves`: the purposes that it is of use to beside those that need it."""

    name: str
    look: Callable[[Machine], Finding]
    needed_for: tuple[Purpose, ...] = ()
    serves: tuple[Purpose, ...] = ()
    of_gpu: bool = False  # needed for a sweep only where a GPU is there

    def is_needed(self, purpose: Purpose, machine: Machine) -> bool:
        return purpose in self.needed_for and (purpose != "sweep" or not self.of_gpu or machine.has_gpu)


CHECKS = (
    Check("ddbench", host.code, ALL),
    Check("libraries", host.libraries, ALL),
    Check("torch", host.torch, ALL),
    Check("GPU", host.gpu, PROFILERS, serves=("sweep",)),
    Check("driver", host.driver, serves=ALL),
    Check("CUDA", host.cuda, ALL, of_gpu=True),
    Check("triton", host.triton, ALL, of_gpu=True),
    Check("NVML", host.nvml, ("sweep",), of_gpu=True),
    Check("nvtx", host.nvtx, PROFILERS),
    Check("clocks", host.clocks, serves=ALL),
    Check("disk", host.disk, ALL),
    Check("nsys", profilers.nsys, ("nsys",)),
    Check("nsys importer", profilers.importer, serves=("nsys",)),  # where it lies elsewhere, the capture tells
    Check("nsys capture", profilers.nsys_capture, ("nsys",)),
    Check("ncu", profilers.ncu, ("ncu",)),
    Check("GPU counters", profilers.counters, serves=PROFILERS),  # what counts is the capture
    Check("ncu lock", profilers.ncu_lock, ("ncu",)),
    Check("ncu capture", profilers.ncu_capture, ("ncu",)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A check and what it found."""

    name: str
    status: Status
    is_needed: bool
    detail: str
    cure: str

    @property
    def is_fault(self) -> bool:
        """Something is broken, or something that is needed is missing."""
        return self.status == "failed" or (self.status == "missing" and self.is_needed)


def examine(machine: Machine, purpose: Purpose | None) -> Iterator[Row]:
    """Every check that concerns the purpose, one by one; without a purpose all, and a sweep needs what it needs."""
    for check in CHECKS:
        if purpose in (None, *check.needed_for, *check.serves):
            found = check.look(machine)
            yield Row(check.name, found.status, check.is_needed(purpose or "sweep", machine), found.detail, found.cure)
