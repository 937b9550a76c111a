"""Attention of training and of bulk decoding through torch's SDPA, query heads of one KV head folded into its rows.

Folded, a mask and grouped heads go through the memory-efficient kernel, forward and backward; `enable_gqa` with a mask
would take the one that writes all scores out. Letters: B batch rows, N queries, S keys, H query heads, G KV heads,
D head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddbench.kernels.tree_attention import dense_mask
from ddbench.models.inputs import VerifyInputs

# In this order, whatever a version of torch prefers; the last one only where the first cannot (on a CPU, say).
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def folded_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [B, N, H, D], k and v [B, S, G, D], mask [B, 1, N, S] bool or added to the scores -> [B, N, H, D]."""
    batch, num, heads, dim = q.shape
    groups = k.shape[2]
    share = heads // groups
    q = q.unflatten(2, (groups, share)).permute(0, 2, 3, 1, 4).reshape(batch, groups, share * num, dim)
    mask = mask[:, :, None].expand(-1, -1, share, -1, -1).flatten(2, 3)  # [B, 1, share * N, S]
    with sdpa_kernel(BACKENDS):
        out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale)
    return out.unflatten(2, (share, num)).permute(0, 3, 1, 2, 4).reshape(batch, num, heads, dim)


class FoldedMask:
    """Implements `models.inputs.VerifyAttention` for grouped-query targets; for bulk decoding."""

    def prepare(self, inputs: VerifyInputs, dtype: torch.dtype) -> torch.Tensor:
        """-> [B, 1, N, context_bound + N], 0 or -inf, in `dtype`."""
        seen = dense_mask(inputs.lengths, inputs.input_ids.shape[1], inputs.context_bound, inputs.visible)
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)

    def gqa(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: torch.Tensor, scale: float) -> torch.Tensor:
        """q [B, N, H, D], k and v [B, S, G, D] -> [B, N, H, D]."""
        num_rows = plan.shape[-1]
        return folded_attention(q, k[:, :num_rows], v[:, :num_rows], plan, scale)

    def mla(self, q: torch.Tensor, latent: torch.Tensor, rank: int, plan: torch.Tensor, scale: float) -> torch.Tensor:
        """Latent caches have one KV head: q [B, N, H, R+Dr], latent [B, S, R+Dr] -> [B, N, H, R]."""
        rows = latent[:, : plan.shape[-1], None]
        return folded_attention(q, rows, rows[..., :rank], plan, scale)
