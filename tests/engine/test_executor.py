"""The bookkeeping of graph executors: which shapes are recorded, when, and which of them a round replays.

Graphs are made up: a made-up one runs the round's code on the shapes it was recorded for, and keeps its report where a
real one would. What real graphs do is for a GPU to show.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from ddbench.engine import batch as batch_module
from ddbench.engine import executor as module
from ddbench.engine.batch import Batch
from ddbench.engine.engine import Engine
from ddbench.engine.executor import GraphExecutor, RoundGraphExecutor, StageGraphsExecutor
from ddbench.engine.launch import AT_ONCE
from ddbench.engine.parts import build_parts
from ddbench.engine.probe import NullProbe
from ddbench.engine.stages import Stage
from ddbench.engine.types import Request
from ddbench.spec import ARMS


class Event:
    """A made-up CUDA event; whoever waits for it must have recorded it."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.is_recorded = False
        self.is_timed = enable_timing

    def record(self) -> None:
        self.is_recorded = True

    def synchronize(self) -> None:
        assert self.is_recorded

    def elapsed_time(self, other: Event) -> float:
        assert all((self.is_timed, self.is_recorded, other.is_timed, other.is_recorded))
        return 0.25  # ms


@dataclass
class Replay:
    """A made-up recording."""

    round_: Callable[..., torch.Tensor]
    view: Batch
    times_stages: bool
    report: torch.Tensor
    num_graphs: int = 2
    num_stretches: int = 1

    def replay(self, probe, stretches) -> None:
        assert len(stretches) == self.num_stretches
        for begin, end in stretches:
            begin.record()
            end.record()
        assert int(self.view.lengths.max()) <= self.view.context_bound
        assert probe.times_stages is self.times_stages
        self.report.copy_(self.round_(self.view, AT_ONCE))

    def tell(self, probe) -> None:
        if self.times_stages:
            probe.timed(Stage.VERIFY, 1)


@pytest.fixture
def recorded(monkeypatch) -> Iterator[list[Replay]]:
    """Everything recorded from now on, without a GPU."""
    found = []

    def record(round_, view, pool, generators, *, by_stage, times_stages, probe):
        assert not view.remaining.any(), "recorded while somebody runs"
        found.append(Replay(round_, view, times_stages, round_(view, AT_ONCE)))
        return found[-1]

    real = torch.empty
    monkeypatch.setattr(module, "record", record)
    monkeypatch.setattr(batch_module, "SMALLEST_BOUND", 16)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: real(*size, **options))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    return found


@pytest.fixture
def graphed(make_engine) -> Callable[..., Engine]:
    """An engine whose rounds are replayed."""

    def make(models, arm: str = "ddtree", kind: type[GraphExecutor] = RoundGraphExecutor, **changes) -> Engine:
        engine = make_engine(models, arm, debug=False, **changes)
        parts = replace(build_parts(engine.setting), executor=kind(engine.setting))
        return Engine(engine.spec, models, parts=parts)

    return make


def keys_of(recorded: list[Replay]) -> list[tuple[int, int]]:
    return [(len(one.view.lengths), one.view.context_bound) for one in recorded]


class Timing(NullProbe):
    times_stages = True


@pytest.mark.parametrize("arm", list(ARMS))
def test_replayed_rounds_give_what_rounds_at_once_give(models, make_engine, graphed, make_requests, recorded, arm):
    """Rows are handed over, requests stop by surprise, contexts grow past a bound; no round's shape is missing."""
    requests = make_requests(6, new=14)
    free = make_engine(models, arm, debug=False).run(requests, 3)
    requests = [
        replace(r, stop_token_ids=done.tokens[5:6]) if i % 2 else r
        for i, (r, done) in enumerate(zip(requests, free, strict=True))
    ]
    engine = graphed(models, arm)
    assert engine.run(requests, 3) == make_engine(models, arm, debug=False).run(requests, 3)
    counts = engine.parts.executor.counters()
    assert counts["eager_rounds"] == 0
    assert counts["graph_replays"] > 0
    assert counts["graph_captures"] == 2 * len(recorded)


def test_every_batch_size_is_recorded_with_every_context_that_can_come(gqa_models, graphed, recorded):
    requests = [Request(i, (5,) * length, 20) for i, length in enumerate((20, 3, 18))]
    engine = graphed(gqa_models)
    engine.run(requests[::2], 2)
    largest_first = [(size, bound) for size in (2, 1) for bound in (40, 32)]
    assert keys_of(recorded) == largest_first, "none below 18 rows; the others fit the memory of the first"
    engine.run(requests, 2)
    assert sorted(keys_of(recorded)) == [(size, bound) for size in (1, 2) for bound in (16, 32, 40)]


def test_runs_that_fit_record_nothing_and_larger_ones_all_of_it_anew(gqa_models, graphed, make_requests, recorded):
    requests = make_requests(4)
    engine = graphed(gqa_models)
    engine.reserve(requests, 3)
    number = len(recorded)
    first = engine.run(requests, 3)
    assert engine.run(requests, 3) == first
    engine.run(requests[:2], 1)
    assert len(recorded) == number
    engine.run(requests, 4)
    assert {id(one.view.cache) for one in recorded[number:]} == {id(engine.reserve(requests, 4).cache)}
    assert {size for size, _ in keys_of(recorded[number:])} == {1, 2, 3, 4}
    assert engine.parts.executor.counters()["eager_rounds"] == 0


def test_storage_that_is_too_small_is_gone_before_the_larger_one_is_made(gqa_models, graphed, make_requests, recorded):
    """Recordings hold views of it: kept until the next are made, two caches would stand in memory at once."""
    requests = make_requests(4)
    engine = graphed(gqa_models)
    old = weakref.ref(engine.reserve(requests, 2).cache)
    make, found = engine.new_batch, []

    def new_batch(*arguments):
        recorded.clear()
        gc.collect()
        found.append(old())
        return make(*arguments)

    engine.new_batch = new_batch
    engine.run(requests, 4)
    assert found == [None]


