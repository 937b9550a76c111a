"""Where a run happens: device, driver, libraries, code. Recorded with every run and held against another run's.

Nothing here names a user, a host or a folder. What cannot be read is `NotMeasured(reason)`.
`python -m ddbench.harness.environment DEVICE` prints the record: a sweep on a GPU asks for it in a process of its own,
so that the process that starts the cases never holds device memory.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import ddbench
from ddbench.errors import DdbenchError
from ddbench.records import Environment, NotMeasured
from ddbench.spec import Device, from_json

AnswerT = TypeVar("AnswerT")

LIBRARIES = ("torch", "triton", "numpy", "pyarrow", "pydantic", "tokenizers", "safetensors")
MOUNTED = ("kernels", "reference", "experiments")  # folders that a checkout keeps beside the package
SOURCE_SUFFIXES = frozenset((".py", ".toml", ".j2", ".css", ".js", ".cpp", ".cu"))
PACKAGE = Path(ddbench.__file__).resolve().parent


def environment_of(device: Device) -> Environment:
    """The environment, without loading CUDA into this process."""
    if device == "cpu":
        return read_environment(device)
    return asked_environment((sys.executable, "-m", "ddbench.harness.environment"), device)


def asked_environment(command: Sequence[str], device: str) -> Environment:
    """What a process of its own says about this machine and its own code."""
    done = subprocess.run((*command, device), capture_output=True, text=True, env=child_environment(), check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DdbenchError(f"device '{device}': its environment could not be read: {last}")
    return from_json(Environment, done.stdout, "environment")


def module_of(checkout: Path, module: str) -> tuple[str, ...]:
    """The command that runs a module of another checkout of this package, whatever is installed here."""
    start = f"import runpy, sys; sys.path.insert(0, {str(checkout)!r}); "
    return (sys.executable, "-c", f"{start}runpy.run_module({module!r}, run_name='__main__', alter_sys=True)")


def child_environment() -> dict[str, str]:
    """Environment variables for our own child processes: they must find this very package."""
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGE.parent), inherited)))}


def read_environment(device: Device) -> Environment:
    """Read everything here and now. Imports torch; on `cuda` it initialises the device."""
    import psutil
    import torch

    commit, is_dirty = _git_state()
    gpu = nvml_device(device)
    memory: int | NotMeasured = NotMeasured(not_measured="the device is the host's own CPU")
    name = "cpu"
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name, memory = properties.name, properties.total_memory
    return Environment(
        platform="-".join((platform.system(), *re.findall(r"^\d+\.\d+", platform.release()))),
        machine=platform.machine(),
        cpu_model=_cpu_model(),
        num_cpus=_num_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        device=name,
        device_memory_bytes=memory,
        driver=nvml_answer(gpu, lambda nvml: nvml_text(nvml.nvmlSystemGetDriverVersion())),
        power_cap_w=nvml_answer(gpu, lambda nvml: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000),
        libraries=_libraries(),
        num_threads=torch.get_num_threads(),
        code_digest=code_digest(),
        commit=commit,
        is_dirty=is_dirty,
        parts_origin=parts_origin(),
    )


# ----------------------------------------------------------------------------------------------------------- code


def code_digest() -> str:
    """SHA-256 over the package's sources and the mounted folders', wherever they are installed."""
    digest = hashlib.sha256()
    for name, path in sorted(_sources()):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, Path]]:
    roots = [("ddbench", PACKAGE), *((name, _mounted_folder(name)) for name in MOUNTED)]
    for name, root in roots:
        for path in root.rglob("*"):
            inside = path.relative_to(root)
            is_mounted = name == "ddbench" and inside.parts[0] in MOUNTED  # installed: counted under their own names
            if path.suffix in SOURCE_SUFFIXES and not is_mounted and path.is_file():
                yield f"{name}/{inside.as_posix()}", path


def source_texts() -> Iterator[str]:
    """The text of every source file of the package and its mounted folders."""
    return (path.read_text(encoding="utf-8") for _, path in sorted(_sources()))


def _mounted_folder(name: str) -> Path:
    spec = importlib.util.find_spec(f"ddbench.{name}")
    folders = [Path(folder).resolve() for folder in (spec.submodule_search_locations or ())] if spec else []
    if len(set(folders)) != 1:
        raise DdbenchError(
            f"ddbench.{name} is found in {len(set(folders))} folders, expected one: "
            "an installed copy and a checkout are mixed; remove one of them from the import path"
        )
    return folders[0]


def parts_origin() -> Literal["checkout", "installed"]:
    """Whether kernels, references and experiments come from a checkout or from an installed package; never both."""
    origins = {"installed" if PACKAGE in _mounted_folder(name).parents else "checkout" for name in MOUNTED}
    if len(origins) > 1:
        raise DdbenchError(
            "kernels, reference and experiments come partly from a checkout and partly from an installed package: "
            "remove one of the two from the import path"
        )
    return "installed" if origins == {"installed"} else "checkout"


def _git_state() -> tuple[str | NotMeasured, bool | NotMeasured]:
    if parts_origin() == "installed" or not (PACKAGE.parent / ".git").exists():
        missing = NotMeasured(not_measured="not a git checkout")
        return missing, missing
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError) as error:
        missing = NotMeasured(not_measured=f"git gave no commit ({type(error).__name__})")
        return missing, missing


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PACKAGE.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


# ----------------------------------------------------------------------------------------------------------- host


def _libraries() -> dict[str, str]:
    versions = {"python": platform.python_version(), "cuda": _cuda_version()}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return dict(sorted(versions.items()))


def _cuda_version() -> str:
    import torch

    return torch.version.cuda or "absent"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------------------------------------------------ GPU


def nvml_device(device: str) -> Any | NotMeasured:
    """The NVML handle of the GPU that torch calls device 0, found by its UUID; initialises CUDA."""
    if device != "cuda":
        return NotMeasured(not_measured="the device is no GPU")
    try:
        import pynvml
    except ImportError:
        return NotMeasured(not_measured="nvidia-ml-py is not installed")
    import torch

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(whole_uuid(str(torch.cuda.get_device_properties(0).uuid)))
    except pynvml.NVMLError as error:
        return NotMeasured(not_measured=f"NVML: {error}")


def nvml_answer(gpu: Any | NotMeasured, question: Callable[[Any], AnswerT]) -> AnswerT | NotMeasured:
    """What NVML says of a GPU, or why it says nothing; the question is put to the module pynvml."""
    if isinstance(gpu, NotMeasured):
        return gpu
    import pynvml

    try:
        return question(pynvml)
    except pynvml.NVMLError as error:
        return NotMeasured(not_measured=f"NVML: {error}")


def nvml_text(answer: bytes | str) -> str:
    """Older versions of pynvml answer in bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer


def whole_uuid(uuid: str) -> str:
    """A GPU's as NVML has it: torch leaves out how it begins."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


if __name__ == "__main__":
    sys.stdout.write(read_environment("cuda" if sys.argv[1:] == ["cuda"] else "cpu").model_dump_json())
