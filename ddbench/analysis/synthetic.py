"""Builds run folders from a seeded model of rounds: for tests of analysis and report, and for timing them.

Nothing here claims anything about an engine. Requests are drawn, a scheduler keeps `concurrency` of them in flight,
every round accepts a truncated geometric number of tokens and takes a time that grows with the verified width, so that
the book-keeping identities hold and the truth behind every number is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ddbench.analysis.settings import uses_drafter
from ddbench.analysis.synthetic_captures import CapturePlan, write_captures
from ddbench.analysis.synthetic_rounds import AR_SHARES, HORIZON, STAGE_SHARES, Simulation, answer_to, luck_of
from ddbench.analysis.tables import TABLES, table_schema
from ddbench.engine.stages import Stage
from ddbench.parquet_files import write_parquet
from ddbench.records import (
    CacheLabel,
    CaseResult,
    CeilingKind,
    Ceilings,
    CeilingSample,
    Divergence,
    Environment,
    FailedResult,
    IncorrectResult,
    LoadSample,
    Manifest,
    ModelCard,
    NotMeasured,
    OkResult,
    Parity,
    Pass,
    PassSummary,
    ResultFile,
    SkippedCase,
    StageCost,
    When,
)
from ddbench.spec import ARMS, UNUSED, Case, EngineSpec, ExperimentSpec, WorkloadSpec

_CREATED = "2025-01-01T00:00:00Z"
Rows = list[tuple[Any, ...]]
_UNREAD = NotMeasured(not_measured="a synthetic run has no machine")


@dataclass(frozen=True)
class SyntheticPlan:
    """What the run folder is to hold."""

    name: str = "synthetic"
    question: str = "Does a draft tree pay over a chain, and from which concurrency on does it stop?"
    cases: tuple[Case, ...] = ()
    seed: int = 0
    incorrect: tuple[int, ...] = ()  # places in `cases` whose parity fails
    failed: tuple[int, ...] = ()  # places whose process runs out of memory
    not_run: tuple[int, ...] = ()  # places without a result
    skipped: tuple[SkippedCase, ...] = ()
    loops: bool = False  # every third output ends in a loop
    # Two runs of one experiment: the same `seed` gives the same prompts and, with `machine`, the same acceptance in
    # every repeat, as greedy decoding does; `machine` alone decides the noise of the times.
    machine: int | None = None
    slow: Mapping[str, float] = field(default_factory=dict)  # stage -> how many times as long it takes, in draft arms
    slow_arms: tuple[str, ...] = ()  # of these only; none given: of all
    agreement: float = 1.0  # how often a drafted token is right, times what it would be
    extra_ops: Mapping[str, int] = field(default_factory=dict)  # stage -> ops that a round dispatches beyond 40
    usual: Mapping[str, float] = field(default_factory=dict)  # executor, tree_build -> its rounds over the usual ones
    ceilings: Ceilings | None = None
    interleaved_with: str | None = None
    turn: int = 0  # 0: runs first in even blocks, 1: in odd ones
    experiment: dict[str, Any] = field(default_factory=dict)
    captures: Mapping[int, CapturePlan] = field(default_factory=dict)  # place in `cases` -> what profilers recorded


def make_cases(
    arms: Iterable[str] = tuple(ARMS),
    concurrencies: Iterable[int] = (1, 4),
    node_budgets: Sequence[int] = (16,),
    num_requests: int = 12,
    max_new_tokens: int = 48,
    num_blocks: int = 1,
    **engine: Any,
) -> tuple[Case, ...]:
    """The product of arms, concurrencies and node budgets (only ddtree has one)."""
    return tuple(
        Case(
            arm=arm,
            engine=EngineSpec(**{**engine, "node_budget": budget, **ARMS[arm]}),
            workload=WorkloadSpec(num_requests=num_requests, max_new_tokens=max_new_tokens, concurrency=concurrency),
            block=block,
            shown=("node_budget",) if len(node_budgets) > 1 and arm == "ddtree" else (),
        )
        for block in range(num_blocks)
        for concurrency in concurrencies
        for arm in arms
        for budget in (node_budgets if arm == "ddtree" else node_budgets[:1])
    )


def build_run(folder: Path, plan: SyntheticPlan) -> Path:
    """Write the run folder and return it."""
    case_ids = tuple(f"{index:04d}-{case.digest()[:8]}" for index, case in enumerate(plan.cases))
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    for index, (case_id, case) in enumerate(zip(case_ids, plan.cases, strict=True)):
        if index not in plan.not_run:
            _write_case(folder / "cases" / case_id, case_id, case, index, plan)
    manifest = Manifest(
        run_id=f"20250101T000000Z-{plan.name}",
        ddbench_version="0.1.0",
        created_at=_CREATED,
        experiment=ExperimentSpec(name=plan.name, question=plan.question, **plan.experiment),
        environment=synthetic_environment(),
        case_ids=case_ids,
        cases=plan.cases,
        skipped=plan.skipped,
        interleaved_with=plan.interleaved_with,
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    if plan.ceilings is not None:
        (folder / "ceilings.json").write_text(plan.ceilings.model_dump_json(indent=1), encoding="utf-8")
    return folder


def synthetic_environment() -> Environment:
    """A machine that does not exist."""
    return Environment(
        platform="Linux",
        machine="x86_64",
        cpu_model="Synthetic 2-core",
        num_cpus=2,
        memory_bytes=8_000_000_000,
        device="cpu",
        device_memory_bytes=_UNREAD,
        driver=_UNREAD,
        power_cap_w=_UNREAD,
        libraries={"python": "3.11.0", "torch": "2.9.0", "triton": "absent"},
        num_threads=2,
        code_digest="0" * 16,
        commit=_UNREAD,
        is_dirty=_UNREAD,
        parts_origin="checkout",
    )


def synthetic_ceilings(
    amounts: Mapping[tuple[CeilingKind, CacheLabel], float],
    spread: float = 0.0,
    moments: Sequence[When] = ("before",),
    cache_bytes: int = 1 << 25,
    dtype: str = "float32",
) -> Ceilings:
    """What that machine can do at best: (kind, cache) -> amount, with quartiles that far to either side."""
    samples = tuple(
        CeilingSample(
            kind=kind,
            cache=cache,
            when=when,
            dtype=dtype,
            num_threads=2,
            working_set_bytes=1_000_000,
            amount=amount,
            low=(1 - spread) * amount,
            high=(1 + spread) * amount,
            num_samples=9,
        )
        for (kind, cache), amount in amounts.items()
        for when in moments
    )
    return Ceilings(device="cpu", last_level_cache_bytes=cache_bytes, samples=samples)


def _write_case(folder: Path, case_id: str, case: Case, index: int, plan: SyntheticPlan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {"case_id": case_id, "case": case, "started_at": _started_at(case, plan), "seconds": 1.5}
    result: CaseResult
    if index in plan.failed:
        result = FailedResult(**common, outcome="out_of_memory", reason="the allocator gave up at 7.9 GB", log_tail="")
    elif index in plan.incorrect:
        gap = Divergence(prompt_id="p3", position=17, expected=12, got=99, logit_margin=0.75)
        parity = Parity(status="diverged", num_prompts=4, num_tokens=96, divergences=(gap,))
        result = IncorrectResult(**common, parity=parity, models=model_card(case))
    else:
        ok, steps = _ok_result(folder, common, case, plan)
        if index in plan.captures:
            write_captures(folder, case, ok, steps, plan.captures[index])
        result = ok
    (folder / "result.json").write_text(ResultFile(result=result).model_dump_json(indent=1), encoding="utf-8")


def _started_at(case: Case, plan: SyntheticPlan) -> str:
    """Two minutes a block: the side whose turn it is has the first."""
    minutes = 2 * case.block + (case.block + plan.turn) % 2
    return (datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)).isoformat(timespec="milliseconds")


def _ok_result(folder: Path, common: dict[str, Any], case: Case, plan: SyntheticPlan) -> tuple[OkResult, Rows]:
    """The result, and the rows of its steps."""
    machine = () if plan.machine is None else (plan.machine,)
    rng = np.random.default_rng((plan.seed, case.block, luck_of(case), *machine))
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    keys: list[tuple[Pass, int]] = [("clean", index) for index in range(case.capture.num_clean_passes)]
    if case.capture.mode == "stages":
        keys.append(("attributed", 0))
    answers = [answer_to(case.workload, index, plan) for index in range(case.workload.num_requests)]
    passes = []
    for pass_name, index in keys:
        wall_ns, num_emitted = Simulation(case, rng, answers, (pass_name, index), plan).run(rows)
        summary = PassSummary(
            pass_name=pass_name, index=index, wall_ns=wall_ns, num_emitted=num_emitted, load=_load_sample()
        )
        passes.append(summary)
    for name, record in TABLES.items():
        schema = table_schema(record)
        columns = zip(*rows[name], strict=True) if rows[name] else ([] for _ in schema.names)
        arrays = [pa.array(list(column), type=item.type) for column, item in zip(columns, schema, strict=True)]
        write_parquet(folder / f"{name}.parquet", pa.Table.from_arrays(arrays, schema=schema))
    shares = AR_SHARES if case.arm == "ar" else STAGE_SHARES
    result = OkResult(
        **common,
        parity=Parity(status="identical", num_prompts=4, num_tokens=96),
        models=model_card(case),
        passes=tuple(passes),
        stage_costs=tuple(
            StageCost(
                stage=stage.value,
                num_bytes=1_000_000,
                num_flops=2_000_000,
                basis="batch 1, width 17",
                context_bytes=400_000 if stage is Stage.VERIFY else _UNREAD,
            )
            for stage in shares
        ),
        path_used={"attention": case.engine.attention, "executor": case.engine.executor},
        counters=_counters(case, rows, plan),
        peak_memory_bytes=_UNREAD,
    )
    return result, rows["steps"]


def _counters(case: Case, rows: dict[str, list[tuple[Any, ...]]], plan: SyntheticPlan) -> dict[str, int]:
    rounds = [row for row in rows["rounds"] if row[:2] == ("clean", 0)]
    shares = AR_SHARES if case.arm == "ar" else STAGE_SHARES
    num_steps = 8  # of the counted pass
    ops = {stage.value: (40 + plan.extra_ops.get(stage.value, 0)) * num_steps for stage in shares}
    return {
        "num_rounds": len(rounds),
        "nodes_verified": sum(row[5] for row in rounds),
        "tokens_accepted": sum(row[6] for row in rounds),
        "counted_steps": num_steps,
        "torch_ops": sum(ops.values()),
        **{f"torch_ops.{stage}": count for stage, count in ops.items()},
    }


def model_card(case: Case) -> ModelCard:
    has_draft = case.engine.draft != UNUSED
    has_drafter = uses_drafter(case.engine)
    return ModelCard(
        target=case.engine.target,
        target_digest="a" * 16,
        drafter=f"{case.engine.target} drafter" if has_drafter else "none",
        drafter_digest="b" * 16 if has_drafter else "none",
        block_size=(case.engine.block_size or HORIZON + 1) if has_draft else None,
        trained_block_size=HORIZON + 1 if has_drafter else None,
        acceptance="measured" if has_draft else "none",
        num_target_parameters=9_000_000,
        num_drafter_parameters=1_000_000 if has_drafter else 0,
    )


def _load_sample() -> LoadSample:
    return LoadSample(
        host_load_before=0.02,
        host_load_after=0.41,
        sm_clock_mhz=_UNREAD,
        temperature_c=_UNREAD,
        throttle_reasons=_UNREAD,
    )
