"""Specification of absorbed multi-head latent attention over a cache of latent rows shared by all heads.

Letters: B batch rows, N new tokens, S cache rows, H heads, R latent rank, Dr rotary key dims.
"""

from __future__ import annotations

from typing import Any

import torch

from .tree_attention import make_lengths, poison_unread, random_visible, rows_and_pairs, sees

# heads, latent rank, rotary dims; batch, new tokens and cache rows as in tree_attention
WIDTHS = {"small": (3, 8, 4), "odd": (5, 11, 6), "degenerate": (1, 2, 2), "adversarial": (4, 16, 8)}


def mla_tree_attention(
    q: torch.Tensor,  # [B, N, H, R+Dr]
    latent: torch.Tensor,  # [B, S, R+Dr]
    rank: int,
    lengths: torch.Tensor,  # [B] int64
    visible: torch.Tensor | None,  # [B, N, N] bool
    scale: float,
) -> torch.Tensor:
    """-> [B, N, H, R]. A row's score is q . row over all R+Dr dims; its value is its first R dims. Visibility as in
    tree_attention: context rows below `lengths[b]`, and new rows by `visible` (None: causal)."""
    batch, num_new, num_heads, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = sees(lengths, num_new, latent.shape[1], visible)
    out = q.new_empty(batch, num_new, num_heads, rank)
    for b in range(batch):
        for i in range(num_new):
            rows = latent[b, mask[b, i]].to(wide)  # [visible rows, R+Dr]
            for h in range(num_heads):
                scores = rows @ q[b, i, h].to(wide) * scale
                out[b, i, h] = (scores.softmax(dim=0) @ rows[:, :rank]).to(q.dtype)
    return out


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Lengths as tree_attention's. Odd: causal. Adversarial: equal scores (request 1), one-hot softmax (request 2)."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, rank, rotary = WIDTHS[size]
    lengths, num_rows = make_lengths(seed, size)
    num_new = {"small": 5, "odd": 7, "degenerate": 1, "adversarial": 6}[size]
    q = torch.randn(len(lengths), num_new, num_heads, rank + rotary, generator=generator)
    latent = torch.randn(len(lengths), num_rows, rank + rotary, generator=generator)
    if size == "adversarial":
        latent[1] = latent[1, :1]
        q[2] *= 30
    return {
        "q": q,
        "latent": poison_unread(latent, lengths, num_new),
        "rank": rank,
        "lengths": lengths,
        "visible": None if size == "odd" else random_visible(len(lengths), num_new, generator),
        "scale": (rank + rotary) ** -0.5,
    }


def cost(
    q: torch.Tensor,
    latent: torch.Tensor,
    rank: int,
    lengths: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
) -> dict[str, int]:
    """Fewest bytes (q, out, each latent row once for all heads; one bit per pair of a tree) and flops."""
    batch, num_new, num_heads, width = q.shape
    rows, pairs = rows_and_pairs(lengths, num_new, visible, None)
    moved = q.numel() + batch * num_new * num_heads * rank + rows * width
    tree_bits = 0 if visible is None else batch * num_new * num_new
    return {"bytes": moved * q.element_size() + (tree_bits + 7) // 8, "flops": 2 * pairs * num_heads * (width + rank)}
