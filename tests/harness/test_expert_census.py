"""What the count of routed experts counts: different ones, held here, within `verify`; and that it leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.harness.costs import experts_touched, fewest_experts
from ddbench.harness.expert_census import CENSUS_TOKENS, FEWEST_ROUNDS, count_experts, different
from ddbench.models.moe import MoE, RoutedExperts
from ddbench.models.shapes import TARGETS, MoEShape
from ddbench.models.weights import load_models
from ddbench.records import ExpertUse, NotMeasured
from ddbench.spec import ARMS, EngineSpec

torch.set_num_threads(1)
TARGET, BUDGET, PROMPT = "tiny-mla-moe", 6, 40  # the prompt is longer than any round has tokens: 2 requests, 7 nodes
MOE = TARGETS[TARGET].moe
assert MOE is not None
SHAPES = {
    "whole": {},
    "share": {"num_local_experts": 3, "first_expert": 2},
    "groups": {"num_groups": 2, "top_groups": 1},
}


def requests(*lengths: int) -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    return [
        Request(at, tuple(torch.randint(1, 64, (PROMPT + at,), generator=generator).tolist()), length)
        for at, length in enumerate(lengths)
    ]


@pytest.fixture
def engine_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(arm: str = "ddtree", shape: str = "whole", **fields: Any) -> Engine:
        moe = MoEShape(**(MOE.model_dump() | SHAPES[shape]))
        monkeypatch.setitem(TARGETS, TARGET, TARGETS[TARGET].model_copy(update={"moe": moe}))
        budget = {"node_budget": BUDGET} if arm != "ar" else {}
        spec = EngineSpec(**{"target": TARGET, **ARMS[arm], **budget, **fields})
        return Engine(spec, load_models(spec))

    return make


@contextmanager
def calls_of_the_op(engine: Engine, into: list[Sequence[Sequence[int]]]) -> Iterator[None]:
    """Ids of every call of the ops themselves, a seam below the one that is counted at."""
    before = engine.parts

    def recording(op: Any) -> Any:
        def run(x: torch.Tensor, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            into.append(ids.tolist())
            return op(x, ids, *args, **kwargs)

        return run

    names = ("moe_experts", "moe_experts_int4")
    kernels = replace(before.kernels, **{name: recording(getattr(before.kernels, name)) for name in names})
    engine.parts = replace(before, kernels=kernels)
    try:
        yield
    finally:
        engine.parts = before


@pytest.mark.parametrize("arm", ["ar", "chain", "ddtree"])
@pytest.mark.parametrize(
    ("shape", "experts"), [("whole", "packed"), ("whole", "dequantized"), ("share", "packed"), ("groups", "packed")]
)
def test_a_count_is_that_of_sets(engine_of, arm: str, shape: str, experts: str) -> None:
    """Python sets of what the ops were given; calls as long as a prompt are prefills."""
    engine = engine_of(arm, shape, experts=experts)
    moe = engine.models.target.shape.moe
    calls: list[Sequence[Sequence[int]]] = []
    with calls_of_the_op(engine, calls):
        found = count_experts(engine, requests(12, 7, 9), 2)
    assert isinstance(found, ExpertUse)
    prefills = [ids for ids in calls if len(ids) >= PROMPT]
    rounds = [ids for ids in calls if len(ids) < PROMPT]
    held = range(moe.first_expert, moe.first_expert + moe.num_held)
    sizes = [len({expert for row in ids for expert in row} & set(held)) for ids in rounds]
    num_layers = len([child for child in engine.models.target.modules() if isinstance(child, RoutedExperts)])
    assert len(prefills) == 2 * num_layers, "as many requests as fill the batch"
    assert found.num_rounds * num_layers == len(rounds)
    assert found.touched == pytest.approx(sum(sizes) / len(sizes))
    assert found.tokens == pytest.approx(sum(map(len, rounds)) / len(rounds))
    assert found.uniform == pytest.approx(sum(experts_touched(moe, len(ids)) for ids in rounds) / len(rounds))
    assert found.held == moe.num_held
    assert fewest_experts(moe) <= found.touched <= moe.num_held


def test_choices_of_others_and_of_nobody_are_not_counted() -> None:
    share = MoEShape(num_experts=16, top_k=2, expert_width=8, num_local_experts=4, first_expert=8)
    ids = torch.tensor([[8, 11], [8, 12], [7, -1], [11, 0]])
    assert int(different(ids, share)) == 2
    assert int(different(torch.tensor([[0, -1]]), share)) == 0
    assert int(different(ids[:2], MoEShape(num_experts=16, top_k=2, expert_width=8))) == 3


@pytest.mark.parametrize(("alike", "touched"), [(True, 2.0), (False, 8.0)])
def test_tokens_that_choose_alike_touch_fewer(engine_of, monkeypatch, alike: bool, touched: float) -> None:
    """A router made by hand: all tokens the same two experts, or every token the next two of eight."""

    def route(self: MoE, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.zeros(len(x), dtype=torch.int64) if alike else 2 * torch.arange(len(x)) % 8
        return torch.stack((first, first + 1), dim=1), torch.full((len(x), 2), 0.5)

    monkeypatch.setattr(MoE, "route", route)
    found = count_experts(engine_of(), requests(8), 1)
    assert isinstance(found, ExpertUse)
    assert (found.touched, found.tokens, found.spread) == (touched, BUDGET + 1, pytest.approx(0, abs=1e-12))
    assert (found.touched < found.uniform) == alike


def test_only_so_many_tokens_are_asked_for(engine_of) -> None:
    engine = engine_of("ar")
    one, more = (count_experts(engine, requests(length), 1) for length in (CENSUS_TOKENS, CENSUS_TOKENS + 50))
    assert one == more
    assert isinstance(one, ExpertUse)
    assert one.num_rounds == CENSUS_TOKENS - 1


def test_a_count_leaves_the_engine_and_its_models_as_they_were(engine_of) -> None:
    engine = engine_of()
    asked = requests(12, 9)
    before = engine.run(asked, 2)
    parts, kernels = engine.parts, [getattr(child, "kernels", None) for child in engine.models.target.modules()]
    first = count_experts(engine, asked, 2)
    assert engine.parts is parts
    assert [getattr(child, "kernels", None) for child in engine.models.target.modules()] == kernels
    assert not any(child._forward_pre_hooks for child in engine.models.target.modules())
    assert engine.run(asked, 2) == before
    assert count_experts(engine, asked, 2) == first


def test_a_fault_within_a_count_leaves_no_hook(engine_of, monkeypatch) -> None:
    engine = engine_of()
    monkeypatch.setattr(Engine, "run", lambda *args: (_ for _ in ()).throw(RuntimeError("device lost")))
    with pytest.raises(RuntimeError, match="device lost"):
        count_experts(engine, requests(8), 1)
    assert not any(child._forward_pre_hooks for child in engine.models.target.modules())


def test_storage_is_let_go_before_the_twin_takes_its_own(engine_of, monkeypatch) -> None:
    """A target that fills the device leaves no room for two."""
    engine = engine_of()
    asked = requests(9)
    engine.run(asked, 1)
    assert engine._storage is not None
    held: list[object] = []
    real = Engine.new_batch

    def new_batch(self: Engine, *args: Any) -> Any:
        held.append(engine._storage)
        return real(self, *args)

    monkeypatch.setattr(Engine, "new_batch", new_batch)
    count_experts(engine, asked, 1)
    assert held == [None]


def test_nothing_is_counted_where_there_is_nothing_to_count(engine_of) -> None:
    spec = EngineSpec(target="tiny-gqa", **ARMS["ar"])
    dense = count_experts(Engine(spec, load_models(spec)), requests(8), 1)
    assert dense == NotMeasured(not_measured="the target has no routed experts")
    short = count_experts(engine_of("ar"), requests(FEWEST_ROUNDS), 1)
    assert short == NotMeasured(not_measured="too few verified rounds to count experts in: 1")


def test_too_little_memory_for_a_count_is_its_reason(engine_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was timed before stands."""
    engine = engine_of()

    def out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Engine, "run", out_of_memory)
    found = count_experts(engine, requests(4), 1)
    assert isinstance(found, NotMeasured)
    assert "memory ran out" in found.not_measured
