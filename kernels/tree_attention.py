"""Attention of N new tokens over a K/V cache: tree verify and chain verify, prefill, decoding, and the draft block.

The new tokens' K/V already stand in cache rows `lengths[b] + i`. A query sees the context (rows below `lengths[b]`) and
those new rows that its row of `visible` allows. Masked-out rows get probability 0 but still take part in the product
with V, so every cache row below `context_bound + N` must be finite (caches start as zeros and hold finite values only).
Letters: B batch rows, N new tokens, S cache rows, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def dense_mask(
    lengths: torch.Tensor,  # [B] int64, context rows
    num_new: int,
    bound: int,  # host integer >= lengths.max()
    visible: torch.Tensor | None,  # [B, N, N] bool, row i: the new tokens that token i sees
    window: int | None = None,
    causal: bool = True,
) -> torch.Tensor:
    """The bool mask [B, 1, N, bound+N] of one forward, true = visible; shared by all its layers.

    `visible` None: new token i sees new tokens j <= i (`causal`), or all of them. `window` hides context row p from the
    query at absolute position t = lengths + i unless t - p < window (the query itself counts); new rows are not hidden.
    """
    rows = torch.arange(bound + num_new, device=lengths.device)
    queries = torch.arange(num_new, device=lengths.device)
    offset = rows - lengths[:, None]  # [B, S] row's index among the new tokens; negative in the context
    context = (offset < 0)[:, None, :]  # [B, 1, S]
    if window is not None:
        context = context & (queries[:, None] - offset[:, None, :] < window)  # [B, N, S]
    is_new = ((offset >= 0) & (offset < num_new))[:, None, :]
    if visible is not None:
        index = offset.clamp(0, num_new - 1)[:, None, :].expand(-1, num_new, -1)
        is_new = is_new & visible.gather(2, index)
    elif causal:
        is_new = is_new & (offset[:, None, :] <= queries[:, None])
    return (context | is_new).expand(-1, num_new, -1)[:, None]


def tree_attention_dense(
    q: torch.Tensor,  # [B, N, H, D]
    k: torch.Tensor,  # [B, S, G, D]
    v: torch.Tensor,  # [B, S, G, D]
    mask: torch.Tensor,  # [B, 1, N, bound+N] bool
    scale: float,
) -> torch.Tensor:
    """Masked attention through torch's SDPA, -> [B, N, H, D]. Reads cache rows below the mask's width only."""
    num_rows = mask.shape[-1]
    assert k.shape[1] >= num_rows, f"cache has {k.shape[1]} rows, the mask looks at {num_rows}"
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k[:, :num_rows].transpose(1, 2),
        v[:, :num_rows].transpose(1, 2),
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)
