"""What is planted in the real engine is found by the gate and named by the comparison, and the two kinds told apart.

The engine runs in this process, the two codes in turns as `sweep --against` has them; only the part that carries the
fault differs. The faults: a stage that sleeps, and a drafter whose logits are wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from ddbench.analysis.gate.baseline import baseline_of_folders, write_baseline
from ddbench.analysis.gate.policies import request_of
from ddbench.analysis.gate.result import gate_folders
from ddbench.engine.parts import PARTS
from ddbench.harness.environment import environment_of
from ddbench.harness.measure import measure_case
from ddbench.harness.run import Job
from ddbench.harness.store import RunFolder, create_run, write_case
from ddbench.harness.sweep import case_ids
from ddbench.records import Manifest
from ddbench.report.comparison_files import compare_folders, publish
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec, ExperimentSpec, WorkloadSpec

NUM_BLOCKS = 6
SLEEP_S = 0.08  # several times a round, so that a busy machine does not hide it

Fault = Callable[[], Any]  # -> a context manager


def _cases() -> tuple[Case, ...]:
    return tuple(
        Case(
            arm="ddtree",
            engine=EngineSpec(node_budget=8, num_threads=1, **ARMS["ddtree"]),
            workload=WorkloadSpec(num_requests=2, max_new_tokens=16, concurrency=2),
            capture=CaptureSpec(parity_prompts=1, parity_tokens=2),
            block=block,
        )
        for block in range(NUM_BLOCKS)
    )


def _new_run(folder: Path, name: str, other: str, cases: tuple[Case, ...], digest: str) -> RunFolder:
    environment = environment_of("cpu").model_copy(update={"num_threads": 1, "code_digest": digest})
    manifest = Manifest(
        run_id=name,
        ddbench_version="0",
        created_at="2025-01-01T00:00:00+00:00",
        experiment=ExperimentSpec(name="planted", question="?", num_blocks=NUM_BLOCKS),
        environment=environment,
        case_ids=case_ids(cases, environment),
        cases=cases,
        skipped=(),
        interleaved_with=other,
    )
    return create_run(folder, manifest)


def _measure(run: RunFolder, place: int) -> None:
    case_id = run.manifest.case_ids[place]
    result, tables = measure_case(Job(case_id=case_id, case=run.manifest.cases[place]), lambda phase: None)
    with run.new_case_folder(case_id) as folder:
        write_case(folder, result, tables)
        run.keep(folder, case_id)


def _in_turns(folder: Path, fault: Fault) -> tuple[Path, Path]:
    """(before, after): two runs of the same cases, the fault in the second."""
    cases = _cases()
    before = _new_run(folder, "before", "after", cases, "0" * 64)
    after = _new_run(folder, "after", "before", cases, "1" * 64)
    for place in range(len(cases)):
        for is_after in (False, True) if place % 2 == 0 else (True, False):
            if is_after:
                with fault():
                    _measure(after, place)
            else:
                _measure(before, place)
    return before.path, after.path


@contextmanager
def _instead(kind: type, method: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(kind, method)
    setattr(kind, method, make(original))
    try:
        yield
    finally:
        setattr(kind, method, original)


def _sleeping_tree_build() -> Any:
    def make(original: Any) -> Any:
        def build(self: Any, logits: torch.Tensor, launch: Any) -> Any:
            time.sleep(SLEEP_S)
            return original(self, logits, launch)

        return build

    return _instead(PARTS["tree_build"]["heap"], "__call__", make)


def _wrong_draft() -> Any:
    def make(original: Any) -> Any:
        def draft(self: Any, batch: Any) -> torch.Tensor:
            return original(self, batch).roll(1, dims=-1)  # every proposal is the token beside the one meant

        return draft

    return _instead(PARTS["draft"]["dflash"], "__call__", make)


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _in_turns(tmp_path_factory.mktemp("slowed"), _sleeping_tree_build)


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _in_turns(tmp_path_factory.mktemp("misled"), _wrong_draft)


def _gate(before: Path, after: Path, only: str | None) -> Any:
    file = before.parent / "baseline.json"
    write_baseline(file, baseline_of_folders((before,)))
    return gate_folders(after, file, request_of(only, (), False), None)


def _compared(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    found = compare_folders(runs, arms=(), where=None, metrics=(), min_effect=0.02, allow=(), floors=None)
    publish(found, ("console",), None)
    return found.exit_code, " ".join(capsys.readouterr().out.split())


def test_a_planted_slowdown_of_a_stage_is_named_by_compare(
    slowed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, text = _compared(slowed, capsys)
    assert exit_code == 1, text
    assert "cost, not tau" in text
    assert re.search(r"- tree build (makes|alone moved)", text), text


def test_a_planted_slowdown_of_a_stage_is_found_by_the_gate(slowed: tuple[Path, Path]) -> None:
    result = _gate(*slowed, only="timings")
    assert result.exit_code == 1, result


def test_a_planted_slowdown_leaves_the_counters_as_they_are(slowed: tuple[Path, Path]) -> None:
    assert _gate(*slowed, only="counters").exit_code == 0


def test_a_planted_drop_of_acceptance_is_named_by_compare(
    misled: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, text = _compared(misled, capsys)
    assert exit_code == 1, text
    assert "It is tau" in text
    assert "cost, not tau" not in text


def test_a_planted_drop_of_acceptance_is_found_by_the_gate(misled: tuple[Path, Path]) -> None:
    result = _gate(*misled, only="counters")
    assert result.exit_code == 1, result
