"""Rounds that are launched before the one in front was read: the same outputs, and rows that wait change nothing.

With an executor that runs every round at once and only hands its report out late, so that no GPU is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from ddbench.engine.batch import Batch, context_bounds
from ddbench.engine.engine import Engine
from ddbench.engine.executor import EagerExecutor
from ddbench.engine.parts import build_parts
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import Request
from ddbench.harness.capture import CleanProbe
from ddbench.harness.observe import pass_rows
from ddbench.spec import ARMS

QUALITY = (0.75, 0.7, 0.65, 0.6, 0.5)


class LateExecutor(EagerExecutor):
    """Allows one round more in flight, and writes down what happened."""

    runs_ahead = True

    def __init__(self, setting):
        super().__init__(setting)
        self.took_part: Counter[int] = Counter()  # request -> rounds that were launched with it
        self.num_launched = self.num_read = self.most_in_flight = 0

    def __call__(self, round_, batch, probe):
        assert int(batch.lengths.max()) <= batch.context_bound, "the bound covers what was not read yet"
        report = super().__call__(round_, batch, probe)
        self.took_part.update(running.request.request_id for running in batch.running)
        self.num_launched += 1
        self.most_in_flight = max(self.most_in_flight, self.num_launched - self.num_read)
        return LateReport(self, report.rows(), self.num_launched)


class LateReport(NamedTuple):
    executor: LateExecutor
    kept: list[list[float]]
    number: int

    def rows(self):
        self.executor.num_read += 1
        assert self.executor.num_read == self.number, "rounds are read in order, each once"
        return self.kept

    def replayed_ns(self):
        return None


@pytest.fixture
def late() -> Callable[[Engine], Engine]:
    """The same engine, reading late."""

    def make(engine: Engine) -> Engine:
        parts = replace(build_parts(engine.setting), executor=LateExecutor(engine.setting))
        return Engine(engine.spec, engine.models, parts=parts, continuations=engine.setting.continuations)

    return make


@pytest.fixture
def served(make_engine, make_requests, greedy) -> Callable[..., tuple[Engine, list[Request]]]:
    """An engine of an arm and seven ragged requests: some stop where the host cannot know, one at once, one has one
    token to give."""

    def serve(models, arm: str) -> tuple[Engine, list[Request]]:
        free = make_requests(7, new=14)
        truth = {request.request_id: greedy(models, request) for request in free}
        requests = [
            replace(r, stop_token_ids=(truth[r.request_id][3 * i % r.max_new_tokens], 95)[: 1 + i % 2]) if i % 3 else r
            for i, r in enumerate(free)
        ]
        requests[3] = replace(requests[3], max_new_tokens=1)
        requests[5] = replace(requests[5], stop_token_ids=truth[requests[5].request_id][:1])
        drafts = {} if arm in ("ar", "prompt_lookup") else {"draft": "oracle", "quality": QUALITY}
        return make_engine(models, arm, continuations=truth, debug=False, **drafts), requests

    return serve


@pytest.mark.parametrize("concurrency", [1, 3, 4])
@pytest.mark.parametrize("arm", list(ARMS))
def test_reading_late_changes_no_output_and_costs_one_round_per_surprise(
    models, served, late, greedy, arm, concurrency
):
    """Tokens, reasons and rounds of every request; only a stop token surprises, a length limit never does."""
    at_once, requests = served(models, arm)
    reading_late = late(at_once)
    executor = reading_late.parts.executor
    expected = at_once.run(requests, concurrency)
    assert reading_late.run(requests, concurrency) == expected
    assert [done.tokens for done in expected] == [greedy(models, request) for request in requests]
    assert {done.finish_reason for done in expected} == {"stop", "length"}
    assert executor.num_read == executor.num_launched
    assert executor.most_in_flight == 2
    for done in expected:
        idle = executor.took_part[done.request_id] - done.num_rounds
        assert 0 <= idle <= (done.finish_reason == "stop" and done.num_rounds > 0), done


def test_a_surprising_stop_is_met_by_one_idle_round(gqa_models, served, late):
    """The control of the test above: without a row that waited, it would have tested nothing."""
    engine = late(served(gqa_models, "ar")[0])
    _, requests = served(gqa_models, "ar")
    rounds = {done.request_id: done.num_rounds for done in engine.run(requests, 4)}
    assert any(engine.parts.executor.took_part[request_id] > number for request_id, number in rounds.items())


def test_runs_of_one_engine_repeat(gqa_models, served, late):
    engine = late(served(gqa_models, "ddtree")[0])
    _, requests = served(gqa_models, "ddtree")
    assert engine.run(requests, 3) == engine.run(requests, 3)
    assert engine.run(requests[:2], 1) == engine.run(requests, 3)[:2], "fewer requests in storage that is kept"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_books_of_a_run_that_reads_late_balance(gqa_models, served, late, concurrency):
    """A step has the requests that it served, a row that waited is none of them; and no time belongs to two steps."""
    at_once, requests = served(gqa_models, "ddtree")
    probe = CleanProbe()
    done = late(at_once).run(requests, concurrency, probe)
    rows = pass_rows(probe, requests, done, "clean", 0, 0)
    took_part = Counter(one.step for one in rows.rounds)
    assert [step.batch_size for step in rows.steps] == [took_part[step.step] for step in rows.steps]
    assert sum(size for _, size in probe.round_starts) > len(rows.rounds), "some row waited"
    assert all(one.end_ns <= other.start_ns < other.end_ns for one, other in pairwise(rows.steps))


class Timing(NullProbe):
    times_stages = True


@pytest.mark.parametrize("changes", [{"probe": Timing()}, {"debug": True}], ids=["timed stages", "debug"])
def test_who_looks_into_a_round_has_it_read_before_the_next_begins(gqa_models, served, late, changes):
    at_once, requests = served(gqa_models, "ddtree")
    engine = late(at_once)
    engine.debug = changes.get("debug", False)
    assert engine.run(requests, 3, changes.get("probe", NullProbe())) == at_once.run(requests, 3)
    assert engine.parts.executor.most_in_flight == 1
    assert all(engine.parts.executor.took_part[done.request_id] == done.num_rounds for done in at_once.run(requests, 3))


def started(engine: Engine, requests: list[Request]) -> Batch:
    batch = engine.new_batch(requests, len(requests))
    for row, request in enumerate(requests):
        batch.admit(row, engine.prefill(batch, row, request))
    engine.materialize_prompts(batch)
    return batch


def state_of(batch: Batch, row: int) -> list[torch.Tensor]:
    """Everything that later rounds read of a row."""
    length = int(batch.lengths[row])
    state = [getattr(batch, name)[row] for name in ("lengths", "anchors", "remaining", "prompt_lengths", "stop_ids")]
    state += [batch.tokens[row, : length + 1]]
    state += [cache[:, row, :length] for cache in (*batch.caches.target, *batch.caches.draft)]
    return [tensor.clone() for tensor in state]


@torch.inference_mode()
@pytest.mark.parametrize("arm", list(ARMS))
def test_a_round_leaves_idle_rows_as_they_are_and_does_the_others_justice(models, served, arm):
    """Lengths, anchors, tokens, and both caches below the anchor; the neighbours end up as if nobody had waited."""
    engine, requests = served(models, arm)
    requests = [replace(request, stop_token_ids=(), max_new_tokens=40) for request in requests[:4]]
    busy, idle = (started(engine, requests) for _ in range(2))
    for batch in (busy, idle):
        engine.step(batch)
    waits = (0, 2)
    idle.remaining[list(waits)] = 0
    before = {row: state_of(idle, row) for row in waits}
    for _ in range(3):
        expected, got = engine.step(busy), engine.step(idle)
        assert got.request_ids == tuple(requests[row].request_id for row in (1, 3))
        assert got.tokens == tuple(expected.tokens[row] for row in (1, 3))
    for row in waits:
        assert all(torch.equal(now, then) for now, then in zip(state_of(idle, row), before[row], strict=True))
        assert len(idle.running[row].tokens) < len(busy.running[row].tokens)
    for row in (1, 3):
        for now, expected in zip(state_of(idle, row), state_of(busy, row), strict=True):
            torch.testing.assert_close(now, expected)


@torch.inference_mode()
@pytest.mark.parametrize("arm", list(ARMS))
def test_a_round_of_idle_rows_alone_changes_nothing(models, served, arm):
    """What a graph is recorded with: empty storage whose rows all wait, at the largest bound of a context."""
    engine, requests = served(models, arm)
    storage = engine.new_batch(requests, 3)
    batch = storage.view(3, context_bounds(storage.most_context)[-1])
    before = [state_of(batch, row) for row in range(3)]
    report = engine.parts.executor(engine._round, batch, NullProbe())
    for row, then in enumerate(before):
        assert all(torch.equal(a, b) for a, b in zip(state_of(batch, row), then, strict=True))
    emitted = [row[-3] for row in report.rows()]
    assert emitted == [0.0] * 3
