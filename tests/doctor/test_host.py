"""The doctor on the host: a GPU or none, a driver that does not answer, throttling, disk, libraries."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from ddbench.doctor import host
from ddbench.doctor.machine import Machine, TorchFacts
from ddbench.harness import tool_faults
from ddbench.harness.tool_faults import NCU_FAULTS, NSYS_FAULTS, SMI_FAULTS

from .conftest import GPU, SMI, Put

Usage = namedtuple("Usage", "total used free")

SMI_ENDINGS = {
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.": ("failed", "does not answer", "modprobe"),
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95": (
        "failed",
        "different versions",
        "reboot",
    ),
    "Failed to initialize NVML: Unknown Error": ("failed", "NVML does not start: Unknown Error", "container"),
    "No devices were found": ("missing", "sees no GPU", "--gpus all"),
    "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.": ("failed", "lost", "Xid"),
    "something that nobody has seen before": ("failed", "something that nobody has seen before", "nvidia-smi"),
}


def test_nothing_there_is_missing_and_no_fault(machine: Machine) -> None:
    assert host.gpu(machine).status == "missing"
    assert not machine.has_gpu
    for check in (host.driver, host.cuda, host.clocks):
        assert check(machine).status == "missing"


def test_a_gpu_is_described(machine: Machine, put: Put) -> None:
    put("nvidia-smi", SMI)
    machine.torch = GPU
    assert host.gpu(machine).detail == "NVIDIA H200, 143771 MiB"
    assert host.driver(machine).detail == "580.95.05"
    assert "13.0, compute capability 9.0" in host.cuda(machine).detail
    assert host.clocks(machine).detail == "SM 345 of 1980 MHz, 31 °C, not throttled"


@pytest.mark.parametrize("words", SMI_ENDINGS)
def test_what_nvidia_smi_says_is_understood(words: str, machine: Machine, put: Put) -> None:
    put("nvidia-smi", f"print({words!r}); sys.exit(9)")
    status, what, cure = SMI_ENDINGS[words]
    found = host.gpu(machine)
    assert found.status == status
    assert what in found.detail
    assert cure in found.cure


def test_a_gpu_that_thermal_limits_slow_down_is_a_fault(machine: Machine, put: Put) -> None:
    put("nvidia-smi", SMI.replace("0x0000000000000004", "0x0000000000000060"))
    found = host.clocks(machine)
    assert found.status == "failed"
    assert "software thermal slowdown, hardware thermal slowdown" in found.detail


def test_device_files_without_tools_are_a_fault(machine: Machine) -> None:
    (machine.root / "dev").mkdir()
    (machine.root / "dev/nvidia0").touch()
    found = host.gpu(machine)
    assert found.status == "failed"
    assert "NVIDIA_DRIVER_CAPABILITIES" in found.cure


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (TorchFacts("2.13.0+cpu"), "built without CUDA"),
        (TorchFacts("2.13.0", cuda="13.0", error="The NVIDIA driver on your system is too old"), "too old"),
        (TorchFacts("2.13.0", cuda="13.0"), "sees no GPU"),
        (TorchFacts("2.13.0", cuda="13.0", error="the GPU computes wrongly: expected 1024, got 0"), "wrongly"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_fault(facts: TorchFacts, what: str, machine: Machine, put: Put) -> None:
    put("nvidia-smi", SMI)
    machine.torch = facts
    found = host.cuda(machine)
    assert found.status == "failed"
    assert what in found.detail


def test_torch_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    facts = Machine(tmp_path).torch
    assert facts.version is not None
    assert facts.error is None


def test_absent_libraries_are_named_with_their_cure(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "version_of", lambda name: None if name in ("psutil", "torch") else "1.0")
    found = host.libraries(machine)
    assert (found.status, found.detail) == ("missing", "not installed: psutil, torch")
    assert "ddbench[engine]" in found.cure


def test_a_full_or_closed_disk_is_a_fault(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.disk(machine).status == "ok"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda place, mode: place != machine.folder)
        assert host.disk(machine).detail == "no permission to write here"
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10**12, 10**12 - 10**8, 10**8))
    assert host.disk(machine).status == "failed"
    assert "100 MB free here" in host.disk(machine).detail


@pytest.mark.parametrize("faults", [SMI_FAULTS, NSYS_FAULTS, NCU_FAULTS])
def test_every_known_failure_fits_on_one_line_with_a_cure(faults: tuple[tool_faults.ToolFault, ...]) -> None:
    for fault in faults:
        assert fault.cure
        assert "\n" not in fault.what + fault.cure
    assert tool_faults.fault_in("all is well", faults) is None
