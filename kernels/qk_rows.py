"""Queries and new K/V rows of grouped-query attention: per-head norms, rotation, and the write into the cache.

Where in the flow: after a layer's q, k, v products, before its attention; target (VERIFY) and drafter (DRAFT).
Letters: B batch rows, N new tokens, H query heads, G KV heads, D head dim, S cache rows.
"""

from __future__ import annotations

import torch

from .latent_rows import write_rows
from .rms_norm import rms_norm
from .rope import rope


def qk_rows(
    q: torch.Tensor,  # [B, N, H, D]
    k: torch.Tensor,  # [B, N, G, D]
    v: torch.Tensor,  # [B, N, G, D]
    q_norm: torch.Tensor | None,  # [D]
    k_norm: torch.Tensor | None,  # [D]
    eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, rotary_dim/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, rotary_dim/2] fp32
    lengths: torch.Tensor,  # [B] int64
    k_cache: torch.Tensor,  # [B, S, G, D]
    v_cache: torch.Tensor,  # [B, S, G, D]
) -> torch.Tensor:
    """-> normalised, rotated q [B, N, H, D], contiguous; cache rows `lengths[b] + i` := normalised, rotated k, and v.

    No norms: both None. Rows that fall outside of the cache are skipped.
    """
    assert (q_norm is None) == (k_norm is None), "one of the two norms is missing"
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    write_rows(k_cache, rope(k, cos_rows, sin_rows), lengths)
    write_rows(v_cache, v, lengths)
    return rope(q, cos_rows, sin_rows)
