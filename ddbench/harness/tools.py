"""nsys and ncu on this machine: where they lie, which version they are, and how a short command of theirs is run.

Below the doctor, which judges them, and the drivers of captures, which run cases under them. No torch.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ddbench.harness.environment import child_environment

SHORT_S, LONG_S = 30, 300  # a question; a program that starts torch below a profiler
# Below the root, newest first; Nsight Compute brings a complete nsys along.
NSYS_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
)
NCU_PLACES = ("opt/nvidia/nsight-compute/*/ncu", "usr/local/cuda*/bin/ncu")
PLACES = {"nsys": NSYS_PLACES, "ncu": NCU_PLACES}
NSYS_CURE = "install Nsight Systems (NVIDIA's package nsight-systems-cli) or Nsight Compute, which has an nsys inside"
NCU_CURE = "install Nsight Compute (NVIDIA's package nsight-compute), which comes with the CUDA toolkit"
ROOT = Path("/")
# What a profiler and its target are given: a report of nsys holds every variable of its target, secrets included.
TOOL_VARIABLES = ("PATH", "HOME", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "TMPDIR", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
# What decides how torch, CUDA and Triton compute, compile and find each other: a case under a tool is the same case.
CASE_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER", "CUDA_CACHE_PATH"),
    *("CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "CC"),
    *("TRITON_HOME", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH", "NVIDIA_VISIBLE_DEVICES"),
)
_VERSION = re.compile(r"version\s+(\d+\.\d+[\d.]*)", flags=re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended: `code` None where it could not be started or did not end."""

    code: int | None
    output: str  # both streams

    @property
    def lines(self) -> list[str]:
        """What it has to say for itself, at least one line."""
        said = [line.strip() for line in self.output.splitlines() if line.strip()]
        return said or [f"exit code {self.code}"]

    @property
    def first_line(self) -> str:
        return self.lines[0]

    @property
    def last_line(self) -> str:
        return self.lines[-1]


def tool_environment(more: Sequence[str] = ()) -> dict[str, str]:
    """The few environment variables that a tool and the Python below it need; its words and numbers are C's."""
    inherited = child_environment()
    return {**{name: inherited[name] for name in (*TOOL_VARIABLES, *more) if name in inherited}, "LC_ALL": "C"}


def case_environment() -> dict[str, str]:
    """Variables for a tool and the case below it."""
    return tool_environment(CASE_VARIABLES)


def run(
    command: Sequence[str | Path], timeout_s: float, libraries: Path | None = None, into: Path | None = None
) -> Ran:
    """Run a command with a minimal environment; nothing that it started outlives it.

    `libraries`: where it brings its own, searched before all others. `into`: a file for its standard output, of which
    `Ran.output` then says nothing.
    """
    environment = tool_environment()
    if libraries is not None:
        found = (str(libraries), environment.get("LD_LIBRARY_PATH"))
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, found))
    with ExitStack() as stack:
        stdout = subprocess.PIPE if into is None else stack.enter_context(into.open("wb"))
        try:
            child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT if into is None else subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Ran(None, f"cannot be started: {error.strerror}")
        return _ended(child, timeout_s)


def _ended(child: subprocess.Popen[str], timeout_s: float) -> Ran:
    try:
        said = child.communicate(timeout=timeout_s)
        return Ran(child.returncode, "".join(filter(None, said)))
    except subprocess.TimeoutExpired:
        return Ran(None, f"no answer within {timeout_s:.0f} s")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def find_tool(name: str, root: Path = ROOT) -> Path | None:
    """On the PATH, or where installers put it; the newest of several."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    for place in PLACES[name]:
        files = [file for file in root.glob(place) if os.access(file, os.X_OK)]
        if files:
            return max(files, key=_numbers)
    return None


def version_in(output: str) -> str | None:
    """What `nsys --version` or `ncu --version` says."""
    said = _VERSION.search(output)
    return said[1].rstrip(".") if said else None


def _numbers(path: Path) -> list[int]:
    """Versions in a path, to be compared: 2025.10 is newer than 2025.9."""
    return [int(number) for number in re.findall(r"\d+", str(path))]
