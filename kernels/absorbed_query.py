"""The query of absorbed MLA: each head's latent part, then its rotated part, as the cache's rows are laid out.

Where in the flow: VERIFY, after the query's products, before the attention over latent rows.
Letters: B batch rows, N new tokens, H heads, R latent rank, Dr rotary dims.
"""

from __future__ import annotations

import torch

from .rope import rope


def absorbed_query(
    q_latent: torch.Tensor,  # [B, N, H, R]
    q_rope: torch.Tensor,  # [B, N, H, Dr]
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
) -> torch.Tensor:
    """-> [B, N, H, R+Dr] contiguous, in q_latent.dtype: `q_latent`, and `q_rope` rotated (half-split, fp32 inside)."""
    return torch.cat((q_latent, rope(q_rope, cos_rows, sin_rows)), dim=-1)
