"""One case measured in this process, with the real engine on a tiny random target."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddbench.errors import DdbenchError, UserError
from ddbench.harness import measure, parity
from ddbench.harness.measure import MOST_WARMUPS, measure_case
from ddbench.harness.observe import PassRows
from ddbench.harness.run import Job
from ddbench.harness.store import CaseTables, write_table
from ddbench.harness.summary import Observed, has_settled, warnings_of
from ddbench.harness.worker import classify, guarded
from ddbench.records import (
    CaseResult,
    ExpertUse,
    FailedResult,
    IncorrectResult,
    LoadSample,
    NotMeasured,
    OkResult,
    PassSummary,
    RequestRecord,
)
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec, WorkloadSpec

torch.set_num_threads(1)


def job(arm: str = "ddtree", reference: str | None = None, capture: dict[str, Any] | None = None, **engine: Any) -> Job:
    spec = EngineSpec(**{"target": "tiny-gqa", "node_budget": 6, **ARMS[arm], **engine})
    workload = WorkloadSpec(prompts="random", num_requests=3, max_new_tokens=8, concurrency=2)
    small = CaptureSpec(**{"num_warmup_requests": 1, "parity_prompts": 2, "parity_tokens": 4, **(capture or {})})
    return Job(case_id="c", case=Case(arm=arm, engine=spec, workload=workload, capture=small), reference=reference)


def measured(one: Job) -> tuple[CaseResult, CaseTables | None]:
    return measure_case(one, lambda phase: None)


def ok(one: Job) -> tuple[OkResult, CaseTables]:
    result, tables = measured(one)
    assert isinstance(result, OkResult)
    assert tables is not None
    return result, tables


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_every_arm_is_measured_and_its_books_balance(arm: str) -> None:
    result, tables = ok(job(arm))
    assert result.parity.status == "identical"
    clean = [r for r in tables.requests if r.pass_name == "clean"]
    attributed = [r for r in tables.requests if r.pass_name == "attributed"]
    assert [r.tokens for r in clean] == [r.tokens for r in attributed]
    rounds = [r for r in tables.rounds if r.pass_name == "clean"]
    assert sum(r.num_emitted for r in rounds) + len(clean) == sum(len(r.tokens) for r in clean)
    assert result.counters["tokens_emitted"] == result.passes[0].num_emitted == sum(len(r.tokens) for r in clean)
    assert all(r.admitted_ns <= r.first_token_ns <= r.last_token_ns <= result.passes[0].wall_ns for r in clean)
    steps = [s for s in tables.steps if s.pass_name == "clean"]
    assert all(one.end_ns <= two.start_ns for one, two in itertools.pairwise(steps))
    assert {s.batch_size for s in steps} <= {1, 2}
    assert [p.pass_name for p in result.passes] == ["clean", "attributed"]
    assert result.path_used["attention"] == "dense_mask"


def test_stage_times_fit_into_their_rounds() -> None:
    result, tables = ok(job())
    per_step: dict[int, int] = {}
    for sample in tables.stages:
        per_step[sample.step] = per_step.get(sample.step, 0) + sample.duration_ns
    for step in (s for s in tables.steps if s.pass_name == "attributed"):
        assert 0 < per_step[step.step] <= step.end_ns - step.start_ns
    stages = {sample.stage for sample in tables.stages}
    assert {"prefill", "draft", "tree_build", "tree_compile", "verify", "accept", "commit", "materialize"} == stages
    assert {cost.stage for cost in result.stage_costs} == stages - {"prefill"}
    assert all(cost.num_bytes > 0 for cost in result.stage_costs if cost.stage != "commit")


def test_no_stage_pass_where_none_is_wanted_and_as_many_clean_ones_as_asked() -> None:
    result, tables = ok(job(capture={"mode": "none", "num_clean_passes": 2}))
    assert [(p.pass_name, p.index) for p in result.passes] == [("clean", 0), ("clean", 1)]
    assert tables.stages == []
    assert {r.pass_index for r in tables.requests} == {0, 1}
    assert result.stage_costs, "floors come from shapes, not from timers"


def test_two_runs_count_the_same() -> None:
    assert ok(job())[0].counters == ok(job())[0].counters


def test_wrong_output_before_timing_leaves_no_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parity fails: status incorrect, and by construction no number."""
    truth = parity.autoregressive_outputs

    def other(*args: Any) -> dict[int, tuple[int, ...]]:
        return {request: (*tokens[:-1], tokens[-1] ^ 1) for request, tokens in truth(*args).items()}

    monkeypatch.setattr(parity, "autoregressive_outputs", other)
    result, tables = measured(job())
    assert isinstance(result, IncorrectResult)
    assert tables is None
    assert result.parity.divergences[0].position == 3
    assert not hasattr(result, "passes")


