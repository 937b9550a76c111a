"""Specification of the rotary embedding: half-split (neox) pairs, partial rotary, YaRN frequencies.

Letters: B batch rows, T tokens, H heads, D head dim, rd = rotary_dim <= D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

SIZES = {
    "small": (2, 4, 2, 16, 16),
    "odd": (3, 5, 3, 22, 14),
    "degenerate": (1, 1, 1, 2, 2),
    "adversarial": (2, 6, 2, 16, 8),
}


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's attention temperature: `0.1 * mscale * ln(factor) + 1`; 1 where the context is not extended."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def inv_freq(rotary_dim: int, theta: float, yarn: Mapping[str, float] | None = None) -> torch.Tensor:
    """Angle per position of each pair, [rd/2] fp32: `theta^(-2i/rd)`, with YaRN mixed "by parts" (arXiv 2309.00071).

    Pair i keeps its frequency below the pair that turns beta_fast times within the original context, gets frequency /
    factor above the pair that turns beta_slow times, and a linear mix in between; the two pairs rounded outwards.
    """
    frequencies = []
    for i in range(rotary_dim // 2):
        frequency = theta ** (-2 * i / rotary_dim)
        if yarn is not None:
            pair_of = [
                rotary_dim * math.log(yarn["original_context"] / (turns * 2 * math.pi)) / (2 * math.log(theta))
                for turns in (yarn["beta_fast"], yarn["beta_slow"])
            ]
            low, high = max(math.floor(pair_of[0]), 0), min(math.ceil(pair_of[1]), rotary_dim - 1)
            share = min(max((i - low) / (high - low if high != low else 0.001), 0.0), 1.0)  # of the slowed frequency
            frequency = frequency * (1 - share) + frequency / yarn["factor"] * share
        frequencies.append(frequency)
    return torch.tensor(frequencies, dtype=torch.float32)


def cos_sin(inv_freq: torch.Tensor, num_positions: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """`scale * cos` and `scale * sin` of position * frequency, [num_positions, rd/2] fp32 each, from fp64 angles."""
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * inv_freq.double()[None, :]
    return (scale * torch.cos(angles)).float(), (scale * torch.sin(angles)).float()


def rope(x: torch.Tensor, cos_rows: torch.Tensor, sin_rows: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + rd/2]), i < rd/2, of x [B,T,H,D]; dims from rd on are untouched; x.dtype out."""
    half = cos_rows.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    out = x.clone()
    for i in range(half):
        a, b = x[..., i].to(wide), x[..., i + half].to(wide)
        c, s = cos_rows[..., i].to(wide), sin_rows[..., i].to(wide)
        out[..., i] = (a * c - b * s).to(x.dtype)
        out[..., i + half] = (b * c + a * s).to(x.dtype)
    return out


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Inputs of `rope`. Small and adversarial share positions between tokens (siblings); adversarial goes far out."""
    generator = torch.Generator().manual_seed(seed)
    batch, tokens, heads, dim, rotary_dim = SIZES[size]
    num_positions = 8192 if size == "adversarial" else 64
    cos, sin = cos_sin(inv_freq(rotary_dim, 10000.0), num_positions)
    positions = torch.randint(num_positions, (batch, tokens), generator=generator)
    positions[:, -1] = num_positions - 1
    x = torch.randn(batch, tokens, heads, dim, generator=generator)
    return {"x": x, "cos_rows": cos[positions][:, :, None], "sin_rows": sin[positions][:, :, None]}


def cost(x: torch.Tensor, cos_rows: torch.Tensor, sin_rows: torch.Tensor) -> dict[str, int]:
    """Fewest bytes (x in and out, each table row once per token) and flops (six per rotated pair)."""
    pairs = x.numel() // x.shape[-1] * cos_rows.shape[-1]
    tables = 2 * cos_rows.nbytes
    return {"bytes": 2 * x.nbytes + tables, "flops": 6 * pairs}
