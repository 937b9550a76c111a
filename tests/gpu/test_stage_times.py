"""Times of stages inside a replayed graph: complete, within their round, and the same as those taken from outside."""

from __future__ import annotations

from collections import Counter

import pytest

from ddbench.engine.stages import Stage
from ddbench.harness.capture import OUTSIDE_ROUNDS, CleanProbe, StageProbe

pytestmark = pytest.mark.gpu

IN_A_ROUND = {stage.value for stage in Stage} - {Stage.PREFILL.value}
SLACK_NS = 5_000  # an event's resolution, and the start of a graph of its own


@pytest.fixture(scope="module")
def timed(lab):
    """Probes by executor, of warm runs of the same requests."""
    requests = lab.requests("nano-k2", 3, new=16, is_ragged=False)
    probes = {}
    for name in ("stage_graphs", "round_graph"):
        engine = lab.engine("nano-k2", "ddtree", dtype="bfloat16", executor=name, tree_build="device")
        for _ in range(2):
            probes[name] = StageProbe("cuda")
            engine.run(requests, 2, probes[name])
        assert engine.parts.executor.counters()["eager_rounds"] == 0
    return probes


@pytest.mark.parametrize("executor", ["stage_graphs", "round_graph"])
def test_every_stage_of_every_round_is_timed_once_and_fits_into_it(timed, executor):
    probe = timed[executor]
    samples = [sample for sample in probe.stage_samples() if sample.step != OUTSIDE_ROUNDS]
    number = len(probe.round_starts)
    assert number == len(probe.commits) > 4
    assert Counter((sample.step, sample.stage) for sample in samples) == Counter(
        (step, stage) for step in range(number) for stage in IN_A_ROUND
    )
    assert all(sample.duration_ns > 0 for sample in samples)
    assert {sample.clock for sample in samples} == {"device"}
    sums: Counter[int] = Counter()
    for sample in samples:
        sums[sample.step] += sample.duration_ns
    for step, ((start, _), (end, _)) in enumerate(zip(probe.round_starts, probe.commits, strict=True)):
        assert sums[step] <= end - start, f"round {step}"


def test_a_graphs_own_events_are_heard_once_per_stage_and_round(timed):
    heard = Counter((step, stage.value) for step, stage, _ in timed["round_graph"]._replayed)
    assert set(heard.values()) == {1}
    assert {stage for _, stage in heard} == IN_A_ROUND
    assert len(heard) == len(IN_A_ROUND) * len(timed["round_graph"].round_starts)
    assert not timed["stage_graphs"]._replayed, "timed from outside"


@pytest.mark.parametrize("build", ["heap", "device"])
@pytest.mark.parametrize("executor", ["eager", "stage_graphs", "round_graph"])
def test_the_time_of_a_rounds_graphs_lies_within_the_round(lab, executor, build):
    """Read late or not; without the host's step, where there is one; and there is none of a round without graphs."""
    requests = lab.requests("nano-k2", 3, new=16, is_ragged=False)
    engine = lab.engine("nano-k2", "ddtree", dtype="bfloat16", executor=executor, tree_build=build)
    probe = CleanProbe()
    engine.run(requests, 2, probe)
    for (start, _), (end, outcome) in zip(probe.round_starts, probe.commits, strict=True):
        if executor == "eager":
            assert outcome.replayed_ns is None
        else:
            assert outcome.replayed_ns is not None
            assert 0 < outcome.replayed_ns <= end - start


@pytest.mark.parametrize("stage", sorted(IN_A_ROUND))
def test_events_inside_one_graph_and_around_many_tell_the_same(timed, stage):
    """Within a factor of two: it is the same work, whoever holds the stopwatch.

    The shortest of each: a busy host comes between an event and the launch behind it, and makes one longer.
    """
    inside, outside = (
        min(sample.duration_ns for sample in timed[name].stage_samples() if sample.stage == stage)
        for name in ("round_graph", "stage_graphs")
    )
    assert inside <= 2 * outside + SLACK_NS
    assert outside <= 2 * inside + SLACK_NS
