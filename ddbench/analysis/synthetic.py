"""Builds run folders from a seeded model of rounds: for tests of analysis and report, and for timing them.

Nothing here claims anything about an engine. Requests are drawn, a scheduler keeps `concurrency` of them in flight,
every round accepts a truncated geometric number of tokens and takes a time that grows with the verified width, so that
the book-keeping identities hold and the truth behind every number is known.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ddbench.analysis.settings import uses_drafter
from ddbench.analysis.tables import TABLES, table_schema
from ddbench.engine.stages import ROUND_STAGES, Stage
from ddbench.records import (
    CaseResult,
    Ceilings,
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
)
from ddbench.spec import ARMS, UNUSED, Case, EngineSpec, ExperimentSpec, WorkloadSpec

HORIZON = 7
VOCAB = 512
_CREATED = "2025-01-01T00:00:00Z"
_UNREAD = NotMeasured(not_measured="a synthetic run has no machine")

# Arm -> (probability that a drafted token is right, its growth per doubling of the node budget).
QUALITY: dict[str, float] = {"prompt_lookup": 0.25, "chain": 0.6, "chain_via_tree": 0.6, "ddtree": 0.68}
# Share of a round that each stage takes; the rest is host time.
STAGE_SHARES: dict[Stage, float] = {
    Stage.DRAFT: 0.17,
    Stage.TREE_BUILD: 0.07,
    Stage.TREE_COMPILE: 0.03,
    Stage.VERIFY: 0.50,
    Stage.ACCEPT: 0.05,
    Stage.COMMIT: 0.04,
    Stage.MATERIALIZE: 0.06,
}
AR_SHARES: dict[Stage, float] = {Stage.VERIFY: 0.80, Stage.ACCEPT: 0.05, Stage.COMMIT: 0.05}


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
    agreement: float = 1.0  # how often a drafted token is right, times what it would be
    extra_ops: Mapping[str, int] = field(default_factory=dict)  # stage -> ops that a round dispatches beyond 40
    usual: Mapping[str, float] = field(default_factory=dict)  # executor, tree_build -> its rounds over the usual ones
    ceilings: Ceilings | None = None
    interleaved_with: str | None = None
    turn: int = 0  # 0: runs first in even blocks, 1: in odd ones
    experiment: dict[str, Any] = field(default_factory=dict)


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


def _luck_of(case: Case) -> int:
    """A setting's own stream of draws, which a new field of the specs leaves as it is."""
    text = f"{case.label} {case.engine.seed} {case.workload.num_requests} {case.workload.max_new_tokens}"
    return zlib.crc32(text.encode())


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
        result = _ok_result(folder, common, case, plan)
    (folder / "result.json").write_text(ResultFile(result=result).model_dump_json(indent=1), encoding="utf-8")


def _started_at(case: Case, plan: SyntheticPlan) -> str:
    """Two minutes a block: the side whose turn it is has the first."""
    minutes = 2 * case.block + (case.block + plan.turn) % 2
    return (datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)).isoformat(timespec="milliseconds")


