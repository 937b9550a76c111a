"""The machine as the checks see it: commands run once, tools looked for where they are known to lie.

Nothing here judges. Everything is read on first use and kept for the checks that follow.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddbench.harness.tool_faults import SMI_FAULTS, Fault, fault_in
from ddbench.harness.tools import LONG_S, SHORT_S, Ran, find_tool, run

SMI_FIELDS = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.max.sm", "temperature.gpu")
THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new name, old name
CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU, as nvidia-smi describes it; numbers are text, as they may be `[N/A]`."""

    name: str
    driver: str
    memory_mib: str
    sm_mhz: str
    max_sm_mhz: str
    temperature_c: str


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """What a process of its own found out about torch (`torch_facts.py`)."""

    version: str | None
    cuda: str | None = None
    device: str | None = None  # a GPU that has computed something
    capability: str | None = None
    error: str | None = None


class Machine:
    """This machine. `folder` is where runs go; another `root` than / is for tests."""

    def __init__(self, folder: Path, root: Path = Path("/")) -> None:
        self.folder = folder
        self.root = root

    # ------------------------------------------------------------------------------------------------------- GPU

    @cached_property
    def smi(self) -> Gpu | Fault | None:
        """The GPU, or why nvidia-smi does not tell; None where there is no nvidia-smi."""
        found = shutil.which("nvidia-smi")
        if found is None:
            return None
        done = self._query(found, *SMI_FIELDS)
        rows = [[cell.strip() for cell in row] for row in csv.reader(done.output.splitlines())]
        rows = [row for row in rows if len(row) == len(SMI_FIELDS)]
        if done.code == 0 and rows:
            return Gpu(*rows[0])
        unknown = Fault("unknown", done.first_line, "run nvidia-smi by itself; reinstall the driver where it fails")
        return fault_in(done.output, SMI_FAULTS) or unknown

    @cached_property
    def throttle_bits(self) -> int | None:
        """NVML's bit mask of what slows the clocks now; None where the driver does not tell."""
        found = shutil.which("nvidia-smi")
        for field in THROTTLE_FIELDS if found else ():
            done = self._query(str(found), field)
            said = re.match(r"\s*0x([0-9a-fA-F]+)", done.output)
            if done.code == 0 and said:
                return int(said[1], 16)
        return None

    def _query(self, smi: str, *fields: str) -> Ran:
        return run((smi, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"), SHORT_S)

    @property
    def has_device_files(self) -> bool:
        return any((self.root / "dev").glob("nvidia[0-9]*"))

    @cached_property
    def has_gpu(self) -> bool:
        """Anything speaks for a GPU, even where it does not work."""
        is_absent = self.smi is None or (isinstance(self.smi, Fault) and self.smi.reason == "no_device")
        return not is_absent or self.has_device_files or self.torch.device is not None

    @cached_property
    def torch(self) -> TorchFacts:
        done = run((sys.executable, "-m", "ddbench.doctor.torch_facts"), LONG_S)
        answers = [line for line in done.output.splitlines() if line.startswith("{")]
        if done.code == 0 and answers:
            return TorchFacts(**json.loads(answers[-1]))
        return TorchFacts(version_of("torch"), error=f"torch cannot be loaded: {done.last_line}")

    # ----------------------------------------------------------------------------------------------------- tools

    @cached_property
    def nsys(self) -> Path | None:
        return find_tool("nsys", self.root)

    @cached_property
    def ncu(self) -> Path | None:
        return find_tool("ncu", self.root)

    @cached_property
    def importers(self) -> tuple[Path, ...]:
        """Importers that belong to the nsys found: in a sibling of its folder, or one level further up."""
        if self.nsys is None:
            return ()
        real = self.nsys.resolve()
        return tuple(file for up in (real.parent, *real.parents[1:3]) for file in sorted(up.glob("*/QdstrmImporter")))

    # --------------------------------------------------------------------------------------------------- counters

    @cached_property
    def are_counters_restricted(self) -> bool | None:
        """The driver gives counters to administrators only; None where it does not tell."""
        try:
            text = (self.root / "proc/driver/nvidia/params").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        said = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", text, flags=re.MULTILINE)
        return None if said is None else said[1] != "0"

    @cached_property
    def is_administrator(self) -> bool:
        """Of the host's kernel: root in a container usually is not."""
        try:
            text = (self.root / "proc/self/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return os.geteuid() == 0
        said = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", text, flags=re.MULTILINE)
        return bool(int(said[1], 16) >> CAP_SYS_ADMIN & 1) if said else os.geteuid() == 0


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
