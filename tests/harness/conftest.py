"""What the harness tests share: a made-up engine to plan for, results without an engine, a run folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddbench.analysis.synthetic import synthetic_environment
from ddbench.errors import UserError
from ddbench.harness.interrupt import ENDINGS
from ddbench.harness.plan import Capabilities
from ddbench.harness.store import CaseTables, RunFolder, create_run
from ddbench.records import (
    Environment,
    LoadSample,
    Manifest,
    ModelCard,
    NotMeasured,
    OkResult,
    Parity,
    PassSummary,
    RequestRecord,
    RoundRecord,
    StageSample,
    StepRecord,
)
from ddbench.spec import ARMS, Case, EngineSpec, ExperimentSpec, WorkloadSpec

UNKNOWN = NotMeasured(not_measured="made up")


def check_target(name: str) -> None:
    if name != "tiny-gqa":
        raise UserError(f"unknown target '{name}'")


def reason_against(spec: EngineSpec) -> str | None:
    return "a budget of 64 is too much" if spec.node_budget == 64 else None


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """An interrupted sweep ignores further signals until its process ends; this one goes on."""
    before = {number: signal.getsignal(number) for number in ENDINGS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def can() -> Capabilities:
    """An engine with two tree builders, one executor out of reach, and a limit."""
    return Capabilities(
        variants={
            "draft": ("dflash", "prompt_lookup"),
            "materialize": ("sequential", "fused"),
            "tree_build": ("chain", "heap", "device"),
            "tree_compile": ("causal", "ancestors"),
            "attention": ("dense_mask",),
            "sampling": ("greedy", "stochastic"),
            "executor": ("eager", "round_graph"),
            "prefill": ("eager", "graph"),
        },
        absence=lambda spec: "executor 'round_graph' needs a GPU" if spec.executor == "round_graph" else None,
        check_target=check_target,
        supports=reason_against,
    )


@pytest.fixture
def environment() -> Environment:
    return synthetic_environment()


@pytest.fixture
def experiment() -> ExperimentSpec:
    return ExperimentSpec(
        name="made-up",
        question="?",
        engine=EngineSpec(target="tiny-gqa"),
        workload=WorkloadSpec(prompts="random", num_requests=2, max_new_tokens=3),
    )


def make_case(arm: str = "ar", concurrency: int = 1, timeout_s: int = 60, block: int = 0) -> Case:
    return Case(
        arm=arm,
        engine=EngineSpec(target="tiny-gqa", **ARMS[arm]),
        workload=WorkloadSpec(prompts="random", num_requests=1, max_new_tokens=3, concurrency=concurrency),
        capture={"timeout_s": timeout_s},
        block=block,
    )


@pytest.fixture
def new_case() -> Callable[..., Case]:
    return make_case


@pytest.fixture
def ok_result() -> Callable[[str, Case], OkResult]:
    def make(case_id: str, case: Case) -> OkResult:
        load = LoadSample(
            host_load_before=0.1, host_load_after=UNKNOWN, sm_clock_mhz=UNKNOWN, temperature_c=UNKNOWN,
            throttle_reasons=UNKNOWN,
        )  # fmt: skip
        return OkResult(
            case_id=case_id,
            case=case,
            started_at="2025-01-01T00:00:00+00:00",
            seconds=1.0,
            parity=Parity(status="identical", num_prompts=1, num_tokens=3),
            models=ModelCard(
                target="t", target_digest="0", drafter="d", drafter_digest="0", block_size=5, trained_block_size=5,
                acceptance="random_weights",
                num_target_parameters=1, num_drafter_parameters=1,
            ),
            passes=(PassSummary(pass_name="clean", index=0, wall_ns=1_000_000_000, num_emitted=3, load=load),),
            stage_costs=(),
            path_used={},
            counters={"num_rounds": 2, "num_requests": 1, "tokens_emitted": 4},
            peak_memory_bytes=UNKNOWN,
        )  # fmt: skip

    return make


@pytest.fixture
def tables() -> CaseTables:
    return CaseTables(
        requests=[
            RequestRecord(
                pass_name="clean", request_id=0, prompt_id="random-0000", kind="random", num_prompt_tokens=5,
                tokens=(7, 8, 9), num_rounds=1, finish_reason="length",
                admitted_ns=0, first_token_ns=1, last_token_ns=2,
            )
        ],
        rounds=[
            RoundRecord(
                pass_name="clean", step=0, request_id=0, request_round=0, num_nodes=4, num_accepted=1, num_emitted=2,
                num_repeated=0, expected_length=1.5, is_identity_path=True,
            )
        ],
        steps=[StepRecord(pass_name="clean", step=0, batch_size=1, verify_width=5, start_ns=1, end_ns=2)],
        stages=[StageSample(step=0, stage="verify", duration_ns=3, clock="host")],
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, environment: Environment, experiment: ExperimentSpec) -> RunFolder:
    """A new run of three cases without results."""
    cases = tuple(make_case(arm) for arm in ("ar", "chain", "ddtree"))
    manifest = Manifest(
        run_id="run",
        ddbench_version="0",
        created_at="2025-01-01T00:00:00+00:00",
        experiment=experiment,
        environment=environment,
        case_ids=("a", "b", "c"),
        cases=cases,
        skipped=(),
    )
    return create_run(tmp_path / "runs", manifest)
