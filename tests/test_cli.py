"""The command line: exit codes, one-line errors, help with examples, and what is not imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddbench import __version__
from ddbench.cli import main
from ddbench.harness import request, sweep
from ddbench.harness.environment import child_environment
from ddbench.harness.interrupt import ENDINGS, SweepInterrupted
from ddbench.harness.sweep import Tally

COMMANDS = ("list", "plan", "sweep", "check", "report", "compare", "qualify", "gate", "doctor", "scrub")


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """An interrupted command ignores further signals until its process ends; this one goes on."""
    before = {number: signal.getsignal(number) for number in ENDINGS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _locks_of_our_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that is going on elsewhere on this machine is none of our business."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("locks")))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"ddbench {command}" in result.output


def test_the_version_is_the_packages() -> None:
    assert call("--version").output == f"ddbench, version {__version__}\n"


def test_help_names_every_command() -> None:
    output = call("--help").output
    assert all(command in output for command in (*COMMANDS, "train"))
    assert {"target", "drafter", "corpus"} <= set(call("train", "--help").output.split())


def test_a_plan_can_be_seen_without_running_anything(tmp_path: Path) -> None:
    result = call("sweep", "smoke", "--device", "cpu", "--dry-run", "--out", str(tmp_path), "--concurrency", "1,2")
    assert result.exit_code == 0
    assert "10 cases, 0 skipped" in result.output
    assert "ddtree node_budget=6 c=2" in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_plan_shows_what_is_skipped_and_why() -> None:
    result = call("plan", "smoke", "--device", "cpu", "--set", "executor=eager,round_graph")
    assert result.exit_code == 0
    assert "5 cases, 5 skipped" in result.output
    assert "executor 'round_graph' needs a CUDA device" in result.output


def test_all_skipped_is_nothing_measured(tmp_path: Path) -> None:
    """H67."""
    result = call("sweep", "smoke", "--device", "cpu", "--set", "executor=round_graph", "--out", str(tmp_path))
    assert result.exit_code == 4
    assert "nothing to measure: all 5 cases of the plan are skipped; executor 'round_graph' needs" in result.stderr


def test_the_list_names_arms_variants_targets_experiments_and_axes() -> None:
    result = call("list")
    assert result.exit_code == 0
    for word in ("ddtree", "prompt_lookup", "heap", "tree_triton", "tiny-gqa", "smoke", "concurrency"):
        assert word in result.output
    rows = " ".join(" ".join(line.split()) for line in result.output.splitlines())
    assert rows.count("Needs a CUDA device.") == 4, "tree_triton, graph prefill and the two graph executors"


def test_a_folder_that_cannot_be_written_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = call("sweep", "smoke", "--device", "cpu", "--out", str(tmp_path / "file" / "x"))
    assert result.exit_code == 2
    assert "--out" in result.stderr


@pytest.mark.parametrize(("counts", "code"), [((1, 0, 0), 0), ((1, 0, 1), 4), ((1, 1, 0), 4), ((0, 0, 1), 4)])
def test_the_exit_code_of_a_sweep_follows_its_cases(
    counts: tuple[int, int, int], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(dict(zip(("ok", "incorrect", "failed"), counts, strict=True)))
    monkeypatch.setattr(sweep, "execute", lambda *arguments: tally)
    result = call("sweep", "smoke", "--device", "cpu", "--out", str(tmp_path), "--no-report")
    assert result.exit_code == code
    assert str(tally) in result.output
    assert ("error: " in result.stderr) is (code != 0)


def test_an_interruption_is_exit_code_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> Tally:
        raise SweepInterrupted("interrupted; go on with: ddbench sweep --resume x")

    monkeypatch.setattr(sweep, "execute", interrupted)
    result = call("sweep", "smoke", "--device", "cpu", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "--resume x" in result.stderr


def test_ctrl_c_anywhere_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(request, "find_experiment", pressed)
    result = call("plan", "smoke")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, ddbench.cli; sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROGRAM = """
import io, sys
from rich.console import Console
from rich.text import Text
import ddbench.cli, ddbench.harness.show
from ddbench.__main__ import program

def interrupted(**_):
    Console(file=io.StringIO()).print(Text("x", style="red"), soft_wrap=True)  # all that printing takes is there
    exec("raise KeyboardInterrupt")

{where} = interrupted
sys.argv = ["ddbench", "list"]
program()
"""


@pytest.mark.parametrize("where", ["ddbench.harness.show.listing", "ddbench.cli.main"])  # within a command; around it
def test_a_process_that_is_interrupted_ends_by_its_exit_code(where: str, tmp_path: Path) -> None:
    """Not by SIGINT, in which `python -m` ends where the interrupt came while a dataclass was being made."""
    (tmp_path / "program.py").write_text(PROGRAM.format(where=where), encoding="utf-8")
    command = (sys.executable, "-m", "program")
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_ctrl_c_after_the_end_changes_nothing() -> None:
    """What Python and torch do at their end cannot be interrupted in good order."""
    late = "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT); "
    late += "sys.argv = ['ddbench', '--version']; from ddbench.__main__ import program; program()"
    done = subprocess.run(
        (sys.executable, "-c", late), capture_output=True, text=True, env=child_environment(), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ddbench, version {__version__}\n", "")


def test_the_command_is_the_module() -> None:
    """What is installed as `ddbench` and `python -m ddbench` end alike."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"ddbench": "ddbench.__main__:program"}
