"""Prompts through a spare row, padded, give what prompts at their own length give; and which lengths are recorded.

Graphs are made up, as in test_executor.py: replaying one runs the recorded code on the addresses it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from ddbench.engine import prefill as module
from ddbench.engine.engine import Engine
from ddbench.engine.launch import AT_ONCE
from ddbench.engine.parts import build_parts
from ddbench.engine.prefill import GraphPrefill, PaddedPrefill, padded_length
from ddbench.spec import ARMS

ANY_ROWS = 10**6


@dataclass
class Replay:
    """A made-up recording."""

    code: Callable[..., torch.Tensor]
    storage: object
    report: torch.Tensor
    num_graphs: int = 1

    def replay(self, probe, stretches) -> None:
        self.report.copy_(self.code(self.storage, AT_ONCE))


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch) -> None:
    monkeypatch.setattr(module, "FINE_STEP", 8)


@pytest.fixture
def recorded(monkeypatch) -> Iterator[list[Replay]]:
    """Everything recorded from now on, without a GPU."""
    found = []

    def record(code, storage, pool, generators, *, by_stage, times_stages, probe):
        found.append(Replay(code, storage, code(storage, AT_ONCE)))
        return found[-1]

    monkeypatch.setattr(module, "record", record)
    monkeypatch.setattr(torch.cuda, "Event", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    return found


@pytest.fixture
def with_prefill(make_engine) -> Callable[..., Engine]:
    """An engine that is the arm's but for its prefill."""

    def make(kind: type[PaddedPrefill], models, arm: str = "ddtree", **changes) -> Engine:
        engine = make_engine(models, arm, **changes)
        parts = replace(build_parts(engine.setting), prefill=kind(engine.setting))
        return Engine(engine.spec, models, parts=parts, debug=engine.debug)

    return make


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "padded"),
    [(1, ANY_ROWS, 8), (8, ANY_ROWS, 8), (9, ANY_ROWS, 16), (512, ANY_ROWS, 512), (513, ANY_ROWS, 768), (9, 12, 12)],
)
def test_padded_lengths_hold_the_prompt_within_the_cache(num_tokens, num_rows, padded):
    assert padded_length(num_tokens, num_rows) == padded


@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("kind", [PaddedPrefill, GraphPrefill])
def test_padded_prompts_are_continued_like_any(models, make_engine, make_requests, with_prefill, recorded, arm, kind):
    """More requests than rows: the spare row serves one after the other, and every row gets several of them."""
    requests = make_requests(6, new=14)
    assert with_prefill(kind, models, arm).run(requests, 2) == make_engine(models, arm).run(requests, 2)


@pytest.mark.parametrize("kind", [PaddedPrefill, GraphPrefill])
@torch.inference_mode()
def test_a_row_gets_the_prompts_rows_and_nothing_of_the_padding(
    gqa_models, make_engine, make_requests, with_prefill, recorded, kind
):
    """Recorded, the ids behind the prompt are of an earlier one: whatever they are, they leave no trace."""
    short, long = requests = make_requests(4)[2:]  # 11 and 16 tokens, both in 16
    plain, padded = make_engine(gqa_models), with_prefill(kind, gqa_models)
    batches = [engine.reserve(requests, 2) for engine in (plain, padded)]
    for row, request in enumerate((long, short)):
        expected = plain.prefill(batches[0], row, request)
        plain.parts.materialize(expected.prompt_rows, batches[0].cache.view(slice(row, row + 1)))
        got = padded.prefill(batches[1], row, request)
        assert got.tokens == expected.tokens
        assert got.prompt_rows is None
    views = [batch.cache.view(slice(0, 2)) for batch in batches]
    for one, other in zip((*views[0].target, *views[0].draft), (*views[1].target, *views[1].draft), strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)
    assert any(cache[:, 1].any() for cache in views[1].draft)


def test_each_length_is_recorded_once_the_longest_first(gqa_models, make_requests, with_prefill, recorded):
    requests = make_requests(5)  # 1, 6, 11, 16, 21 tokens
    engine = with_prefill(GraphPrefill, gqa_models)
    engine.reserve(requests, 2)
    engine.run(requests[1:], 2)
    engine.run(requests, 2)
    counts = engine.parts.prefill.counters()
    assert counts == {"prefill_captures": 3, "prefill_replays": 9, "eager_prefills": 0}
    widths = []
    engine.parts.prefill._into_spare_row = lambda others, storage, ids, lengths: widths.append(ids.shape[1])
    for one in recorded:
        one.code(one.storage, AT_ONCE)
    assert widths == [24, 16, 8]


def test_a_length_that_was_not_recorded_runs_op_by_op_and_is_counted(gqa_models, make_requests, with_prefill, recorded):
    requests = make_requests(4)
    engine = with_prefill(GraphPrefill, gqa_models)
    batch = engine.reserve(requests[:1] + requests[3:], 1)  # room for 16 tokens; 8 and 16 are recorded
    engine.prefill(batch, 0, replace(requests[3], prompt=requests[3].prompt[:3]))
    assert engine.parts.prefill.counters()["eager_prefills"] == 0
    del engine.parts.prefill._recordings[16]
    engine.prefill(batch, 0, requests[3])
    assert engine.parts.prefill.counters()["eager_prefills"] == 1


def test_larger_storage_forgets_what_was_recorded_for_the_old_one(gqa_models, make_requests, with_prefill, recorded):
    requests = make_requests(5)
    engine = with_prefill(GraphPrefill, gqa_models)
    engine.run(requests[:2], 1)
    assert engine.run(requests, 3) == with_prefill(PaddedPrefill, gqa_models).run(requests, 3)
    assert {id(one.storage) for one in recorded[1:]} == {id(engine.reserve(requests, 3))}
