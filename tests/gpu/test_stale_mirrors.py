"""What a replayed round computes depends on device state alone: not on what the host remembers, not on unread rows."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine import batch as batch_module
from ddbench.engine.batch import Batch
from ddbench.engine.probe import NullProbe

pytestmark = pytest.mark.gpu

GRAPHS = ("stage_graphs", "round_graph")
Arm = tuple[str, dict[str, str]]
ARMS: tuple[Arm, ...] = (("ar", {}), ("prompt_lookup", {}), ("chain", {}), ("ddtree", {"tree_build": "device"}))
HEAP = ("ddtree", {"tree_build": "heap"})
NAMES = ["ar", "prompt_lookup", "chain", "ddtree-device"]


def no_round(batch, launch):
    raise AssertionError("a replay ran the round's code on the host")


@pytest.mark.parametrize("executor", GRAPHS)
@pytest.mark.parametrize(("arm", "changes"), [*ARMS, HEAP], ids=[*NAMES, "ddtree-heap"])
def test_garbage_in_the_hosts_mirrors_decides_nothing(lab, surrounded, arm, changes, executor):
    """H94: the bound of the round before, reports and candidates that were read already, and the round's own code."""
    requests = lab.stopping("tiny-gqa", lab.requests("tiny-gqa"))
    engine = lab.engine("tiny-gqa", arm, executor=executor, **changes)
    engine.run(requests, 3)
    inner = engine.parts.executor

    def before(batch: Batch) -> None:
        torch.cuda.synchronize()  # the copies out of these buffers are through
        inner._reports[0].host.fill_(-7.0)  # the one that the coming round's report goes to
        for search in getattr(getattr(engine.parts, "tree_build", None), "_searches", {}).values():
            search._candidates.fill_(-(2**31))
            search._trees.fill_(2**30)

    def after(batch: Batch) -> None:
        batch.context_bound = 10**9

    executor_ = surrounded(engine, before, after, round_=no_round)
    done = engine.run(requests, 3)
    assert [one.tokens for one in done] == lab.texts("tiny-gqa", requests)
    assert executor_.num_launches > 0
    assert executor_.counters()["eager_rounds"] == 0


@pytest.mark.parametrize(("arm", "changes"), ARMS, ids=NAMES)
def test_any_bound_that_covers_the_contexts_gives_the_same(lab, surrounded, monkeypatch, arm, changes):
    """H94: as close as the host knows it, with graphs for every power of two, and as loose as the storage."""
    requests = lab.requests("tiny-gqa")
    monkeypatch.setattr(batch_module, "SMALLEST_BOUND", 16)
    engine = lab.new_engine("tiny-gqa", arm, executor="round_graph", **changes)
    bounds: set[int] = set()
    surrounded(engine, before=lambda batch: bounds.add(batch.context_bound))
    expected = lab.texts("tiny-gqa", requests)
    assert [one.tokens for one in engine.run(requests, 3)] == expected
    assert len(bounds) > 1, "contexts grow past a bound"
    bounds.clear()
    monkeypatch.setattr(Batch, "update_bound", lambda self, num_unread=0: setattr(self, "context_bound", 33))
    assert [one.tokens for one in engine.run(requests, 3)] == expected
    assert len(bounds) == 1
    assert engine.parts.executor.counters()["eager_rounds"] == 0


def unread_rows(batch: Batch) -> torch.Tensor:
    """[slots, S] at and beyond the anchors of those who run; all rows of the slots that nobody has."""
    lengths = batch._storage["lengths"].clone()
    lengths[batch.size :] = 0
    return torch.arange(batch.num_rows, device=batch.device) >= lengths[:, None]


@torch.inference_mode()
def fill(batch: Batch, rows: torch.Tensor, value: float = torch.nan) -> None:
    """Set these rows [slots, S] in every cache."""
    for cache in (*batch.cache._target, *batch.cache._draft):
        cache.masked_fill_(rows.view(1, *rows.shape, *(1,) * (cache.dim() - 3)), value)


@pytest.fixture
def clean_again():
    """Storage is kept from run to run, and caches are to be finite."""
    batches: list[Batch] = []
    yield batches.append
    for batch in batches:
        fill(batch, torch.ones_like(unread_rows(batch)), 0.0)


@pytest.mark.parametrize("executor", GRAPHS)
@pytest.mark.parametrize(("arm", "changes"), [*ARMS, HEAP], ids=[*NAMES, "ddtree-heap"])
@pytest.mark.parametrize("target", ["tiny-gqa", "tiny-mla-moe"])
def test_cache_rows_that_nobody_may_read_may_hold_anything(
    lab, surrounded, clean_again, target, arm, changes, executor
):
    """H94: NaN before every round, beyond every anchor and in every free slot, of the target's cache and the drafter's.

    Attention over a dense mask is excluded: it multiplies what it has masked by zero, and rows must be finite for it.
    """
    requests = lab.stopping(target, lab.requests(target))
    engine = lab.engine(target, arm, executor=executor, **changes)
    clean_again(engine.reserve(requests, 3))
    surrounded(engine, before=lambda batch: fill(batch, unread_rows(batch)))
    for concurrency in (3, 1):
        assert [one.tokens for one in engine.run(requests, concurrency)] == lab.texts(target, requests)


@torch.inference_mode()
def rounds_of(engine, requests, number: int, idle_from: int, meddle) -> list[list[list[float]]]:
    """Reports of a few rounds of all requests; before round `idle_from` `meddle(batch)` is called."""
    batch = engine.reserve(requests, len(requests))
    for row, request in enumerate(requests):
        batch.admit(row, engine.prefill(batch, row, request))
    engine.materialize_prompts(batch)
    batch.update_bound(num_unread=64)
    batch.loosen_bound()
    reports = []
    for number_ in range(number):
        if number_ == idle_from:
            meddle(batch)
        reports.append(engine.parts.executor(engine._round, batch, NullProbe()).rows())
    return reports


@pytest.mark.parametrize("target", ["tiny-gqa", "tiny-mla-moe"])
@pytest.mark.parametrize("arm", ["ar", "chain", "ddtree"])
def test_an_idle_requests_rows_may_hold_anything(lab, clean_again, target, arm):
    """H94: a request that stopped unknown to the host runs along; NaN in its caches stays with it."""
    requests = lab.requests(target, 3, new=40, is_ragged=False)
    engine = lab.engine(target, arm, executor="round_graph")
    clean_again(engine.reserve(requests, 3))
    lengths = []

    def make_idle(batch: Batch) -> None:
        batch.remaining[1] = 0
        lengths.append(batch.lengths[1].clone())
        rows = torch.zeros_like(unread_rows(batch))
        rows[1] = True
        fill(batch, rows)

    expected = rounds_of(engine, requests, 6, 2, lambda batch: None)
    got = rounds_of(engine, requests, 6, 2, make_idle)
    assert engine.parts.executor.counters()["eager_rounds"] == 0
    assert got[:2] == expected[:2]
    for one, other in zip(got[2:], expected[2:], strict=True):
        width = (len(one[0]) - 4) // 2
        assert one[1][2 * width + 1] == 0, "the idle request emits nothing"
        for row in (0, 2):
            assert one[row][:-1] == other[row][:-1], "path, tokens and counts"
            assert one[row][-1] == pytest.approx(other[row][-1], rel=1e-5)
    assert torch.equal(engine._storage.lengths[1], lengths[0])
