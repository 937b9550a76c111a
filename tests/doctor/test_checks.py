"""The table of checks, its exit code, and the command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from ddbench.cli import main
from ddbench.doctor.checks import ALL, CHECKS, Row, examine
from ddbench.doctor.command import show
from ddbench.doctor.machine import Machine, TorchFacts

from .conftest import GPU, SMI, Put, ncu_that, nsys_that


def rows_of(machine: Machine, purpose: str | None) -> dict[str, Row]:
    return {row.name: row for row in examine(machine, purpose)}  # type: ignore[arg-type]


def faults(machine: Machine, purpose: str | None) -> list[str]:
    return [row.name for row in rows_of(machine, purpose).values() if row.is_fault]


def test_a_machine_without_gpu_and_profilers_is_fit_for_a_sweep_only(machine: Machine) -> None:
    assert faults(machine, None) == []
    assert faults(machine, "sweep") == []
    assert {"GPU", "nsys", "nsys capture"} <= set(faults(machine, "nsys"))
    assert {"GPU", "ncu", "ncu capture"} <= set(faults(machine, "ncu"))


def test_a_complete_machine_is_fit_for_everything(machine: Machine, put: Put) -> None:
    put("nvidia-smi", SMI)
    put("nsys", nsys_that())
    put("ncu", ncu_that())
    machine.torch = GPU
    assert [faults(machine, purpose) for purpose in (None, *ALL)] == [[], [], [], []]


def test_what_is_broken_is_a_fault_though_no_sweep_needs_it(machine: Machine, put: Put) -> None:
    put("nsys", nsys_that("no range"))
    assert faults(machine, None) == ["nsys capture"]
    assert faults(machine, "sweep") == []


def test_a_gpu_that_is_there_has_to_work(machine: Machine, put: Put) -> None:
    put("nvidia-smi", SMI)
    machine.torch = TorchFacts("2.13.0+cpu")
    assert faults(machine, "sweep") == ["CUDA"]


def test_only_what_concerns_the_purpose_is_looked_at(machine: Machine) -> None:
    assert set(rows_of(machine, None)) == {check.name for check in CHECKS}
    assert not any(name.startswith("ncu") for name in rows_of(machine, "nsys"))
    assert not any(name.startswith(("ncu", "nsys")) for name in rows_of(machine, "sweep"))


def test_every_check_concerns_something_and_names_are_distinct() -> None:
    assert all(check.needed_for or check.serves for check in CHECKS)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_every_row_is_one_line_with_its_cure(machine: Machine) -> None:
    console = Console(width=40, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    code = show(console, examine(machine, "ncu"), "ncu")
    lines = console.export_text().splitlines()
    assert code == 1
    assert len(lines) == len(rows_of(machine, "ncu")) + 1
    assert all(line.split()[0] in ("ok", "missing", "failed") for line in lines[:-1])
    assert lines[-1].startswith("to mend: GPU")


@pytest.mark.parametrize("purpose", ["sweep", "ncu"])
def test_json_says_the_same(purpose: str, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["doctor", "--for", purpose, "--format", "json"])
    document = json.loads(result.output)
    assert document["for"] == purpose
    assert result.exit_code == (0 if document["is_fit"] else 1)
    assert document["is_fit"] is not any(check["is_fault"] for check in document["checks"])
    assert all(check["cure"] for check in document["checks"] if check["status"] == "failed")


def test_the_doctor_runs_where_nothing_is_installed() -> None:
    """It is asked when things are missing: neither torch nor the engine's other libraries are imported."""
    code = (
        "import sys\n"
        "for name in ('torch', 'psutil', 'filelock', 'nvtx', 'pynvml', 'pyarrow', 'pandas'): sys.modules[name] = None\n"
        "from ddbench.cli import main\n"
        "main(['doctor', '--for', 'sweep'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "libraries" in done.stdout
