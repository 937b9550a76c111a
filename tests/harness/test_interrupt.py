"""H68: whatever ends a sweep, at most the running case is lost, nobody is left behind, and the next one goes on.

The sweep is a process of its own over a run of three cases; its workers are scripts without torch. `b` is the case
during which something happens.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from ddbench.errors import DdbenchError
from ddbench.harness import sweep
from ddbench.harness.environment import child_environment
from ddbench.harness.interrupt import ENDINGS, SweepInterrupted, resumable
from ddbench.harness.lock import DeviceBusy, device_lock
from ddbench.harness.store import CaseTables, RunFolder, open_run, write_case
from ddbench.harness.sweep import execute
from ddbench.records import FailedResult, OkResult
from ddbench.spec import Case

WORKER = """
import json, os, shutil, signal, sys, time
from pathlib import Path
job = json.loads(Path(sys.argv[1]).read_text())
folder = Path({folder!r})
trouble = folder / "trouble"
if job["case_id"] == "b" and trouble.exists():
    (folder / "pid").write_text(str(os.getpid()))
    (Path(sys.argv[2]) / "rounds.parquet").write_text("half a tab")
    print(json.dumps({{"phase": "clean pass"}}), flush=True)
    if trouble.read_text() == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    os.read(0, 1)
    sys.exit(71)
for file in (folder / "prepared" / job["case_id"]).iterdir():
    shutil.copy(file, sys.argv[2])
"""

SWEEP = """
import sys
from pathlib import Path
from rich.console import Console
from ddbench.errors import DdbenchError
from ddbench.harness.lock import device_lock
from ddbench.harness.store import open_run
from ddbench.harness.sweep import execute
run, worker = open_run(Path(sys.argv[1])), (sys.executable, "-S", sys.argv[2])
try:
    with device_lock("cpu", "sweep", Path(sys.argv[3])):
        execute(run, Console(), worker)
except DdbenchError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""

MakeResult = Callable[[str, Case], OkResult]


class Scene:
    """A run, the worker's script, and what goes wrong."""

    def __init__(self, run: RunFolder, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.worker = folder / "worker.py"
        self.worker.write_text(WORKER.format(folder=str(folder)), encoding="utf-8")

    def started(self, trouble: str) -> subprocess.Popen[str]:
        """A sweep whose second case is under way."""
        (self.folder / "trouble").write_text(trouble, encoding="utf-8")
        command = [sys.executable, "-c", SWEEP, str(self.run.path), str(self.worker), str(self.folder)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
            preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in ENDINGS],  # ours may be ignored
        )
        deadline = time.monotonic() + 60
        while not (self.folder / "pid").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    def worker_is_gone(self) -> bool:
        """Within a few seconds."""
        pid = int((self.folder / "pid").read_text(encoding="utf-8"))
        deadline = time.monotonic() + 20
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.run.path / "cases").iterdir() if path.name.startswith(".")]

    def finish(self) -> RunFolder:
        """Without trouble: what is missing is executed, under the lock that the first sweep held."""
        (self.folder / "trouble").unlink()
        again = open_run(self.run.path)
        with device_lock("cpu", "sweep", self.folder):
            again.sweep_leftovers()
            execute(again, Console(file=io.StringIO()), (sys.executable, "-S", str(self.worker)))
        return again


@pytest.fixture
def scene(run: RunFolder, tmp_path: Path, ok_result: MakeResult, tables: CaseTables) -> Scene:
    for one in run.manifest.case_ids:
        folder = tmp_path / "prepared" / one
        folder.mkdir(parents=True)
        write_case(folder, ok_result(one, run.case(one)), tables)
    return Scene(run, tmp_path)


def test_a_killed_sweep_loses_the_running_case_only(scene: Scene) -> None:
    process = scene.started("hangs")
    process.kill()
    process.communicate()
    assert scene.worker_is_gone()
    run = open_run(scene.run.path)
    assert (run.done, run.missing()) == (("a",), ("b", "c"))
    assert len(scene.leftovers()) == 1, "half a case, which nobody reads"
    first = run.result("a")
    again = scene.finish()
    assert [result.status for result in again.results()] == ["ok", "ok", "ok"]
    assert (again.result("a"), again.damaged(), scene.leftovers()) == (first, {}, [])