def test_timed_outputs_are_held_against_the_ar_case(tmp_path: Path) -> None:
    _, tables = ok(job("ar"))
    path = tmp_path / "requests.parquet"
    write_table(path, RequestRecord, tables.requests)
    result, _ = ok(job(reference=str(path)))
    assert result.parity.status == "identical"
    assert "3 timed outputs against the `ar` case" in result.parity.detail
    last = tables.requests[2]
    wrong = last.model_copy(update={"tokens": (*last.tokens[:6], last.tokens[6] ^ 1, *last.tokens[7:])})
    write_table(path, RequestRecord, [*tables.requests[:2], wrong])
    incorrect, rows = measured(job(reference=str(path)))
    assert isinstance(incorrect, IncorrectResult)
    assert rows is None
    assert (incorrect.parity.divergences[0].prompt_id, incorrect.parity.divergences[0].position) == (last.prompt_id, 6)


def test_outputs_of_other_prompts_are_no_reference(tmp_path: Path) -> None:
    _, tables = ok(job("ar"))
    path = tmp_path / "requests.parquet"
    write_table(path, RequestRecord, [r.model_copy(update={"prompt_id": "x"}) for r in tables.requests])
    with pytest.raises(DdbenchError, match="other prompts"):
        measured(job(reference=str(path)))


def test_sampled_output_has_no_single_right_answer() -> None:
    result, _ = ok(job(sampling="stochastic"))
    assert result.parity.status == "not_applicable"
    assert "distribution" in result.parity.detail


def test_what_an_acceptance_length_is_worth_is_said() -> None:
    """H109, H110: random weights, random prompts and replayed drafts are labelled."""
    result, _ = ok(job())
    assert result.models.acceptance == "random_weights"
    assert any("random weights" in text for text in result.warnings)
    assert any("random token ids" in text for text in result.warnings)
    assert ok(job("ar"))[0].models.acceptance == "none"
    assert ok(job(draft="random"))[0].models.acceptance == "random_drafter"
    replayed, _ = ok(job(draft="oracle", oracle_quality=(0.9,) * 4))
    assert replayed.models.acceptance == "replayed"
    assert replayed.counters["tokens_accepted"] > result.counters["tokens_accepted"]


def test_the_card_names_the_block_that_ran_and_a_drafter_only_where_one_ran() -> None:
    """H20: a block smaller than the trained one costs acceptance and has to be seen."""
    card = ok(job("ddtree", block_size=3))[0].models
    assert (card.block_size, card.trained_block_size) == (3, 5)
    assert (card.drafter, card.num_drafter_parameters > 0) == ("tiny-gqa-dflash", True)
    assert ok(job("chain"))[0].models.block_size == 5
    ar = ok(job("ar"))[0].models
    assert (ar.block_size, ar.trained_block_size) == (None, None)
    lookup = ok(job("prompt_lookup"))[0].models
    assert (lookup.block_size, lookup.trained_block_size) == (5, None)
    for other in (ar, lookup):
        assert (other.drafter, other.drafter_digest, other.num_drafter_parameters) == ("none", "none", 0)


def test_a_part_that_took_another_path_is_not_measured_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """H29: a fused run that fell back is a failure, not a slow fused run."""
    real = measure.pass_rows

    def fell_back(probe: Any, *args: Any) -> Any:
        probe.path_used("materialize", "sequential")
        return real(probe, *args)

    monkeypatch.setattr(measure, "pass_rows", fell_back)
    with pytest.raises(DdbenchError, match="'fused' was asked for, 'sequential' ran"):
        measured(job())


def test_an_op_that_leaves_the_set_of_kernels_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """As group-limited routing does, which is plain torch under every name."""
    assert not any(part.startswith("kernels.") for part in ok(job())[0].path_used)
    monkeypatch.setattr("ddbench.engine.engine.plain_ops", lambda module, kernels: ("moe_route",))
    result, _ = ok(job())
    assert result.path_used["kernels.moe_route"] == "torch"
    assert "moe_route ran in plain torch: kernels 'torch' have nothing for what this case needs" in result.warnings


def test_kernels_that_were_launched_are_on_record_and_looked_for_in_nothing_that_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ok(job())[0].kernels_launched == {}
    phases: list[str] = []
    within: list[int] = []

    @contextmanager
    def seen(spec: EngineSpec, names: set[str]) -> Iterator[None]:
        within.append(1)
        names.add(f"kernel {len(within)}")
        yield
        within.append(-1)

    def timed(*given: Any) -> Any:
        phases.append("timed")
        assert sum(within) == 0
        return real(*given)

    real = measure._run_passes
    monkeypatch.setattr(measure, "_run_passes", timed)
    monkeypatch.setattr(measure, "launches_seen", seen)
    monkeypatch.setattr(measure, "by_file", lambda names: {"file": tuple(sorted(names))})
    assert ok(job())[0].kernels_launched == {"file": ("kernel 1", "kernel 3")}
    assert phases == ["timed"]


