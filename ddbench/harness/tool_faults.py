"""What nvidia-smi, nsys, ncu and the torch profiler say when they fail -> what is wrong and its cure, one line each.

One row per failure and tool. Their exit codes tell little (a capture without its report may end with 0), their words
do; they are searched in everything that a tool printed. What a capture of a sweep can end in without a word of its
tool stands at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ToolFault:
    """A failure that is known by its words."""

    reason: Literal[
        "driver_down",
        "no_device",
        "importer",
        "no_permission",
        "lock",
        "busy",
        "driver_mismatch",
        "nothing",
        "disk",
        "unsupported",
    ]
    said: str  # a regular expression, case ignored
    what: str
    cure: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure as it is told: `{0}` of its row is what the tool named."""

    reason: str
    what: str
    cure: str


PERMISSION_CURE = (
    "as root: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiling.conf "
    "and reboot; or run as root; in a container: --cap-add=SYS_ADMIN"
)
IMPORTER_CURE = (
    "install the complete Nsight Systems, or link its host-linux-x64 folder beside nsys's own; same version only"
)
LIBRARY_CURE = "install it (libdw.so.1 and libelf.so.1 are in Debian's and Ubuntu's libdw1: apt-get install libdw1)"
FULL_DISK = ToolFault("disk", r"no space left on device", "no space left on the device", "free some, or set TMPDIR")

SMI_FAULTS = (
    ToolFault(
        "driver_down",
        r"couldn't communicate with the NVIDIA driver",
        "the driver does not answer",
        "install or load it (modprobe nvidia); after a kernel update reinstall it; reboot",
    ),
    ToolFault(
        "driver_mismatch",
        r"Driver/library version mismatch",
        "the loaded driver and its libraries are of different versions",
        "reboot, or unload and load the nvidia kernel modules",
    ),
    ToolFault("no_device", r"No devices were found", "the driver sees no GPU", "give the container a GPU (--gpus all)"),
    ToolFault(
        "driver_down",
        r"GPU is lost|fallen off the bus|unable to determine the device handle",
        "a GPU is lost",
        "reset or reboot the machine; its kernel log has the reason (Xid)",
    ),
    ToolFault(
        "driver_down",
        r"Failed to initialize NVML: (.+)",
        "NVML does not start: {0}",
        "restart the container (its device permissions are gone), or reinstall the driver",
    ),
)

NSYS_FAULTS = (
    FULL_DISK,
    ToolFault(
        "importer",
        r"error while loading shared libraries: (\S+?):",
        "its importer lacks {0}",
        LIBRARY_CURE,
    ),
    ToolFault(
        "importer",
        r"importer binary and its dependencies were not found",
        "it finds no importer beside itself and leaves a .qdstrm",
        IMPORTER_CURE,
    ),
    ToolFault(
        "importer",
        r"Importer error status: ?(.*)",
        "its importer failed and left a .qdstrm: {0}",
        f"run QdstrmImporter by itself to see what it lacks; usually a library: {LIBRARY_CURE}",
    ),
    ToolFault(
        "no_permission", r"ERR_NVGPUCTRPERM|insufficient privilege", "no permission for GPU counters", PERMISSION_CURE
    ),
    ToolFault(
        "busy",
        r"already under profiling|MULTIPLE_SUBSCRIBERS|another profiler|profiling session .*already",
        "another profiler has the GPU",
        "stop it (nsys, ncu, DCGM, a torch profiler) and try again",
    ),
    ToolFault(
        "nothing",
        r"No (?:CUDA|NVTX) events? (?:were )?collected|does not contain .*(?:CUDA|NVTX)|No reports were generated",
        "it recorded nothing",
        "stop other CUPTI clients (DCGM, a torch profiler); nsys must be at least as new as the driver",
    ),
)

# Of `--gpu-metrics-devices` alone: the capture can be had without them. The option's own name says nothing: nsys, and
# whoever shows a command, print it back whatever went wrong.
METRICS_FAULTS = (
    ToolFault(
        "no_permission", r"ERR_NVGPUCTRPERM|insufficient privilege", "no permission for GPU counters", PERMISSION_CURE
    ),
    ToolFault(
        "busy",
        r"already under profiling|(?<!-)gpu[ -]metrics\b.*\b(?:in use|already)",
        "another program samples the GPU",
        "stop it (DCGM: dcgmi profile --pause, or its exporter), then capture again",
    ),
    ToolFault(
        "unsupported",
        r"None of the installed GPUs are supported|(?<!-)gpu[ -]metrics\b.*(?:not supported|unsupported)"
        r"|(?:illegal|unrecogni[sz]ed|unknown|invalid)\b[^\n=]*--gpu-metrics-",
        "this nsys cannot sample this GPU",
        "use an nsys as new as the GPU",
    ),
)

