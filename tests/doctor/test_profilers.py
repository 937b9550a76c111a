"""The doctor on nsys and ncu, against scripts that answer and fail as those do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddbench.doctor import profilers
from ddbench.doctor.machine import Machine
from ddbench.harness.tools import run

from .conftest import GPU, Put, ncu_that, nsys_that

LIBDW = (
    "QdstrmImporter: error while loading shared libraries: libdw.so.1: "
    "cannot open shared object file: No such file or directory"
)
PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0."
)


def test_no_tool_is_missing_with_its_cure(machine: Machine) -> None:
    for check in (profilers.nsys, profilers.ncu):
        assert check(machine).status == "missing"
        assert "install Nsight" in check(machine).cure
    for check in (profilers.importer, profilers.nsys_capture, profilers.ncu_capture):
        assert check(machine).status == "missing"


def test_versions_are_read(machine: Machine, put: Put) -> None:
    put("nsys", nsys_that())
    put("ncu", ncu_that())
    assert profilers.nsys(machine).detail.startswith("2025.3.1.90, ")
    assert profilers.ncu(machine).detail.startswith("2025.3.1.0, ")


def test_the_newest_nsys_inside_nsight_compute_is_found(machine: Machine, put: Put) -> None:
    for version in ("2025.3.1", "2025.10.0", "2024.1.1"):
        place = machine.root / f"opt/nvidia/nsight-compute/{version}/host/target-linux-x64/nsys"
        place.parent.mkdir(parents=True)
        put("nsys", nsys_that()).rename(place)
    assert machine.nsys is not None
    assert "2025.10.0" in str(machine.nsys)
    assert profilers.nsys(machine).status == "ok"


def test_a_tool_that_does_not_start_is_a_fault(machine: Machine, put: Put) -> None:
    put("ncu", "").write_text("no program", encoding="utf-8")
    assert profilers.ncu(machine).status == "failed"
    assert "cannot be started" in profilers.ncu(machine).detail


# ----------------------------------------------------------------------------------------------------------- importer


def test_an_importer_without_libdw_is_recognised_by_its_library(machine: Machine, put: Put) -> None:
    put("target/nsys", nsys_that())
    machine.nsys = put("target/nsys", nsys_that())
    put("host-linux-x64/QdstrmImporter", f"print({LIBDW!r}, file=sys.stderr); sys.exit(127)")
    found = profilers.importer(machine)
    assert (found.status, found.detail) == ("failed", "QdstrmImporter lacks libdw.so.1")
    assert "libdw1" in found.cure
    put("linux-desktop/QdstrmImporter", "import os; sys.exit('linux-desktop' not in os.environ['LD_LIBRARY_PATH'])")
    del machine.importers
    assert profilers.importer(machine).status == "ok", "one that works is enough, with the libraries beside it"


def test_an_importer_that_starts_is_fine_and_none_is_missing(machine: Machine, put: Put) -> None:
    machine.nsys = put("target/nsys", nsys_that())
    assert profilers.importer(machine).status == "missing"
    del machine.importers
    put("host-linux-x64/QdstrmImporter", "print('Allowed options:')")
    assert profilers.importer(machine).status == "ok"


# ------------------------------------------------------------------------------------------------------------ capture


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_range_is_found_again(has_gpu: bool, machine: Machine, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a capture is stored in its report: it holds nothing that is not needed."""
    monkeypatch.setenv("DOCTORS_SECRET", "planted")
    put("nsys", nsys_that())
    machine.torch = GPU if has_gpu else machine.torch
    found = profilers.nsys_capture(machine)
    assert found.status == "ok", found.detail
    assert ("kernel" in found.detail) is has_gpu


