"""Checks of the installation, the disk and the GPU. Each is a function from the machine to a finding."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import ddbench
from ddbench import units
from ddbench.doctor.finding import NO_GPU, Finding, failed, missing, ok
from ddbench.doctor.machine import Gpu, Machine, version_of
from ddbench.errors import DdbenchError
from ddbench.harness.environment import parts_origin
from ddbench.harness.tool_faults import Fault

ENGINE_LIBRARIES = ("filelock", "psutil", "safetensors", "tokenizers", "torch")
ENGINE_CURE = "pip install 'ddbench[engine]', in a checkout pip install -e '.[engine]', or make sweep"
LEAST_FREE_BYTES = 2_000_000_000  # a run with its captures and their exports
HARMFUL = {
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
}  # NVML's bits that say that the card cannot keep its clocks; idle, settings and the power cap are no fault


def code(machine: Machine) -> Finding:
    """Package, kernels and references come from one place."""
    try:
        origin = parts_origin()
    except DdbenchError as error:
        what, _, cure = str(error).rpartition(": ")
        return failed(what, cure)
    python = ".".join(map(str, sys.version_info[:3]))
    return ok(f"{ddbench.__version__} ({origin}), Python {python}")


def libraries(machine: Machine) -> Finding:
    versions = {name: version_of(name) for name in ENGINE_LIBRARIES}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return missing(f"not installed: {', '.join(absent)}", ENGINE_CURE)
    return ok(", ".join(f"{name} {version}" for name, version in versions.items() if name != "torch"))


def torch(machine: Machine) -> Finding:
    facts = machine.torch
    if facts.version is None:
        return missing("not installed", ENGINE_CURE)
    if facts.error is not None and facts.error.startswith("torch cannot be loaded"):
        return failed(f"{facts.version}: {facts.error}", "install it anew; python -c 'import torch' says more")
    return ok(facts.version)


def gpu(machine: Machine) -> Finding:
    found = machine.smi
    if isinstance(found, Gpu):
        return ok(f"{found.name}, {found.memory_mib} MiB")
    if isinstance(found, Fault):
        if found.reason == "no_device" and not machine.has_device_files:
            return missing(found.what, found.cure)
        return failed(f"nvidia-smi: {found.what}", found.cure)
    if machine.torch.device is not None:
        return ok(f"{machine.torch.device} (no nvidia-smi)")
    if machine.has_device_files:
        cure = "install the driver's tools; in a container NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return failed("device files of a GPU, but no nvidia-smi", cure)
    cure = (
        "without one, sweeps run on the CPU; else install the NVIDIA driver, or give the container its GPU (--gpus all)"
    )
    return missing("none found, and no nvidia-smi", cure)


def driver(machine: Machine) -> Finding:
    if isinstance(machine.smi, Gpu):
        return ok(machine.smi.driver)
    if not machine.has_gpu:
        return NO_GPU
    return missing("its version is unknown without nvidia-smi", "install the driver's tools; see GPU")


def cuda(machine: Machine) -> Finding:
    """torch finds the GPU, and it computes."""
    facts = machine.torch
    if facts.device is not None:
        return ok(f"{facts.cuda}, compute capability {facts.capability}, a sum on the GPU is right")
    if not machine.has_gpu:
        return NO_GPU
    if facts.version is None:
        return missing("torch is not installed", ENGINE_CURE)
    if facts.cuda is None:
        return failed("this torch is built without CUDA", "install a CUDA build of torch: make sweep TORCH=...")
    what = facts.error or "torch sees no GPU"
    cure = (
        "the driver must be as new as torch's CUDA: update it, or install an older build of torch; see GPU and driver"
    )
    return failed(f"torch for CUDA {facts.cuda}: {what}", cure)


def triton(machine: Machine) -> Finding:
    version = version_of("triton")
    if version is not None:
        return ok(version)
    return missing("not installed", "pip install 'ddbench[gpu]'") if machine.has_gpu else NO_GPU


def nvml(machine: Machine) -> Finding:
    """Python's access to clocks, temperature and power."""
    version = version_of("nvidia-ml-py")
    if version is not None:
        return ok(f"nvidia-ml-py {version}")
    return missing("nvidia-ml-py is not installed", "pip install 'ddbench[gpu]'") if machine.has_gpu else NO_GPU


def nvtx(machine: Machine) -> Finding:
    version = version_of("nvtx")
    return ok(version) if version is not None else missing("not installed", "pip install nvtx")


def clocks(machine: Machine) -> Finding:
    found = machine.smi
    if not isinstance(found, Gpu):
        cure = "see GPU" if machine.has_gpu else ""
        return missing("no GPU to read them from", cure)
    bits = machine.throttle_bits
    state = f"SM {found.sm_mhz} of {found.max_sm_mhz} MHz, {found.temperature_c} °C"
    if bits is None:
        return missing(f"{state}; the driver does not tell about throttling", "a newer driver does")
    slowed = [name for bit, name in HARMFUL.items() if bits & bit]
    if slowed:
        cure = "cool it, and look at its power supply (nvidia-smi -q -d PERFORMANCE); times measured now are too long"
        return failed(f"{state}, throttled: {', '.join(slowed)}", cure)
    return ok(f"{state}, not throttled")


def disk(machine: Machine) -> Finding:
    """Room for runs and for what the profilers leave while they work."""
    places = {"here": machine.folder, "for temporary files": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(place).free for name, place in places.items()}
    state = ", ".join(f"{units.byte_count(size)} free {name}" for name, size in free.items())
    closed = [name for name, place in places.items() if not os.access(place, os.W_OK)]
    if closed:
        return failed(f"no permission to write {' and '.join(closed)}", "work in a folder of your own, or set TMPDIR")
    if min(free.values()) < LEAST_FREE_BYTES:
        return failed(state, f"free some: at least {units.byte_count(LEAST_FREE_BYTES)} each, or --out and TMPDIR")
    return ok(state)
