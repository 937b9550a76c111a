"""Oracles of both models out of the references alone: no cache, no absorbed projections, no kernels, text by text.

Weights are read from the modules; everything computed with them is FP64 and written down from the papers' equations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ddbench.models.drafter import Drafter
from ddbench.models.gqa import GQAAttention
from ddbench.models.inputs import VerifyInputs
from ddbench.models.layers import SwiGLU
from ddbench.models.mla import MLAAttention
from ddbench.models.moe import MoE
from ddbench.models.random_weights import randomize
from ddbench.models.shapes import DrafterShape, RopeShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import Models, dequantize_experts, random_models
from ddbench.reference import int4, mla_tree_attention, moe_experts, moe_route, rms_norm, rope, tree_attention

TINY = ("tiny-gqa", "tiny-mla-moe")


@dataclass(frozen=True)
class Oracle:
    """`target(model, ids)` and `draft(drafter, model, ids, features, block)`; see the functions below."""

    target: Callable[..., tuple[Tensor, Tensor]]
    draft: Callable[..., Tensor]


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle(target_oracle, draft_oracle)


@pytest.fixture(scope="session", params=TINY)
def models(request: pytest.FixtureRequest) -> Models:
    """A tiny pair; its INT4 experts are packed."""
    return random_models(request.param)


@pytest.fixture(scope="session")
def float_target() -> Callable[[Target], Target]:
    """The same target with its experts unpacked, for the training forward."""

    def unpacked(target: Target) -> Target:
        target = copy.deepcopy(target)
        dequantize_experts(target, torch.float32)
        return target

    return unpacked


@pytest.fixture(scope="session")
def make_target() -> Callable[..., Target]:
    """`make_target(shape, capture_ids)`: seeded random weights."""

    def make(shape: TargetShape, capture_ids: tuple[int, ...] = ()) -> Target:
        target = Target(shape, capture_ids)
        randomize(target, 1)
        return target.requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def make_drafter() -> Callable[..., Drafter]:
    """`make_drafter(shape, **changes)`: seeded random weights for a changed shape."""

    def make(shape: DrafterShape, num_positions: int = 64, **changes: Any) -> Drafter:
        drafter = Drafter(DrafterShape(**{**shape.model_dump(), **changes}), num_positions)
        randomize(drafter, 2)
        return drafter.requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def make_ids() -> Callable[..., Tensor]:
    """`make_ids(n)`: n seeded token ids of a tiny vocabulary."""

    def make(number: int, seed: int = 0, vocab: int = 96) -> Tensor:
        return torch.randint(vocab, (number,), generator=torch.Generator().manual_seed(seed))

    return make


class ReferenceAttention:
    """The target's attention by the specification: reads exactly the rows that a token sees."""

    def prepare(self, inputs: VerifyInputs, dtype: torch.dtype) -> VerifyInputs:
        return inputs

    def gqa(self, q: Tensor, k: Tensor, v: Tensor, plan: VerifyInputs, scale: float) -> Tensor:
        return tree_attention.tree_attention(q, k, v, plan.lengths, plan.visible, scale)

    def mla(self, q: Tensor, latent: Tensor, rank: int, plan: VerifyInputs, scale: float) -> Tensor:
        return mla_tree_attention.mla_tree_attention(q, latent, rank, plan.lengths, plan.visible, scale)


class Session:
    """A target with its cache: `feed` runs new tokens of every request and keeps their rows."""

    def __init__(self, target: Target, batch: int, num_rows: int) -> None:
        shape = target.shape
        dtype = target.embedding.weight.dtype
        self.target = target
        self.lengths = torch.zeros(batch, dtype=torch.int64)
        self.cache = [
            tuple(torch.full((batch, num_rows, *row), torch.nan, dtype=dtype) for row in shape.attention.row_shapes)
            for _ in range(shape.num_layers)
        ]

    def run(self, ids: Tensor, row: int | None = None, **inputs: Any) -> tuple[Tensor, Tensor]:
        """ids [B, N] (or of one request, [1, N]) on top of the rows kept -> logits [B, N, V], features [B, N, K*M]."""
        rows = slice(None) if row is None else slice(row, row + 1)
        lengths = self.lengths[rows].clone()
        inputs.setdefault("positions", lengths[:, None] + torch.arange(ids.shape[1]))
        inputs.setdefault("visible", None)
        cache = [tuple(tensor[rows] for tensor in layer) for layer in self.cache]
        bound = int(lengths.max()) + 3  # any value not below the longest context
        with torch.inference_mode():
            out = self.target(VerifyInputs(ids, lengths=lengths, context_bound=bound, **inputs), cache, ATTENTION)
        return out.logits, out.features

    def feed(self, ids: Tensor, row: int | None = None) -> tuple[Tensor, Tensor]:
        """`run`, and the new rows stay."""
        out = self.run(ids, row)
        self.lengths[slice(None) if row is None else row] += ids.shape[1]
        return out


