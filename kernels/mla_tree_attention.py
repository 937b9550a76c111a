"""Absorbed multi-head latent attention of N new tokens: as tree_attention, but all heads share one cached latent row.

A cache row is the normalised latent (R dims, also the value) followed by the rotated key part (Dr dims). Mask and
contract on unread rows as in tree_attention: `dense_mask` there, finite rows below the mask's width.
Letters: B batch rows, N new tokens, S cache rows, H heads, R latent rank, Dr rotary key dims.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F


def mla_tree_attention_dense(
    q: torch.Tensor,  # [B, N, H, R+Dr]
    latent: torch.Tensor,  # [B, S, R+Dr]
    rank: int,
    mask: torch.Tensor,  # [B, 1, N, bound+N] bool
    scale: float,
    method: Literal["matmul", "sdpa"] = "matmul",
) -> torch.Tensor:
    """-> [B, N, H, R]. The heads are folded into the query rows, so that each latent row is read once for all heads."""
    batch, num_new, num_heads, width = q.shape
    num_rows = mask.shape[-1]
    assert latent.shape[1] >= num_rows, f"cache has {latent.shape[1]} rows, the mask looks at {num_rows}"
    keys = latent[:, :num_rows]  # [B, S', R+Dr]
    folded = q.reshape(batch, num_new * num_heads, width)
    if method == "sdpa":
        row_mask = mask[:, 0, :, None, :].expand(-1, -1, num_heads, -1).reshape(batch, 1, num_new * num_heads, num_rows)
        out = F.scaled_dot_product_attention(
            folded[:, None], keys[:, None], keys[:, None, :, :rank], attn_mask=row_mask, scale=scale
        )
        return out.reshape(batch, num_new, num_heads, rank)
    scores = (folded @ keys.transpose(1, 2)).float().view(batch, num_new, num_heads, num_rows)
    scores = (scores * scale).masked_fill_(~mask[:, 0, :, None, :], float("-inf"))
    probabilities = scores.softmax(dim=-1).to(q.dtype).view(batch, num_new * num_heads, num_rows)
    return (probabilities @ keys[..., :rank]).view(batch, num_new, num_heads, rank)
