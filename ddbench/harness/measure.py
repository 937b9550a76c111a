"""One case in its own process: build, prove correct, warm up, time. Returns records; writes nothing.

The order is fixed: parity first, so that no timing exists of a wrong engine; then clean passes, from which alone speed
is read; then the pass with stage timers. Outputs of all passes are held against each other and, where the sweep has
one, against the `ar` case of the same workload.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.stages import ROUND_STAGES, Stage
from ddbench.engine.types import Request
from ddbench.errors import DdbenchError
from ddbench.harness import parity
from ddbench.harness.capture import CAPTURES, CleanProbe, host_load, load_sample
from ddbench.harness.costs import TypicalRound, stage_costs
from ddbench.harness.observe import PassRows, count, pass_rows, typical_round
from ddbench.harness.run import Job
from ddbench.harness.store import CaseTables, read_table, table_schema
from ddbench.harness.workload import Workload, build_workload
from ddbench.models.weights import Models, load_models
from ddbench.records import (
    CaseResult,
    IncorrectResult,
    ModelCard,
    NotMeasured,
    OkResult,
    Parity,
    Pass,
    PassSummary,
    RequestRecord,
    StageCost,
)
from ddbench.spec import PART_FIELDS, UNUSED, Case, EngineSpec

WARMUP_TOKENS = 16  # per warm-up request at most: enough for every code path, short beside the measurement
BUSY_HOST = 0.5  # share of all CPU time taken by others from which a warning is due
REPETITIVE = 0.5  # share of repeated 4-grams from which an output counts as degenerate
DRAFTER_DRAFTS = ("dflash", "oracle", "random")  # drafts that run the drafter model

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Observed:
    summary: PassSummary
    rows: PassRows
    outputs: dict[int, tuple[int, ...]]


def measure_case(job: Job, notify: Notify) -> tuple[CaseResult, CaseTables | None]:
    """Run one case. Faults of the engine or of the request come out as exceptions."""
    case = job.case
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    notify("loading")
    if case.engine.num_threads is not None:
        torch.set_num_threads(case.engine.num_threads)
    models = load_models(case.engine)
    workload = build_workload(case.workload, models.target.shape, models.folder, case.capture.num_warmup_requests)
    engine = build_engine(case.engine, models, workload)
    notify("parity")
    verdict = check_parity(case, models, engine, workload.measured)
    observed: list[_Observed] = []
    if verdict.status != "diverged":
        notify("warm-up")
        warm_up(engine, case, workload.warmup)
        observed = _run_passes(case, engine, workload.measured, notify)
        notify("checking outputs")
        verdict = parity.merged(verdict, check_outputs(job, models, workload.measured, observed[0].outputs))
    card = model_card(case.engine, models)
    common = {
        "case_id": job.case_id, "case": case, "started_at": started_at, "parity": verdict, "models": card,
    }  # fmt: skip
    if verdict.status == "diverged":
        return IncorrectResult(**common, seconds=_process_seconds()), None
    result = OkResult(
        **common,
        seconds=_process_seconds(),
        warnings=tuple(_warnings(case, card, observed)),
        passes=tuple(o.summary for o in observed),
        stage_costs=_costs(case, models, observed),
        path_used=_path_used(case.engine, observed),
        counters=count(observed[0].rows),
        peak_memory_bytes=_peak_memory_bytes(case.engine),
    )
    return result, _tables(observed)


# ---------------------------------------------------------------------------------------------------------- building


def build_engine(spec: EngineSpec, models: Models, workload: Workload) -> Engine:
    """The engine that the spec names; an oracle is told the true continuation of every request first."""
    if spec.draft != "oracle":
        return Engine(spec, models)
    requests = (*workload.measured, *_warmup_requests(workload.warmup, len(workload.warmup)))
    truth = parity.autoregressive_outputs(spec, models, requests)
    return Engine(spec, models, continuations=truth, oracle_quality=spec.oracle_quality)


def model_card(spec: EngineSpec, models: Models) -> ModelCard:
    facts = models.facts
    return ModelCard(
        target=facts.target,
        target_digest=facts.target_digest,
        drafter=facts.drafter,
        drafter_digest=facts.drafter_digest,
        acceptance=_acceptance_kind(spec, facts.has_trained_weights),
        num_target_parameters=facts.num_target_parameters,
        num_drafter_parameters=facts.num_drafter_parameters,
    )


def _acceptance_kind(spec: EngineSpec, has_trained_weights: bool) -> str:
    special = {UNUSED: "none", "oracle": "replayed", "random": "random_drafter"}
    return special.get(spec.draft, "measured" if has_trained_weights else "random_weights")


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
    rows = read_table(path, table_schema(RequestRecord)).to_pylist()
    clean = {row["request_id"]: row for row in rows if row["pass_name"] == "clean" and row["pass_index"] == 0}
    for request in requests:
        if clean.get(request.request_id, {}).get("prompt_id") != request.prompt_id:
            raise DdbenchError(f"the `ar` case's outputs are for other prompts than request {request.request_id}'s")
    return {request_id: tuple(row["tokens"]) for request_id, row in clean.items()}


# ------------------------------------------------------------------------------------------------------------ passes


def warm_up(engine: Engine, case: Case, requests: Sequence[Request]) -> None:
    """Other prompts than the measured ones, at the measured batch size, a few tokens each."""
    if requests:
        engine.run(_warmup_requests(requests, case.workload.concurrency), case.workload.concurrency)


def _warmup_requests(requests: Sequence[Request], concurrency: int) -> list[Request]:
    """As many as fill the batch, taking the prompts again where there are fewer."""
    first = requests[0].request_id if requests else 0
    return [
        replace(
            requests[index % len(requests)],
            request_id=first + index,
            max_new_tokens=min(WARMUP_TOKENS, requests[index % len(requests)].max_new_tokens),
        )
        for index in range(max(len(requests), concurrency))
    ]


def _run_passes(case: Case, engine: Engine, requests: Sequence[Request], notify: Notify) -> list[_Observed]:
    observed = []
    load = host_load()
    plan: list[tuple[Pass, int, CleanProbe]] = [
        ("clean", index, CleanProbe()) for index in range(case.capture.num_clean_passes)
    ]
    attributed = CAPTURES[case.capture.mode]
    if attributed is not None:
        plan.append(("attributed", 0, attributed(case.engine.device)))
    for name, index, probe in plan:
        notify(f"{name} pass" + (f" {index + 1}" if case.capture.num_clean_passes > 1 else ""))
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
) -> tuple[_Observed, float | NotMeasured]:
    gc.collect()
    _synchronize(case.engine)
    start = time.perf_counter_ns()
    finished = engine.run(requests, case.workload.concurrency, probe)
    _synchronize(case.engine)
    wall_ns = time.perf_counter_ns() - start
    load_after = host_load()
    rows = pass_rows(probe, requests, finished, name, index, start)
    summary = PassSummary(
        pass_name=name,
        index=index,
        wall_ns=wall_ns,
        num_emitted=sum(len(done.tokens) for done in finished),
        load=load_sample(load_before, load_after, case.engine.device),
    )
    return _Observed(summary, rows, {done.request_id: done.tokens for done in finished}), load_after


def _synchronize(spec: EngineSpec) -> None:
    if spec.device == "cuda":
        torch.cuda.synchronize()


# ----------------------------------------------------------------------------------------------------- around passes


def _tables(observed: Sequence[_Observed]) -> CaseTables:
    tables = CaseTables()
    for one in observed:
        tables.requests.extend(one.rows.requests)
        tables.rounds.extend(one.rows.rounds)
        tables.steps.extend(one.rows.steps)
        tables.stages.extend(one.rows.stages)
    return tables


def _costs(case: Case, models: Models, observed: Sequence[_Observed]) -> tuple[StageCost, ...]:
    spec, clean = case.engine, observed[0].rows
    if not clean.rounds:
        return ()
    drafter = models.drafter.shape
    block = (spec.block_size or drafter.block_size) if spec.draft in DRAFTER_DRAFTS else 0
    sampled = {sample.stage for one in observed for sample in one.rows.stages}
    round_: TypicalRound = typical_round(clean, block)
    return stage_costs(
        models.target.shape,
        drafter,
        round_,
        element_bytes=models.target.embedding.weight.element_size(),
        is_packed=spec.experts == "packed",
        stages=sampled or {stage.value for stage in ROUND_STAGES},
    )


def _path_used(spec: EngineSpec, observed: Sequence[_Observed]) -> dict[str, str]:
    """What ran. A part that took another path than the one asked for must not go by the other's name."""
    reported: Mapping[str, str] = {k: v for one in observed for k, v in one.rows.paths.items()}
    for part, name in reported.items():
        if part in PART_FIELDS and name != getattr(spec, part):
            raise DdbenchError(
                f"{part}: '{getattr(spec, part)}' was asked for, '{name}' ran: not measured under its name"
            )
    return {part: reported.get(part, getattr(spec, part)) for part in PART_FIELDS} | dict(reported)


