"""The plain way for new tokens to attend to a cache: one boolean mask per forward, shared by all layers.

The engine's `dense_mask` variant, and what training decodes with. Letters: B batch rows, N new tokens, S cache rows,
H query heads, G KV heads, D head dim, R latent rank, Dr rotary key dims.
"""

from __future__ import annotations

import torch

from ddbench.kernels.mla_tree_attention import mla_tree_attention_dense
from ddbench.kernels.tree_attention import dense_mask, tree_attention_dense
from ddbench.models.inputs import VerifyInputs


class DenseMask:
    """Implements `models.inputs.VerifyAttention`."""

    def prepare(self, inputs: VerifyInputs, dtype: torch.dtype) -> torch.Tensor:
        """-> [B, 1, N, context_bound + N] bool."""
        return dense_mask(inputs.lengths, inputs.input_ids.shape[1], inputs.context_bound, inputs.visible)

    def gqa(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: torch.Tensor, scale: float) -> torch.Tensor:
        """q [B, N, H, D], k and v [B, S, G, D] -> [B, N, H, D]."""
        return tree_attention_dense(q, k, v, plan, scale)

    def mla(self, q: torch.Tensor, latent: torch.Tensor, rank: int, plan: torch.Tensor, scale: float) -> torch.Tensor:
        """q [B, N, H, R+Dr], latent [B, S, R+Dr] -> [B, N, H, R]."""
        return mla_tree_attention_dense(q, latent, rank, plan, scale)
