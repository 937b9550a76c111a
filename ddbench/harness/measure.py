"""One case in its own process: build, prove correct, warm up, time. Returns records; writes nothing.

The order is fixed: parity first, so that no timing exists of a wrong engine; then clean passes, from which alone speed
is read; then the pass with stage timers, and a short one that counts ops. Outputs of all passes are held against each
other and, where the sweep has one, against the `ar` case of the same workload. Last the experts that tokens chose are
counted: by then the engine's storage is no longer needed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.errors import DdbenchError
from ddbench.harness import parity
from ddbench.harness.capture import CAPTURES, CleanProbe, calm_load, host_load, is_busy, load_sample
from ddbench.harness.expert_census import count_experts
from ddbench.harness.graph_events import watched
from ddbench.harness.launched import by_file, launches_seen
from ddbench.harness.observe import count, output_digest, pass_rows, replayed
from ddbench.harness.op_counts import count_ops
from ddbench.harness.run import Job
from ddbench.harness.store import TABLES, CaseTables, clean_requests
from ddbench.harness.summary import (
    Observed,
    case_costs,
    has_settled,
    model_card,
    path_used,
    peak_memory_bytes,
    process_seconds,
    warnings_of,
)
from ddbench.harness.workload import Workload, build_workload
from ddbench.models.weights import Models, load_models
from ddbench.records import CaseResult, IncorrectResult, NotMeasured, OkResult, Parity, Pass, PassSummary
from ddbench.spec import Case, EngineSpec

WARMUP_TOKENS = 16  # per warm-up request at most: enough for every code path, short beside the measurement
MOST_WARMUPS = 8
WARMUP_LIMIT_NS = 30_000_000_000

Notify = Callable[[str], None]


def measure_case(job: Job, notify: Notify) -> tuple[CaseResult, CaseTables | None]:
    """Run one case. Faults of the engine or of the request come out as exceptions."""
    case = job.case
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    notify("loading")
    if case.engine.num_threads is not None:
        torch.set_num_threads(case.engine.num_threads)
    models = load_models(case.engine)
    workload = build_workload(case.workload, models.target.shape, models.folder, case.capture.num_warmup_requests)
    engine = build_engine(case.engine, models, workload, case.workload.concurrency)
    notify("reserving")
    everything = all_requests(case, workload)
    launched: set[str] = set()
    with launches_seen(case.engine, launched):
        engine.reserve(everything, case.workload.concurrency, times_stages=case.capture.mode != "none")
    notify("parity")
    verdict = check_parity(case, models, engine, workload.measured)
    observed: list[Observed] = []
    op_counts: dict[str, int] = {}
    happened: dict[str, int] = {}
    warmup_ns: tuple[int, ...] = ()
    if verdict.status != "diverged":
        notify("warm-up")
        warmup_ns = warm_up(engine, case, workload.warmup)
        rehearse(engine, case, workload.measured, notify)
        with watched(engine) as events:
            observed = _run_passes(case, engine, workload.measured, notify)
        events.check()
        happened = events.counters()  # before the counting pass, whose replays are not the timed ones
        notify("counting ops")
        with launches_seen(case.engine, launched):
            op_counts = count_ops(engine, workload.measured, case.workload.concurrency)
        notify("checking outputs")
        verdict = parity.merged(verdict, check_outputs(job, models, workload.measured, observed[0].outputs))
    card = model_card(case.engine, models)
    if verdict.status == "diverged":
        wrong = IncorrectResult(
            case_id=job.case_id,
            case=case,
            started_at=started_at,
            seconds=process_seconds(),
            parity=verdict,
            models=card,
        )
        return wrong, None
    peak_memory = peak_memory_bytes(case.engine)  # of what was measured, which the count of experts is no part of
    if models.target.shape.moe is not None:
        notify("counting experts")
    expert_use = count_experts(engine, workload.measured, case.workload.concurrency)
    result = OkResult(
        case_id=job.case_id,
        case=case,
        started_at=started_at,
        seconds=process_seconds(),
        warnings=warnings_of(case, card, observed, warmup_ns, workload.card),
        warmup_ns=warmup_ns,
        parity=verdict,
        models=card,
        prompts=workload.card,
        passes=tuple(one.summary for one in observed),
        stage_costs=case_costs(case, models, observed, expert_use),
        expert_use=expert_use,
        path_used=path_used(case.engine, observed),
        kernels_launched=by_file(launched),
        counters=count(observed[0].rows) | op_counts | happened,
        output_digest=output_digest(observed[0].outputs),
        peak_memory_bytes=peak_memory,
    )
    return result, _tables(observed)


# ---------------------------------------------------------------------------------------------------------- building


def all_requests(case: Case, workload: Workload) -> tuple[Request, ...]:
    """What a case will run: storage is reserved for all of it at once."""
    return (*workload.measured, *_warmup_requests(workload.warmup, case.workload.concurrency))


def build_engine(spec: EngineSpec, models: Models, workload: Workload, concurrency: int) -> Engine:
    """The engine that the spec names; an oracle is told the true continuation of every request first."""
    if spec.draft != "oracle":
        return Engine(spec, models)
    requests = (*workload.measured, *_warmup_requests(workload.warmup, concurrency))
    return Engine(spec, models, continuations=parity.continuations(spec, models, requests))


# ------------------------------------------------------------------------------------------------------- correctness


def check_parity(case: Case, models: Models, engine: Engine, requests: Sequence[Request]) -> Parity:
    """The case's engine, batched, against plain decoding of one request at a time, on the first few prompts."""
    chosen = [
        replace(request, max_new_tokens=min(request.max_new_tokens, case.capture.parity_tokens))
        for request in requests[: case.capture.parity_prompts]
    ]
    if case.engine.sampling != "greedy":
        return Parity(
            status="not_applicable",
            num_prompts=0,
            num_tokens=0,
            detail=f"sampling '{case.engine.sampling}' has no single right output: `ddbench check --only distribution`",
        )
    expected = parity.autoregressive_outputs(case.engine, models, chosen)
    got = parity.outputs_of(engine, chosen, case.workload.concurrency)
    logits = parity.next_token_logits(case.engine, models)
    detail = f"{len(chosen)} prompts x {case.capture.parity_tokens} tokens against plain decoding before timing"
    return parity.compare(case.engine, chosen, expected, got, logits, detail)