def test_what_is_released_is_gone_and_made_anew(gqa_models, graphed, make_requests, recorded):
    """Another engine on the same models may need the memory."""
    requests = make_requests(4)
    engine = graphed(gqa_models)
    before = engine.run(requests, 2)
    number, old = len(recorded), weakref.ref(engine.reserve(requests, 2).cache)
    engine.release()
    recorded.clear()
    gc.collect()
    assert old() is None
    assert engine.run(requests, 2) == before
    assert len(recorded) == number
    assert engine.parts.executor.counters()["eager_rounds"] == 0


@pytest.mark.parametrize(("kind", "variants"), [(RoundGraphExecutor, {False, True}), (StageGraphsExecutor, {False})])
def test_whole_rounds_are_recorded_once_more_where_stages_are_timed(
    gqa_models, graphed, make_requests, recorded, monkeypatch, kind, variants
):
    """Graphs of one stage each are timed from outside."""

    def replay(self, probe, stretches) -> None:
        for event in stretches[0]:
            event.record()
        self.report.copy_(self.round_(self.view, AT_ONCE))

    monkeypatch.setattr(Replay, "replay", replay)
    requests = make_requests(3)
    engine = graphed(gqa_models, kind=kind)
    expected = engine.run(requests, 2)
    assert {one.times_stages for one in recorded} == {False}
    assert engine.run(requests, 2, Timing()) == expected
    assert {one.times_stages for one in recorded} == variants
    assert engine.parts.executor.counters()["eager_rounds"] == 0


def test_a_shape_that_was_not_recorded_runs_at_once_and_is_counted(gqa_models, graphed, make_requests, recorded):
    requests = make_requests(2)
    engine = graphed(gqa_models)
    expected = engine.run(requests, 2)
    executor = engine.parts.executor
    executor.prepare = lambda *_, **__: executor._recordings.clear()
    before = executor.counters()
    assert engine.run(requests, 2) == expected
    after = executor.counters()
    assert after["eager_rounds"] > before["eager_rounds"] == 0
    assert after["graph_replays"] == before["graph_replays"]


def test_whoever_reserves_sees_what_is_recorded(gqa_models, graphed, make_requests, recorded, monkeypatch):
    """H17: a profiler's probe has to know the stages of nodes before any round is run."""
    seen = []
    made_up = module.record

    def record(*args, probe, **options):
        seen.append(probe)
        return made_up(*args, probe=probe, **options)

    monkeypatch.setattr(module, "record", record)
    engine, requests, probe = graphed(gqa_models), make_requests(2), NullProbe()
    engine.reserve(requests, 2, probe=probe)
    assert set(map(id, seen)) == {id(probe)}
    number = len(seen)
    engine.run(requests, 2, NullProbe())
    assert len(seen) == number > 0


def test_a_report_outlives_the_next_replay(gqa_models, graphed, make_requests, recorded):
    """The report's memory belongs to the graph, which overwrites it; what is read late is a copy."""
    engine = graphed(gqa_models, "ar")
    requests = make_requests(2)
    batch = engine.reserve(requests, 2)
    with torch.inference_mode():
        for row, request in enumerate(requests):
            batch.admit(row, engine.prefill(batch, row, request))
        batch.update_bound(num_unread=2)
        batch.loosen_bound()
        first, second = (engine.parts.executor(engine._round, batch, NullProbe()) for _ in range(2))
    assert engine.parts.executor.counters()["eager_rounds"] == 0
    tokens = [[row[1] for row in report.rows()] for report in (first, second)]
    alone = [done.tokens for done in graphed(gqa_models, "ar").run(requests, 1)]
    assert tokens == [[text[place] for text in alone] for place in (1, 2)]


class Brackets(NullProbe):
    """What is bracketed, in order: as a stage, or as what only belongs to one."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def stage(self, stage):
        self.words.append(stage.value)
        return super().stage(stage)

    def recording(self, stage):
        self.words.append(f"({stage.value})")
        return super().recording(stage)

    def timed(self, stage, duration_ns):
        self.words.append(f"{stage.value} took {duration_ns} ns")


@pytest.mark.usefixtures("recorded")
def test_copies_around_prefill_and_of_reports_belong_to_a_stage(gqa_models, make_engine, graphed, make_requests):
    """Behind a replay the copy is timed as the commit's; read at once it is a wait for the whole round, and is not."""
    requests = make_requests(3)
    at_once, replayed = Brackets(), Brackets()
    make_engine(gqa_models).run(requests, 2, at_once)
    engine = graphed(gqa_models)
    engine.run(requests, 2, replayed)
    rounds = at_once.words.count("draft")
    assert rounds > 3
    assert at_once.words.count("commit") == at_once.words.count("(commit)") == rounds
    assert replayed.words.count("commit") == engine.parts.executor.counters()["graph_replays"] // 2 > 3
    assert "(commit)" not in replayed.words
    assert at_once.words.count("(prefill)") == at_once.words.count("prefill") == len(requests)


@pytest.mark.usefixtures("recorded")
def test_a_report_is_on_its_way_before_stage_times_are_waited_for(gqa_models, graphed, make_requests):
    """Launched behind the wait, its copy would be charged with a launch to an idle device: ten times its own time."""
    probe = Brackets()
    probe.times_stages = True
    graphed(gqa_models).run(make_requests(3), 2, probe)
    told = [place for place, word in enumerate(probe.words) if word.endswith("ns")]
    assert len(told) > 3
    assert {probe.words[place - 1] for place in told} == {"commit"}
