"""Tools that are not there: scripts on a PATH of their own that answer as nvidia-smi, nsys and ncu do."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddbench.doctor import host
from ddbench.doctor import machine as machine_module
from ddbench.doctor.machine import Machine, TorchFacts

Put = Callable[[str, str], Path]
CPU = TorchFacts("2.13.0")
GPU = TorchFacts("2.13.0", cuda="13.0", device="NVIDIA H200", capability="9.0")

SMI = """
field = next(word for word in sys.argv if word.startswith("--query-gpu="))
if "clocks_event_reasons" in field:
    print('Field "clocks_event_reasons.active" is not a valid field to query.')
    sys.exit(2)
print("0x0000000000000004" if "clocks_throttle_reasons" in field else "NVIDIA H200, 580.95.05, 143771, 345, 1980, 31")
"""

# Runs its target, and records what the target's range and kernel would be, unless told otherwise.
NSYS = """
import os, sqlite3, subprocess
word = {word!r}
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0")
elif sys.argv[1] == "profile":
    (out,) = [w.removeprefix("--output=") for w in sys.argv if w.startswith("--output=")]
    assert "--sample=none" in sys.argv and "--cpuctxsw=none" in sys.argv
    assert os.environ["LC_ALL"] == "C" and "DOCTORS_SECRET" not in os.environ
    if word.startswith("Importer"):
        print("Generating '" + out + ".qdstrm'\\n" + word)
        open(out + ".qdstrm", "w").close()
        sys.exit(0)
    if word.startswith("/"):
        print(word)
        sys.exit(1)
    device = sys.argv[-1]
    command = [*sys.argv[sys.argv.index(sys.executable):-1], "cpu"]
    assert subprocess.run(command).returncode == 0
    open(out + ".nsys-rep", "w").write(device)
elif sys.argv[1] == "export":
    (out,) = [w.removeprefix("--output=") for w in sys.argv if w.startswith("--output=")]
    if word == "damaged":
        open(out, "w").write("no database at all, whatever its name says")
        sys.exit(0)
    database = sqlite3.connect(out)
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, text TEXT, textId INTEGER)")
    database.execute("INSERT INTO NVTX_EVENTS VALUES (1, 'ddbench', NULL)")
    if word != "no range":
        database.execute("INSERT INTO StringIds VALUES (7, 'doctor self-test')")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (1, NULL, 7)")
    if open(sys.argv[-1]).read() == "cuda" and word != "no kernel":
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1)")
    database.commit()
"""

NCU = """
import os
if sys.argv[1] == "--version":
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nCopyright (c) 2018-2025 NVIDIA Corporation\\n"
          "Version 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit(0)
assert sys.argv[sys.argv.index("--clock-control") + 1] == "none"
assert os.environ["LC_ALL"] == "C"
{end}
print('==PROF== Connected to process 1\\n"ID","Kernel Name","gpu__time_duration.sum"\\n"","","ns"\\n"0","add","1504"')
"""


def nsys_that(word: str = "") -> str:
    """A fake nsys; `word` is what goes wrong, or what it says when it fails."""
    return NSYS.replace("{word!r}", repr(word))


def ncu_that(words: str = "") -> str:
    """A fake ncu; `words` is what it says when it fails."""
    return NCU.replace("{end}", f"print({words!r}); sys.exit(1)" if words else "")


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a program on the PATH, which holds no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def program(name: str, body: str) -> Path:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!{sys.executable}\nimport sys\n{body}", encoding="utf-8")
        file.chmod(0o755)
        return file

    return program


@pytest.fixture
def machine(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with nothing in it: no GPU, no tool, an empty root, a temporary folder of its own."""
    for name in ("root", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    found = Machine(tmp_path, tmp_path / "root")
    found.torch = CPU
    return found


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip has put here is not these tests' business: every package that is asked for is there."""
    for module in (host, machine_module):
        monkeypatch.setattr(module, "version_of", lambda package: "1.0", raising=False)
