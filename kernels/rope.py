"""Rotary position embedding, half-split (neox), with YaRN context extension: q and k of target and drafter.

The cos and sin tables are made once per model; `rope` gets the rows of its tokens' positions.
Letters: B batch rows, T tokens, H heads, D head dim; `rotary_dim` <= D leading dims rotate, the rest pass through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch


def yarn_mscale(factor: float, mscale: float) -> float:
    """Attention temperature of YaRN: `0.1 * mscale * ln(factor) + 1`, 1 where the context is not extended."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def inv_freq(rotary_dim: int, theta: float, yarn: Mapping[str, float] | None = None) -> torch.Tensor:
    """Angle per position of each rotated pair, [rotary_dim/2] fp32.

    `yarn` (keys factor, original_context, beta_fast, beta_slow) mixes interpolated and original frequencies "by parts"
    (arXiv 2309.00071): pairs that turn more than beta_fast times within the original context keep their frequency,
    those that turn fewer than beta_slow times are slowed by `factor`, a linear ramp lies between.
    """
    pairs = torch.arange(0, rotary_dim, 2, dtype=torch.float64)
    original = theta ** (-pairs / rotary_dim)
    if yarn is None:
        return original.float()

    def pair_turning(turns: float) -> float:
        return rotary_dim * math.log(yarn["original_context"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_turning(yarn["beta_fast"])), 0)
    high = min(math.ceil(pair_turning(yarn["beta_slow"])), rotary_dim - 1)
    width = high - low if high != low else 0.001
    interpolated = ((torch.arange(rotary_dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)
    return (original * (1 - interpolated) + original / yarn["factor"] * interpolated).float()


def cos_sin(inv_freq: torch.Tensor, num_positions: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables `scale * cos` and `scale * sin` of positions 0..num_positions-1, each [num_positions, rotary_dim/2] fp32.

    `scale` is `yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)`, 1 without YaRN.
    """
    positions = torch.arange(num_positions, dtype=torch.float64, device=inv_freq.device)
    angles = torch.outer(positions, inv_freq.double())  # fp64: an fp32 product is off by 1e-2 rad at position 1e5
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


def rope(x: torch.Tensor, cos_rows: torch.Tensor, sin_rows: torch.Tensor) -> torch.Tensor:
    """Rotate x [B,T,H,D] by its tokens' table rows [B,T,1,rotary_dim/2]; fp32 inside, result in x.dtype."""
    half = cos_rows.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]  # fp32 tables promote bf16 halves
    rotated = (first * cos_rows - second * sin_rows, second * cos_rows + first * sin_rows)
    if 2 * half == x.shape[-1]:
        return torch.cat(rotated, dim=-1).to(x.dtype)
    return torch.cat((*(part.to(x.dtype) for part in rotated), x[..., 2 * half :]), dim=-1)