def _warnings(case: Case, card: ModelCard, observed: Sequence[_Observed]) -> list[str]:
    clean, counters = observed[0], count(observed[0].rows)
    texts = []
    if any(one.outputs != clean.outputs for one in observed):
        texts.append("the passes of this case emitted different tokens")
    if card.acceptance == "measured" and counters["num_rounds"] >= 20 and not counters["tokens_accepted"]:
        texts.append("no drafted token was ever accepted: the draft does nothing")
    if card.acceptance == "random_weights":
        texts.append("random weights: the acceptance length means nothing")
    if case.workload.prompts == "random":
        texts.append("prompts are random token ids: acceptance and expert use are not those of real text")
    if case.workload.ignore_stop:
        texts.append("stop tokens were ignored")
    if counters["tokens_repeated"] > REPETITIVE * max(counters["tokens_emitted"], 1):
        texts.append("more than half of the output repeats itself: acceptance is flattered")
    for one in observed:
        loads = [
            x for x in (one.summary.load.host_load_before, one.summary.load.host_load_after) if isinstance(x, float)
        ]
        if loads and max(loads) > BUSY_HOST:
            texts.append(
                f"other processes kept {max(loads):.0%} of the CPUs busy around the {one.summary.pass_name} pass"
            )
    return texts


def _peak_memory_bytes(spec: EngineSpec) -> int:
    """Highest use by this process: of device memory on a GPU, of resident memory on the CPU."""
    if spec.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _process_seconds() -> float:
    return round(time.time() - psutil.Process().create_time(), 3)
