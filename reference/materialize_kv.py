"""Specification of draft-KV materialize: committed target features -> K and V rows of every drafter layer's cache.

Letters: B batch rows, T feature rows per request, K captured layers, Dt target hidden, D drafter hidden, Ld drafter
layers, G KV heads, hd head dim, S cache rows.
"""

from __future__ import annotations

from typing import Any

import torch

from .rms_norm import rms_norm
from .rope import cos_sin, inv_freq, rope

# batch, rows, captured * target hidden, hidden, layers, KV heads, head dim, rotary dim, cache rows
SIZES = {
    "small": (2, 4, 24, 16, 3, 2, 8, 8, 20),
    "odd": (3, 7, 15, 11, 2, 3, 10, 6, 33),
    "degenerate": (1, 1, 4, 4, 1, 1, 2, 2, 1),
    "adversarial": (4, 5, 24, 16, 2, 2, 8, 4, 16),
}


def materialize_kv(
    features: torch.Tensor,  # [B, T, K*Dt]
    positions: torch.Tensor,  # [B, T] int64, absolute; also the cache rows; distinct within a request
    num_rows: torch.Tensor,  # [B] int64, rows of each request that count
    fc: torch.Tensor,  # [D, K*Dt]
    hidden_norm: torch.Tensor,  # [D]
    kv_weights: torch.Tensor,  # [Ld, 2*G*hd, D], K rows first
    k_norms: torch.Tensor,  # [Ld, hd]
    eps: float,
    cos: torch.Tensor,  # [table rows, rotary_dim/2]
    sin: torch.Tensor,
    k_cache: torch.Tensor,  # [Ld, B, S, G, hd], written in place
    v_cache: torch.Tensor,  # [Ld, B, S, G, hd], written in place
) -> None:
    """Row j < num_rows[b] goes to cache row positions[b, j] of every layer; nothing else changes, nothing else is read.

    `C = RMSNorm(fc(features))` is shared by the layers; K is projected, normalised per head and rotated by its
    position, V is only projected. Raises ValueError where positions do not fit the features, IndexError where a
    position that counts is beyond the table or the cache.
    """
    if positions.shape != features.shape[:2]:
        raise ValueError(f"positions have shape {tuple(positions.shape)}, features {tuple(features.shape)}")
    limit = min(cos.shape[0], k_cache.shape[2])
    for b, count in enumerate(num_rows.tolist()):
        rows = positions[b, :count]
        if count and int(rows.max()) >= limit:
            raise IndexError(f"position {int(rows.max())} is beyond the last one, {limit - 1}")
        context = rms_norm(features[b, :count] @ fc.T, hidden_norm, eps)  # [count, D]
        for layer in range(len(kv_weights)):
            k, v = (context @ kv_weights[layer].T).chunk(2, dim=-1)  # [count, G*hd]
            k, v = k.unflatten(-1, k_cache.shape[-2:]), v.unflatten(-1, v_cache.shape[-2:])
            k = rms_norm(k, k_norms[layer], eps)
            k_cache[layer, b, rows] = rope(k[None], cos[rows][None, :, None], sin[rows][None, :, None])[0]
            v_cache[layer, b, rows] = v


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Rows that do not count hold NaN features. Adversarial: no, some and all rows count, the last at the table's end,
    and the positions of rows that do not count lie beyond the table; small positions are not in order."""
    generator = torch.Generator().manual_seed(seed)
    batch, num, width, hidden, layers, heads, dim, rotary_dim, cache_rows = SIZES[size]
    num_rows = torch.randint(1, num + 1, (batch,), generator=generator)
    start = torch.randint(0, cache_rows - num + 1, (batch, 1), generator=generator)
    positions = start + torch.arange(num)
    features = torch.randn(batch, num, width, generator=generator)
    if size == "small":
        positions = positions.flip(1)
    if size == "adversarial":
        num_rows = torch.tensor([0, 3, num, 1])
        positions = torch.tensor([[cache_rows], [cache_rows - 3], [0], [cache_rows - 1]]) + torch.arange(num)
    features[torch.arange(num) >= num_rows[:, None]] = float("nan")
    cos, sin = cos_sin(inv_freq(rotary_dim, 10000.0), cache_rows)
    return {
        "features": features,
        "positions": positions,
        "num_rows": num_rows,
        "fc": torch.randn(hidden, width, generator=generator) * width**-0.5,
        "hidden_norm": 1 + 0.2 * torch.randn(hidden, generator=generator),
        "kv_weights": torch.randn(layers, 2 * heads * dim, hidden, generator=generator) * hidden**-0.5,
        "k_norms": 1 + 0.2 * torch.randn(layers, dim, generator=generator),
        "eps": 1e-6,
        "cos": cos,
        "sin": sin,
        "k_cache": torch.randn(layers, batch, cache_rows, heads, dim, generator=generator),
        "v_cache": torch.randn(layers, batch, cache_rows, heads, dim, generator=generator),
    }


def cost(
    features: torch.Tensor,
    positions: torch.Tensor,
    num_rows: torch.Tensor,
    fc: torch.Tensor,
    hidden_norm: torch.Tensor,
    kv_weights: torch.Tensor,
    k_norms: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> dict[str, int]:
    """For the rows that count: fewest bytes (weights, table rows and features in once, K/V rows out) and flops."""
    rows = int(num_rows.sum())
    row_values = features.shape[2] + kv_weights.shape[0] * kv_weights.shape[1]
    weights = fc.numel() + hidden_norm.numel() + kv_weights.numel() + k_norms.numel()
    tables = rows * 2 * cos.shape[1] * cos.element_size()
    moved = (rows * row_values + (weights if rows else 0)) * features.element_size()
    return {"bytes": moved + tables + 8 * positions.numel(), "flops": 2 * rows * (fc.numel() + kv_weights.numel())}
