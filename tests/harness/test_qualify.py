"""Qualification: enough repeats, one run without a hole, and a way on where it was stopped. Nothing is measured."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from ddbench.analysis.effects import FEWEST_BLOCKS
from ddbench.analysis.gate.baseline import read_baseline
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases
from ddbench.cli import main
from ddbench.errors import DdbenchError, UserError
from ddbench.experiment_file import find_experiment
from ddbench.harness import qualify
from ddbench.harness.interrupt import SweepInterrupted
from ddbench.harness.plan import Capabilities, Plan, make_plan
from ddbench.harness.store import RunFolder
from ddbench.harness.sweep import Tally
from ddbench.records import Environment
from ddbench.spec import ExperimentSpec

Execute = Callable[..., Tally]


@pytest.fixture
def plan(experiment: ExperimentSpec, can: Capabilities) -> Plan:
    return make_plan(experiment.model_copy(update={"num_blocks": 6}), can)


@pytest.fixture
def repeats(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Environment
) -> Callable[[Execute], RunFolder]:
    """`run_repeats` with something else in place of the cases."""
    monkeypatch.setattr("ddbench.harness.sweep.environment_of", lambda device: environment)
    monkeypatch.setattr("ddbench.harness.sweep.models_digest", lambda engine: "0")

    def run(execute: Execute) -> RunFolder:
        monkeypatch.setattr(qualify, "execute", execute)
        console = Console(file=io.StringIO())
        return qualify.run_repeats(plan, tmp_path / "my runs", Path("base.json"), console, lock_folder=tmp_path)

    return run


def test_repeats_are_as_many_as_the_analysis_needs(plan: Plan) -> None:
    assert qualify.FEWEST_BLOCKS == FEWEST_BLOCKS <= qualify.NUM_BLOCKS
    assert qualify.check_blocks(plan) is plan
    few = Plan(plan.experiment.model_copy(update={"num_blocks": 5}), plan.cases, ())
    with pytest.raises(UserError, match="at least 6 repeats"):
        qualify.check_blocks(few)


def test_the_repeats_are_one_run_of_one_code(repeats: Callable[[Execute], RunFolder]) -> None:
    run = repeats(lambda run, console, command: Tally({"ok": 1, "incorrect": 0, "failed": 0}))
    assert {case.block for case in run.manifest.cases} == set(range(6))
    assert run.manifest.interleaved_with is None


@pytest.mark.parametrize("counts", [(3, 0, 1), (3, 1, 0), (0, 0, 0)])
def test_a_run_with_holes_says_how_to_fill_them(
    counts: tuple[int, int, int], repeats: Callable[[Execute], RunFolder]
) -> None:
    tally = Tally(dict(zip(("ok", "incorrect", "failed"), counts, strict=True)))
    with pytest.raises(DdbenchError) as caught:
        repeats(lambda run, console, command: tally)
    assert caught.value.exit_code == 4
    assert "ddbench sweep --resume '" in str(caught.value)  # its folder has a space
    assert str(caught.value).endswith("--out base.json")


def test_an_interrupted_one_can_be_gone_on_with(repeats: Callable[[Execute], RunFolder]) -> None:
    def interrupted(run: RunFolder, console: Console, command: object) -> Tally:
        raise SweepInterrupted("interrupted; go on with: ddbench sweep --resume X")

    with pytest.raises(SweepInterrupted) as caught:
        repeats(interrupted)
    assert caught.value.exit_code == 130
    assert "--resume X, and then: ddbench qualify --from '" in str(caught.value)


def test_the_shipped_gate_has_every_arm_alone_and_in_a_batch() -> None:
    experiment = find_experiment("gate")
    assert experiment.engine.target == "nano-k2"
    assert experiment.engine.num_threads == 1  # how sums are split must not depend on the machine
    assert {axis.name: axis.values for axis in experiment.axes} == {"concurrency": (1, 4)}
    assert set(experiment.arms) == {"ar", "prompt_lookup", "chain", "chain_via_tree", "ddtree"}


# ------------------------------------------------------------------------------------------------------ command line


def test_a_baseline_is_made_of_finished_runs(tmp_path: Path) -> None:
    shapes = {"arms": ("ar",), "concurrencies": (1,), "num_requests": 3, "max_new_tokens": 8, "num_blocks": 6}
    cases = make_cases(**shapes)
    runs = [build_run(tmp_path / n, SyntheticPlan(name=n, cases=cases, machine=len(n))) for n in ("a", "bb")]
    file = tmp_path / "baseline.json"
    froms = [word for run in runs for word in ("--from", str(run))]
    result = CliRunner().invoke(main, ["qualify", *froms, "--out", str(file)])
    assert result.exit_code == 0, result.output
    assert "Noise floor" in result.output
    assert f"baseline: {file}" in result.output.replace("\n", "")
    assert len(read_baseline(file).runs) == 2


@pytest.mark.parametrize("words", [["smoke"], ["--blocks", "7"], ["--set", "concurrency=2"], ["--runs", "x"]])
def test_finished_runs_are_taken_as_they_are(words: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["qualify", *words, "--from", str(tmp_path), "--out", str(tmp_path / "b.json")])
    assert result.exit_code == 2
    assert "leave out" in result.stderr


def test_too_few_repeats_are_refused_before_anything_runs(tmp_path: Path) -> None:
    words = ["qualify", "smoke", "--device", "cpu", "--blocks", "3", "--out", str(tmp_path / "b.json")]
    result = CliRunner().invoke(main, [*words, "--runs", str(tmp_path / "runs")])
    assert result.exit_code == 2
    assert "--blocks 3" in result.stderr
    assert not (tmp_path / "runs").exists()
