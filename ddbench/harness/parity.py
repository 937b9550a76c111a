"""Correct before fast: speculative greedy output against autoregressive output, first divergence, margin, verdict.

Runs inside the case's process, before anything is timed and again on what was timed. In FP32 every token must agree.
In BF16 a forward over many tokens rounds differently from one over a single token, so that two tokens of nearly equal
logit may swap: such a divergence is tolerated only where the lower of the two tokens lies within `NEAR_TIE` of the
best logit, and it is recorded with its margin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from ddbench.engine.attention import ATTENTIONS
from ddbench.engine.engine import Engine, setting_of
from ddbench.engine.types import Request
from ddbench.models.inputs import VerifyInputs
from ddbench.models.weights import Models
from ddbench.records import Divergence, NotMeasured, Parity
from ddbench.spec import ARMS, EngineSpec

Tokens = tuple[int, ...]
Outputs = Mapping[int, Tokens]  # request id -> emitted tokens
Logits = Callable[[Tokens], Sequence[float]]  # a text's tokens -> the target's logits for the next one

# Tolerated margin as a share of the best logit's magnitude: about four units in the last place of bf16, the size of
# the difference between two correct orders of summation over a few dozen layers.
NEAR_TIE = {"float32": 0.0, "bfloat16": 2**-5}
ENDED = -1  # in place of a token: this output had already ended


def autoregressive_spec(spec: EngineSpec) -> EngineSpec:
    """The plain greedy engine for the same target, device and precision."""
    plain = {**ARMS["ar"], "sampling": "greedy", "executor": "eager", "attention": "dense_mask"}
    return spec.model_copy(update=plain)


def autoregressive_outputs(spec: EngineSpec, models: Models, requests: Sequence[Request]) -> dict[int, Tokens]:
    """What the target says by itself, one request at a time."""
    return outputs_of(Engine(autoregressive_spec(spec), models), requests, concurrency=1)


def continuations(spec: EngineSpec, models: Models, requests: Sequence[Request]) -> dict[int, Tokens]:
    """What an oracle is told: the target's own greedy outputs, one request at a time, by the case's own executor.

    No reference to be held against, so that it need not be plain; a prompt that comes again is answered once.
    """
    engine = Engine(spec.model_copy(update={**ARMS["ar"], "sampling": "greedy"}), models)
    first: dict[Request, int] = {}  # what is asked, whoever asks -> the first who does
    for request in requests:
        first.setdefault(_asked(request), request.request_id)
    distinct = set(first.values())
    outputs = outputs_of(engine, [request for request in requests if request.request_id in distinct], concurrency=1)
    engine.release()  # its graphs hold memory, and the case's own are recorded next
    return {request.request_id: outputs[first[_asked(request)]] for request in requests}


def _asked(request: Request) -> Request:
    return replace(request, request_id=0)


def outputs_of(engine: Engine, requests: Sequence[Request], concurrency: int) -> dict[int, Tokens]:
    return {done.request_id: done.tokens for done in engine.run(requests, concurrency)}


def compare(
    spec: EngineSpec, requests: Sequence[Request], expected: Outputs, got: Outputs, logits: Logits, detail: str
) -> Parity:
    """Verdict over all requests."""
    divergences = []
    is_tolerated = True
    for request in requests:
        position = first_difference(expected[request.request_id], got[request.request_id])
        if position is not None:
            divergence, is_near = _divergence(
                spec, request, expected[request.request_id], got[request.request_id], position, logits
            )
            divergences.append(divergence)
            is_tolerated = is_tolerated and is_near
    status: Literal["identical", "near_tie", "diverged"] = "identical"
    if divergences:
        status = "near_tie" if is_tolerated else "diverged"
    return Parity(
        status=status,
        num_prompts=len(requests),
        num_tokens=sum(len(expected[request.request_id]) for request in requests),
        divergences=tuple(divergences),
        detail=detail,
    )


def merged(first: Parity, second: Parity) -> Parity:
    """Two checks of one case as one: the worse status, all divergences."""
    order = ("not_applicable", "identical", "near_tie", "diverged")
    return Parity(
        status=max(first.status, second.status, key=order.index),
        num_prompts=first.num_prompts + second.num_prompts,
        num_tokens=first.num_tokens + second.num_tokens,
        divergences=first.divergences + second.divergences,
        detail="; ".join(filter(None, (first.detail, second.detail))),
    )


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs, or at which one of the two has ended."""
    for position, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _divergence(
    spec: EngineSpec, request: Request, expected: Tokens, got: Tokens, position: int, logits: Logits
) -> tuple[Divergence, bool]:
    tokens = [text[position] if position < len(text) else ENDED for text in (expected, got)]
    margin: float | NotMeasured = NotMeasured(not_measured="one of the outputs ended here without a stop token")
    is_near = False
    if ENDED not in tokens:
        row = logits((*request.prompt, *expected[:position]))
        best = max(row)
        margin = best - min(row[token] for token in tokens)
        is_near = margin <= NEAR_TIE[spec.dtype] * abs(best)
    divergence = Divergence(
        prompt_id=request.prompt_id, position=position, expected=tokens[0], got=tokens[1], logit_margin=margin
    )
    return divergence, is_near


def next_token_logits(spec: EngineSpec, models: Models) -> Logits:
    """The target's own logits after a text, from one plain causal forward."""
    attention = ATTENTIONS["dense_mask"](setting_of(spec, models))
    shape = models.target.shape

    @torch.inference_mode()
    def logits(tokens: Tokens) -> list[float]:
        ids = torch.tensor([tokens], device=spec.device)  # [1, N]
        like = models.target.embedding.weight
        cache = [
            tuple(like.new_zeros(1, len(tokens), *row) for row in shape.attention.row_shapes)
            for _ in range(shape.num_layers)
        ]
        start = torch.zeros(1, dtype=torch.int64, device=spec.device)
        positions = torch.arange(len(tokens), device=spec.device)[None]
        inputs = VerifyInputs(ids, positions, start, None, 0, logit_rows=start + len(tokens) - 1)
        return models.target(inputs, cache, attention).logits[0, 0].tolist()

    return logits
