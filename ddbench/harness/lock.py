"""One sweep per device: two that share it would measure each other. A GPU is locked as the hardware that it is.

Its name does not do: index 0 of one process is index 1 of another (CUDA_VISIBLE_DEVICES), and slices of one GPU share
its clocks and its power.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ddbench.errors import DdbenchError
from ddbench.harness.environment import child_environment, nvml_text, whole_uuid

_ASK_TORCH = "import torch; print(torch.cuda.get_device_properties(0).uuid)"
_ASK_LIMIT_S = 120


class DeviceBusy(DdbenchError):
    """Another sweep has the device. Exit code 4: nothing is wrong with the request."""


@contextmanager
def device_lock(device: str, purpose: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the device's lock file; a device that is taken is an error that names it and the holder."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    hardware = physical_gpu() if device == "cuda" else ""
    stem, named = f"ddbench-{device}", f"'{device}'"
    if hardware:
        stem, named = f"{stem}-{hardware}", f"{named} ({hardware})"
    lock = FileLock(folder / f"{stem}.lock", timeout=0, mode=0o666)
    holder = folder / f"{stem}.holder"
    try:
        lock.acquire()
    except Timeout as error:
        raise DeviceBusy(f"device {named} is in use by {_describe(holder)}: wait for it or stop it") from error
    except OSError as error:
        raise DeviceBusy(f"device {named}: its lock file cannot be opened ({error.strerror})") from error
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):  # a note for whoever waits; the lock holds without it
            holder.write_text(json.dumps({"pid": os.getpid(), "purpose": purpose, "since": now}), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _describe(holder: Path) -> str:
    try:
        facts = json.loads(holder.read_text(encoding="utf-8"))
        return f"process {facts['pid']} ({facts['purpose']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another ddbench process"


# -------------------------------------------------------------------------------------------------- which GPU it is


def physical_gpu() -> str:
    """The GPU that is this process's CUDA device 0: its UUID, or where nobody tells that, how CUDA calls it.

    NVML is asked first, since that touches no GPU: another sweep may be timing on it.
    """
    environment = child_environment()
    visible = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    uuid = _by_nvml(visible, environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID") or _by_torch()
    return uuid or f"number-{re.sub(r'[^A-Za-z0-9-]', '_', visible) or 'none'}"


def _by_nvml(visible: str, is_by_bus: bool) -> str:
    """Empty where NVML is missing, or cannot tell which GPU CUDA means."""
    try:
        import pynvml
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()
        try:
            return _uuid_of(visible, is_by_bus, pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ""


def _uuid_of(visible: str, is_by_bus: bool, nvml: Any) -> str:
    """Of an entry of CUDA_VISIBLE_DEVICES: a number in CUDA's order, the beginning of a GPU's UUID, or a slice's."""
    if visible.startswith("MIG-"):
        whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(visible))
        return nvml_text(nvml.nvmlDeviceGetUUID(whole))
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    uuids = [nvml_text(nvml.nvmlDeviceGetUUID(gpu)) for gpu in gpus]
    if visible.startswith("GPU-"):
        found = [uuid for uuid in uuids if uuid.startswith(visible)]
        return found[0] if len(found) == 1 else ""
    # NVML counts by the bus; CUDA does as well, unless it puts the faster of unlike GPUs first
    is_by_bus = is_by_bus or len(set(map(nvml.nvmlDeviceGetName, gpus))) == 1
    is_there = visible.isascii() and visible.isdigit() and int(visible) < len(uuids)
    return uuids[int(visible)] if is_by_bus and is_there else ""


def _by_torch() -> str:
    """In a process of its own, which ends and lets go of the device. Empty where torch does not tell."""
    command = (sys.executable, "-c", _ASK_TORCH)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=child_environment(), timeout=_ASK_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    uuid = (done.stdout.split() or [""])[-1]
    is_one = done.returncode == 0 and re.fullmatch(r"[A-Za-z0-9-]{8,64}", uuid)
    return whole_uuid(uuid) if is_one else ""
