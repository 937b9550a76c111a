"""How new tokens attend to a cache: a boolean mask per forward, shared by all layers, or kernels that know of trees.

The engine's `dense_mask` (what training decodes with, too) and `tree_triton` variants. Letters: B batch rows, N new
tokens, S cache rows, H query heads, G KV heads, D head dim, R latent rank, Dr rotary key dims.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class _Plan(NamedTuple):
    """What a forward's layers share: context rows, and the mask in bits (None: causal)."""

    lengths: torch.Tensor  # [B] int64
    packed: torch.Tensor | None  # [B, N, W] int32
    context_bound: int


class TreeTriton:
    """Implements `models.inputs.VerifyAttention` with the Triton kernels."""

    def prepare(self, inputs: VerifyInputs, dtype: torch.dtype) -> Any:
        """Nothing to compute: a tree comes with its mask in bits."""
        assert inputs.packed is not None or inputs.visible is None, "a tree without its mask in bits"
        return _Plan(inputs.lengths, inputs.packed, inputs.context_bound)

    def gqa(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: _Plan, scale: float) -> torch.Tensor:
        """q [B, N, H, D], k and v [B, S, G, D] -> [B, N, H, D]."""
        from ddbench.kernels.tree_attention_triton import tree_attention_triton

        return tree_attention_triton(
            q, k, v, plan.lengths, None, scale, packed=plan.packed, context_bound=plan.context_bound
        )

    def mla(self, q: torch.Tensor, latent: torch.Tensor, rank: int, plan: _Plan, scale: float) -> torch.Tensor:
        """q [B, N, H, R+Dr], latent [B, S, R+Dr] -> [B, N, H, R]."""
        from ddbench.kernels.mla_tree_attention_triton import mla_tree_attention_triton

        words = None if plan.packed is None else plan.packed.view(torch.int64)  # two of 32 bits, low one first
        return mla_tree_attention_triton(q, latent, rank, plan.lengths, words, scale, plan.context_bound)
