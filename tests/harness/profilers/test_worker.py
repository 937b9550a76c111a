"""A case below the torch profiler for real, on the CPU; and what the process does apart from that."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from ddbench.analysis.nsys.names import STAGE_NAMES
from ddbench.captured import CapturedRun
from ddbench.engine.stages import ROUND_STAGES, Stage
from ddbench.harness import capture_worker as module
from ddbench.harness.measure import build_engine
from ddbench.harness.workload import build_workload
from ddbench.models.weights import load_models
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec, WorkloadSpec, from_json


@pytest.fixture
def case() -> Case:
    return Case(
        arm="ddtree",
        engine=EngineSpec(target="tiny-gqa", node_budget=6, num_threads=1, **ARMS["ddtree"]),
        workload=WorkloadSpec(prompts="random", num_requests=2, max_new_tokens=8, concurrency=2),
        capture=CaptureSpec(first_round=2, num_rounds=3, num_warmup_requests=1),
    )


def test_a_torch_capture_holds_the_window_its_rounds_and_stages(case: Case, tmp_path: Path) -> None:
    phases: list[str] = []
    run = module.captured_run(case, "torch", tmp_path, phases.append)
    with gzip.open(tmp_path / "raw" / "torch.json.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    assert socket.gethostname() not in text.split('"traceEvents"')[0]
    assert str(tmp_path) not in text
    events = [one for one in json.loads(text)["traceEvents"] if one.get("cat") == "user_annotation"]
    named = {name: [one for one in events if one["name"] == name] for name in {one["name"] for one in events}}
    (window,) = named["window"]
    rounds = [named[f"round/{step}"] for step in (2, 3, 4)]
    assert [len(one) for one in rounds] == [1, 1, 1]
    assert set(named) == {"window", "round/2", "round/3", "round/4", *(stage.value for stage in ROUND_STAGES)}
    for one in events:
        assert window["ts"] <= one["ts"] <= one["ts"] + one["dur"] <= window["ts"] + window["dur"] + 1
    for stage in ROUND_STAGES:
        times = 2 if stage is Stage.COMMIT else 1  # the report is read once the round's work is done
        assert len(named[stage.value]) == 3 * times
    assert {stage.value for stage in ROUND_STAGES} <= set(STAGE_NAMES)
    assert (run.first_round, len(run.round_ns)) == (2, 3)
    assert phases == ["loading", "warm-up", "reserving", "recording"]


@pytest.mark.parametrize("changes", [{}, {"sampling": "stochastic"}, {"draft": "oracle", "oracle_quality": (0.9,) * 4}])
def test_the_run_below_a_profiler_generates_what_the_case_generates(
    changes: dict[str, object], case: Case, tmp_path: Path
) -> None:
    case = case.model_copy(update={"engine": case.engine.model_copy(update=changes)})
    models = load_models(case.engine)
    workload = build_workload(case.workload, models.target.shape, models.folder, 1)
    engine = build_engine(case.engine, models, workload, 2)
    expected = {str(done.request_id): done.tokens for done in engine.run(workload.measured, 2)}
    assert module.captured_run(case, "torch", tmp_path, lambda phase: None).outputs == expected


def test_the_process_writes_its_record(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = CapturedRun(first_round=2, round_ns=(1, 2), num_emitted=3, outputs={"0": (4,)})
    monkeypatch.setattr(module, "captured_run", lambda *_: seen)
    monkeypatch.setattr(module, "take_over_stdout", lambda: print)
    (tmp_path / "captures").mkdir()
    job = tmp_path / "job.json"
    job.write_text(module.Job(case_id="a", case=case).model_dump_json(), encoding="utf-8")
    assert module.main([str(job), str(tmp_path), "ncu"]) == 0
    text = (tmp_path / "captures" / "ncu.run.json").read_text(encoding="utf-8")
    assert from_json(CapturedRun, text, "") == seen


@pytest.mark.parametrize(
    ("tool", "calls"), [("nsys", ["start", "reserve", "stop"]), ("ncu", ["reserve", "start", "stop"])]
)
def test_nsys_sees_graphs_being_captured_and_ncu_the_window_alone(
    tool: str, calls: list[str], case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H17: the stage of a node is known by the range in which it was captured."""
    seen: list[str] = []
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: seen.append(name))
    real = module.Engine.reserve

    def reserve(self: module.Engine, *args: object, probe: object = None, **options: object) -> object:
        if isinstance(probe, module.WindowProbe) and "reserve" not in seen:
            seen.append("reserve")
        return real(self, *args, **({"probe": probe} if probe else {}), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module.Engine, "reserve", reserve)
    module.captured_run(case, tool, tmp_path, lambda phase: None)  # type: ignore[arg-type]
    assert seen == calls


def test_ncu_gets_one_round(case: Case) -> None:
    assert [module.num_rounds(case, tool) for tool in ("nsys", "torch", "ncu")] == [3, 3, 1]


def test_a_worker_ends_when_the_process_that_asked_for_it_is_gone() -> None:
    """Whatever its own parent and its standard input are below a profiler."""
    asker = psutil.Popen(["sleep", "60"])
    code = (
        "import time; from ddbench.harness import capture_worker as worker;"
        f"worker._end_without({asker.pid}); print('up', flush=True); time.sleep(60)"
    )
    process = psutil.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    asker.kill()
    asker.wait()
    assert process.wait(30) == module.ORPHANED
