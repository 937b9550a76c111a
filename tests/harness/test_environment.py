"""The environment record: complete, comparable, and silent about who and where."""

from __future__ import annotations

import getpass
import platform
import socket
import sys
import types
from pathlib import Path

import pytest
import torch

from ddbench.errors import DdbenchError
from ddbench.harness import environment
from ddbench.harness.capture import load_sample
from ddbench.harness.environment import code_digest, environment_of, parts_origin
from ddbench.records import Environment, NotMeasured


@pytest.fixture(scope="module")
def here() -> Environment:
    return environment_of("cpu")


def test_nothing_names_a_user_a_host_or_a_folder(here: Environment) -> None:
    text = here.model_dump_json()
    values = [value for value in here.model_dump().values() if isinstance(value, str)] + list(here.libraries.values())
    assert socket.gethostname() not in values
    assert getpass.getuser() not in values
    assert str(Path.home()) not in text
    assert str(environment.PACKAGE.parent) not in text
    assert not any(value.startswith("/") for value in values)


def test_it_says_what_times_depend_on(here: Environment) -> None:
    assert here.device == "cpu"
    assert here.libraries["python"] == platform.python_version()
    assert here.libraries["torch"][0].isdigit()
    assert here.num_cpus >= 1
    assert here.memory_bytes > 1 << 28
    assert here.cpu_model
    assert isinstance(here.driver, NotMeasured)
    assert "no GPU" in here.driver.not_measured


def test_reading_twice_gives_the_same(here: Environment) -> None:
    assert environment_of("cpu") == here


def test_the_fingerprint_follows_the_machine_but_not_the_commit(here: Environment) -> None:
    """H40: another device or library is another place; another commit is not."""
    assert here.model_copy(update={"device": "another"}).fingerprint() != here.fingerprint()
    assert here.model_copy(update={"libraries": {"torch": "0"}}).fingerprint() != here.fingerprint()
    assert here.model_copy(update={"commit": "abc", "code_digest": "x"}).fingerprint() == here.fingerprint()


def test_the_code_digest_follows_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(environment, "_sources", lambda: iter([("ddbench/a.py", file)]))
    first = code_digest()
    assert code_digest() == first
    file.write_text("x = 2\n", encoding="utf-8")
    assert code_digest() != first
    file.write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(environment, "_sources", lambda: iter([("ddbench/b.py", file)]))
    assert code_digest() != first


def test_the_code_digest_covers_the_package_and_what_is_mounted() -> None:
    names = {name for name, _ in environment._sources()}
    assert {
        "ddbench/spec.py",
        "ddbench/engine/round.py",
        "kernels/tree_build.py",
        "reference/tree_build.py",
        "experiments/default.toml",
    } <= names
    assert not any("pretrained" in name or "__pycache__" in name for name in names)


def test_parts_from_two_places_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_origin() in ("checkout", "installed")
    folders = {"kernels": environment.PACKAGE / "kernels", "reference": tmp_path, "experiments": tmp_path}
    monkeypatch.setattr(environment, "_mounted_folder", folders.__getitem__)
    with pytest.raises(DdbenchError, match="partly from a checkout and partly from an installed package"):
        parts_origin()


class FakeNVML(types.ModuleType):
    """NVML of one GPU, found by its UUID only."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def __init__(self, is_readable: bool = True) -> None:
        super().__init__("pynvml")
        self.is_readable = is_readable

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1234":
            raise self.NVMLError("Not Found")
        return "handle"

    def _read(self, value: object) -> object:
        if not self.is_readable:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlSystemGetDriverVersion(self) -> object:
        return self._read("580.1")

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: str) -> object:
        return self._read(700_000)

    def nvmlDeviceGetClockInfo(self, gpu: str, kind: int) -> object:
        return self._read(1980)

    def nvmlDeviceGetTemperature(self, gpu: str, kind: int) -> object:
        return self._read(40)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: str) -> object:
        return self._read(0x5)


def with_gpu(monkeypatch: pytest.MonkeyPatch, uuid: str, nvml: FakeNVML) -> None:
    properties = types.SimpleNamespace(name="A GPU", total_memory=80, uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_a_gpu_is_read_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that torch uses, not NVML's first: the two number them differently."""
    with_gpu(monkeypatch, "1234", FakeNVML())
    gpu = environment.read_environment("cuda")
    assert (gpu.device, gpu.device_memory_bytes, gpu.driver, gpu.power_cap_w) == ("A GPU", 80, "580.1", 700.0)
    load = load_sample(0.1, 0.2, "cuda")
    assert (load.sm_clock_mhz, load.temperature_c, load.throttle_reasons) == (1980, 40, ("software power cap",))


@pytest.mark.parametrize(
    ("uuid", "is_readable", "reason"), [("9", True, "Not Found"), ("1234", False, "Not Supported")]
)
def test_what_nvml_does_not_say_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, uuid: str, is_readable: bool, reason: str
) -> None:
    with_gpu(monkeypatch, uuid, FakeNVML(is_readable))
    gpu = environment.read_environment("cuda")
    for value in (gpu.driver, gpu.power_cap_w, load_sample(0.1, 0.2, "cuda").sm_clock_mhz):
        assert isinstance(value, NotMeasured)
        assert reason in value.not_measured
