"""Randomness under graphs: the numbers that eager rounds draw from the same seed, and fresh ones every round."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from ddbench.engine.launch import AT_ONCE
from ddbench.engine.probe import NullProbe
from ddbench.engine.recording import record
from ddbench.engine.stages import Stage
from ddbench.harness.capture import CleanProbe

pytestmark = pytest.mark.gpu

EXECUTORS = ("eager", "stage_graphs", "round_graph")


@pytest.mark.parametrize("by_stage", [False, True])
def test_replays_draw_what_the_code_draws_and_never_the_same_again(by_stage):
    """Two sources, drawn from in several stages; one of them more than once."""
    sources = tuple(torch.Generator("cuda") for _ in range(2))

    def drawing(batch, launch):
        with launch.stage(Stage.DRAFT):
            first = torch.empty(2, 100, device="cuda").normal_(generator=sources[0])
        with launch.stage(Stage.VERIFY):
            constant = torch.ones(2, 4, device="cuda")
        with launch.stage(Stage.ACCEPT):
            second = torch.empty(2, 3000, device="cuda").exponential_(generator=sources[1])
        with launch.stage(Stage.COMMIT):
            third = torch.empty(2, 8, device="cuda").uniform_(generator=sources[0])
            return torch.cat([first, constant, second, third], dim=1)

    def seed():
        for number, source in enumerate(sources):
            source.manual_seed(number)

    seed()
    expected = [drawing(None, AT_ONCE) for _ in range(4)]
    pool = torch.cuda.graph_pool_handle()
    recording = record(drawing, None, pool, sources, by_stage=by_stage, times_stages=False)  # type: ignore[arg-type]
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))]
    for _ in range(2):
        seed()
        got = []
        for _ in range(4):
            recording.replay(NullProbe(), events)
            got.append(recording.report.clone())
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    for one, other in pairwise(got):
        is_equal = (one == other).float().mean(0)
        assert is_equal[:100].max() == 0, "normal"
        assert is_equal[104:].mean() < 0.01, "exponential and uniform"


DRAWING = (
    ("ar", {"sampling": "stochastic"}),
    ("ddtree", {"sampling": "stochastic"}),
    ("chain", {"draft": "random"}),
    ("ddtree", {"draft": "random", "sampling": "stochastic"}),
)


def observed(engine, requests, concurrency):
    """Outputs, and per round what was drafted and accepted."""
    probe = CleanProbe()
    done = engine.run(requests, concurrency, probe)
    rounds = [outcome for _, outcome in probe.commits]
    return (
        done,
        [replace(one, expected_length=(), replayed_ns=None) for one in rounds],
        [one.expected_length for one in rounds],
    )


@pytest.mark.parametrize(("arm", "changes"), DRAWING, ids=["ar", "ddtree", "chain-random", "ddtree-random"])
def test_graphs_sample_and_draft_what_eager_rounds_do_from_the_same_seed(lab, arm, changes):
    """Every token and every drafted tree of a run; run after run, since each starts from its seed."""
    requests = lab.requests("tiny-gqa")
    eager, *graphs = (lab.new_engine("tiny-gqa", arm, executor=name, **changes) for name in EXECUTORS)
    done, rounds, lengths = observed(eager, requests, 3)
    for engine in graphs:
        for _ in range(2):
            done_, rounds_, lengths_ = observed(engine, requests, 3)
            assert done_ == done
            assert rounds_ == rounds
            for one, other in zip(lengths_, lengths, strict=True):
                assert one == pytest.approx(other, rel=1e-5)
        assert engine.parts.executor.counters()["eager_rounds"] == 0
    if "draft" in changes:
        drawn = [length for one in lengths for length in one]
        assert len(set(drawn)) == len(drawn), "noise of its own for every request of every round"


def test_the_same_prompt_twice_gets_two_samples(lab):
    """Fresh randomness: a graph that replayed its own draws would answer alike."""
    (request, *_) = lab.requests("tiny-gqa")
    twins = [replace(request, request_id=i, max_new_tokens=30) for i in range(2)]
    engine = lab.new_engine("tiny-gqa", "ar", executor="round_graph", sampling="stochastic")
    for concurrency in (1, 2):
        one, other = (done.tokens for done in engine.run(twins, concurrency))
        assert one != other
        assert len(set(one)) > 5, "no draw that repeats"
