"""What the tests on a GPU share: models, engines and plain decoding's outputs, each made once; no GPU, no test.

Shapes are few and small, because every new one costs compilations: two tiny targets in FP32, where every token must
agree, and nano-k2 in BF16, where the same kernels must say the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
import torch

from ddbench.engine.batch import Batch
from ddbench.engine.engine import Engine
from ddbench.engine.executor import Executor, Report, Round
from ddbench.engine.probe import Probe
from ddbench.engine.types import Finished, Request
from ddbench.models.weights import Models, load_models
from ddbench.spec import ARMS, EngineSpec

DEVICE: Literal["cuda"] = "cuda"
PROMPT_LENGTHS = (5, 17, 9, 30, 3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


class Lab:
    """Makes engines, keeps them with their graphs, and knows what plain decoding says."""

    def __init__(self) -> None:
        self.models = cache(self._load)
        self.plain = cache(self._plain)
        self._engines: dict[EngineSpec, Engine] = {}

    def _load(self, target: str, dtype: str = "float32", role: str = "engines") -> Models:
        """One copy of the weights for each role: an engine gives its set of kernels to the models it gets."""
        return load_models(EngineSpec(target=target, device=DEVICE, dtype=dtype))  # type: ignore[arg-type]

    def spec(self, target: str, arm: str = "ddtree", **changes: Any) -> EngineSpec:
        """An arm on the GPU; trees are built there, too."""
        base: dict[str, Any] = {"device": DEVICE, "kernels": "triton", "attention": "tree_triton"}
        base |= {"tree_build": "device", "node_budget": 12}
        return EngineSpec(**{"target": target, **base, **ARMS[arm], **changes})

    def new_engine(self, target: str, arm: str = "ddtree", **changes: Any) -> Engine:
        """An engine with an executor of its own, to be meddled with."""
        spec = self.spec(target, arm, **changes)
        return Engine(spec, self.models(target, spec.dtype))

    def engine(self, target: str, arm: str = "ddtree", **changes: Any) -> Engine:
        """The same, made once."""
        spec = self.spec(target, arm, **changes)
        if spec not in self._engines:
            self._engines[spec] = self.new_engine(target, arm, **changes)
        return self._engines[spec]

    def _plain(self, target: str, requests: tuple[Request, ...]) -> tuple[Finished, ...]:
        """Plain decoding in plain torch, one request at a time."""
        spec = EngineSpec(target=target, device=DEVICE, **ARMS["ar"])
        engine = Engine(spec, self.models(target, "float32", "plain"))
        return tuple(done for request in requests for done in engine.run([request], 1))

    def texts(self, target: str, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """The tokens of plain decoding."""
        return [done.tokens for done in self.plain(target, tuple(requests))]

    def requests(
        self, target: str, number: int = 4, *, new: int = 10, is_ragged: bool = True, seed: int = 0
    ) -> tuple[Request, ...]:
        """Prompts of unequal lengths, answers too if ragged; no stop tokens."""
        source = random.Random(seed)
        vocab = self.models(target, "bfloat16" if target == "nano-k2" else "float32").target.shape.vocab
        lengths = [PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)] for i in range(number)]
        return tuple(
            Request(i, tuple(source.randrange(vocab) for _ in range(length)), new + 4 * (i % 3) * is_ragged)
            for i, length in enumerate(lengths)
        )

    def stopping(self, target: str, requests: Sequence[Request]) -> tuple[Request, ...]:
        """Every other one of these stops where the host cannot know."""
        texts = self.texts(target, requests)
        return tuple(
            replace(request, stop_token_ids=(text[4 + i % 5],)) if i % 2 else request
            for i, (request, text) in enumerate(zip(requests, texts, strict=True))
        )


class Around:
    """An executor with something done before and after every launch, and around it."""

    def __init__(
        self,
        inner: Executor,
        before: Callable[[Batch], None],
        after: Callable[[Batch], None],
        around: Callable[[], Any],
        round_: Round | None,
    ) -> None:
        self._inner, self._before, self._after, self._around, self._round = inner, before, after, around, round_
        self.num_launches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, round_: Round, batch: Batch, probe: Probe) -> Report:
        self._before(batch)
        with self._around():
            report = self._inner(self._round or round_, batch, probe)
        self._after(batch)
        self.num_launches += 1
        return report


def _nothing(batch: Batch) -> None:
    """Before or after a launch."""


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@pytest.fixture
def surrounded() -> Iterator[Callable[..., Around]]:
    """`surrounded(engine, before=, after=, around=, round_=)`: meddle with every launch until the test ends."""
    changed: list[tuple[Engine, Any]] = []

    def surround(engine: Engine, before=_nothing, after=_nothing, around=_as_it_is, round_=None) -> Around:
        changed.append((engine, engine.parts))
        executor = Around(engine.parts.executor, before, after, around, round_)
        engine.parts = replace(engine.parts, executor=executor)  # type: ignore[arg-type]
        return executor

    yield surround
    for engine, parts in reversed(changed):
        engine.parts = parts


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
