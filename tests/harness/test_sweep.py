"""A whole sweep: order, tally, references, interruption, resumption. Workers are scripts, but for one real run."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ddbench.errors import DdbenchError, UserError
from ddbench.experiment_file import find_experiment
from ddbench.harness import sweep
from ddbench.harness.environment import PACKAGE
from ddbench.harness.interrupt import ENDINGS, SweepInterrupted
from ddbench.harness.plan import Capabilities, Plan, make_plan
from ddbench.harness.store import CaseTables, RunFolder, open_run, write_case
from ddbench.harness.sweep import Tally, execute, new_run, resumed_run
from ddbench.records import CaseResult, Environment, OkResult
from ddbench.spec import Case, ExperimentSpec

MakeResult = Callable[[str, Case], OkResult]

COPYING_WORKER = """
import json, shutil, sys
from pathlib import Path
job = json.loads(Path(sys.argv[1]).read_text())
prepared = Path({prepared!r}) / job["case_id"]
with open({log!r}, "a") as log:
    log.write(json.dumps([job["case_id"], job["reference"]]) + "\\n")
if not prepared.exists():
    sys.exit(5)
for file in prepared.iterdir():
    shutil.copy(file, sys.argv[2])
"""


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=160)


class Worker:
    """A worker that hands out prepared results, crashes where there is none, and keeps a diary."""

    def __init__(self, folder: Path) -> None:
        self.prepared, self.log = folder / "prepared", folder / "diary"
        self.prepared.mkdir()
        script = folder / "copying_worker.py"
        script.write_text(COPYING_WORKER.format(prepared=str(self.prepared), log=str(self.log)), encoding="utf-8")
        self.command = (sys.executable, "-S", str(script))

    def prepare(self, result: CaseResult, tables: CaseTables) -> None:
        folder = self.prepared / result.case_id
        folder.mkdir()
        write_case(folder, result, tables)

    @property
    def diary(self) -> str:
        return self.log.read_text(encoding="utf-8")


@pytest.fixture
def worker(tmp_path: Path, run: RunFolder, ok_result: MakeResult, tables: CaseTables) -> Worker:
    made = Worker(tmp_path)
    for case_id in ("a", "b", "c"):
        made.prepare(ok_result(case_id, run.case(case_id)), tables)
    return made


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_case_runs_once_in_order_and_gets_a_row(
    run: RunFolder, worker: Worker, console: Console, tmp_path: Path
) -> None:
    tally = execute(run, console, worker.command)
    assert (tally.counts, tally.exit_code) == ({"ok": 3, "incorrect": 0, "failed": 0}, 0)
    assert [line.split('"')[1] for line in worker.diary.splitlines()] == ["a", "b", "c"]
    lines = text_of(console).splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["[1/3]", "ok", "ar", "c=1"],
        ["[2/3]", "ok", "chain", "c=1"],
        ["[3/3]", "ok", "ddtree", "c=1"],
    ]
    assert all("3.00 tok/s  tau 1.50" in line for line in lines)
    assert "left)" in lines[0]


def test_later_cases_are_told_the_outputs_of_plain_decoding(
    run: RunFolder, worker: Worker, console: Console, tmp_path: Path
) -> None:
    execute(run, console, worker.command)
    first, *others = worker.diary.splitlines()
    assert first == '["a", null]'
    assert all(str(run.case_folder("a") / "requests.parquet") in line for line in others)


def test_a_failing_case_does_not_stop_the_sweep_but_shows_in_its_exit_code(
    run: RunFolder, worker: Worker, console: Console, tmp_path: Path
) -> None:
    (worker.prepared / "b").rename(worker.prepared / "hidden")
    tally = execute(run, console, worker.command)
    assert (str(tally), tally.exit_code) == ("2 ok, 1 failed", 4)
    assert "crash: the case's process ended with exit code 5" in text_of(console)


def test_resuming_runs_what_is_missing_and_what_failed(
    run: RunFolder, worker: Worker, console: Console, tmp_path: Path
) -> None:
    (worker.prepared / "b").rename(worker.prepared / "hidden")
    execute(run, console, worker.command)
    (worker.prepared / "hidden").rename(worker.prepared / "b")
    worker.log.unlink()
    tally = execute(open_run(run.path), console, worker.command)
    assert (tally.counts["ok"], tally.exit_code) == (3, 0)
    assert [line.split('"')[1] for line in worker.diary.splitlines()] == ["b"]
    assert "requests.parquet" in worker.diary, "the reference of the first go is still one"


def test_nothing_measured_is_a_failure() -> None:
    """H67."""
    assert Tally().exit_code == 4
    assert str(Tally()) == "nothing was measured"
    assert Tally({"ok": 0, "incorrect": 0, "failed": 2}).exit_code == 4
    assert Tally({"ok": 2, "incorrect": 1, "failed": 0}).exit_code == 4


def test_an_interrupted_sweep_says_how_to_go_on(
    run: RunFolder, worker: Worker, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = sweep.run_case, []

    def interrupted_at_the_second(*args: object) -> CaseResult:
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "run_case", interrupted_at_the_second)
    with pytest.raises(SweepInterrupted, match=rf"1 of 3 cases are kept.*--resume {run.path}") as caught:
        execute(run, console, worker.command)
    assert caught.value.exit_code == 130
    assert {signal.getsignal(number) for number in ENDINGS} == {signal.SIG_IGN}, "nothing disturbs the tidying up"
    assert open_run(run.path).missing() == ("b", "c")
    assert sorted(path.name for path in (run.path / "cases").iterdir()) == ["a"]


# ------------------------------------------------------------------------------------------------------- run folders


@pytest.fixture
def plan(can: Capabilities, experiment: ExperimentSpec) -> Plan:
    return make_plan(experiment, can)


def test_a_new_run_can_be_resumed_at_once(plan: Plan, tmp_path: Path) -> None:
    run = new_run(plan, tmp_path)
    again = resumed_run(run.path)
    assert again.manifest == run.manifest
    assert again.missing() == run.manifest.case_ids
    assert len(set(run.manifest.case_ids)) == len(plan.cases)
    assert run.path.name.endswith(run.path.name.split("-")[-1])
    assert "made-up" in run.path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code_digest": "0" * 64}, "other code"),
        ({"device": "another GPU"}, "another environment .another GPU then, cpu now"),
        ({"libraries": {"torch": "0.1"}}, "another environment"),
    ],
)
def test_a_run_of_another_code_or_place_is_not_resumed(
    plan: Plan, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """H65."""
    run = new_run(plan, tmp_path)
    environment: Environment = run.manifest.environment.model_copy(update=change)
    manifest = run.manifest.model_copy(update={"environment": environment})
    (run.path / "manifest.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        resumed_run(run.path)
    assert "start a new run" in str(caught.value)


def test_a_run_of_other_weights_is_not_resumed(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(plan, tmp_path)
    monkeypatch.setattr(sweep, "models_digest", lambda engine: "other")
    with pytest.raises(UserError, match="the weights of 'tiny-gqa' are not the ones of then"):
        resumed_run(run.path)


def test_a_plan_of_nothing_is_no_run(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(DdbenchError, match="nothing to measure") as caught:
        new_run(Plan(plan.experiment, (), plan.skipped), tmp_path)
    assert caught.value.exit_code == 4


def test_leftovers_of_a_killed_process_are_removed_on_resume(plan: Plan, tmp_path: Path) -> None:
    run = new_run(plan, tmp_path)
    (run.path / "cases" / ".partial-x-123").mkdir()
    assert list((resumed_run(run.path).path / "cases").iterdir()) == []


def test_experiments_are_found_by_name_or_by_path(tmp_path: Path) -> None:
    assert find_experiment("smoke").engine.target == "tiny-gqa"
    (tmp_path / "mine.toml").write_text('question = "?"', encoding="utf-8")
    assert find_experiment(str(tmp_path / "mine.toml")).name == "mine"
    with pytest.raises(UserError, match="unknown experiment 'smok': did you mean 'smoke'"):
        find_experiment("smok")


# ----------------------------------------------------------------------------------------------------- the real thing

EXPERIMENT = """
question = "?"
arms = ["ar", "chain", "ddtree"]
[engine]
target = "tiny-gqa"
node_budget = 4
num_threads = 1
[workload]
prompts = "random"
num_requests = 2
max_new_tokens = 6
[capture]
num_warmup_requests = 0
parity_prompts = 1
parity_tokens = 4
"""


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A checkout that nobody changes between two runs of it: other code refuses to resume."""
    place = tmp_path / "checkout"
    leave_out = shutil.ignore_patterns("__pycache__", "pretrained")
    for name in ("ddbench", "kernels", "reference", "experiments"):
        shutil.copytree(PACKAGE.parent / name, place / name, ignore=leave_out)
    shutil.copy(PACKAGE.parent / "pyproject.toml", place)
    return place