def test_what_the_counting_pass_replays_is_not_counted_as_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = SimpleNamespace(replays=0, check=lambda: None)
    events.counters = lambda: {"graph_replays": events.replays}
    real_passes, real_count = measure._run_passes, measure.count_ops

    def replaying(real: Any, count: int) -> Any:
        def run(*args: Any) -> Any:
            events.replays += count
            return real(*args)

        return run

    monkeypatch.setattr(measure, "watched", lambda engine: nullcontext(events))
    monkeypatch.setattr(measure, "_run_passes", replaying(real_passes, 5))
    monkeypatch.setattr(measure, "count_ops", replaying(real_count, 100))
    assert ok(job("ar"))[0].counters["graph_replays"] == 5


def test_phases_are_announced_in_order() -> None:
    phases: list[str] = []
    measure_case(job("ar"), phases.append)
    assert phases == [
        "loading",
        "reserving",
        "parity",
        "warm-up",
        "clean pass",
        "attributed pass",
        "counting ops",
        "checking outputs",
    ]
    phases.clear()
    measure_case(job("ar", target="tiny-mla-moe"), phases.append)
    assert phases[-2:] == ["checking outputs", "counting experts"], "after all that is timed, and held against others"


def test_a_result_says_how_many_experts_were_touched() -> None:
    """nano-k2: 2 of 16 experts per token; the floor of verify rests on the count, the exact counter does not."""
    result, _ = ok(job(target="nano-k2", experts="packed"))
    use = result.expert_use
    assert isinstance(use, ExpertUse)
    assert 2 <= use.touched <= use.held == 16
    assert 0 < use.uniform < 16
    costs = {cost.stage: cost for cost in result.stage_costs}
    verify = costs["verify"]
    assert not isinstance(verify.counted_bytes, NotMeasured)
    assert verify.fewest_bytes - verify.num_bytes == verify.counted_bytes - verify.expected_bytes
    assert verify.unsure_bytes == 0
    assert all(cost.fewest_bytes == cost.num_bytes for cost in result.stage_costs if cost.stage != "verify")
    assert OkResult.model_validate_json(result.model_dump_json()) == result
    dense, _ = ok(job())
    assert dense.expert_use == NotMeasured(not_measured="the target has no routed experts")
    assert all(cost.fewest_bytes == cost.num_bytes for cost in dense.stage_costs)


def test_results_from_before_experts_were_counted_still_load() -> None:
    values = ok(job(target="tiny-mla-moe"))[0].model_dump(mode="json")
    del values["expert_use"]
    for cost in values["stage_costs"]:
        del cost["counted_bytes"]
    old = OkResult.model_validate(values)
    assert old.expert_use == NotMeasured(not_measured="written before experts were counted")
    assert [cost.fewest_bytes for cost in old.stage_costs] == [cost.num_bytes for cost in old.stage_costs]
    assert [cost.unsure_bytes for cost in old.stage_costs] == [cost.expected_bytes for cost in old.stage_costs]


