"""The DFlash drafter (arXiv 2602.06036): one forward predicts a whole block of tokens.

The block is [anchor, MASK x L]; its memory is a K/V cache computed from the target's captured features ("KV
injection"), its embedding and head are the target's. Row j of the result predicts the token at the same position as
block slot j + 1 (mask filling, no next-token shift).
Letters: B batch rows, P block positions, L = P - 1 drafted, D hidden, H query heads, G KV heads, hd head dim,
Ld layers, S cache rows, K captured layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from ddbench.kernels.rope import rope
from ddbench.models.kernel_set import TORCH
from ddbench.models.layers import (
    Addend,
    JoinedProjections,
    RMSNorm,
    RotaryTable,
    SwiGLU,
    attention_scale,
    linear,
)
from ddbench.models.prefetch import Prefetch
from ddbench.models.shapes import DrafterShape
from ddbench.models.target import Target


@dataclass(frozen=True, slots=True)
class MaterializeWeights:
    """What the materialize kernels need of a drafter; K rows first in each layer's `kv_weights`."""

    fc: torch.Tensor  # [D, K*M]
    hidden_norm: torch.Tensor  # [D]
    kv_weights: torch.Tensor  # [Ld, 2*G*hd, D]
    k_norms: torch.Tensor  # [Ld, hd]
    eps: float
    cos: torch.Tensor  # [positions, rotary_dim/2] fp32
    sin: torch.Tensor


class DrafterAttention(nn.Module):
    """q from the block; k and v from the block and, with the same weights, from the projected target features."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.scale = attention_scale(shape.head_dim, shape.rope)
        self.q_proj = linear(shape.hidden, shape.num_heads * shape.head_dim)
        self.k_proj = linear(shape.hidden, shape.num_kv_heads * shape.head_dim)
        self.v_proj = linear(shape.hidden, shape.num_kv_heads * shape.head_dim)
        self.projections = JoinedProjections(self.q_proj, self.k_proj, self.v_proj)
        self.o_proj = linear(shape.num_heads * shape.head_dim, shape.hidden)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[B, T, D] -> q [B, T, H, hd], k and v [B, T, G, hd] as they come out of their products."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.projections(x))
        return q, k, v

    def query(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """[B, T, D] -> normalised, rotated q [B, T, H, hd]."""
        return rope(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), *rows)

    def key_value(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, T, D] -> normalised, rotated k and plain v, each [B, T, G, hd]; for block rows and context rows alike."""
        k = rope(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim))), *rows)
        return k, self.v_proj(x).unflatten(-1, (-1, self.head_dim))


class DrafterLayer(nn.Module):
    """Pre-norm attention over context and block, then a SwiGLU MLP. Context rows pass through neither norm nor MLP."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.attention = DrafterAttention(shape)
        self.post_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = SwiGLU(shape.hidden, shape.width)


class Drafter(nn.Module):
    """Block plus draft K/V cache to draft logits."""

    layers: Sequence[DrafterLayer]  # an nn.ModuleList
    kernels = TORCH

    def __init__(self, shape: DrafterShape, num_positions: int) -> None:
        super().__init__()
        self.shape = shape
        self.fc = linear(len(shape.target_layer_ids) * shape.target_hidden, shape.hidden)
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.layers = cast(Sequence[DrafterLayer], nn.ModuleList(DrafterLayer(shape) for _ in range(shape.num_layers)))
        self.prefetch = Prefetch(self.layers)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        # A block drafted near the end of the context reaches beyond it.
        self.rotary = RotaryTable(shape.rope, num_positions + shape.block_size)

    def context(self, features: torch.Tensor) -> torch.Tensor:
        """Target features [B, T, K*M] -> [B, T, D], the input of every layer's k and v projection."""
        return self.hidden_norm(self.fc(features))

    def materialize_weights(self) -> MaterializeWeights:
        """Copies of the weights, stacked over layers as the batched kernels want them."""
        attentions = [layer.attention for layer in self.layers]
        kv = torch.stack([torch.cat((a.k_proj.weight, a.v_proj.weight)) for a in attentions])
        return MaterializeWeights(
            fc=self.fc.weight,
            hidden_norm=self.hidden_norm.weight,
            kv_weights=kv.detach().contiguous(),
            k_norms=torch.stack([a.k_norm.weight for a in attentions]).detach(),
            eps=self.shape.norm_eps,
            cos=self.rotary.cos,
            sin=self.rotary.sin,
        )

    def forward(
        self,
        block_ids: torch.Tensor,  # [B, P] int64: the anchor, then mask tokens
        lengths: torch.Tensor,  # [B] int64 context rows in the draft cache = absolute position of the anchor
        k_cache: torch.Tensor,  # [Ld, B, S, G, hd]
        v_cache: torch.Tensor,
        context_bound: int,
        target: Target,
    ) -> torch.Tensor:
        """-> draft logits [B, P-1, V], in the dtype of `target.logits`.

        The block's own K/V is put into cache rows lengths .. lengths+P-1 for the time of the call: rows at or beyond
        `lengths` are never context, so the cache's content as seen by the next call is unchanged.
        """
        block = block_ids.shape[1]
        x: Addend
        x, rows = target.begin(block_ids, lengths[:, None], self.rotary)  # [B, P, D]
        slots = self.kernels.plan_rows(lengths, block)
        plans: dict[tuple[int | None, bool], Any] = {}
        residual: torch.Tensor | None = None
        ahead = self.prefetch.branch(block_ids.numel(), behind=target.prefetch)
        for i, layer in enumerate(self.layers):
            rule = (self.shape.window(i), self.shape.causal_in_block(i))
            if rule not in plans:
                plans[rule] = self.kernels.plan_block(lengths, block, context_bound, *rule)
            h, residual = layer.input_norm.add(x, residual)
            ahead.fork(i)
            attention = layer.attention
            q = self.kernels.qk_rows(
                *attention.heads(h), attention.q_norm.weight, attention.k_norm.weight, self.shape.norm_eps, *rows,
                slots, k_cache[i], v_cache[i],
            )  # fmt: skip
            out = self.kernels.attend_block(q, k_cache[i], v_cache[i], plans[rule], attention.scale)
            h, residual = layer.post_norm.add(attention.o_proj.parts(out.flatten(2)), residual)
            x = layer.mlp.addend(h)
        x, _ = self.norm.add(x, residual)
        return target.logits(x[:, 1:], is_join=ahead.join())
