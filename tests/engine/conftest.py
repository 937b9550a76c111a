"""Tiny seeded models, requests of unequal sizes, and an oracle for greedy output that has neither cache nor mask."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.models.target import Target
from ddbench.models.weights import Models, dequantize_experts, random_models
from ddbench.reference.generate import decode
from ddbench.spec import ARMS, EngineSpec

TINY = ("tiny-gqa", "tiny-mla-moe")


@pytest.fixture(scope="session", params=TINY)
def models(request: pytest.FixtureRequest) -> Models:
    return random_models(request.param)


@pytest.fixture(scope="session")
def gqa_models() -> Models:
    return random_models("tiny-gqa")


@pytest.fixture(scope="session")
def make_requests() -> Callable[..., list[Request]]:
    """`make_requests(n)`: prompts and answers of unequal lengths."""

    def make(number: int, *, vocab: int = 96, shortest: int = 1, new: int = 9) -> list[Request]:
        generator = torch.Generator().manual_seed(7)
        return [
            Request(
                request_id=10 + i,
                prompt=tuple(torch.randint(vocab, (shortest + 5 * i,), generator=generator).tolist()),
                max_new_tokens=new + 4 * (i % 4),
            )
            for i in range(number)
        ]

    return make


@cache
def _unpacked_target(models: Models) -> Target:
    target = copy.deepcopy(models.target)
    dequantize_experts(target, torch.float32)  # the training forward has no packed experts; same values
    return target


@cache
@torch.inference_mode()
def generate_greedily(models: Models, request: Request) -> tuple[int, ...]:
    """By the specification, with the training forward: no cache, no masks, keys and values expanded."""
    target = _unpacked_target(models)

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        return target.head(target.full(torch.tensor([tokens]))[0][0])  # [n, V]

    return tuple(decode(logits, request.prompt, request.max_new_tokens, request.stop_token_ids))


@pytest.fixture(scope="session")
def greedy() -> Callable[[Models, Request], tuple[int, ...]]:
    """The target's greedy output by recomputing the whole text for every token."""

    return generate_greedily


@pytest.fixture(scope="session")
def features_of() -> Callable[[Models, Sequence[int]], torch.Tensor]:
    """The captured features [1, n, K*M] of a text, from the training forward."""

    @torch.inference_mode()
    def features(models: Models, tokens: Sequence[int]) -> torch.Tensor:
        return _unpacked_target(models).full(torch.tensor([list(tokens)]))[1]

    return features


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    """`make_engine(models, arm, **changes)`: an engine that checks its invariants."""

    def make(
        models: Models,
        arm: str = "ddtree",
        *,
        continuations: dict[int, Sequence[int]] | None = None,
        quality: Sequence[float] = (),
        debug: bool = True,
        **changes: object,
    ) -> Engine:
        values = {"target": models.facts.target, "node_budget": 12, "oracle_quality": tuple(quality), **ARMS[arm]}
        spec = EngineSpec.model_validate({**values, **changes})
        return Engine(spec, models, continuations=continuations, debug=debug)

    return make
