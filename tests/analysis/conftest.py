"""Runs for the analysis tests: a synthetic one, and one made by hand whose numbers can be computed on paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ddbench.analysis.frames import RunFrames, load_run
from ddbench.analysis.settings import Setting, study_of
from ddbench.analysis.synthetic import SyntheticPlan, build_run, make_cases, model_card, synthetic_environment
from ddbench.analysis.synthetic_captures import CapturePlan
from ddbench.harness.store import CaseTables, RunFolder, create_run, write_case
from ddbench.records import (
    LoadSample,
    Manifest,
    NotMeasured,
    OkResult,
    Parity,
    PassSummary,
    RequestRecord,
    RoundRecord,
    StageSample,
    StepRecord,
)
from ddbench.spec import Case, ExperimentSpec

MS = 1_000_000
UNREAD = NotMeasured(not_measured="made by hand")


@dataclass(frozen=True)
class HandRequest:
    """A request of a clean pass at concurrency 1; times in milliseconds."""

    prompt: str
    num_tokens: int
    times: tuple[int, int, int]  # admitted, first token, last token
    rounds: tuple[tuple[int, int, int], ...] = ()  # accepted, emitted, repeated
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class HandCase:
    """A case whose rounds last what `round_ms` says, one per round over all requests."""

    case: Case
    requests: tuple[HandRequest, ...]
    round_ms: tuple[int, ...] = ()
    wall_ms: int = 100
    num_nodes: int = 0
    verify_width: int = 1
    expected_length: float = 1.0
    identity_paths: tuple[bool, ...] = ()
    stages: tuple[StageSample, ...] = ()
    attributed_ms: tuple[int, ...] = ()  # rounds of the attributed pass
    replayed_ms: float | None = None  # in the clean pass: the rounds were graphs
    fields: dict[str, Any] = field(default_factory=dict)  # replaces fields of the result

    def tables(self) -> CaseTables:
        tables = CaseTables(stages=list(self.stages))
        step, now = 0, 0
        for index, request in enumerate(self.requests):
            admitted, first, last = (time * MS for time in request.times)
            key = {"pass_name": "clean", "pass_index": 0, "request_id": index}
            for place, (accepted, emitted, repeated) in enumerate(request.rounds):
                is_identity = self.identity_paths[step] if self.identity_paths else True
                counts = {"num_accepted": accepted, "num_emitted": emitted, "num_repeated": repeated}
                row = {**key, "step": step, "request_round": place, "num_nodes": self.num_nodes, **counts}
                tables.rounds.append(
                    RoundRecord(**row, expected_length=self.expected_length, is_identity_path=is_identity)
                )
                end = now + self.round_ms[step] * MS
                tables.steps.append(_step("clean", step, self.verify_width, now, end))
                step, now = step + 1, end
            tokens = request.tokens or tuple(range(100 * index, 100 * index + request.num_tokens))
            tables.requests.append(
                RequestRecord(
                    **key,
                    prompt_id=request.prompt,
                    kind="code",
                    num_prompt_tokens=8,
                    tokens=tokens,
                    num_rounds=len(request.rounds),
                    finish_reason="length",
                    admitted_ns=admitted,
                    first_token_ns=first,
                    last_token_ns=last,
                )
            )
        for place, duration in enumerate(self.attributed_ms):
            tables.steps.append(_step("attributed", place, self.verify_width, 0, duration * MS))
        return tables

    def result(self, case_id: str) -> OkResult:
        emitted = sum(request.num_tokens for request in self.requests)
        passes = [_pass("clean", self.wall_ms, emitted)]
        if self.replayed_ms is not None:
            passes[0] = passes[0].model_copy(update={"replayed_ns": round(self.replayed_ms * MS)})
        if self.attributed_ms:
            passes.append(_pass("attributed", round(1.25 * self.wall_ms), 0))
        values: dict[str, Any] = {
            "case_id": case_id,
            "case": self.case,
            "started_at": "2025-01-01T00:00:00Z",
            "seconds": 1.0,
            "parity": Parity(status="identical", num_prompts=1, num_tokens=8),
            "models": model_card(self.case),
            "passes": tuple(passes),
            "stage_costs": (),
            "path_used": {},
            "counters": {},
            "peak_memory_bytes": UNREAD,
        }
        return OkResult(**{**values, **self.fields})


def _step(pass_name: str, step: int, width: int, start: int, end: int) -> StepRecord:
    return StepRecord(pass_name=pass_name, step=step, batch_size=1, verify_width=width, start_ns=start, end_ns=end)


def _pass(name: str, wall_ms: int, emitted: int) -> PassSummary:
    load = LoadSample(
        host_load_before=UNREAD,
        host_load_after=UNREAD,
        sm_clock_mhz=UNREAD,
        temperature_c=UNREAD,
        throttle_reasons=UNREAD,
    )
    return PassSummary(pass_name=name, index=0, wall_ns=wall_ms * MS, num_emitted=emitted, load=load)


HandRun = Callable[[Sequence[HandCase]], RunFolder]


@pytest.fixture
def hand_run(tmp_path: Path) -> HandRun:
    """Writes cases through the harness's own store, so that the two agree on the layout."""

    def write(cases: Sequence[HandCase]) -> RunFolder:
        ids = tuple(f"case-{index}" for index in range(len(cases)))
        manifest = Manifest(
            run_id="hand",
            ddbench_version="0.1.0",
            created_at="2025-01-01T00:00:00Z",
            experiment=ExperimentSpec(name="hand", question="?"),
            environment=synthetic_environment(),
            case_ids=ids,
            cases=tuple(hand.case for hand in cases),
            skipped=(),
        )
        run = create_run(tmp_path, manifest)
        for case_id, hand in zip(ids, cases, strict=True):
            with run.new_case_folder(case_id) as folder:
                write_case(folder, hand.result(case_id), hand.tables())
                run.keep(folder, case_id)
        return run

    return write


