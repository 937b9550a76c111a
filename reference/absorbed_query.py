"""Specification of absorbed MLA's query: the latent part as it is, the rotary part rotated, side by side.

Letters: B batch rows, N new tokens, H heads, R latent rank, Dr rotary dims.
"""

from __future__ import annotations

from typing import Any

import torch

from .rope import cos_sin, inv_freq, rope

# batch, tokens, heads, rank, rotary dims
SIZES = {
    "small": (2, 3, 4, 16, 8),
    "odd": (3, 5, 3, 21, 14),
    "degenerate": (1, 1, 1, 1, 2),
    "adversarial": (2, 4, 11, 33, 12),
}


def absorbed_query(
    q_latent: torch.Tensor,  # [B, N, H, R]
    q_rope: torch.Tensor,  # [B, N, H, Dr]
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2]
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2]
) -> torch.Tensor:
    """-> [B, N, H, R+Dr]: dims below R are q_latent's, the rest q_rope's after the rotation of all its dims."""
    rank = q_latent.shape[-1]
    out = q_latent.new_empty(*q_latent.shape[:3], rank + q_rope.shape[-1])
    out[..., :rank] = q_latent
    out[..., rank:] = rope(q_rope, cos_rows, sin_rows)
    return out


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: far positions, shared by siblings; a token whose latent part is NaN, and one with large values."""
    generator = torch.Generator().manual_seed(seed)
    batch, tokens, heads, rank, rotary = SIZES[size]
    num_positions = 8192 if size == "adversarial" else 64
    cos, sin = cos_sin(inv_freq(rotary, 10000.0), num_positions)
    positions = torch.randint(num_positions, (batch, tokens), generator=generator)
    q_latent = torch.randn(batch, tokens, heads, rank, generator=generator)
    if size == "adversarial":
        positions[:, 1] = positions[:, 2]
        q_latent[0, 0] = torch.nan
        q_latent[1, 2] = 1e4
    return {
        "q_latent": q_latent,
        "q_rope": torch.randn(batch, tokens, heads, rotary, generator=generator),
        "cos_rows": cos[positions][:, :, None],
        "sin_rows": sin[positions][:, :, None],
    }


def cost(
    q_latent: torch.Tensor, q_rope: torch.Tensor, cos_rows: torch.Tensor, sin_rows: torch.Tensor
) -> dict[str, int]:
    """Fewest bytes (both parts in and out, each table row once per token) and flops (six per rotated pair)."""
    moved = 2 * (q_latent.numel() + q_rope.numel()) * q_latent.element_size()
    tables = 2 * cos_rows.nbytes
    return {"bytes": moved + tables, "flops": 3 * q_rope.numel()}
