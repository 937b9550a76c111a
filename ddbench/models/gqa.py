"""Grouped-query attention with a K/V cache (Qwen3, Llama).

Letters: B batch rows, N new tokens, H query heads, G KV heads, D head dim, M hidden, S cache rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddbench.kernels.rope import rope
from ddbench.models.inputs import VerifyAttention
from ddbench.models.kernel_set import TORCH
from ddbench.models.layers import Addend, JoinedProjections, RMSNorm, attention_scale, linear
from ddbench.models.shapes import GQAShape, RopeShape


class GQAAttention(nn.Module):
    """q, k, v projections, optional per-head q/k norms, RoPE, attention, output projection."""

    kernels = TORCH

    def __init__(self, hidden: int, shape: GQAShape, rope_shape: RopeShape, eps: float) -> None:
        super().__init__()
        self.shape = shape
        self.scale = attention_scale(shape.head_dim, rope_shape)
        self.q_proj = linear(hidden, shape.num_heads * shape.head_dim)
        self.k_proj = linear(hidden, shape.num_kv_heads * shape.head_dim)
        self.v_proj = linear(hidden, shape.num_kv_heads * shape.head_dim)
        self.projections = JoinedProjections(self.q_proj, self.k_proj, self.v_proj)
        self.o_proj = linear(shape.num_heads * shape.head_dim, hidden)
        self.q_norm = RMSNorm(shape.head_dim, eps) if shape.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(shape.head_dim, eps) if shape.qk_norm else nn.Identity()

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """-> q [B, N, H, D], k and v [B, N, G, D] as they come out of their products."""
        q, k, v = (part.unflatten(-1, (-1, self.shape.head_dim)) for part in self.projections(x))
        return q, k, v

    def _norms(self) -> tuple[torch.Tensor | None, torch.Tensor | None, float]:
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            return self.q_norm.weight, self.k_norm.weight, self.q_norm.eps
        return None, None, 0.0

    def _project(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        q, k, v = self._heads(x)
        return rope(self.q_norm(q), *rows), rope(self.k_norm(k), *rows), v

    def forward(
        self,
        x: torch.Tensor,  # [B, N, M]
        rows: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, ...],
        slots: Any,
        attention: VerifyAttention,
        plan: Any,
    ) -> Addend:
        """Write the new tokens' K/V to cache rows `slots`, then attend as `attention` does. -> [B, N, M], or parts."""
        k_cache, v_cache = cache
        q = self.kernels.qk_rows(*self._heads(x), *self._norms(), *rows, slots, k_cache, v_cache)
        return self.o_proj.parts(attention.gqa(q, k_cache, v_cache, plan, self.scale).flatten(2))

    def full(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Causal attention over whole sequences without a cache (training). [B, T, M] -> [B, T, M]."""
        q, k, v = (t.transpose(1, 2) for t in self._project(x, rows))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.shape.num_heads != self.shape.num_kv_heads
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))
