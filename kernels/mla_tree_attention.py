"""Absorbed multi-head latent attention of N new tokens: as tree_attention, but all heads share one cached latent row.

A cache row is the normalised latent (R dims, also the value) followed by the rotated key part (Dr dims). Mask and
contract on unread rows as in tree_attention: `dense_mask` there, finite rows below the mask's width.
Letters: B batch rows, N new tokens, S cache rows, H heads, R latent rank, Dr rotary key dims.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

MOST_SCORES = 2**28  # numbers of FP32 at once: a prompt of 8,192 tokens of K2.6 would take 17 GB for each layer's


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
    if method == "sdpa":
        folded = q.reshape(batch, num_new * num_heads, width)
        row_mask = mask[:, 0, :, None, :].expand(-1, -1, num_heads, -1).reshape(batch, 1, num_new * num_heads, num_rows)
        out = F.scaled_dot_product_attention(
            folded[:, None], keys[:, None], keys[:, None, :, :rank], attn_mask=row_mask, scale=scale
        )
        return out.reshape(batch, num_new, num_heads, rank)
    at_once = max(1, MOST_SCORES // max(1, batch * num_heads * num_rows))  # new tokens
    if num_new <= at_once:
        return _attend(q, keys, rank, mask, scale)
    pieces = zip(q.split(at_once, dim=1), mask.split(at_once, dim=2), strict=True)
    return torch.cat([_attend(queries, keys, rank, part, scale) for queries, part in pieces], dim=1)


def _attend(q: torch.Tensor, keys: torch.Tensor, rank: int, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """q [B, n, H, R+Dr], keys [B, S', R+Dr], mask [B, 1, n, S'] -> [B, n, H, R]."""
    batch, num_new, num_heads, width = q.shape
    folded = q.reshape(batch, num_new * num_heads, width)
    scores = (folded @ keys.transpose(1, 2)).float().view(batch, num_new, num_heads, -1)
    scores = (scores * scale).masked_fill_(~mask[:, 0, :, None, :], float("-inf"))
    probabilities = scores.softmax(dim=-1).to(q.dtype).view(batch, num_new * num_heads, -1)
    return (probabilities @ keys[..., :rank]).view(batch, num_new, num_heads, rank)