def test_a_killed_worker_is_a_failed_case_which_runs_again(scene: Scene) -> None:
    process = scene.started("dies")
    process.communicate()
    run = open_run(scene.run.path)
    failed = run.result("b")
    assert isinstance(failed, FailedResult)
    assert (failed.outcome, "killed by SIGKILL" in failed.reason) == ("crash", True)
    assert (run.done, run.missing(), scene.leftovers()) == (("a", "b", "c"), ("b",), [])
    assert [result.status for result in scene.finish().results()] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,), (signal.SIGHUP,)]
)
def test_a_sweep_that_is_told_to_stop_tidies_up(scene: Scene, signals: tuple[signal.Signals, ...]) -> None:
    process = scene.started("hangs")
    for number in signals:
        process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == f"interrupted; 1 of 3 cases are kept. Go on with: ddbench sweep --resume {scene.run.path}\n"
    assert scene.worker_is_gone()
    assert scene.leftovers() == []
    assert [result.status for result in scene.finish().results()] == ["ok", "ok", "ok"]


def test_a_damaged_case_is_measured_again_and_says_so(scene: Scene) -> None:
    (scene.folder / "trouble").write_text("none", encoding="utf-8")
    for one in scene.run.manifest.case_ids:
        (scene.folder / "prepared" / one).rename(scene.run.case_folder(one))
    os.truncate(scene.run.case_folder("c") / "stages.parquet", 100)
    (scene.run.case_folder("b") / "result.json").write_text("{", encoding="utf-8")
    run = open_run(scene.run.path)
    assert (set(run.damaged()), run.missing()) == ({"b", "c"}, ("b", "c"))
    console = Console(file=io.StringIO(), width=500)
    (scene.folder / "worker.py").write_text("raise SystemExit(3)", encoding="utf-8")
    tally = execute(run, console, (sys.executable, "-S", str(scene.worker)))
    assert tally.counts == {"ok": 1, "incorrect": 0, "failed": 2}
    assert console.file.getvalue().count("measured again: ") == 2  # type: ignore[attr-defined]


def test_a_run_that_is_still_going_is_not_touched(scene: Scene) -> None:
    """H66."""
    partial = scene.run.path / "cases" / ".partial-a-1"
    partial.mkdir()
    console = Console(file=io.StringIO())
    with device_lock("cpu", "sweep 'made-up'", scene.folder), pytest.raises(DeviceBusy, match="sweep 'made-up'"):
        sweep.resume(scene.run.path, console, lock_folder=scene.folder)
    assert partial.is_dir()


def test_a_sweep_that_finds_the_device_taken_leaves_no_run(scene: Scene, tmp_path: Path) -> None:
    plan = sweep.Plan(scene.run.manifest.experiment, scene.run.manifest.cases, ())
    console = Console(file=io.StringIO())
    with device_lock("cpu", "first", scene.folder), pytest.raises(DeviceBusy):
        sweep.run_plan(plan, tmp_path / "out", console, lock_folder=scene.folder)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_ends_a_sweep_in_one_line(run: RunFolder) -> None:
    message = r"No space left on device\); 0 of 3 cases are kept.*--resume"
    with pytest.raises(DdbenchError, match=message) as caught, resumable(run):
        raise OSError(28, "No space left on device")
    assert caught.value.exit_code == 4


def test_how_to_go_on_holds_the_other_checkout_too(run: RunFolder) -> None:
    with pytest.raises(SweepInterrupted, match=r"--resume \S+ --against before$"), resumable(run, " --against before"):
        raise KeyboardInterrupt


def test_signals_that_were_ignored_stay_so_and_others_come_back(run: RunFolder) -> None:
    """`nohup` means it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in ENDINGS]
    with resumable(run):
        os.kill(os.getpid(), signal.SIGHUP)
    assert [signal.getsignal(number) for number in ENDINGS] == before
    with pytest.raises(SweepInterrupted), resumable(run):
        os.kill(os.getpid(), signal.SIGTERM)