def test_a_sweep_stopped_by_ctrl_c_resumes_to_the_same_result(own_code: Path, tmp_path: Path) -> None:
    """H68: the real command, the real engine: interrupted after its first case, exit code 130, then finished."""
    (tmp_path / "mine.toml").write_text(EXPERIMENT, encoding="utf-8")
    command = [sys.executable, "-m", "ddbench", "sweep"]
    surroundings = {**os.environ, "PYTHONPATH": str(own_code), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(
        [*command, str(tmp_path / "mine.toml"), "--device", "cpu", "--out", str(tmp_path / "runs"), "--no-report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings,
        cwd=own_code,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's is ignored
    )
    assert first.stdout is not None
    assert any(line.startswith("[1/3] ok") for line in first.stdout)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=30)
    assert first.returncode == 130
    (path,) = (tmp_path / "runs").iterdir()
    assert errors.strip().endswith(f"ddbench sweep --resume {path}")
    assert "Traceback" not in errors
    before = {one: open_run(path).result(one) for one in open_run(path).done}
    assert 1 <= len(before) < 3
    second = subprocess.run(
        [*command, "--resume", str(path), "--no-report"],
        capture_output=True,
        text=True,
        env=surroundings,
        cwd=own_code,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    run = open_run(path)
    results = list(run.results())
    assert [(r.status, r.case.arm) for r in results] == [("ok", case.arm) for case in run.manifest.cases]
    assert all(run.result(one) == result for one, result in before.items()), "finished cases are left alone"
    assert all("timed outputs against the `ar` case" in r.parity.detail for r in results[1:] if isinstance(r, OkResult))
