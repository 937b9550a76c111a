"""One sweep per device, and a GPU is the same one whatever number or name a process has for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from ddbench.harness import lock
from ddbench.harness.lock import DeviceBusy, device_lock, physical_gpu

GPUS = ("GPU-aaaa0000-1111", "GPU-aabb0000-2222")
SLICE = "MIG-5555"  # of the second GPU


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A host with two GPUs, as NVML tells it, and what a process of it sees."""

    def put(visible: str | None, *, names: Sequence[str] = ("H", "H"), order: str | None = None) -> None:
        nvml = ModuleType("pynvml")
        nvml.NVMLError = type("NVMLError", (Exception,), {})
        nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
        nvml.nvmlDeviceGetCount = lambda: len(GPUS)
        nvml.nvmlDeviceGetHandleByIndex = lambda index: index
        nvml.nvmlDeviceGetUUID = lambda gpu: GPUS[gpu].encode()
        nvml.nvmlDeviceGetName = lambda gpu: names[gpu]
        nvml.nvmlDeviceGetHandleByUUID = {SLICE: "slice"}.__getitem__
        nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = {"slice": 1}.__getitem__
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)

    return put


@pytest.fixture
def torch_says(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """What the process says that is asked where NVML does not tell."""

    def put(text: str, code: int = 0) -> None:
        done = subprocess.CompletedProcess((), code, text, "")
        monkeypatch.setattr(lock.subprocess, "run", lambda *_, **__: done)

    return put


def test_a_taken_device_names_its_holder(tmp_path: Path) -> None:
    with device_lock("cpu", "sweep 'first'", tmp_path):
        holder = rf"'cpu' is in use by process {os.getpid()} \(sweep 'first'"
        with pytest.raises(DeviceBusy, match=holder) as caught, device_lock("cpu", "sweep 'second'", tmp_path):
            pass
        assert caught.value.exit_code == 4
    with device_lock("cpu", "sweep 'second'", tmp_path):
        pass


def test_a_gpu_is_one_thing_by_any_name_and_another_gpu_is_none_of_its_business(host, tmp_path: Path) -> None:
    host("1")
    with device_lock("cuda", "sweep 'first'", tmp_path), device_lock("cpu", "the host", tmp_path):
        for same in ("1", "1,0", GPUS[1], "GPU-aab", SLICE):
            host(same)
            message = rf"'cuda' \({GPUS[1]}\) is in use by process {os.getpid()} \(sweep 'first'"
            with pytest.raises(DeviceBusy, match=message), device_lock("cuda", "second", tmp_path):
                pass
        for other in (None, "0", GPUS[0]):
            host(other)
            with device_lock("cuda", "second", tmp_path):
                pass


@pytest.mark.parametrize(
    ("visible", "names", "order", "expected"),
    [
        ("1", ("A", "B"), "PCI_BUS_ID", GPUS[1]),
        ("1", ("A", "B"), None, "GPU-from-torch"),  # CUDA puts the faster one first: its number says nothing here
        ("GPU-aa", ("A", "A"), None, "GPU-from-torch"),  # both begin so
        ("7", ("A", "A"), None, "GPU-from-torch"),
    ],
)
def test_where_a_number_is_in_doubt_cuda_itself_is_asked(host, torch_says, visible, names, order, expected) -> None:
    torch_says("from-torch\n")
    host(visible, names=names, order=order)
    assert physical_gpu() == expected


@pytest.mark.parametrize(("answer", "code"), [("", 0), ("no uuid /", 0), ("8f3a8f3a8f3a", 1)])
def test_where_nobody_tells_the_visible_number_is_the_name(host, torch_says, monkeypatch, answer, code) -> None:
    torch_says(answer, code)
    host("1,0")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert physical_gpu() == "number-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a/b")
    assert physical_gpu() == "number-a_b"


def test_a_lock_survives_a_damaged_note(tmp_path: Path) -> None:
    with device_lock("cpu", "first", tmp_path):
        (tmp_path / "ddbench-cpu.holder").write_text("{", encoding="utf-8")
        with pytest.raises(DeviceBusy, match="another ddbench process"), device_lock("cpu", "second", tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DeviceBusy, match="lock file cannot be opened"), device_lock("cpu", "x", tmp_path / "file"):
        pass