def check_outputs(job: Job, models: Models, requests: Sequence[Request], got: parity.Outputs) -> Parity:
    """What was timed against the outputs of the sweep's `ar` case, where there is one."""
    none = Parity(status="not_applicable", num_prompts=0, num_tokens=0)
    if job.case.engine.sampling != "greedy":
        return none
    if job.reference is None:
        missing = "the sweep has no `ar` case of this workload to hold the timed outputs against"
        return none if job.case.arm == "ar" else none.model_copy(update={"detail": missing})
    expected = _reference_outputs(Path(job.reference), requests)
    logits = parity.next_token_logits(job.case.engine, models)
    detail = f"{len(requests)} timed outputs against the `ar` case"
    return parity.compare(job.case.engine, requests, expected, got, logits, detail)


def _reference_outputs(path: Path, requests: Sequence[Request]) -> dict[int, tuple[int, ...]]:
    clean = clean_requests(path)
    for request in requests:
        if clean.get(request.request_id, {}).get("prompt_id") != request.prompt_id:
            raise DdbenchError(f"the `ar` case's outputs are for other prompts than request {request.request_id}'s")
    return {request_id: tuple(row["tokens"]) for request_id, row in clean.items()}


# ------------------------------------------------------------------------------------------------------------ passes


def warm_up(engine: Engine, case: Case, requests: Sequence[Request]) -> tuple[int, ...]:
    """Other prompts than the measured ones, at the measured batch size, a few tokens each, until the time settles.

    -> ns of every run. The first ones load kernels and choose algorithms; how many of them do differs by device.
    """
    chosen = _warmup_requests(requests, case.workload.concurrency)
    times: list[int] = []
    while chosen and not has_settled(times) and len(times) < MOST_WARMUPS and sum(times) < WARMUP_LIMIT_NS:
        synchronize(case.engine)
        start = time.perf_counter_ns()
        engine.run(chosen, case.workload.concurrency)
        synchronize(case.engine)
        times.append(time.perf_counter_ns() - start)
    return tuple(times)


