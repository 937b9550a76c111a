"""Multi-head latent attention, absorbed: the cache holds one latent row per token, shared by all heads.

The key up-projection is folded into the query and the value up-projection into the output, so that attention works on
latent rows directly (DeepSeek-V2, arXiv 2405.04434). RoPE is half-split here; published checkpoints that interleave the
rotary pairs are permuted when they are loaded.
Letters: B batch rows, N new tokens, H heads, R latent rank, Dr rotary dims, M hidden, S cache rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddbench.kernels.rope import rope
from ddbench.models.inputs import VerifyAttention
from ddbench.models.kernel_set import TORCH
from ddbench.models.layers import Addend, JoinedProjections, Parts, RMSNorm, attention_scale, linear
from ddbench.models.shapes import MLAShape, RopeShape


class MLAAttention(nn.Module):
    """Low-rank query, latent key/value, decoupled rotary key."""

    kernels = TORCH

    def __init__(self, hidden: int, shape: MLAShape, rope_shape: RopeShape, eps: float) -> None:
        super().__init__()
        self.shape = shape
        self.scale = attention_scale(shape.qk_nope_dim + shape.qk_rope_dim, rope_shape)
        q_width = shape.num_heads * (shape.qk_nope_dim + shape.qk_rope_dim)
        if shape.q_lora_rank is None:
            self.q_proj = linear(hidden, q_width)
        else:
            self.q_a_proj = linear(hidden, shape.q_lora_rank)
            self.q_a_norm = RMSNorm(shape.q_lora_rank, eps)
            self.q_b_proj = linear(shape.q_lora_rank, q_width)
        self.kv_a_proj = linear(hidden, shape.kv_lora_rank + shape.qk_rope_dim)
        self.projections = JoinedProjections(*((self.q_a_proj,) if shape.q_lora_rank else ()), self.kv_a_proj)
        self.kv_a_norm = RMSNorm(shape.kv_lora_rank, eps)
        self.kv_b_proj = linear(shape.kv_lora_rank, shape.num_heads * (shape.qk_nope_dim + shape.v_head_dim))
        self.o_proj = linear(shape.num_heads * shape.v_head_dim, hidden)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """-> q_nope [B,N,H,nope], q_rope [B,N,H,Dr] and latent row [B,N,R+Dr], not yet normalised or rotated."""
        *q_a, kv = self.projections(x)
        q = self.q_b_proj(self.q_a_norm(q_a[0])) if q_a else self.q_proj(x)
        return *self._heads(q), kv

    def _heads(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, N, H*(nope+Dr)] -> q_nope [B,N,H,nope], q_rope [B,N,H,Dr]."""
        q = q.unflatten(-1, (self.shape.num_heads, -1))
        q_nope, q_rope = q.split((self.shape.qk_nope_dim, self.shape.qk_rope_dim), dim=-1)
        return q_nope, q_rope

    def _project_and_write(
        self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor], slots: Any, latent_cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """-> q_nope and q_rope, not yet rotated; the new tokens' latent rows are in the cache."""
        kv_norm = self.kv_a_norm
        product = None if self.shape.q_lora_rank is None else self.projections.parts(x)
        if product is None:
            q_nope, q_rope, kv = self._project(x)
            self.kernels.latent_rows(kv, kv_norm.weight, kv_norm.eps, *rows, slots, latent_cache)
            return q_nope, q_rope
        q_norm = self.q_a_norm
        norms = (q_norm.weight, kv_norm.weight, q_norm.eps, kv_norm.eps)
        parts = product.sums if isinstance(product, Parts) else product[None]
        q = self.kernels.compressed_rows(parts, *norms, *rows, slots, latent_cache, x.dtype)
        return self._heads(self.q_b_proj(q))

    def _up_projections(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of kv_b_proj: keys [H, nope, R] and values [H, v, R]."""
        w = self.kv_b_proj.weight.view(self.shape.num_heads, -1, self.shape.kv_lora_rank)
        w_k, w_v = w.split((self.shape.qk_nope_dim, self.shape.v_head_dim), dim=1)
        return w_k, w_v

    def forward(
        self,
        x: torch.Tensor,  # [B, N, M]
        rows: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, ...],
        slots: Any,
        attention: VerifyAttention,
        plan: Any,
    ) -> Addend:
        """Write the new tokens' latent rows to cache rows `slots`, then attend as `attention` does.

        -> [B, N, M], or its parts.
        """
        (latent_cache,) = cache
        q_nope, q_rope = self._project_and_write(x, rows, slots, latent_cache)
        w_k, w_v = self._up_projections()
        q_latent = self.kernels.head_linear(q_nope.flatten(0, 1), w_k.transpose(1, 2))  # [B*N, H, R]
        q_latent = q_latent.unflatten(0, x.shape[:2])  # [B, N, H, R]
        q = self.kernels.absorbed_query(q_latent, q_rope, *rows)
        out = attention.mla(q, latent_cache, self.shape.kv_lora_rank, plan, self.scale)  # [B, N, H, R]
        values = x.new_empty(x.shape[0] * x.shape[1], self.shape.num_heads, self.shape.v_head_dim)  # [B*N, H, v]
        self.kernels.head_linear(out.flatten(0, 1), w_v, out=values)
        return self.o_proj.parts(values.view(*x.shape[:2], -1))

    def full(self, x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Causal attention over whole sequences, keys and values expanded (training). [B, T, M] -> [B, T, M]."""
        q_nope, q_rope, kv_a = self._project(x)
        latent, k_rope = kv_a.split((self.shape.kv_lora_rank, self.shape.qk_rope_dim), dim=-1)
        k_rope = rope(k_rope[:, :, None], *rows)
        kv = self.kv_b_proj(self.kv_a_norm(latent)).unflatten(-1, (self.shape.num_heads, -1))
        k_nope, v = kv.split((self.shape.qk_nope_dim, self.shape.v_head_dim), dim=-1)
        q = torch.cat((q_nope, rope(q_rope, *rows)), dim=-1)
        k = torch.cat((k_nope, k_rope.expand(-1, -1, self.shape.num_heads, -1)), dim=-1)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=self.scale
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))
