"""The training loop: schedule, budget, and checkpoints from which a killed run goes on bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ddbench.errors import UserError
from ddbench.train.loop import Budget, TrainingRun, learning_rate, make_optimizer, run_steps, time_left


class Clock:
    """Every reading is `step` seconds after the one before."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def new_run(folder: Path, **identity: object) -> TrainingRun:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(1)
    return TrainingRun(module, make_optimizer(module, 1e-2, 0.1), {"data": generator}, folder, identity)


def train(run: TrainingRun, budget: Budget, lines: list[str], stop_at: int | None = None, clock: Clock | None = None):
    """Regression on noise drawn from the run's own generator; `stop_at` kills it in the middle of a step."""

    def step(fraction: float) -> torch.Tensor:
        x = torch.randn(16, 4, generator=run.generators["data"])
        if run.step == stop_at:
            raise KeyboardInterrupt
        return (run.module(x) - x.sum(dim=1, keepdim=True)).square().mean()

    def evaluate() -> dict[str, float]:
        return {"norm": next(run.module.parameters()).detach().norm().item()}

    run_steps(run, budget, step, evaluate, lines.append, peak=1e-2, warmup_steps=5, clock=clock or Clock(0.01))


def state_of(run: TrainingRun) -> Iterator[torch.Tensor]:
    yield from run.module.state_dict().values()
    for moments in run.optimizer.state_dict()["state"].values():
        yield from moments.values()
    yield from (generator.get_state() for generator in run.generators.values())


def test_the_learning_rate_warms_up_and_decays_to_its_floor():
    warmup = [learning_rate(0.0, step, peak=2.0, warmup_steps=4) for step in range(5)]
    assert warmup == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    decay = [learning_rate(i / 20, 100, peak=2.0, warmup_steps=4) for i in range(21)]
    assert decay[0] == pytest.approx(2.0)
    assert decay[10] == pytest.approx(2.0 * (0.02 + 0.98 / 2))
    assert decay[20] == pytest.approx(0.04)
    assert decay == sorted(decay, reverse=True)


def test_a_budget_ends_with_steps_or_minutes_whichever_comes_first():
    assert Budget(100).fraction(25, 1e9) == 0.25
    assert Budget(100, minutes=2).fraction(25, 90) == 0.75
    assert Budget(100, minutes=2).fraction(80, 60) == 0.8
    assert Budget(100, minutes=2).fraction(101, 300) == 1.0


def test_training_by_minutes_ends_on_time_and_decays(tmp_path: Path):
    run, lines = new_run(tmp_path), []
    train(run, Budget(steps=10**6, minutes=1), lines, clock=Clock(0.5))
    assert 60 <= run.seconds < 63
    assert run.optimizer.param_groups[0]["lr"] < 0.1 * 1e-2
    assert len(run.curve) == 10


def test_the_held_out_measure_is_taken_ten_times_with_everything_a_curve_needs(tmp_path: Path):
    run, lines = new_run(tmp_path), []
    train(run, Budget(40), lines)
    assert [row["step"] for row in run.curve] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert all(row.keys() == {"step", "seconds", "loss", "norm"} for row in run.curve)
    assert run.curve[-1]["loss"] < run.curve[0]["loss"]
    assert json.loads((tmp_path / "curve.json").read_text()) == run.curve
    assert len([line for line in lines if line.startswith("held out: ")]) == 10


def test_progress_says_how_much_time_is_left(tmp_path: Path):
    lines: list[str] = []
    train(new_run(tmp_path), Budget(100), lines, clock=Clock(4.0))
    told = [line for line in lines if line.startswith("step ")]
    assert len(told) >= 50  # long steps report themselves, every ten seconds
    assert all("left" in line and "lr" in line for line in told)
    assert time_left(0.25, 10) == "about 30.0 s left"
    assert time_left(0.0, 0.0) == "time left unknown"
    assert time_left(1.0, 5.0) == "done"


@pytest.mark.parametrize("stop_at", [0, 7, 13, 19])
def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path, stop_at: int):
    whole, lines = new_run(tmp_path / "whole"), []
    train(whole, Budget(20), lines)
    killed = new_run(tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        train(killed, Budget(20), lines, stop_at)
    resumed = new_run(tmp_path / "killed")
    for parameter in resumed.module.parameters():
        parameter.data.fill_(7.0)  # nothing of the new start may remain
    assert resumed.resume() == (stop_at > 2)
    if stop_at > 2:
        train(resumed, Budget(20), lines)
        for one, other in zip(state_of(whole), state_of(resumed), strict=True):
            assert torch.equal(one, other)
        drop = {"seconds"}
        assert [{k: row[k] for k in row.keys() - drop} for row in resumed.curve] == [
            {k: row[k] for k in row.keys() - drop} for row in whole.curve
        ]


def test_a_finished_training_has_nothing_left_to_do(tmp_path: Path):
    run, lines = new_run(tmp_path), []
    train(run, Budget(10), lines)
    again = new_run(tmp_path)
    assert again.resume()
    lines.clear()
    train(again, Budget(10), lines)
    assert lines == []
    assert again.step == 10


def test_a_checkpoint_is_written_between_evaluations_too(tmp_path: Path):
    """A training of hours loses a minute, not a tenth."""
    run = new_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(run, Budget(1000), [], stop_at=90, clock=Clock(2.0))  # some seconds a step, 100 steps an evaluation
    resumed = new_run(tmp_path)
    assert resumed.resume()
    assert 60 < resumed.step < 90


def test_a_kill_while_saving_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = new_run(tmp_path)
    run.step = 3
    run.save()
    before = run.path.read_bytes()

    def killed(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    run.step = 4
    with pytest.raises(KeyboardInterrupt):
        run.save()
    assert run.path.read_bytes() == before


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path):
    new_run(tmp_path, shape="a", seed=0).save()
    with pytest.raises(UserError, match="was begun with seed 0, now it is 1; pass another --work"):
        new_run(tmp_path, shape="a", seed=1).resume()
    assert new_run(tmp_path, shape="a", seed=0).resume()


def test_a_damaged_checkpoint_is_named(tmp_path: Path):
    run = new_run(tmp_path)
    run.save()
    run.path.write_bytes(run.path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"checkpoint\.pt: damaged"):
        run.resume()
    torch.save({"step": 3}, run.path)
    with pytest.raises(UserError, match="not a checkpoint of this version"):
        run.resume()


def test_only_matrices_decay():
    optimizer = make_optimizer(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), 1e-3, 0.5)
    decay = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {2: 0.5, 1: 0.0}