def test_the_memory_of_a_case_is_that_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting experts takes storage of its own: the peak is read before it."""
    happened: list[str] = []

    def noting(name: str) -> Any:
        real = getattr(measure, name)
        return lambda *args: happened.append(name) or real(*args)

    for name in ("peak_memory_bytes", "count_experts"):
        monkeypatch.setattr(measure, name, noting(name))
    ok(job("ar", target="tiny-mla-moe"))
    assert happened == ["peak_memory_bytes", "count_experts"]


# ------------------------------------------------------------------------------------------------ the case boundary


def raising(error: Exception) -> Any:
    def measure_it(one: Job, notify: Any) -> Any:
        raise error

    return measure_it


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (UserError("target has no prompts"), "error", "target has no prompts"),
        (ValueError("bad\nworse"), "error", "ValueError: bad"),
        (MemoryError(), "out_of_memory", "no message"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out_of_memory", "CUDA out of memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "out_of_memory", "DefaultCPUAllocator"),
        (AssertionError("a round was started"), "error", "AssertionError: a round was started"),
    ],
)
def test_every_failure_becomes_a_typed_result(
    error: Exception, outcome: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, tables = guarded(job(), lambda phase: None, raising(error))
    assert isinstance(result, FailedResult)
    assert tables is None
    assert result.outcome == outcome
    assert result.reason.startswith(reason)
    is_ours = isinstance(error, DdbenchError)
    assert ("Traceback" in capsys.readouterr().err) is not is_ours, "what we explain needs no traceback"


def test_interruption_is_not_a_failure_of_the_case() -> None:
    with pytest.raises(KeyboardInterrupt):
        guarded(job(), lambda phase: None, raising(KeyboardInterrupt()))  # type: ignore[arg-type]


def test_a_runtime_error_is_not_taken_for_memory() -> None:
    assert classify(RuntimeError("shapes do not match"))[0] == "error"


@pytest.mark.parametrize(
    ("times", "expected"),
    [((), False), ((9,), False), ((100, 50), False), ((100, 50, 49), True), ((100, 120), True), ((100, 94), False)],
)
def test_a_warm_up_has_settled_when_it_gains_no_more(times: tuple[int, ...], expected: bool) -> None:
    assert has_settled(times) is expected


def test_a_warm_up_ends_and_says_how_long_it_took() -> None:
    result, _ = measure_case(job("ddtree"), lambda phase: None)
    assert isinstance(result, OkResult)
    assert 2 <= len(result.warmup_ns) <= MOST_WARMUPS
    assert min(result.warmup_ns) > 0


def test_without_warm_up_requests_nothing_is_warmed_up() -> None:
    cold = job("ar")
    capture = cold.case.capture.model_copy(update={"num_warmup_requests": 0})
    result, _ = measure_case(cold.model_copy(update={"case": cold.case.model_copy(update={"capture": capture})}), print)
    assert isinstance(result, OkResult)
    assert result.warmup_ns == ()


def observed(name: str, wall_ns: int) -> Observed:
    unread = NotMeasured(not_measured="made up")
    load = LoadSample(
        host_load_before=unread, host_load_after=unread, sm_clock_mhz=unread, temperature_c=unread,
        throttle_reasons=unread,
    )  # fmt: skip
    summary = PassSummary(pass_name=name, index=0, wall_ns=wall_ns, num_emitted=1, load=load)
    return Observed(summary, PassRows([], [], [], [], {}), {})


@pytest.mark.parametrize(("attributed_ns", "is_warned"), [(1100, False), (900, False), (800, True)])
def test_a_clean_pass_that_was_not_warm_is_told(attributed_ns: int, is_warned: bool) -> None:
    """Stage timers cost time; a pass that is faster with them than without shows that the first one paid for warmth."""
    result, _ = measure_case(job("ar"), lambda phase: None)
    assert isinstance(result, OkResult)
    passes = [observed("clean", 1000), observed("attributed", attributed_ns)]
    texts = warnings_of(result.case, result.models, passes, result.warmup_ns)
    assert any("was not warm" in text for text in texts) is is_warned


def test_a_warm_up_that_never_settled_is_told() -> None:
    result, _ = measure_case(job("ar"), lambda phase: None)
    assert isinstance(result, OkResult)
    (text,) = (t for t in warnings_of(result.case, result.models, [observed("clean", 9)], (9, 5)) if "warm-up" in t)
    assert text == "the warm-up was still getting faster after 2 runs"


@pytest.mark.parametrize(("count", "expected"), [(None, 0), (0, 0), (2, 2)])
def test_rehearsals_run_before_anything_is_timed(count: int | None, expected: int) -> None:
    asked = job("ddtree")
    capture = asked.case.capture.model_copy(update={"num_rehearsals": count})
    phases: list[str] = []
    measure_case(asked.model_copy(update={"case": asked.case.model_copy(update={"capture": capture})}), phases.append)
    assert phases.count("rehearsal") == expected
    if expected:
        assert phases.index("clean pass") > phases.index("rehearsal") > phases.index("warm-up")


def test_a_host_that_stays_busy_is_waited_for_once_a_case_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        arm="ar",
        engine=EngineSpec(target="tiny-gqa", device="cuda", **ARMS["ar"]),
        workload=WorkloadSpec(num_requests=1),
        capture=CaptureSpec(num_clean_passes=3, mode="none"),
    )
    words: list[str] = []
    monkeypatch.setattr(measure, "host_load", lambda: 0.9)
    monkeypatch.setattr(measure, "calm_load", lambda load: 0.9)
    monkeypatch.setattr(measure, "_run_pass", lambda *args: (None, 0.9))
    measure._run_passes(case, None, (), words.append)  # type: ignore[arg-type]
    assert [word for word in words if "waiting" in word] == ["waiting for other processes to leave the CPUs alone"]
    assert [word for word in words if "pass" in word] == ["clean pass 1", "clean pass 2", "clean pass 3"]
