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
from ddbench.models.layers import RMSNorm, attention_scale, linear
from ddbench.models.shapes import GQAShape, RopeShape


class GQAAttention(nn.Module):
    """q, k, v projections, optional per-head q/k norms, RoPE, attention, output projection."""

    def __init__(self, hidden: int, shape: GQAShape, rope_shape: RopeShape, eps: float) -> None:
        super().__init__()
        self.shape = shape
        self.scale = attention_scale(shape.head_dim, rope_shape)
        self.q_proj = linear(hidden, shape.num_heads * shape.head_dim)
        self.k_proj = linear(hidden, shape.num_kv_heads * shape.head_dim)
        self.v_proj = linear(hidden, shape.num_kv_heads * shape.head_dim)
        self.o_proj = linear(shape.num_heads * shape.head_dim, hidden)
        self.q_norm = RMSNorm(shape.head_dim, eps) if shape.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(shape.head_dim, eps) if shape.qk_norm else nn.Identity()

    def _project(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        q = self.q_proj(x).unflatten(-1, (-1, self.shape.head_dim))  # [B, N, H, D]
        k = self.k_proj(x).unflatten(-1, (-1, self.shape.head_dim))  # [B, N, G, D]
        v = self.v_proj(x).unflatten(-1, (-1, self.shape.head_dim))  # [B, N, G, D]
        return rope(self.q_norm(q), *rows), rope(self.k_norm(k), *rows), v

    def forward(
        self,
        x: torch.Tensor,  # [B, N, M]
        rows: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, ...],
        slots: tuple[torch.Tensor, torch.Tensor],
        attention: VerifyAttention,
        plan: Any,
    ) -> torch.Tensor:
        """Write the new tokens' K/V to cache rows `slots`, then attend as `attention` does. -> [B, N, M]."""
        q, k, v = self._project(x, rows)
        k_cache, v_cache = cache
        k_cache[slots], v_cache[slots] = k, v
        return self.o_proj(attention.gqa(q, k_cache, v_cache, plan, self.scale).flatten(2))

    def full(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Causal attention over whole sequences without a cache (training). [B, T, M] -> [B, T, M]."""
        q, k, v = (t.transpose(1, 2) for t in self._project(x, rows))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.shape.num_heads != self.shape.num_kv_heads
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))
