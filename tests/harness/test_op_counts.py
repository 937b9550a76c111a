"""What the counted pass counts, and that it is exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.parts import PARTS
from ddbench.engine.types import Request
from ddbench.harness.op_counts import COUNTED_TOKENS, count_ops
from ddbench.harness.workload import build_workload
from ddbench.models.weights import load_models
from ddbench.spec import ARMS, EngineSpec, WorkloadSpec


def _engine(arm: str = "ddtree", **fields: Any) -> tuple[Engine, Sequence[Request]]:
    spec = EngineSpec(**{"target": "tiny-gqa", "node_budget": 4, **ARMS[arm], **fields})
    models = load_models(spec)
    workload = WorkloadSpec(prompts="random", num_requests=3, max_new_tokens=12)
    return Engine(spec, models), build_workload(workload, models.target.shape, models.folder, 0).measured


@contextmanager
def _patched(kind: type, method: str, extra: Any) -> Iterator[None]:
    """`extra()` runs before every call of a part's method."""
    original = getattr(kind, method)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra()
        return original(self, *args, **kwargs)

    setattr(kind, method, wrapped)
    try:
        yield
    finally:
        setattr(kind, method, original)


def test_equal_runs_give_equal_counts() -> None:
    engine, requests = _engine()
    assert count_ops(engine, requests, 2) == count_ops(engine, requests, 2)


def test_parts_of_the_count_add_up() -> None:
    engine, requests = _engine()
    counts = count_ops(engine, requests, 2)
    for name in ("torch_ops", "host_reads"):
        own = sum(count for key, count in counts.items() if key.startswith(f"{name}."))
        assert counts[name] == own > 0


def test_one_more_op_in_a_stage_is_counted_in_that_stage() -> None:
    engine, requests = _engine()
    before = count_ops(engine, requests, 2)
    with _patched(PARTS["tree_build"]["heap"], "__call__", lambda: torch.zeros(1)):
        after = count_ops(engine, requests, 2)
    steps = before["counted_steps"]
    assert after["torch_ops.tree_build"] == before["torch_ops.tree_build"] + steps
    assert after["torch_ops"] == before["torch_ops"] + steps
    unchanged = {key for key in before if key not in ("torch_ops", "torch_ops.tree_build")}
    assert {key: after[key] for key in unchanged} == {key: before[key] for key in unchanged}


@pytest.mark.parametrize(
    "read",
    [
        lambda: torch.zeros(1).item(),
        lambda: torch.zeros(2).tolist(),
        lambda: torch.zeros(2).numpy(),
        lambda: bool(torch.ones(1)),
        lambda: torch.ones(3).nonzero(),
        lambda: torch.ones(3)[torch.ones(3, dtype=torch.bool)],
    ],
    ids=["item", "tolist", "numpy", "bool", "nonzero", "mask index"],
)
def test_every_way_to_read_a_value_is_one_read(read: Any) -> None:
    engine, requests = _engine()
    before = count_ops(engine, requests, 2)
    with _patched(PARTS["sampling"]["greedy"], "__call__", read):
        after = count_ops(engine, requests, 2)
    assert after["host_reads"] - before["host_reads"] == before["counted_steps"]


def test_an_op_that_reads_nothing_is_no_read() -> None:
    engine, requests = _engine()
    before = count_ops(engine, requests, 2)
    with _patched(PARTS["sampling"]["greedy"], "__call__", lambda: torch.ones(3)[torch.tensor([0, 2])]):
        after = count_ops(engine, requests, 2)
    assert after["host_reads"] == before["host_reads"]


def test_prefill_is_not_counted() -> None:
    engine, requests = _engine("ar")
    short = count_ops(engine, requests[:1], 1)
    longer = [Request(0, requests[0].prompt * 2, max_new_tokens=12)]
    assert count_ops(engine, longer, 1)["torch_ops"] == short["torch_ops"]


def test_counting_stops_after_a_few_tokens() -> None:
    engine, requests = _engine("ar")
    assert count_ops(engine, requests, 3)["counted_steps"] == COUNTED_TOKENS - 1


def test_counting_changes_no_output() -> None:
    engine, requests = _engine()
    before = engine.run(requests, 2)
    count_ops(engine, requests, 2)
    assert engine.run(requests, 2) == before
