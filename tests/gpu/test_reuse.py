"""Graphs that live long: hundreds of rounds of changing requests, storage that grows, engines that take turns."""

from __future__ import annotations

import pytest
import torch

from ddbench.harness.capture import CleanProbe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("arm", "build"), [("ar", None), ("ddtree", "device"), ("ddtree", "heap")])
def test_two_hundred_rounds_of_changing_requests_stay_right(lab, arm, build):
    """Slots change hands all the time; other allocations come and go between rounds, where a graph's memory is not."""
    requests = lab.stopping("tiny-gqa", lab.requests("tiny-gqa", 24, new=16, seed=1))
    changes = {} if build is None else {"tree_build": build}
    engine = lab.engine("tiny-gqa", arm, executor="round_graph", **changes)
    engine.reserve(requests, 3)
    captures = engine.parts.executor.counters()["graph_captures"]
    num_rounds = 0
    noise = []
    for index, concurrency in enumerate((3, 2, 3)):
        probe = CleanProbe()
        noise = [torch.full((1 << (12 + i),), torch.nan, device="cuda") for i in range(index, index + 8)]
        done = engine.run(requests, concurrency, probe)
        num_rounds += len(probe.round_starts)
        assert [one.tokens for one in done] == lab.texts("tiny-gqa", requests)
    assert all(bool(one.isnan().all()) for one in noise), "nor do graphs write to memory that is not theirs"
    assert num_rounds >= 200
    counts = engine.parts.executor.counters()
    assert counts["graph_captures"] == captures
    assert counts["eager_rounds"] == 0


@pytest.mark.parametrize("executor", ["stage_graphs", "round_graph"])
@pytest.mark.parametrize("target", ["tiny-gqa", "tiny-mla-moe"])
def test_larger_requests_are_recorded_anew_and_served_right(lab, target, executor):
    engine = lab.new_engine(target, executor=executor)
    requests = lab.requests(target, 6)
    small, large = requests[:1], requests

    def captures() -> int:
        return engine.parts.executor.counters()["graph_captures"]

    assert [one.tokens for one in engine.run(small, 1)] == lab.texts(target, small)
    first = captures()
    assert [one.tokens for one in engine.run(large, 4)] == lab.texts(target, large)
    second = captures()
    assert second == 5 * first, "one batch size, then four"
    assert [one.tokens for one in engine.run(small, 1)] == lab.texts(target, small)
    assert captures() == second, "what is larger than needed is kept"
    assert engine.parts.executor.counters()["eager_rounds"] == 0


ENGINES = (
    ("tiny-gqa", "ddtree", "round_graph"),
    ("tiny-gqa", "chain", "stage_graphs"),
    ("tiny-mla-moe", "ddtree", "round_graph"),
    ("tiny-gqa", "ar", "eager"),
)


@torch.inference_mode()
def test_engines_that_take_turns_do_not_disturb_each_other(lab):
    """Run by run, and round by round in the middle of their requests; two of them on the same weights."""
    engines = [lab.engine(target, arm, executor=name) for target, arm, name in ENGINES]
    targets = [target for target, *_ in ENGINES]
    every = [lab.requests(target, 3, new=24) for target in targets]
    texts = [lab.texts(target, requests) for target, requests in zip(targets, every, strict=True)]
    for _ in range(2):
        for engine, requests, expected in zip(engines, every, texts, strict=True):
            assert [one.tokens for one in engine.run(requests, 2)] == expected
    batches = []
    for engine, requests in zip(engines, every, strict=True):
        batch = engine.reserve(requests, 3)
        for row, request in enumerate(requests):
            batch.admit(row, engine.prefill(batch, row, request))
        batches.append(batch)
    for _ in range(12):
        for engine, batch in zip(engines, batches, strict=True):
            engine.step(batch)
    for batch, expected in zip(batches, texts, strict=True):
        for running, text in zip(batch.running, expected, strict=True):
            assert len(running.tokens) > 10
            assert tuple(running.tokens) == text[: len(running.tokens)]