@pytest.fixture
def hand_case() -> type[HandCase]:
    return HandCase


@pytest.fixture
def hand_request() -> type[HandRequest]:
    return HandRequest


@pytest.fixture
def three_requests() -> tuple[HandRequest, ...]:
    """What a chain does on three prompts."""
    return (
        HandRequest("a", 7, (0, 10, 40), ((2, 3, 0), (3, 3, 3))),
        HandRequest("b", 5, (42, 50, 74), ((0, 1, 0), (2, 3, 1))),
        HandRequest("c", 3, (76, 80, 94), ((1, 2, 1),)),
    )


@pytest.fixture(scope="session")
def synthetic_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = make_cases(node_budgets=(8, 32), num_requests=8, max_new_tokens=24)
    plan = SyntheticPlan(cases=cases, captures={len(cases) - 1: CapturePlan()})
    return build_run(tmp_path_factory.mktemp("synthetic") / "run", plan)


@pytest.fixture(scope="session")
def synthetic_frames(synthetic_folder: Path) -> RunFrames:
    return load_run(synthetic_folder)


@pytest.fixture
def setting_of(hand_run, hand_case, three_requests) -> Callable[..., Setting]:
    """A chain setting with these stage samples and costs; a clean pass of 68 ms in five rounds."""
    case = next(case for case in make_cases(concurrencies=(1,)) if case.arm == "chain")

    def make(stages=(), costs=(), attributed_ms=(20, 30), replayed_ms=None, **fields) -> Setting:
        hand = hand_case(
            case=case,
            requests=three_requests,
            round_ms=(14, 16, 10, 14, 14),
            num_nodes=3,
            verify_width=5,
            stages=tuple(stages),
            attributed_ms=attributed_ms,
            replayed_ms=replayed_ms,
            fields={"stage_costs": tuple(costs), **fields},
        )
        (setting,) = study_of(load_run(hand_run([hand]).path)).settings
        return setting

    return make
