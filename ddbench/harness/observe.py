"""From what a probe heard to records: requests, rounds, steps, stage samples, exact counters.

Runs after a pass, never inside one. The engine's own bookkeeping and the probe's must tell the same story; a
disagreement is a bug and stops the case.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddbench.engine.types import Finished, Request
from ddbench.harness.capture import CleanProbe
from ddbench.harness.costs import TypicalRound
from ddbench.records import Pass, RequestRecord, RoundRecord, StageSample, StepRecord

GRAM = 4  # tokens: an emitted token that completes a 4-gram seen before in its request counts as repeated


@dataclass(frozen=True, slots=True)
class PassRows:
    """The records of one pass."""

    requests: list[RequestRecord]
    rounds: list[RoundRecord]
    steps: list[StepRecord]
    stages: list[StageSample]
    paths: dict[str, str]


@dataclass(slots=True)
class _Progress:
    """One request on its way through a pass."""

    sequence: list[int]
    num_rounds: int = 0
    num_emitted: int = 0
    last_token_ns: int = 0
    grams: set[tuple[int, ...]] = field(default_factory=set)

    def extend(self, tokens: Sequence[int]) -> int:
        """Append tokens; how many of them complete a known 4-gram."""
        num_repeated = 0
        for token in tokens:
            self.sequence.append(token)
            gram = tuple(self.sequence[-GRAM:])
            if len(gram) == GRAM:
                num_repeated += gram in self.grams
                self.grams.add(gram)
        return num_repeated


def pass_rows(
    probe: CleanProbe,
    requests: Sequence[Request],
    finished: Sequence[Finished],
    pass_name: Pass,
    pass_index: int,
    start_ns: int,
) -> PassRows:
    """Records with times since `start_ns`."""
    assert len(probe.commits) == len(probe.round_starts), "a round was started and not committed, or the reverse"
    progress = _after_prefill(probe, requests)
    rounds: list[RoundRecord] = []
    steps: list[StepRecord] = []
    read_ns = start_ns
    for step, ((begin, batch_size), (end, outcome)) in enumerate(zip(probe.round_starts, probe.commits, strict=True)):
        assert batch_size >= len(outcome.request_ids), f"step {step}: {batch_size} rows began, more ended"
        begin = max(begin, read_ns)  # launched before the round in front was read: its time is from there on
        read_ns = end
        steps.append(
            StepRecord(
                pass_name=pass_name,
                pass_index=pass_index,
                step=step,
                batch_size=len(outcome.request_ids),  # a row that waits for its stop to be read is served nothing
                verify_width=outcome.verify_width,
                start_ns=begin - start_ns,
                end_ns=end - start_ns,
            )
        )
        for row, request_id in enumerate(outcome.request_ids):
            one = progress[request_id]
            tokens = outcome.tokens[row]
            rounds.append(
                RoundRecord(
                    pass_name=pass_name,
                    pass_index=pass_index,
                    step=step,
                    request_id=request_id,
                    request_round=one.num_rounds,
                    num_nodes=outcome.num_nodes[row],
                    num_accepted=outcome.num_accepted[row],
                    num_emitted=len(tokens),
                    num_repeated=one.extend(tokens),
                    expected_length=outcome.expected_length[row],
                    is_identity_path=outcome.is_identity_path[row],
                )
            )
            one.num_rounds += 1
            one.num_emitted += len(tokens)
            one.last_token_ns = end if tokens else one.last_token_ns
    rows = [
        _request_record(probe, request, done, progress[request.request_id], pass_name, pass_index, start_ns)
        for request, done in zip(requests, finished, strict=True)
    ]
    return PassRows(rows, rounds, steps, probe.stage_samples(), dict(probe.paths))


def _after_prefill(probe: CleanProbe, requests: Sequence[Request]) -> dict[int, _Progress]:
    progress = {}
    for request in requests:
        first_ns, token = probe.first_tokens[request.request_id]
        one = _Progress(sequence=[], num_emitted=1, last_token_ns=first_ns)
        one.extend((*request.prompt, token))
        progress[request.request_id] = one
    return progress


def _request_record(
    probe: CleanProbe,
    request: Request,
    done: Finished,
    one: _Progress,
    pass_name: Pass,
    pass_index: int,
    start_ns: int,
) -> RequestRecord:
    emitted = tuple(one.sequence[len(request.prompt) :])
    assert done.request_id == request.request_id, f"results out of order at request {request.request_id}"
    assert done.tokens == emitted, f"request {request.request_id}: the rounds' tokens are not the result's"
    assert done.num_rounds == one.num_rounds, f"request {request.request_id}: rounds miscounted"
    return RequestRecord(
        pass_name=pass_name,
        pass_index=pass_index,
        request_id=request.request_id,
        prompt_id=request.prompt_id,
        kind=request.kind,
        num_prompt_tokens=len(request.prompt),
        tokens=emitted,
        num_rounds=one.num_rounds,
        finish_reason=done.finish_reason,
        admitted_ns=probe.admissions[request.request_id] - start_ns,
        first_token_ns=probe.first_tokens[request.request_id][0] - start_ns,
        last_token_ns=one.last_token_ns - start_ns,
    )


def count(rows: PassRows) -> dict[str, int]:
    """Exact counters of a pass: free of noise, equal on every machine for a greedy case in FP32."""
    return {
        "num_requests": len(rows.requests),
        "num_steps": len(rows.steps),
        "num_rounds": len(rows.rounds),
        "nodes_verified": sum(r.num_nodes for r in rows.rounds),
        "tokens_accepted": sum(r.num_accepted for r in rows.rounds),
        "tokens_emitted": sum(len(r.tokens) for r in rows.requests),
        "tokens_repeated": sum(r.num_repeated for r in rows.rounds),
        "identity_paths": sum(r.is_identity_path for r in rows.rounds),
    }


def replayed(probe: CleanProbe) -> dict[str, int]:
    """Time that the graphs of all rounds took on the device; nothing where a round had none."""
    times = [outcome.replayed_ns for _, outcome in probe.commits]
    known = [ns for ns in times if ns is not None]
    return {"replayed_ns": sum(known)} if known and len(known) == len(times) else {}


def output_digest(outputs: Mapping[int, Sequence[int]]) -> str:
    """A content address of what a pass emitted: two runs of a greedy case that differ in it emitted other tokens."""
    text = json.dumps([[request_id, *outputs[request_id]] for request_id in sorted(outputs)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def typical_round(rows: PassRows, block: int) -> TypicalRound:
    """Means over the rounds of a pass that has rounds."""
    contexts: dict[int, int] = {r.request_id: r.num_prompt_tokens for r in rows.requests}
    total: defaultdict[str, int] = defaultdict(int)
    for r in rows.rounds:
        total["context"] += contexts[r.request_id]
        total["committed"] += r.num_emitted
        total["moved"] += 0 if r.is_identity_path else r.num_accepted
        contexts[r.request_id] += r.num_emitted
    num_rounds = len(rows.rounds)
    return TypicalRound(
        batch=num_rounds / len(rows.steps),
        width=sum(s.batch_size * s.verify_width for s in rows.steps) / num_rounds,
        block=block,
        context=total["context"] / num_rounds,
        committed=total["committed"] / num_rounds,
        moved=total["moved"] / num_rounds,
    )