ATTENTION = ReferenceAttention()


@pytest.fixture(scope="session")
def session() -> type[Session]:
    return Session


# ------------------------------------------------------------------------------------------------------- equations


def target_oracle(
    target: Target, ids: Sequence[int], positions: Sequence[int] | None = None, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A whole text in one pass -> logits [n, V] and captured features [n, K*M], FP64.

    `visible` [n, n] and `positions` make a tree of it; None: a plain text.
    """
    shape = target.shape
    number = len(ids)
    positions = range(number) if positions is None else positions
    rows = _rotary(shape.rope, positions)
    sees = None if visible is None else visible[None]
    x = target.embedding.weight[torch.tensor(ids)].double() * shape.embedding_scale
    captured = {}
    for i, layer in enumerate(target.layers):
        attend = _gqa if isinstance(layer.attention, GQAAttention) else _mla
        x = x + attend(layer.attention, _norm(layer.input_norm, x), shape.rope, rows, sees)
        x = x + _mlp(layer.mlp, _norm(layer.post_norm, x))
        captured[i] = x
    logits = _norm(target.norm, x) @ target.lm_head.weight.double().T
    if shape.logit_softcap is not None:
        logits = shape.logit_softcap * torch.tanh(logits / shape.logit_softcap)
    return logits, torch.cat([captured[i] for i in target.capture_ids], dim=-1) if target.capture_ids else x[:, :0]


def draft_oracle(drafter: Drafter, target: Target, ids: Sequence[int], features: Tensor, block: int) -> Tensor:
    """Draft logits [P-1, V] after the text `ids`, whose last token is the anchor; features [len(ids)-1, K*M]. FP64.

    ALGORITHM: context rows are `k(C), v(C)` with C = norm(fc(features)); block slots see the context (of a window that
    counts the query itself) and the block, or, on causal layers, only its earlier slots.
    """
    shape = drafter.shape
    start = len(ids) - 1  # the anchor's position
    context = _norm(drafter.hidden_norm, features.double() @ drafter.fc.weight.double().T)
    block_ids = torch.tensor([ids[-1], *[shape.mask_token_id] * (block - 1)])
    x = target.embedding.weight[block_ids].double() * target.shape.embedding_scale
    context_rows, block_rows = _rotary(shape.rope, range(start)), _rotary(shape.rope, range(start, start + block))
    scale = shape.head_dim**-0.5 * _temperature(shape.rope) ** 2
    for i, layer in enumerate(drafter.layers):
        window = shape.sliding_window if shape.layer_types and shape.layer_types[i] == "sliding_attention" else None
        is_causal = window is not None if shape.is_causal is None else shape.is_causal
        a, h = layer.attention, _norm(layer.input_norm, x)
        q = _rotated(_norm(a.q_norm, _heads(a.q_proj, h, shape.head_dim)), block_rows)
        keys = (_heads(a.k_proj, rows, shape.head_dim) for rows in (context, h))
        k = torch.cat(
            [
                _rotated(_norm(a.k_norm, heads), rows)
                for heads, rows in zip(keys, (context_rows, block_rows), strict=True)
            ]
        )
        v = torch.cat([_heads(a.v_proj, rows, shape.head_dim) for rows in (context, h)])
        out = torch.zeros(block, shape.num_heads, shape.head_dim, dtype=torch.float64)
        for slot in range(block):
            seen = [p for p in range(start) if window is None or p >= start + slot - (window - 1)]
            seen += [start + other for other in range(block) if not is_causal or other <= slot]
            for head in range(shape.num_heads):
                group = head * shape.num_kv_heads // shape.num_heads
                scores = torch.softmax(scale * (k[seen, group] @ q[slot, head]), dim=0)
                out[slot, head] = scores @ v[seen, group]
        x = x + out.flatten(1) @ a.o_proj.weight.double().T
        x = x + _mlp(layer.mlp, _norm(layer.post_norm, x))
    logits = _norm(drafter.norm, x[1:]) @ target.lm_head.weight.double().T
    cap = target.shape.logit_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _gqa(a: GQAAttention, h: Tensor, shape: RopeShape, rows: tuple[Tensor, Tensor], sees: Tensor | None) -> Tensor:
    dim = a.shape.head_dim
    q, k = (_heads(projection, h, dim) for projection in (a.q_proj, a.k_proj))
    if a.shape.qk_norm:
        q, k = _norm(a.q_norm, q), _norm(a.k_norm, k)
    scale = dim**-0.5 * _temperature(shape) ** 2
    out = _attend(_rotated(q, rows), _rotated(k, rows), _heads(a.v_proj, h, dim), scale, sees)
    return out.flatten(1) @ a.o_proj.weight.double().T


def _mla(a: MLAAttention, h: Tensor, shape: RopeShape, rows: tuple[Tensor, Tensor], sees: Tensor | None) -> Tensor:
    """Not absorbed: keys and values of every head are expanded from the latent, as the paper introduces them."""
    s, number = a.shape, len(h)
    narrow = _norm(a.q_a_norm, h @ a.q_a_proj.weight.double().T)
    q = (narrow @ a.q_b_proj.weight.double().T).view(number, s.num_heads, s.qk_nope_dim + s.qk_rope_dim)
    low = h @ a.kv_a_proj.weight.double().T
    latent, k_rope = _norm(a.kv_a_norm, low[:, : s.kv_lora_rank]), _rotated(low[:, None, s.kv_lora_rank :], rows)
    kv = (latent @ a.kv_b_proj.weight.double().T).view(number, s.num_heads, s.qk_nope_dim + s.v_head_dim)
    q = torch.cat([q[..., : s.qk_nope_dim], _rotated(q[..., s.qk_nope_dim :], rows)], dim=-1)
    k = torch.cat([kv[..., : s.qk_nope_dim], k_rope.expand(-1, s.num_heads, -1)], dim=-1)
    v = torch.zeros_like(k)  # the reference takes keys and values of one width
    v[..., : s.v_head_dim] = kv[..., s.qk_nope_dim :]
    scale = (s.qk_nope_dim + s.qk_rope_dim) ** -0.5 * _temperature(shape) ** 2
    out = _attend(q, k, v, scale, sees)[..., : s.v_head_dim]
    return out.flatten(1) @ a.o_proj.weight.double().T


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, sees: Tensor | None) -> Tensor:
    no_context = torch.zeros(1, dtype=torch.int64)
    return tree_attention.tree_attention(q[None], k[None], v[None], no_context, sees, scale)[0]


def _mlp(mlp: MoE | SwiGLU, h: Tensor) -> Tensor:
    if isinstance(mlp, SwiGLU):
        gate, up = (h @ mlp.gate_up.weight.double().T).chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up) @ mlp.down.weight.double().T
    shape, experts = mlp.shape, mlp.experts
    ids, weights = moe_route.moe_route(h, mlp.gate.double(), mlp.bias.double(), shape.top_k, shape.routed_scaling)
    if experts.is_packed:
        gate_up, down = (
            int4.dequantize(words, scales, shape.group_size, torch.float64)
            for words, scales in (
                (experts.gate_up_packed, experts.gate_up_scales),
                (experts.down_packed, experts.down_scales),
            )
        )
    else:
        gate_up, down = experts.gate_up.double(), experts.down.double()
    return moe_experts.moe_experts(h, ids, weights, gate_up, down) + _mlp(mlp.shared, h)


def _norm(module: Any, x: Tensor) -> Tensor:
    return rms_norm.rms_norm(x, module.weight.double(), module.eps)


def _heads(projection: torch.nn.Linear, x: Tensor, dim: int) -> Tensor:
    return (x @ projection.weight.double().T).unflatten(-1, (-1, dim))  # [n, heads, dim]


def _rotary(shape: RopeShape, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    yarn = None if shape.yarn is None else shape.yarn.model_dump()
    cos, sin = rope.cos_sin(rope.inv_freq(shape.rotary_dim, shape.theta, yarn), max([0, *positions]) + 1)
    chosen = torch.tensor(list(positions), dtype=torch.int64)
    return cos[chosen], sin[chosen]


def _rotated(x: Tensor, rows: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rows
    return rope.rope(x[None], cos[None, :, None], sin[None, :, None])[0]


def _temperature(shape: RopeShape) -> float:
    return 1.0 if shape.yarn is None else rope.yarn_mscale(shape.yarn.factor, shape.yarn.mscale_all_dim)
