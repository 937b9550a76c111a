"""Captures within a sweep: asked for, told of, kept or lost together with their case."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ddbench.captured import Capture, CaptureFault
from ddbench.errors import UserError
from ddbench.experiment_file import find_experiment
from ddbench.harness import sweep
from ddbench.harness.interrupt import SweepInterrupted
from ddbench.harness.plan import Plan, engine_capabilities, make_plan, with_overrides
from ddbench.harness.profilers import drive
from ddbench.harness.progress import SweepDisplay
from ddbench.harness.request import planned
from ddbench.harness.show import capture_notes
from ddbench.harness.store import CaseTables, RunFolder, create_run, open_run, write_case
from ddbench.harness.sweep import Leg, Tally, execute
from ddbench.records import CaseResult, OkResult
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec

MakeResult = Callable[[str, Case], OkResult]
FAULT = CaptureFault(reason="no_permission", what="no permission for GPU counters", cure="run as root")

COPYING = """
import json, pathlib, shutil, sys
job = json.loads(pathlib.Path(sys.argv[1]).read_text())
for file in (pathlib.Path({prepared!r}) / job["case_id"]).iterdir():
    shutil.copy(file, sys.argv[2])
"""


def capture_of(tool: str, fault: CaptureFault | None = None) -> Capture:
    return Capture(tool=tool, tool_version="1", seconds=1.0, fault=fault)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- command line


def plan_of(**options: object) -> Plan:
    given = {"concurrency": None, "sets": (), "arms": "ar", "blocks": None, "seed": None, "device": "cpu", **options}
    return planned("smoke", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "mode", "tools"),
    [
        (None, "stages", ()),
        ("none", "none", ()),
        ("stages", "stages", ()),
        ("nsys", "none", ("nsys",)),
        ("stages,nsys,ncu", "stages", ("nsys", "ncu")),
        (" torch , stages,torch", "stages", ("torch",)),
    ],
)
def test_capture_sets_the_mode_and_the_tools(text: str | None, mode: str, tools: tuple[str, ...]) -> None:
    (case,) = plan_of(capture=text).cases
    assert (case.capture.mode, case.capture.tools) == (mode, tools)


@pytest.mark.parametrize(
    ("text", "sets", "words"),
    [
        ("none,nsys", (), "'none' stands alone"),
        ("nsis", (), "did you mean 'nsys'"),
        ("counters", (), "ops are counted in every case"),
        (" , ", (), "names nothing"),
        ("nsys", ("tools=ncu",), "keep one of them"),
        ("none", ("mode=stages",), "keep one of them"),
    ],
)
def test_a_capture_that_cannot_be_is_said(text: str, sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_of(capture=text, sets=sets)


def test_tools_are_a_list_like_any_other() -> None:
    assert plan_of(sets=("tools=nsys+ncu",)).cases[0].capture.tools == ("nsys", "ncu")


def test_a_plan_says_what_will_be_captured_and_what_cannot_be() -> None:
    notes = capture_notes(plan_of(capture="ncu,torch", blocks=3))
    assert notes[0] == "1 case captured by torch", "in the first block only"
    assert notes[1].startswith("1 case not captured by ncu: ncu sees GPUs only")
    assert capture_notes(plan_of()) == []


def test_the_shipped_experiment_captures_each_factor_once() -> None:
    experiment = find_experiment("captures")
    can = replace(engine_capabilities(), absence=lambda engine: None)  # as where there is a GPU
    plan = make_plan(with_overrides(experiment), can)
    engines = [case.engine for case in plan.cases if case.arm == "ddtree"]
    for field, values in {
        "executor": {"eager", "round_graph"},
        "tree_build": {"heap", "device"},
        "materialize": {"sequential", "fused"},
    }.items():
        assert {getattr(engine, field) for engine in engines} == values
    assert len(plan.cases) <= 5
    assert {case.capture.tools for case in plan.cases} == {("nsys", "ncu")}
    assert {case.capture.mode for case in plan.cases} == {"stages"}


# -------------------------------------------------------------------------------------------------------------- sweeps


@pytest.fixture
def captured_run(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A run of three cases, each to be captured by two tools."""
    manifest = run.manifest
    cases = tuple(
        Case(
            arm=case.arm,
            engine=EngineSpec(target="tiny-gqa", **ARMS[case.arm]),
            workload=case.workload,
            capture=CaptureSpec(tools=("torch", "nsys")),
        )
        for case in manifest.cases
    )
    return create_run(tmp_path / "captured", manifest.model_copy(update={"cases": cases}))


