"""Shared by the hazard tests: small pairs, a record of every round, and the rounds' specification without any cache.

Drafting wrong is lossless: it costs acceptance and never shows in the output. So the hazards of a drafter's memory are
looked for in the draft logits of real runs. A nudge towards the true continuation, by position, makes tiny random
drafters deep enough to exercise scattered paths while everything else in the tree stays the drafter's own opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from ddbench.engine.batch import Batch
from ddbench.engine.engine import Engine, setting_of
from ddbench.engine.launch import Launch
from ddbench.engine.parts import SpeculativeParts, build_parts
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import DraftTree, Finished, Part, Request, RoundOutcome
from ddbench.models.shapes import DRAFTERS, TARGETS, RopeShape
from ddbench.models.weights import Models, dequantize_experts, load_models, random_models_of
from ddbench.reference.generate import decode
from ddbench.spec import ARMS, EngineSpec

torch.set_num_threads(1)

TINY = ("tiny-gqa", "tiny-mla-moe")
NUDGES = (0.0, 3.0, 8.0)  # added to the true token's logit, by position: no help, some, certainty


@cache
def tiny_pair(name: str, target_changes: tuple = (), drafter_changes: tuple = ()) -> Models:
    """A random pair of a named shape with some fields changed; experts unpacked."""
    target = TARGETS[name].model_copy(update=dict(target_changes))
    drafter = DRAFTERS[name].model_copy(update=dict(drafter_changes))
    models = random_models_of(target, drafter)
    dequantize_experts(models.target, torch.float32)
    return models


@pytest.fixture(scope="session")
def make_pair() -> Callable[..., Models]:
    """`make_pair(name, target={...}, drafter={...})`."""

    def make(name: str = "tiny-gqa", *, target: dict | None = None, drafter: dict | None = None) -> Models:
        return tiny_pair(name, tuple((target or {}).items()), tuple((drafter or {}).items()))

    return make


@pytest.fixture(scope="session", params=TINY)
def pair(request: pytest.FixtureRequest) -> Models:
    return tiny_pair(request.param)


@pytest.fixture(scope="session")
def gqa() -> Models:
    return tiny_pair("tiny-gqa")


@pytest.fixture(scope="session")
def nano() -> Models:
    """The shipped, trained pair."""
    return load_models(EngineSpec())


@pytest.fixture(scope="session")
def make_requests() -> Callable[..., list[Request]]:
    """`make_requests(n)`: prompts of 1, 6, 11, ... tokens and answers of unequal lengths."""

    def make(number: int, *, new: int = 14, vocab: int = 96) -> list[Request]:
        generator = torch.Generator().manual_seed(11)
        return [
            Request(20 + i, tuple(torch.randint(vocab, (1 + 5 * i,), generator=generator).tolist()), new + 3 * (i % 3))
            for i in range(number)
        ]

    return make


# ---------------------------------------------------------------------------------------- the text and its features


@cache
@torch.inference_mode()
def true_output(models: Models, prompt: tuple[int, ...], limit: int, stops: tuple[int, ...]) -> tuple[int, ...]:
    """Greedy output by the training forward: the whole text again for every token, no cache, no mask of ours."""
    target = models.target
    return tuple(decode(lambda text: target.head(target.full(torch.tensor([text]))[0][0]), prompt, limit, stops))


@pytest.fixture(scope="session")
def greedy() -> Callable[[Models, Request], tuple[int, ...]]:
    return lambda models, request: true_output(models, request.prompt, request.max_new_tokens, request.stop_token_ids)


@pytest.fixture(scope="session")
def features_of() -> Callable[[Models, Sequence[int]], torch.Tensor]:
    """Captured features [n, K*M] of a text: the residual stream after each listed layer, from a loop of our own."""

    @torch.inference_mode()
    def features(models: Models, text: Sequence[int]) -> torch.Tensor:
        target = models.target
        x = target.embed(torch.tensor([list(text)]))
        rotary_rows = target.rotary.rows(torch.arange(len(text))[None])
        after = []
        for layer in target.layers:
            x = x + layer.attention.full(layer.input_norm(x), rotary_rows)
            x = x + layer.mlp(layer.post_norm(x))
            after.append(x[0])
        return torch.cat([after[i] for i in models.drafter.shape.target_layer_ids], dim=-1)

    return features


# ------------------------------------------------------------------------------------------ the drafter, cache-free


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def _rotated(x: torch.Tensor, positions: range, rope: RopeShape) -> torch.Tensor:
    """x [T, H, hd]: pairs (i, i + rotary_dim / 2) turn as complex numbers, the other dims stay."""
    assert rope.yarn is None, "plain rotary embedding only"
    half = rope.rotary_dim // 2
    angles = torch.tensor(positions).double()[:, None] * rope.theta ** (-torch.arange(half).double() / half)
    turned = (
        torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], dim=-1)


def _sees(query: int, key: int, start: int, window: int | None, is_causal: bool) -> bool:
    """Whether the block slot at position `query` sees position `key`; the block begins at `start`."""
    if key < start:
        return window is None or key >= query - (window - 1)
    return key <= query or not is_causal


@torch.inference_mode()
def draft_from_text(models: Models, anchor: int, features: torch.Tensor, block_size: int | None = None) -> torch.Tensor:
    """Draft logits [L, V] of the block behind `features` [s, K*M], by the paper's formulas in fp64, nothing cached."""
    drafter, target = models.drafter, models.target
    shape, start = drafter.shape, len(features)
    size = block_size or shape.block_size
    block = torch.tensor([anchor] + [shape.mask_token_id] * (size - 1))
    x = target.embedding.weight[block].double() * target.shape.embedding_scale  # [P, D]
    context = _norm(features.double() @ drafter.fc.weight.double().T, drafter.hidden_norm.weight, shape.norm_eps)
    positions = range(start + size)
    for number, layer in enumerate(drafter.layers):
        weights, is_sliding = layer.attention, bool(shape.layer_types) and "sliding" in shape.layer_types[number]
        window = shape.sliding_window if is_sliding else None
        is_causal = is_sliding if shape.is_causal is None else shape.is_causal  # legacy checkpoints do not say
        h = _norm(x, layer.input_norm.weight, shape.norm_eps)
        rows = torch.cat([context, h])
        q = (h @ weights.q_proj.weight.double().T).unflatten(-1, (-1, shape.head_dim))  # [P, H, hd]
        k = (rows @ weights.k_proj.weight.double().T).unflatten(-1, (-1, shape.head_dim))  # [s + P, G, hd]
        v = (rows @ weights.v_proj.weight.double().T).unflatten(-1, (-1, shape.head_dim))
        q = _rotated(_norm(q, weights.q_norm.weight, shape.norm_eps), positions[start:], shape.rope)
        k = _rotated(_norm(k, weights.k_norm.weight, shape.norm_eps), positions, shape.rope)
        sees = torch.tensor([[_sees(start + i, p, start, window, is_causal) for p in positions] for i in range(size)])
        group = shape.num_heads // shape.num_kv_heads
        scores = torch.einsum("phd,shd->hps", q, k.repeat_interleave(group, 1)) * shape.head_dim**-0.5
        shares = scores.masked_fill(~sees, -torch.inf).softmax(-1)
        out = torch.einsum("hps,shd->phd", shares, v.repeat_interleave(group, 1)).flatten(1)
        x = x + out @ weights.o_proj.weight.double().T
        gate, up = (_norm(x, layer.post_norm.weight, shape.norm_eps) @ layer.mlp.gate_up.weight.double().T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ layer.mlp.down.weight.double().T
    logits = _norm(x[1:], drafter.norm.weight, shape.norm_eps) @ target.lm_head.weight.double().T
    cap = target.shape.logit_softcap
    return logits if cap is None else cap * (logits / cap).tanh()


@pytest.fixture(scope="session")
def plain_draft() -> Callable[..., torch.Tensor]:
    return draft_from_text


# -------------------------------------------------------------------------------------------------- recorded rounds


@dataclass(frozen=True)
class Seen:
    """One request's part in one round."""

    request_id: int
    row: int
    start: int  # the anchor's position
    logits: torch.Tensor  # [L, V] as the drafter gave them, before any nudge
    nodes: tuple[tuple[int, int], ...]  # (parent, token) of nodes 1, 2, ...
    num_accepted: int
    tokens: tuple[int, ...]  # emitted

    @property
    def history(self) -> tuple:
        """What must not depend on anybody else."""
        return self.start, self.nodes, self.num_accepted, self.tokens


class _Nudged(Part):
    """A draft whose logits lean towards the truth; keeps what it gave, and for whom."""

    def __init__(self, draft: Part, texts: dict[int, Sequence[int]], nudges: Sequence[float]) -> None:
        self._draft, self._texts, self._nudges = draft, texts, nudges
        self.given: list[tuple[list[int], list[int], torch.Tensor]] = []

    def begin(self, requests: Sequence[Request]) -> None:
        self._draft.begin(requests)

    def __call__(self, batch: Batch) -> torch.Tensor:
        logits = self._draft(batch)  # type: ignore[operator]
        ids, starts = batch.request_ids.tolist(), batch.lengths.tolist()
        self.given.append((ids, starts, logits.clone()))
        for row, (request_id, start) in enumerate(zip(ids, starts, strict=True)):
            text = self._texts.get(request_id, ())
            for position in range(start + 1, min(start + 1 + logits.shape[1], len(text))):
                logits[row, position - start - 1, text[position]] += self._nudges[position % len(self._nudges)]
        return logits


class _Watched(Part):
    """A tree builder that keeps its trees."""

    def __init__(self, build: Part) -> None:
        self._build = build
        self.num_slots = build.num_slots  # type: ignore[attr-defined]
        self.trees: list[DraftTree] = []

    def __call__(self, logits: torch.Tensor, *launch: Launch) -> DraftTree:
        self.trees.append(self._build(logits, *launch))  # type: ignore[operator]
        return self.trees[-1]


class _Outcomes(NullProbe):
    def __init__(self) -> None:
        self.outcomes: list[RoundOutcome] = []

    def committed(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture(scope="session")
def run_watched() -> Callable[..., tuple[list[Finished], list[Seen]]]:
    """`run_watched(models, requests, concurrency, arm, **changes)` -> (results, every request's part in every round).

    The draft is nudged towards the true greedy output, not at all with `nudges=()`. `wrap` may replace parts first.
    """

    def run(
        models: Models,
        requests: Sequence[Request],
        concurrency: int = 1,
        arm: str = "ddtree",
        *,
        nudges: Sequence[float] = NUDGES,
        debug: bool = False,
        wrap: Callable[[Engine, SpeculativeParts], SpeculativeParts] | None = None,
        **changes: object,
    ) -> tuple[list[Finished], list[Seen]]:
        spec = EngineSpec(**{"target": models.facts.target, "node_budget": 12, **ARMS[arm], **changes})  # type: ignore[arg-type]
        setting = setting_of(spec, models)
        parts = build_parts(setting)
        assert isinstance(parts, SpeculativeParts)
        texts: dict[int, Sequence[int]] = {
            r.request_id: (*r.prompt, *true_output(models, r.prompt, r.max_new_tokens, r.stop_token_ids))
            for r in requests
            if any(nudges)
        }
        draft, build = _Nudged(parts.draft, texts, nudges), _Watched(parts.tree_build)  # type: ignore[arg-type]
        parts = replace(parts, draft=draft, tree_build=build)
        if wrap is not None:
            parts = wrap(Engine(spec, models, parts=parts), parts)
        probe = _Outcomes()
        results = Engine(spec, models, parts=parts, debug=debug).run(requests, concurrency, probe)
        return results, _joined(draft, build, probe)

    return run


def _joined(draft: _Nudged, build: _Watched, probe: _Outcomes) -> list[Seen]:
    seen = []
    for (ids, starts, logits), tree, outcome in zip(draft.given, build.trees, probe.outcomes, strict=True):
        assert tuple(ids) == outcome.request_ids
        for row, request_id in enumerate(ids):
            used = slice(1, 1 + int(tree.num_nodes[row]))
            nodes = tuple(zip(tree.parents[row, used].tolist(), tree.tokens[row, used].tolist(), strict=True))
            assert len(nodes) == outcome.num_nodes[row]
            seen.append(
                Seen(
                    request_id, row, starts[row], logits[row], nodes, outcome.num_accepted[row], outcome.tokens[row]
                )
            )  # fmt: skip
    return seen


@pytest.fixture(scope="session")
def started() -> Callable[..., Batch]:
    """A batch in which all requests are prefilled and materialized."""

    @torch.inference_mode()
    def start(engine: Engine, requests: Sequence[Request]) -> Batch:
        batch = engine.new_batch(requests, len(requests))
        for row, request in enumerate(requests):
            batch.admit(row, engine.prefill(batch, row, request))
        engine.materialize_prompts(batch)
        batch.update_bound()
        return batch

    return start


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    """`make_engine(models, arm, **changes)`; invariants are checked unless `debug=False`."""

    def make(models: Models, arm: str = "ddtree", *, debug: bool = True, **changes: object) -> Engine:
        spec = EngineSpec(**{"target": models.facts.target, "node_budget": 12, **ARMS[arm], **changes})  # type: ignore[arg-type]
        return Engine(spec, models, debug=debug)

    return make