@pytest.mark.parametrize(
    ("word", "what", "cure"),
    [
        ("no range", "range is not in the capture", "nvtx<0.2.12"),
        ("no kernel", "kernel is not in the capture", "DCGM"),
        ("damaged", "cannot be read", "nsys anew"),
        ("Importer error status: An unknown error occurred.", "left a .qdstrm", "libdw1"),
        (
            "Importer error status: The importer binary and its dependencies were not found.",
            "no importer",
            "host-linux",
        ),
        ("/tmp: No space left on device", "no space", "TMPDIR"),
        ("/bin/x: a failure of another kind", "writes no report", "importer"),
    ],
)
def test_a_capture_that_holds_nothing_is_a_fault(word: str, what: str, cure: str, machine: Machine, put: Put) -> None:
    put("nsys", nsys_that(word))
    machine.torch = GPU
    found = profilers.nsys_capture(machine)
    assert found.status == "failed"
    assert what in found.detail
    assert cure in found.cure
    assert list((machine.folder / "temporary").iterdir()) == [], "nothing is left behind"


def test_a_capture_without_any_table_holds_nothing(tmp_path: Path) -> None:
    """Exports leave out what is empty."""
    (tmp_path / "empty.sqlite").touch()
    assert profilers.recorded(tmp_path / "empty.sqlite") == (0, 0)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_tool_that_hangs_is_ended_with_what_it_started(put: Put, tmp_path: Path) -> None:
    body = "import subprocess, time\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    body += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(60)"
    done = run((put("hangs", body),), 1.5)
    assert done.code is None
    assert "no answer" in done.output
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10  # killed, it still has to be scheduled once to end
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


# ------------------------------------------------------------------------------------------------------------ ncu


@pytest.mark.parametrize(
    ("only_admins", "capabilities", "status"),
    [("1", "0000000000000000", "missing"), ("1", "00000000a82435fb", "ok"), ("0", "0000000000000000", "ok")],
)
def test_who_may_read_counters(only_admins: str, capabilities: str, status: str, machine: Machine) -> None:
    """H: ERR_NVGPUCTRPERM is foreseen. Capability 21 (CAP_SYS_ADMIN) counts, not the name root."""
    machine.torch = GPU
    for name, text in {
        "proc/driver/nvidia/params": f"EnableMSI: 1\nRmProfilingAdminOnly: {only_admins}\n",
        "proc/self/status": f"Name: x\nCapEff:\t{capabilities}\n",
    }.items():
        (machine.root / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / name).write_text(text, encoding="utf-8")
    found = profilers.counters(machine)
    assert found.status == status
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in found.cure) is (status == "missing")


def test_a_kernel_is_counted(machine: Machine, put: Put) -> None:
    put("ncu", ncu_that())
    assert profilers.ncu_capture(machine).status == "missing"
    machine.torch = GPU
    assert profilers.ncu_capture(machine).status == "ok"


@pytest.mark.parametrize(
    ("words", "what", "cure"),
    [
        (PERMISSION, "no permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "another profiler", "DCGM"),
        ("==ERROR== Failed to open /tmp/nsight-compute-lock", "lock file", "nsight-compute-lock"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "do not go together", "as new as"),
        ("==WARNING== No kernels were profiled.", "no kernel", "filters"),
        ("==ERROR== of another kind", "counts no kernel: ==ERROR== of another kind", "small program"),
    ],
)
def test_what_ncu_says_is_understood(words: str, what: str, cure: str, machine: Machine, put: Put) -> None:
    put("ncu", ncu_that(words))
    machine.torch = GPU
    found = profilers.ncu_capture(machine)
    assert found.status == "failed"
    assert what in found.detail
    assert cure in found.cure


def test_another_users_lock_file_is_in_the_way(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profilers.ncu_lock(machine).status == "ok"
    lock = machine.folder / "temporary" / profilers.NCU_LOCK
    lock.touch()
    assert profilers.ncu_lock(machine).status == "ok"
    monkeypatch.setattr(os, "access", lambda place, mode: place != lock)
    assert profilers.ncu_lock(machine).status == "failed"


def test_the_self_test_runs_by_itself() -> None:
    done = subprocess.run([sys.executable, "-m", "ddbench.doctor.self_test", "cpu"], check=False)
    assert done.returncode == 0