def rehearse(engine: Engine, case: Case, requests: Sequence[Request], notify: Notify) -> None:
    """What is measured, untimed: on a GPU every new shape costs once, and other prompts have other lengths.

    Without it the first pass of the tree and chain arms of nano-k2 took 2 to 4 times as long as the second (eager,
    bfloat16, H200), after a warm-up that had settled. The engine keeps nothing from pass to pass that could flatter.
    """
    count = case.capture.num_rehearsals
    for _ in range(int(case.engine.device == "cuda") if count is None else count):
        notify("rehearsal")
        engine.run(requests, case.workload.concurrency)


def _warmup_requests(requests: Sequence[Request], concurrency: int) -> list[Request]:
    """As many as fill the batch, taking the prompts again where there are fewer."""
    if not requests:
        return []
    chosen = (requests[index % len(requests)] for index in range(max(len(requests), concurrency)))
    return [
        replace(
            request,
            request_id=requests[0].request_id + index,
            max_new_tokens=min(WARMUP_TOKENS, request.max_new_tokens),
        )
        for index, request in enumerate(chosen)
    ]


def _run_passes(case: Case, engine: Engine, requests: Sequence[Request], notify: Notify) -> list[Observed]:
    observed = []
    load, is_patient = host_load(), True
    plan: list[tuple[Pass, int, CleanProbe]] = [
        ("clean", index, CleanProbe()) for index in range(case.capture.num_clean_passes)
    ]
    attributed = CAPTURES[case.capture.mode]
    if attributed is not None:
        plan.append(("attributed", 0, attributed(case.engine.device)))
    for name, index, probe in plan:
        notify(f"{name} pass" + (f" {index + 1}" if case.capture.num_clean_passes > 1 else ""))
        if is_patient and is_busy(load, case.engine.device):
            notify("waiting for other processes to leave the CPUs alone")
            load = calm_load(load)
            is_patient = not is_busy(load, case.engine.device)  # who was busy for so long stays so
        observation, load = _run_pass(case, engine, requests, name, index, probe, load)
        observed.append(observation)
    return observed


def _run_pass(
    case: Case,
    engine: Engine,
    requests: Sequence[Request],
    name: Pass,
    index: int,
    probe: CleanProbe,
    load_before: float | NotMeasured,
) -> tuple[Observed, float | NotMeasured]:
    gc.collect()
    synchronize(case.engine)
    start = time.perf_counter_ns()
    finished = engine.run(requests, case.workload.concurrency, probe)
    synchronize(case.engine)
    wall_ns = time.perf_counter_ns() - start
    load_after = host_load()
    rows = pass_rows(probe, requests, finished, name, index, start)
    summary = PassSummary(
        pass_name=name,
        index=index,
        wall_ns=wall_ns,
        num_emitted=sum(len(done.tokens) for done in finished),
        load=load_sample(load_before, load_after, case.engine.device),
        **replayed(probe),
    )
    return Observed(summary, rows, {done.request_id: done.tokens for done in finished}), load_after


def synchronize(spec: EngineSpec) -> None:
    """Return when the device is idle."""
    if spec.device == "cuda":
        torch.cuda.synchronize()


# ----------------------------------------------------------------------------------------------------- around passes


def _tables(observed: Sequence[Observed]) -> CaseTables:
    return CaseTables(**{name: [row for one in observed for row in getattr(one.rows, name)] for name in TABLES})