@pytest.fixture
def worker(tmp_path: Path, captured_run: RunFolder, ok_result: MakeResult, tables: CaseTables) -> tuple[str, ...]:
    prepared = tmp_path / "prepared"
    for one in captured_run.manifest.case_ids:
        (prepared / one).mkdir(parents=True)
        write_case(prepared / one, ok_result(one, captured_run.case(one)), tables)
    script = tmp_path / "copying.py"
    script.write_text(COPYING.format(prepared=str(prepared)), encoding="utf-8")
    return (sys.executable, "-S", str(script))


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No tool is run: every case gets a torch capture and no nsys one; the cases that were asked for, in order."""
    asked: list[str] = []

    def capture_case(job_file: Path, folder: Path, case: Case, on_phase: Callable[[str], None], _: object) -> object:
        asked.append(json.loads(job_file.read_text(encoding="utf-8"))["case_id"])
        assert (folder / "result.json").is_file()
        on_phase("torch: recording")
        (folder / "captures").mkdir()
        made = (capture_of("torch"), capture_of("nsys", FAULT))
        for one in made:
            (folder / "captures" / f"{one.tool}.json").write_text(one.model_dump_json(), encoding="utf-8")
        return made

    monkeypatch.setattr(drive, "capture_case", capture_case)
    return asked


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_case_whose_capture_fails_is_ok_and_the_reason_is_told_once(
    captured_run: RunFolder, worker: tuple[str, ...], drivers: list[str], console: Console
) -> None:
    tally = execute(captured_run, console, worker)
    assert drivers == ["a", "b", "c"]
    assert (tally.exit_code, str(tally)) == (0, "3 ok; 3 captures, 3 failed")
    lines = text_of(console).splitlines()
    assert all("torch, nsys: no permission" in line for line in lines[:3])
    assert lines[3:] == ["not captured: nsys: no permission for GPU counters: run as root (3 captures)"]
    for one in "abc":
        assert (captured_run.case_folder(one) / "captures" / "torch.json").is_file()
        assert not (captured_run.case_folder(one) / "job.json").exists()


def test_a_sweep_stopped_during_a_capture_keeps_no_half_case_and_goes_on_there(
    captured_run: RunFolder,
    worker: tuple[str, ...],
    drivers: list[str],
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H64: a case is there with its captures or not at all."""
    whole = drive.capture_case

    def stopped(job_file: Path, folder: Path, case: Case, *others: object) -> object:
        if case.arm == "chain":
            (folder / "captures" / "raw").mkdir(parents=True)
            (folder / "captures" / "raw" / "nsys.nsys-rep").write_text("half", encoding="utf-8")
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(job_file, folder, case, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(drive, "capture_case", stopped)
    with pytest.raises(SweepInterrupted):
        execute(captured_run, console, worker)
    assert sorted(path.name for path in (captured_run.path / "cases").iterdir()) == ["a"]
    monkeypatch.setattr(drive, "capture_case", whole)
    tally = execute(open_run(captured_run.path), console, worker)
    assert drivers == ["a", "b", "c"], "what was captured before is left alone"
    assert str(tally) == "3 ok; 3 captures, 3 failed", "and counted"


def test_a_case_that_failed_is_not_captured(
    captured_run: RunFolder, drivers: list[str], console: Console, tmp_path: Path
) -> None:
    tally = execute(captured_run, console, (sys.executable, "-S", "-c", "import sys; sys.exit(5)"))
    assert (tally.counts["failed"], tally.captures, drivers) == (3, [], [])


def test_captures_of_other_code_are_made_by_its_own_worker(
    captured_run: RunFolder, worker: tuple[str, ...], console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def capture_case(job: Path, folder: Path, case: Case, on_phase: object, command: object) -> tuple[()]:
        seen.append(command)
        return ()

    monkeypatch.setattr(drive, "capture_case", capture_case)
    leg = Leg(captured_run, console, worker, ("other", "worker"))
    leg.measure("a", SweepDisplay(console, captured_run.manifest.cases, 3))
    assert seen == [("other", "worker")]


def test_a_tally_counts_captures_apart_from_cases(ok_result: MakeResult, new_case: Callable[..., Case]) -> None:
    tally = Tally()
    result: CaseResult = ok_result("a", new_case())
    tally.add(result, (capture_of("torch"),))
    tally.add(result)
    assert str(tally) == "2 ok; 1 capture"
    assert tally.capture_faults() == []
    assert sweep.Tally().capture_faults() == []
