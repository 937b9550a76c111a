"""What both trainers share: when to stop, the learning rate, checkpoints that a killed run resumes from, progress.

Training ends at a number of steps or minutes, whichever comes first; the schedule follows the larger fraction, so that
a run limited by time still decays its learning rate.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train. `minutes` None: by steps alone."""

    steps: int
    minutes: float | None = None

    def fraction(self, step: int, seconds: float) -> float:
        """Progress in 0..1."""
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(step / self.steps, by_time))


def learning_rate(fraction: float, step: int, peak: float, warmup_steps: int, floor: float = 0.02) -> float:
    """Linear warm-up, then cosine decay to `floor * peak`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * fraction)))


def make_optimizer(module: nn.Module, peak: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors (norms) do not."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    is_cuda = trained[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=is_cuda)


@dataclass
class TrainingRun:
    """The mutable state of one training, saved and restored as a whole."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    generators: dict[str, torch.Generator]
    folder: Path
    step: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Atomically: a kill leaves the previous checkpoint."""
        state: dict[str, Any] = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: g.get_state() for name, g in self.generators.items()},
            "step": self.step,
            "seconds": self.seconds,
            "curve": self.curve,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)
        (self.folder / "curve.json").write_text(json.dumps(self.curve, indent=1) + "\n", encoding="utf-8")

    def resume(self) -> bool:
        """Continue from the folder's checkpoint, if there is one."""
        if not self.path.is_file():
            return False
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        return True


def run_steps(
    run: TrainingRun,
    budget: Budget,
    train_step: Callable[[int, float], torch.Tensor],
    evaluate: Callable[[], dict[str, float]],
    report: Report,
    *,
    peak: float,
    warmup_steps: int,
    evaluate_every: float = 0.1,
    save_seconds: float = 60.0,
) -> None:
    """Train until the budget is used, evaluating every tenth of it; `train_step(step, fraction)` returns the loss."""
    for fraction in _fractions(run, budget):
        rate = learning_rate(fraction, run.step, peak, warmup_steps)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        began = time.monotonic()
        loss = train_step(run.step, fraction)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in run.module.parameters() if p.grad is not None], 1.0)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
        run.step += 1
        if run.step % 50 == 0:
            value = loss.item()  # also keeps the host at most 50 steps ahead of the device
            report(f"step {run.step}  {100 * fraction:5.1f} %  loss {value:.3f}  lr {rate:.1e}")
        run.seconds += time.monotonic() - began
        done = budget.fraction(run.step, run.seconds)
        if int(done / evaluate_every) > int(fraction / evaluate_every) or done >= 1.0:
            began = time.monotonic()
            row = {"step": run.step, "seconds": round(run.seconds, 1), "loss": loss.item(), **evaluate()}
            run.curve.append(row)
            report("held out: " + "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
            if done >= 1.0 or time.monotonic() - began < save_seconds:
                run.save()


def _fractions(run: TrainingRun, budget: Budget) -> Iterator[float]:
    while (fraction := budget.fraction(run.step, run.seconds)) < 1.0:
        yield fraction