def _ok_result(folder: Path, common: dict[str, Any], case: Case, plan: SyntheticPlan) -> OkResult:
    machine = () if plan.machine is None else (plan.machine,)
    rng = np.random.default_rng((plan.seed, case.block, _luck_of(case), *machine))
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    keys: list[tuple[Pass, int]] = [("clean", index) for index in range(case.capture.num_clean_passes)]
    if case.capture.mode == "stages":
        keys.append(("attributed", 0))
    answers = [_answer(case.workload, index, plan) for index in range(case.workload.num_requests)]
    passes = []
    for pass_name, index in keys:
        wall_ns, num_emitted = _Simulation(case, rng, answers, (pass_name, index), plan).run(rows)
        summary = PassSummary(
            pass_name=pass_name, index=index, wall_ns=wall_ns, num_emitted=num_emitted, load=_load_sample()
        )
        passes.append(summary)
    for name, record in TABLES.items():
        schema = table_schema(record)
        columns = zip(*rows[name], strict=True) if rows[name] else ([] for _ in schema.names)
        arrays = [pa.array(list(column), type=item.type) for column, item in zip(columns, schema, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / f"{name}.parquet")
    shares = AR_SHARES if case.arm == "ar" else STAGE_SHARES
    return OkResult(
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


def _answer(workload: WorkloadSpec, index: int, plan: SyntheticPlan) -> list[int]:
    """The tokens that a greedy target gives to prompt `index`, whoever drafts."""
    rng = np.random.default_rng((plan.seed, index))
    length = int(rng.integers(workload.max_new_tokens // 2 + 1, workload.max_new_tokens + 1))
    tokens = rng.integers(0, VOCAB, length).tolist()
    if plan.loops and index % 3 == 0:
        tokens[length // 4 :] = [place % 5 for place in range(length - length // 4)]
    return tokens


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


class _Request:
    """A request in flight."""

    def __init__(self, request_id: int, answer: list[int], quality: float) -> None:
        self.request_id = request_id
        self.answer = answer  # what will be emitted, the same in every arm
        self.quality = quality
        self.tokens: list[int] = []
        self.grams: set[tuple[int, ...]] = set()
        self.num_rounds = 0
        self.admitted_ns = self.first_ns = self.last_ns = 0

    @property
    def left(self) -> int:
        return len(self.answer) - len(self.tokens)

    def emit(self, count: int) -> int:
        """Output the next tokens; -> how many of them completed a 4-gram of this output again."""
        num_repeated = 0
        for token in self.answer[len(self.tokens) : len(self.tokens) + count]:
            self.tokens.append(token)
            gram = tuple(self.tokens[-4:])
            num_repeated += len(gram) == 4 and gram in self.grams
            self.grams.add(gram)
        return num_repeated


class _Simulation:
    """One pass over the workload of a case, appended to the tables' rows."""

    def __init__(
        self,
        case: Case,
        rng: np.random.Generator,
        answers: list[list[int]],
        key: tuple[Pass, int],
        plan: SyntheticPlan,
    ) -> None:
        self.case, self.rng, self.answers, self.plan = case, rng, answers, plan
        self.luck = rng if plan.machine is None else np.random.default_rng((plan.seed, _luck_of(case)))
        self.tax = 1.08 if key[0] == "attributed" else 1.0
        self.key = key
        self.has_stages = key[0] == "attributed"
        self.now = 0
        if case.arm == "ar":
            self.nodes = 0
        elif case.engine.node_budget == 0:
            self.nodes = HORIZON
        else:
            self.nodes = case.engine.node_budget

    def run(self, rows: dict[str, list[tuple[Any, ...]]]) -> tuple[int, int]:
        workload = self.case.workload
        waiting = [_Request(index, answer, self._quality(index)) for index, answer in enumerate(self.answers)]
        running: list[_Request] = []
        done: list[_Request] = []
        step = 0
        while waiting or running:
            while waiting and len(running) < workload.concurrency:
                request = waiting.pop(0)
                self._prefill(request, rows)
                (running if request.left > 0 else done).append(request)
            if running:
                self._round(step, running, rows)
                step += 1
            done += [request for request in running if request.left <= 0]
            running = [request for request in running if request.left > 0]
        for request in sorted(done, key=lambda item: item.request_id):
            rows["requests"].append(self._request_row(request))
        return self.now + 1000, sum(len(request.tokens) for request in done)

    def _quality(self, index: int) -> float:
        base = QUALITY.get(self.case.arm, 0.0)
        if self.case.arm == "ddtree":
            base = min(0.9, base + 0.02 * np.log2(max(self.nodes, 1) / 16))
        return float(np.clip(base + 0.08 * np.sin(index), 0.0, 0.95)) * self.plan.agreement if base else 0.0

    def _prefill(self, request: _Request, rows: dict[str, list[tuple[Any, ...]]]) -> None:
        request.admitted_ns = self.now
        duration = int(4e6 * self.tax * self.rng.lognormal(0, 0.05))
        self.now += duration
        request.first_ns = request.last_ns = self.now
        request.emit(1)
        if self.has_stages:
            rows["stages"].append((-1, Stage.PREFILL.value, int(duration * 0.95), "host"))

    def _round(self, step: int, running: Sequence[_Request], rows: dict[str, list[tuple[Any, ...]]]) -> None:
        start, width = self.now, self.nodes + 1
        base = 1.2e6 if self.case.arm == "ar" else 1.9e6
        shares = AR_SHARES if self.case.arm == "ar" else STAGE_SHARES
        slow = {stage: self.plan.slow.get(stage.value, 1.0) if self.case.arm != "ar" else 1.0 for stage in shares}
        longer = 1 + sum(shares[stage] * (slow[stage] - 1) for stage in shares)
        engine, ways = self.case.engine, self.plan.usual
        base *= ways.get(engine.executor, 1.0) * ways.get(engine.tree_build, 1.0)
        usual = int((base + 3e3 * width * len(running)) * self.tax * self.rng.lognormal(0, 0.06))
        duration = int(usual * longer)
        self.now += duration
        for request in running:
            drafted = min(self.nodes, HORIZON)
            accepted = int(min(self.luck.geometric(1 - request.quality) - 1, drafted))
            emitted = min(accepted + 1, request.left)
            repeated = request.emit(emitted)
            expected = 1 + (1.1 * request.quality * drafted / 2.2 if drafted else 0.0)
            counts = (self.nodes, accepted, emitted, repeated)
            rows["rounds"].append(
                (*self.key, step, request.request_id, request.num_rounds, *counts, expected, accepted < 3)
            )
            request.num_rounds += 1
            request.last_ns = self.now
        rows["steps"].append((*self.key, step, len(running), width, start, self.now))
        if self.has_stages:
            for stage in (stage for stage in ROUND_STAGES if stage in shares):
                share = shares[stage] * (0.98 + 0.02 * self.rng.random())
                rows["stages"].append((step, stage.value, int(usual * slow[stage] * share), "host"))

    def _request_row(self, request: _Request) -> tuple[Any, ...]:
        kind = ("code", "prose", "docs")[request.request_id % 3]
        prompt = (f"p{request.request_id}", kind, 64)
        times = (request.admitted_ns, request.first_ns, request.last_ns)
        return (*self.key, request.request_id, *prompt, request.tokens, request.num_rounds, "length", *times)
