"""No silent eager round, no compilation, no capture while a pass is timed: each is counted and fails the case."""

from __future__ import annotations

import pytest
import torch

from ddbench.errors import DdbenchError
from ddbench.harness import measure
from ddbench.harness.graph_events import watched
from ddbench.harness.measure import measure_case
from ddbench.harness.run import Job
from ddbench.records import OkResult
from ddbench.spec import CaptureSpec, Case, WorkloadSpec

pytestmark = pytest.mark.gpu

NOTHING = {"jit_compilations": 0, "graph_captures": 0, "eager_rounds": 0}


def forget(engine, batch_size, *, for_good):
    """Lose what was recorded for a batch size; for good, if preparing is not to record it anew.

    Some other has to stay: the graphs' memory goes with the last of them.
    """
    executor = engine.parts.executor
    for key in [key for key in executor._recordings if key.batch_size == batch_size]:
        del executor._recordings[key]
    assert executor._recordings
    if for_good:
        executor.prepare = lambda *_, **__: None


@pytest.mark.parametrize("executor", ["stage_graphs", "round_graph"])
def test_a_shape_that_was_not_recorded_runs_at_once_is_counted_and_refused(lab, executor):
    """H89: outputs stay right, which is why it has to be counted."""
    requests = lab.requests("tiny-gqa", 3)
    engine = lab.new_engine("tiny-gqa", executor=executor)
    engine.run(requests, 2)
    forget(engine, 1, for_good=True)
    with watched(engine) as events:
        done = engine.run(requests, 2)
    assert [one.tokens for one in done] == lab.texts("tiny-gqa", requests)
    counts = events.counters()
    assert counts["eager_rounds"] > 0
    assert counts["graph_replays"] > 0, "batches of two are still replayed"
    with pytest.raises(DdbenchError, match=rf"ran op by op .* \(eager_rounds: {counts['eager_rounds']}\)"):
        events.check()


def job(lab, executor: str = "round_graph", arm: str = "ddtree") -> Job:
    case = Case(
        arm=arm,
        engine=lab.spec("tiny-gqa", arm, executor=executor),
        workload=WorkloadSpec(prompts="random", num_requests=3, max_new_tokens=8, concurrency=2),
        capture=CaptureSpec(num_warmup_requests=1, parity_prompts=2, parity_tokens=4),
    )
    return Job(case_id="c", case=case)


@pytest.mark.parametrize(
    ("for_good", "reason"),
    [(True, "rounds ran op by op although graphs were asked for"), (False, "graphs were captured within a timed pass")],
)
def test_a_case_whose_timed_pass_left_its_graphs_fails_with_the_reason(lab, monkeypatch, for_good, reason):
    """H89: a whole case, whose shapes get lost between rehearsal and timing; with and without recording them anew."""
    rehearse = measure.rehearse

    def losing(engine, *args):
        rehearse(engine, *args)
        forget(engine, 1, for_good=for_good)

    monkeypatch.setattr(measure, "rehearse", losing)
    with pytest.raises(DdbenchError, match=reason):
        measure_case(job(lab), lambda phase: None)


@pytest.mark.parametrize("executor", ["eager", "round_graph"])
def test_a_case_is_timed_without_compilations_captures_and_eager_rounds(lab, executor):
    """H89, H96: and its record says so."""
    result, _ = measure_case(job(lab, executor), lambda phase: None)
    assert isinstance(result, OkResult)
    assert result.parity.status == "identical"
    for name in NOTHING if executor != "eager" else ("jit_compilations",):
        assert result.counters[name] == 0, name
    assert executor == "eager" or result.counters["graph_replays"] > 0


@pytest.mark.parametrize("executor", ["eager", "stage_graphs", "round_graph"])
@pytest.mark.parametrize("arm", ["ar", "prompt_lookup", "chain", "ddtree"])
def test_a_rehearsed_run_compiles_and_captures_nothing(lab, arm, executor):
    """H96."""
    requests = lab.requests("tiny-gqa")
    engine = lab.engine("tiny-gqa", arm, executor=executor)
    engine.run(requests, 3)
    with watched(engine) as events:
        engine.run(requests, 3)
    events.check()
    happened = {name: count for name, count in events.counters().items() if name in NOTHING}
    assert set(happened.values()) == {0}
    assert "jit_compilations" in happened


def launch_new(value: int) -> int:
    """Launch a kernel that nobody can have launched before: it is made here, and holds `value` as a constant."""
    triton = pytest.importorskip("triton")
    from triton import language as tl

    @triton.jit
    def kernel(out, VALUE: tl.constexpr):
        tl.store(out, VALUE)

    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel[(1,)](out, VALUE=value)
    kernel[(1,)](out, VALUE=value)  # once more: known by now
    return int(out)


def test_a_compilation_is_seen_and_refused(lab):
    """H96, the control: each new constant is one compilation, and outside of `watched` nothing is counted."""
    engine = lab.engine("tiny-gqa", executor="round_graph")
    launch_new(40)
    with watched(engine) as events:
        assert events.counters()["jit_compilations"] == 0
        assert launch_new(41) == 41
        assert launch_new(42) == 42
    launch_new(43)
    assert events.counters()["jit_compilations"] == 2
    with pytest.raises(DdbenchError, match="compiled within a timed pass"):
        events.check()


def test_a_capture_is_seen_and_refused(lab):
    """H96, the control: requests that do not fit what was reserved."""
    requests = lab.requests("tiny-gqa", 3)
    twin, engine = (lab.new_engine("tiny-gqa", "ar", executor="round_graph") for _ in range(2))
    twin.run(requests, 2)  # all that is to be compiled is compiled
    engine.run(requests[:1], 1)
    with watched(engine) as events:
        engine.run(requests, 2)
    assert events.counters()["graph_captures"] == 2, "one for each batch size"
    with pytest.raises(DdbenchError, match="captured within a timed pass"):
        events.check()


@pytest.mark.parametrize("executor", ["eager", "round_graph"])
def test_the_kernels_that_ran_are_on_record(lab, executor):
    """As nodes of a graph, too. The target is FP32, for which no op has a kernel for Hopper."""
    result, _ = measure_case(job(lab, executor), lambda phase: None)
    assert isinstance(result, OkResult)
    assert "_tree_attention_kernel" in result.kernels_launched["tree_attention_triton"]
    assert "_tree_build_kernel" in result.kernels_launched["tree_build_triton"]
    assert not [file for file in result.kernels_launched if file.endswith("_gluon")]