NCU_FAULTS = (
    FULL_DISK,
    ToolFault("no_permission", r"ERR_NVGPUCTRPERM", "no permission for GPU counters", PERMISSION_CURE),
    ToolFault(
        "busy",
        r"driver resource (?:was )?unavailable",
        "another profiler has the counters",
        "stop it (DCGM: dcgmi profile --pause, or its exporter), then try again",
    ),
    ToolFault(
        "lock",
        r"nsight-compute-lock|InterProcessLock|lock file",
        "its lock file is another user's or in use",
        "wait for the other ncu; where none runs, remove nsight-compute-lock in the temporary folder, or set TMPDIR",
    ),
    ToolFault(
        "driver_mismatch",
        r"driver is not compatible with Nsight Compute|unsupported driver",
        "the driver and this ncu do not go together",
        "install an ncu as new as the driver",
    ),
    ToolFault(
        "nothing",
        r"No kernels were profiled",
        "it profiled no kernel",
        "look at its filters (--nvtx-include, --kernel-name); the program must use the GPU",
    ),
)

TORCH_FAULTS = (
    FULL_DISK,
    ToolFault("no_permission", r"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "no permission for CUPTI", PERMISSION_CURE),
    ToolFault(
        "busy",
        r"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS",
        "another profiler has the GPU",
        "stop it (nsys, ncu, DCGM) and try again",
    ),
)


def fault_in(output: str, faults: Sequence[ToolFault]) -> Fault | None:
    """The first failure of a tool's table that its output tells."""
    for known in faults:
        said = re.search(known.said, output, flags=re.IGNORECASE)
        if said is not None:
            named = [(group or "").strip() for group in said.groups()]
            return Fault(known.reason, known.what.format(*named), known.cure)
    return None


# ---------------------------------------------------------------------------------- what a sweep finds out by itself


def no_tool(name: str, cure: str) -> Fault:
    return Fault("tool_missing", f"{name} is neither on the PATH nor where installers put it", cure)


def no_nvtx() -> Fault:
    return Fault(
        "tool_missing", "the Python package nvtx, which names stages and rounds, is missing", "pip install nvtx"
    )


def no_gpu_case(name: str) -> Fault:
    return Fault(
        "unsupported", f"{name} sees GPUs only, the case is on the CPU", "take the tool 'torch' or --device cuda"
    )


def timed_out(name: str, seconds: int) -> Fault:
    cure = "raise timeout_s, or lower num_rounds or num_requests"
    if name == "ncu":
        cure += "; kernels that wait for each other never end under ncu, which runs them one by one"
    return Fault("timeout", f"not finished after {seconds} s", cure)


def crashed(words: str) -> Fault:
    return Fault("crash", f"the case's process failed under it: {words or 'no message'}", "see if it runs without it")


def not_digested(words: str) -> Fault:
    return Fault("crash", f"its files were not digested: {words or 'no message'}", "a bug: report it with captures/raw")


def no_report(words: str) -> Fault:
    return Fault("nothing", f"it left no report: {words or 'no message'}", "ddbench doctor tells what it lacks")


def no_round(first_round: int) -> Fault:
    return Fault(
        "nothing",
        f"the run was over before its round {first_round}, with which the window begins",
        "lower first_round, or raise max_new_tokens or num_requests",
    )


def cut_off(file: str) -> Fault:
    return Fault("truncated", f"{file} ends before its end", "look for free space and capture again")


def no_export(words: str) -> Fault:
    return Fault(
        "unreadable", f"its report could not be exported: {words or 'no message'}", "open the report in its own viewer"
    )


def other_output(request_id: str) -> Fault:
    return Fault(
        "other_output",
        f"request {request_id} got other tokens than in the clean pass",
        "the engine does not repeat itself here: ddbench check --only parity",
    )
