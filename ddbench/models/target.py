"""The target: a decoder with pluggable attention (GQA, MLA) and MLP (dense, MoE).

One forward serves prefill, plain decoding, chain verify and tree verify: N new tokens per request on top of the cache.
Letters: B batch rows, N new tokens, M hidden, V vocabulary, K captured layers, S cache rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from ddbench.models.gqa import GQAAttention
from ddbench.models.inputs import VerifyAttention, VerifyInputs, VerifyOutput
from ddbench.models.kernel_set import TORCH
from ddbench.models.layers import Addend, RMSNorm, RotaryTable, SwiGLU, linear
from ddbench.models.mla import MLAAttention
from ddbench.models.moe import MoE
from ddbench.models.prefetch import Prefetch
from ddbench.models.shapes import GQAShape, TargetShape


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, both added to the residual stream."""

    def __init__(self, shape: TargetShape, layer: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.attention: GQAAttention | MLAAttention
        if isinstance(shape.attention, GQAShape):
            self.attention = GQAAttention(shape.hidden, shape.attention, shape.rope, shape.norm_eps)
        else:
            self.attention = MLAAttention(shape.hidden, shape.attention, shape.rope, shape.norm_eps)
        self.post_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp: MoE | SwiGLU
        if shape.moe is not None and shape.is_moe_layer(layer):
            self.mlp = MoE(shape.hidden, shape.moe)
        else:
            self.mlp = SwiGLU(shape.hidden, shape.dense_width)

    def forward(self, h: torch.Tensor, residual: torch.Tensor, *args: Any) -> tuple[Addend, torch.Tensor]:
        """`h` is the norm of the residual stream; -> (what is yet to be added to the stream, the stream so far).

        Each addition is left to the norm that follows it, which makes one pass of the two.
        """
        h, residual = self.post_norm.add(self.attention(h, *args), residual)
        return self.mlp.addend(h), residual


class Target(nn.Module):
    """Token ids to logits and captured features.

    `capture_ids` are 0-based layer indices; the feature of id i is the residual stream after layer i, before any final
    norm (Hugging Face's `hidden_states[i + 1]`).
    """

    layers: Sequence[DecoderLayer]  # an nn.ModuleList
    kernels = TORCH

    def __init__(self, shape: TargetShape, capture_ids: tuple[int, ...] = ()) -> None:
        super().__init__()
        assert all(0 <= i < shape.num_layers for i in capture_ids), f"capture ids {capture_ids} of {shape.num_layers}"
        self.shape = shape
        self.capture_ids = capture_ids
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        layers = nn.ModuleList(DecoderLayer(shape, layer) for layer in range(shape.num_layers))
        self.layers = cast(Sequence[DecoderLayer], layers)
        self.prefetch = Prefetch(self.layers)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.lm_head = linear(shape.hidden, shape.vocab)
        if shape.tie_embeddings:
            self.lm_head.weight = self.embedding.weight
        self.rotary = RotaryTable(shape.rope, shape.max_context)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[...] int64 -> [..., M], with the model's embedding scale; the drafter's noise embedding comes from here."""
        x = self.embedding(ids)
        return x if self.shape.embedding_scale == 1.0 else x * self.shape.embedding_scale

    def begin(
        self, ids: torch.Tensor, positions: torch.Tensor, rotary: RotaryTable
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """What a forward of tokens [B, N] begins with: `embed(ids)` [B, N, M], and the rotary rows of their positions.

        Positions are [B, N], or [B, 1] where tokens stand one behind the other.
        """
        x, cos, sin = self.kernels.token_rows(ids, positions, self.embedding.weight, rotary.cos, rotary.sin)
        return x if self.shape.embedding_scale == 1.0 else x * self.shape.embedding_scale, (cos, sin)

    def logits(self, hidden: torch.Tensor, *, is_join: bool = False) -> torch.Tensor:
        """[..., M] (normalised) -> logits [..., V] with the model's soft-cap; the drafter's too.

        In the model's dtype, but float32 where capped: to widen them is a pass over all of them that no choice needs.
        The first product behind a join of streams is launched the usual way (kernels/dependent_launch_triton.py).
        """
        logits = self.lm_head(hidden, is_join=is_join)
        cap = self.shape.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits.float() / cap)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same in float32: what is computed with."""
        return self.logits(hidden).float()

    def forward(
        self,
        inputs: VerifyInputs,
        cache: Sequence[tuple[torch.Tensor, ...]],
        attention: VerifyAttention,
        *,
        captures: bool = True,  # False: nobody wants the features, which are then of no layer
    ) -> VerifyOutput:
        """`cache[i]` holds layer i's tensors [B, S, *row]; the new tokens' rows are written to it in place."""
        x: Addend
        x, rows = self.begin(inputs.input_ids, inputs.positions, self.rotary)  # [B, N, M]
        plan = attention.prepare(inputs, self.embedding.weight.dtype)
        slots = self.kernels.plan_rows(inputs.lengths, inputs.input_ids.shape[1])
        captured: dict[int, torch.Tensor] = {}
        residual: torch.Tensor | None = None
        ahead = self.prefetch.branch(inputs.input_ids.numel())
        for i, layer in enumerate((*self.layers, None)):
            norm = self.norm if layer is None else layer.input_norm
            h, residual = norm.add(x, residual)  # the stream after layer i - 1
            if captures and i - 1 in self.capture_ids:
                captured[i - 1] = residual
            if layer is not None:
                ahead.fork(i)
                x, residual = layer(h, residual, rows, cache[i], slots, attention, plan)
        features = torch.cat([captured[i] for i in self.capture_ids], dim=-1) if captured else h[..., :0]
        if inputs.logit_rows is not None:
            h = h.gather(1, inputs.logit_rows[:, None, None].expand(-1, 1, h.shape[-1]))
        return VerifyOutput(logits=self.logits(h, is_join=ahead.join()), features=features)

    def full(self, ids: torch.Tensor, fake_quantize: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Whole sequences, causal, no cache: the training forward.

        ids [B, T] -> (normalised hidden [B, T, M], features [B, T, K*M], tokens per expert [MoE layers, E]).
        """
        x = self.embed(ids)
        rows = self.rotary.rows(torch.arange(ids.shape[1], device=ids.device)[None])
        captured: dict[int, torch.Tensor] = {}
        loads = []
        for i, layer in enumerate(self.layers):
            x = x + layer.attention.full(layer.input_norm(x), rows)
            if isinstance(layer.mlp, MoE):
                out, load = layer.mlp.full(layer.post_norm(x), fake_quantize)
                loads.append(load)
            else:
                out = layer.mlp(layer.post_norm(x))
            x = x + out
            if i in self.capture_ids:
                captured[i] = x
        features = torch.cat([captured[i] for i in self.capture_ids], dim=-1) if captured else x[..., :0]
        return self.norm(x), features, torch.stack(loads) if loads else torch.zeros(0, device=x.device)
