"""A case's process seen from outside: every way of ending is a typed result, and no process is left behind."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ddbench.harness.environment import PACKAGE
from ddbench.harness.run import Job, run_case, scrubbed, supervise
from ddbench.harness.store import RunFolder
from ddbench.records import CaseResult, FailedResult
from ddbench.spec import Case

RunScript = Callable[..., CaseResult]


@pytest.fixture
def run_script(run: RunFolder, tmp_path: Path, new_case: Callable[..., Case]) -> RunScript:
    """Run a case whose worker is a few lines of Python."""

    def go(code: str, timeout_s: int = 60, phases: list[str] | None = None) -> CaseResult:
        script = tmp_path / "worker.py"
        script.write_text(textwrap.dedent(code), encoding="utf-8")
        seen = phases if phases is not None else []
        job = Job(case_id="a", case=new_case(timeout_s=timeout_s))
        return run_case(run, job, seen.append, (sys.executable, str(script)))

    return go


def test_a_case_that_hangs_is_a_timeout_and_its_children_die_with_it(
    run_script: RunScript, run: RunFolder, tmp_path: Path
) -> None:
    code = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(600)
    """
    begin = time.monotonic()
    result = run_script(code, timeout_s=2)
    assert isinstance(result, FailedResult)
    assert result.outcome == "timeout"
    assert "2 s" in result.reason
    assert time.monotonic() - begin < 30
    grandchild = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
    assert run.result("a") == result


def test_a_crash_is_a_typed_result_with_the_end_of_its_log(run_script: RunScript, run: RunFolder) -> None:
    result = run_script("import sys\nfor i in range(100): print('line', i, file=sys.stderr)\nsys.exit(3)")
    assert isinstance(result, FailedResult)
    assert result.outcome == "crash"
    assert "exit code 3" in result.reason
    assert result.log_tail.splitlines()[-1] == "line 99"
    assert len(result.log_tail.splitlines()) == 40
    assert result.seconds > 0
    assert run.done == ("a",)


def test_a_death_by_signal_is_named(run_script: RunScript) -> None:
    result = run_script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert isinstance(result, FailedResult)
    assert (result.outcome, "SIGSEGV" in result.reason) == ("crash", True)


def test_success_without_a_result_is_a_crash(run_script: RunScript) -> None:
    result = run_script("")
    assert isinstance(result, FailedResult)
    assert "exit code 0 and left no result" in result.reason


def test_half_a_result_of_a_crashed_case_is_not_read(run_script: RunScript, run: RunFolder) -> None:
    result = run_script("import sys; open(sys.argv[2] + '/result.json', 'w').write('{'); sys.exit(1)")
    assert isinstance(result, FailedResult)
    assert run.result("a") == result


def test_a_result_that_cannot_be_read_is_a_failed_case(run_script: RunScript) -> None:
    result = run_script("import sys; open(sys.argv[2] + '/result.json', 'w').write('{')")
    assert isinstance(result, FailedResult)
    assert result.reason.startswith("its process wrote a result that cannot be read: result.json: damaged")


def test_phases_are_passed_on_and_other_prints_are_log(run_script: RunScript) -> None:
    phases: list[str] = []
    code = """
        import json, sys
        print(json.dumps({"phase": "loading"}), flush=True)
        print("a library says hello", flush=True)
        print(json.dumps({"phase": "clean pass"}), flush=True)
        sys.exit(1)
    """
    result = run_script(code, phases=phases)
    assert phases == ["loading", "clean pass"]
    assert isinstance(result, FailedResult)
    assert "a library says hello" in result.log_tail


def test_an_exception_in_the_parent_kills_the_child(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        'import json, os, time\nprint(json.dumps({"phase": str(os.getpid())}), flush=True)\ntime.sleep(600)\n',
        encoding="utf-8",
    )
    pids: list[int] = []

    def interrupt(phase: str) -> None:
        pids.append(int(phase))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise((sys.executable, str(script)), 60, interrupt)
    assert not psutil.pid_exists(pids[0])


def test_a_worker_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    """The end of its standard input is all that a worker sees of a parent killed by -9."""
    code = (
        "import time; from ddbench.harness import worker; worker._end_with_parent(); print('up', flush=True);"
        "time.sleep(60)"
    )
    process = psutil.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
    assert process.stdout.readline() == b"up\n"
    process.stdin.close()
    assert process.wait(20) == 71


def test_logs_do_not_name_this_machine() -> None:
    text = f'File "{PACKAGE}/engine/x.py", {sys.prefix}/lib, {Path.home()}/secret, {Path.home()}'
    clean = scrubbed(text)
    assert str(PACKAGE.parent) not in clean
    assert str(Path.home()) + "/" not in clean
    assert "<ddbench>/ddbench/engine/x.py" in clean
