"""Parity: the first difference, its margin, and what is tolerated."""

from __future__ import annotations

from typing import Any

import pytest

from ddbench.engine.types import Request
from ddbench.harness import parity
from ddbench.harness.parity import (
    NEAR_TIE,
    autoregressive_outputs,
    compare,
    continuations,
    first_difference,
    merged,
    next_token_logits,
)
from ddbench.models.weights import random_models
from ddbench.records import NotMeasured, Parity
from ddbench.spec import EngineSpec

REQUEST = Request(0, (1, 2), 9, prompt_id="p")
FP32 = EngineSpec(target="tiny-gqa")
BF16 = EngineSpec(target="tiny-gqa", dtype="bfloat16")


def logits_with_gap(gap: float) -> list[float]:
    row = [0.0] * 10
    row[7], row[8] = 16.0, 16.0 - gap
    return row


def verdict(spec: EngineSpec, expected: tuple[int, ...], got: tuple[int, ...], gap: float) -> Parity:
    asked: list[tuple[int, ...]] = []

    def logits(tokens: tuple[int, ...]) -> list[float]:
        asked.append(tokens)
        return logits_with_gap(gap)

    parity = compare(spec, [REQUEST], {0: expected}, {0: got}, logits, "")
    assert asked in ([], [(1, 2, *expected[: first_difference(expected, got) or 0])])
    return parity


@pytest.mark.parametrize(
    ("expected", "got", "position"),
    [
        ((1, 2), (1, 2), None),
        ((), (), None),
        ((1, 2), (3, 2), 0),
        ((1, 2), (1, 3), 1),
        ((1, 2), (1,), 1),
        ((), (1,), 0),
    ],
)
def test_first_difference(expected: tuple[int, ...], got: tuple[int, ...], position: int | None) -> None:
    assert first_difference(expected, got) == position


def test_equal_outputs_are_identical_without_asking_the_target() -> None:
    assert verdict(FP32, (5, 7, 6), (5, 7, 6), 0.0).status == "identical"


def test_fp32_is_exact_even_at_a_tie() -> None:
    parity = verdict(FP32, (5, 7, 6), (5, 8, 6), 1e-6)
    assert parity.status == "diverged"
    divergence = parity.divergences[0]
    assert (divergence.prompt_id, divergence.position, divergence.expected, divergence.got) == ("p", 1, 7, 8)
    assert divergence.logit_margin == pytest.approx(1e-6)


def test_bf16_tolerates_a_near_tie_and_records_its_margin() -> None:
    """H77: only within the stated epsilon, relative to the best logit."""
    epsilon = NEAR_TIE["bfloat16"] * 16.0
    near, far = verdict(BF16, (5, 7), (5, 8), 0.9 * epsilon), verdict(BF16, (5, 7), (5, 8), 1.1 * epsilon)
    assert (near.status, far.status) == ("near_tie", "diverged")
    assert near.divergences[0].logit_margin == pytest.approx(0.9 * epsilon)


def test_a_token_that_is_no_contender_is_never_a_near_tie() -> None:
    assert verdict(BF16, (5, 7), (5, 3), 0.0).status == "diverged"


def test_an_output_that_ends_early_has_diverged() -> None:
    parity = verdict(BF16, (5, 7), (5,), 0.0)
    assert parity.status == "diverged"
    assert isinstance(parity.divergences[0].logit_margin, NotMeasured)


def test_one_bad_prompt_decides() -> None:
    requests = [REQUEST, Request(1, (3,), 9, prompt_id="q")]
    outputs = {0: (7,), 1: (7,)}
    parity = compare(BF16, requests, outputs, {0: (8,), 1: (3,)}, lambda tokens: logits_with_gap(0.0), "d")
    assert parity.status == "diverged"
    assert [divergence.prompt_id for divergence in parity.divergences] == ["p", "q"]
    assert (parity.num_prompts, parity.num_tokens, parity.detail) == (2, 2, "d")


def test_merging_keeps_the_worse_status() -> None:
    def parity(status: str) -> Parity:
        return Parity(status=status, num_prompts=1, num_tokens=2, detail=status)  # type: ignore[arg-type]

    both = merged(parity("near_tie"), parity("identical"))
    assert (both.status, both.num_prompts, both.num_tokens, both.detail) == ("near_tie", 2, 4, "near_tie; identical")
    assert merged(parity("not_applicable"), parity("identical")).status == "identical"
    assert merged(parity("identical"), parity("diverged")).status == "diverged"


@pytest.mark.parametrize("target", ["tiny-gqa", "tiny-mla-moe"])
def test_the_target_says_what_plain_decoding_emits(target: str) -> None:
    """Logits of one causal forward over the whole text against the engine's cached steps."""
    spec = EngineSpec(target=target)
    models = random_models(target)
    request = Request(0, (5, 3, 9), 6)
    tokens = autoregressive_outputs(spec, models, [request])[0]
    logits = next_token_logits(spec, models)
    for position, token in enumerate(tokens):
        row = logits((*request.prompt, *tokens[:position]))
        assert max(range(len(row)), key=row.__getitem__) == token


def test_an_oracle_is_told_what_the_target_says_and_a_prompt_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same prompt of another length or with another stop is another question."""
    spec, models = EngineSpec(target="tiny-gqa", draft="oracle"), random_models("tiny-gqa")
    asked = [(5, 3, 9), (7, 2), (5, 3, 9), (5, 3, 9)]
    requests = [Request(10 + at, prompt, 4 if at == 3 else 6) for at, prompt in enumerate(asked)]
    served: list[int] = []
    run = parity.outputs_of

    def watched(engine: Any, own: Any, concurrency: int) -> Any:
        served.extend(request.request_id for request in own)
        return run(engine, own, concurrency)

    monkeypatch.setattr(parity, "outputs_of", watched)
    told = continuations(spec, models, requests)
    assert served == [10, 11, 13]
    assert told == autoregressive_outputs(spec, models, requests)
