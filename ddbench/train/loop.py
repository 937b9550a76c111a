"""What both trainers share: when to stop, the learning rate, checkpoints that a killed run resumes from, progress.

Training ends at a number of steps or minutes, whichever comes first; the schedule follows the larger fraction, so that
a run limited by time still decays its learning rate.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pydantic import BaseModel
from torch import nn

from ddbench import units
from ddbench.errors import UserError
from ddbench.files import replacing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RecipeT = TypeVar("RecipeT", bound="DataclassInstance")
Report = Callable[[str], object]
Clock = Callable[[], float]  # seconds

NUM_EVALUATIONS = 10  # per training
SAVE_SECONDS = 60.0  # of training between checkpoints, at most
REPORT_STEPS, REPORT_SECONDS = 50, 10.0  # between progress lines, whichever comes first
RATE_FLOOR = 0.02  # of the peak, at the end


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train. `minutes` None: by steps alone."""

    steps: int
    minutes: float | None = None

    def fraction(self, step: int, seconds: float) -> float:
        """Progress in 0..1."""
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(step / self.steps, by_time))


def with_options(recipe: RecipeT, options: Mapping[str, Any]) -> RecipeT:
    """The default recipe with what the command line sets."""
    known = {field.name for field in dataclasses.fields(recipe)}
    return dataclasses.replace(recipe, **{k: v for k, v in options.items() if k in known and v is not None})


def learning_rate(fraction: float, step: int, peak: float, warmup_steps: int) -> float:
    """Linear warm-up, then cosine decay to `RATE_FLOOR * peak`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * (RATE_FLOOR + (1 - RATE_FLOOR) * 0.5 * (1 + math.cos(math.pi * fraction)))


def make_optimizer(module: nn.Module, peak: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors (norms) do not."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    is_cuda = trained[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=is_cuda)


def shape_key(shape: BaseModel) -> str:
    """A shape's name and a short digest of all its values."""
    values = shape.model_dump_json()
    return f"{getattr(shape, 'name', '')} ({hashlib.sha256(values.encode()).hexdigest()[:8]})"


def time_left(done: float, seconds: float) -> str:
    """`about 41.2 s left`, from the share of the work done and the time that it took; `done` at the end."""
    if done >= 1:
        return "done"
    return f"about {units.duration(seconds / done * (1 - done) * 1e9)} left" if done > 0 else "time left unknown"


@dataclass
class TrainingRun:
    """The mutable state of one training, saved and restored as a whole."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    generators: dict[str, torch.Generator]
    folder: Path
    identity: Mapping[str, Any] = field(default_factory=dict)  # shape, recipe, data: a resumed run must have the same
    step: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Atomically: a kill leaves the previous checkpoint."""
        state: dict[str, Any] = {
            "identity": dict(self.identity),
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: g.get_state() for name, g in self.generators.items()},
            "step": self.step,
            "seconds": self.seconds,
            "curve": self.curve,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as partial:
            torch.save(state, partial)
        (self.folder / "curve.json").write_text(json.dumps(self.curve, indent=1) + "\n", encoding="utf-8")

    def resume(self) -> bool:
        """Continue from the folder's checkpoint, if there is one; one of another training is a UserError."""
        if not self.path.is_file():
            return False
        state = self._read()
        for name, now in self.identity.items():
            then = state["identity"].get(name)
            if then != now:
                raise UserError(f"{self.path}: was begun with {name} {then}, now it is {now}; pass another --work")
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        return True

    def _read(self) -> dict[str, Any]:
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            raise UserError(f"{self.path}: damaged ({type(error).__name__}); delete it to train anew") from error
        if not isinstance(state, dict) or "identity" not in state:
            raise UserError(f"{self.path}: not a checkpoint of this version; delete it to train anew")
        return state


def run_steps(
    run: TrainingRun,
    budget: Budget,
    train_step: Callable[[float], torch.Tensor],
    evaluate: Callable[[], dict[str, float]],
    report: Report,
    *,
    peak: float,
    warmup_steps: int,
    stop_after: float | None = None,
    clock: Clock = time.monotonic,
) -> None:
    """Train until the budget is used, evaluating every tenth of it; `train_step(fraction)` returns the loss.

    Only time spent training counts; a checkpoint follows every evaluation and every minute. After `stop_after` seconds
    by the clock it stops with a checkpoint, to be resumed.
    """
    saved, reported = run.seconds, clock()
    started = reported
    while (fraction := budget.fraction(run.step, run.seconds)) < 1.0:
        began = clock()
        if stop_after is not None and began - started >= stop_after:
            run.save()
            report(f"stopped at step {run.step}, {100 * fraction:.1f} %: the same command goes on from there")
            return
        rate = learning_rate(fraction, run.step, peak, warmup_steps)
        loss = _update(run, train_step(fraction), rate)
        if run.step % REPORT_STEPS == 0 or clock() - reported >= REPORT_SECONDS:
            value = loss.item()  # also keeps the host from running far ahead of the device
            reported = clock()
            left = time_left(fraction, run.seconds)
            report(f"step {run.step}  {100 * fraction:5.1f} %  loss {value:.3f}  lr {rate:.1e}  {left}")
        run.seconds += clock() - began
        done = budget.fraction(run.step, run.seconds)
        is_due = int(done * NUM_EVALUATIONS) > int(fraction * NUM_EVALUATIONS)
        if is_due:
            row = {"step": run.step, "seconds": round(run.seconds, 1), "loss": loss.item(), **evaluate()}
            run.curve.append(row)
            report("held out: " + "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
        if is_due or run.seconds - saved >= SAVE_SECONDS:
            run.save()
            saved = run.seconds


def _update(run: TrainingRun, loss: torch.Tensor, rate: float) -> torch.Tensor:
    """One optimizer step; returns the loss without its graph."""
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    loss.backward()
    nn.utils.clip_grad_norm_([p for p in run.module.parameters() if p.grad is not None], 1.0)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    run.step += 1
    return loss.detach()
