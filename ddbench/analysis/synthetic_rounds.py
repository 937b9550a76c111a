"""The seeded model of rounds behind `synthetic.py`: a scheduler, truncated geometric acceptance, times by width.

Every pass over the workload of a case is one `Simulation`, which appends to the rows of the case's tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddbench.engine.stages import ROUND_STAGES, Stage
from ddbench.records import Pass
from ddbench.spec import Case, WorkloadSpec

if TYPE_CHECKING:
    from ddbench.analysis.synthetic import SyntheticPlan

HORIZON = 7
VOCAB = 512

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


def luck_of(case: Case) -> int:
    """A setting's own stream of draws, which a new field of the specs leaves as it is."""
    text = f"{case.label} {case.engine.seed} {case.workload.num_requests} {case.workload.max_new_tokens}"
    return zlib.crc32(text.encode())


def answer_to(workload: WorkloadSpec, index: int, plan: SyntheticPlan) -> list[int]:
    """The tokens that a greedy target gives to prompt `index`, whoever drafts."""
    rng = np.random.default_rng((plan.seed, index))
    length = int(rng.integers(workload.max_new_tokens // 2 + 1, workload.max_new_tokens + 1))
    tokens = rng.integers(0, VOCAB, length).tolist()
    if plan.loops and index % 3 == 0:
        tokens[length // 4 :] = [place % 5 for place in range(length - length // 4)]
    return tokens


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


class Simulation:
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
        self.luck = rng if plan.machine is None else np.random.default_rng((plan.seed, luck_of(case)))
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
        is_slow = self.case.arm in self.plan.slow_arms if self.plan.slow_arms else self.case.arm != "ar"
        slow = {stage: self.plan.slow.get(stage.value, 1.0) if is_slow else 1.0 for stage in shares}
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
