"""Counts the routed experts that `verify` really touches: their weights are most of what a sparse target must read.

A short pass of its own, after all that is timed. Tokens of a tree are near relatives and choose alike: a uniform
router, which `costs.py` has to suppose, would touch more experts than they do. A twin of the measured engine runs the
first requests op by op, since within a replayed graph nothing can be asked; it shares the parts, and the weights. What
is counted is a fact of text and weights and no property of the machine.
Letters: T tokens, k chosen experts of each, H experts held here.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from ddbench.engine.engine import Engine
from ddbench.engine.executor import EagerExecutor
from ddbench.engine.prefill import EagerPrefill
from ddbench.engine.probe import NullProbe
from ddbench.engine.stages import Stage
from ddbench.engine.types import Request
from ddbench.harness.costs import NO_EXPERTS, experts_touched
from ddbench.models.moe import RoutedExperts
from ddbench.models.shapes import MoEShape
from ddbench.records import ExpertUse, NotMeasured

CENSUS_TOKENS = 32  # per request: rounds enough for a mean, few beside the measurement
FEWEST_ROUNDS = 2  # one round does not say how much rounds differ


class _Census(NullProbe):
    """What was chosen within `verify`, round by round. Counts stay on the device until all have been made."""

    def __init__(self) -> None:
        self.is_open = False
        self.num_tokens: list[int] = []  # by round
        self.touched: defaultdict[int, list[torch.Tensor]] = defaultdict(list)  # round -> its layers' counts

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        return self._verifying() if stage is Stage.VERIFY else super().stage(stage)

    @contextmanager
    def _verifying(self) -> Iterator[None]:
        self.num_tokens.append(0)
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def see(self, module: RoutedExperts, args: tuple[Any, ...]) -> None:
        """The experts of a layer are about to run on x [T, M] with choices [T, k]."""
        if self.is_open:
            ids = args[1]
            self.num_tokens[-1] = len(ids)
            self.touched[len(self.num_tokens) - 1].append(different(ids, module.shape))

    @contextmanager
    def attached(self, module: torch.nn.Module) -> Iterator[None]:
        """Sees every layer's choices, whichever op the experts run as; leaves the model as it found it."""
        layers = [child for child in module.modules() if isinstance(child, RoutedExperts)]
        handles = [layer.register_forward_pre_hook(self.see) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def different(ids: torch.Tensor, shape: MoEShape) -> torch.Tensor:
    """How many of the experts held here are among `ids`; nothing is read on the host. [T, k] -> []"""
    local = ids.flatten() - shape.first_expert
    is_here = (local >= 0) & (local < shape.num_held)
    seen = torch.zeros(shape.num_held + 1, dtype=torch.int64, device=ids.device)  # the last: choices of nobody here
    return seen.index_fill_(0, local.where(is_here, shape.num_held), 1)[:-1].sum()


def count_experts(engine: Engine, requests: Sequence[Request], concurrency: int) -> ExpertUse | NotMeasured:
    """Of the rounds of as many requests as fill the batch. The engine lets go of its storage: memory may be short."""
    moe = engine.models.target.shape.moe
    if moe is None:
        return NO_EXPERTS
    chosen = [
        replace(request, max_new_tokens=min(request.max_new_tokens, CENSUS_TOKENS))
        for request in requests[:concurrency]
    ]
    engine.release()
    gc.collect()
    census = _Census()
    try:
        with census.attached(engine.models.target):
            _twin(engine).run(chosen, concurrency, census)
    except torch.OutOfMemoryError:  # op by op takes more than a recorded round; what was timed stands
        return NotMeasured(not_measured="memory ran out while experts were counted, op by op")
    return _use(moe, census)


def _twin(engine: Engine) -> Engine:
    """The same parts on the same models, run from Python."""
    setting = engine.setting
    parts = replace(engine.parts, executor=EagerExecutor(setting), prefill=EagerPrefill(setting))
    return Engine(engine.spec, engine.models, parts=parts, continuations=setting.continuations)


def _use(moe: MoEShape, census: _Census) -> ExpertUse | NotMeasured:
    num_rounds = len(census.num_tokens)
    if num_rounds < FEWEST_ROUNDS:
        return NotMeasured(not_measured=f"too few verified rounds to count experts in: {num_rounds}")
    assert len(census.touched) == num_rounds, "a round was verified whose experts were not seen"
    by_round = torch.stack([torch.stack(census.touched[at]).double().mean() for at in range(num_rounds)]).cpu()
    uniform = torch.tensor([experts_touched(moe, tokens) for tokens in census.num_tokens], dtype=torch.float64)
    shares = by_round / uniform
    return ExpertUse(
        touched=float(by_round.mean()),
        uniform=float(uniform.mean()),
        spread=float(shares.std() / shares.mean()) if shares.any() else 0.0,
        held=moe.num_held,
        tokens=sum(census.num_tokens) / num_rounds,
        num_rounds=num_rounds,
    )
