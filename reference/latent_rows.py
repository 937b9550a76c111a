"""Specification of MLA's new cache rows: the latent normalised, the key part that all heads share rotated.

Letters: B batch rows, N new tokens, R latent rank, Dr rotary dims, S cache rows.
"""

from __future__ import annotations

from typing import Any

import torch

from .rms_norm import rms_norm
from .rope import cos_sin, inv_freq, rope

# batch, tokens, rank, rotary dims, cache rows
SIZES = {
    "small": (2, 3, 16, 8, 12),
    "odd": (3, 5, 21, 14, 23),
    "degenerate": (1, 1, 1, 2, 1),
    "adversarial": (6, 4, 33, 12, 9),
}


def latent_rows(
    kv: torch.Tensor,  # [B, N, R+Dr]
    norm_weight: torch.Tensor,  # [R]
    eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2]
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2]
    lengths: torch.Tensor,  # [B] int64 rows in use
    cache: torch.Tensor,  # [B, S, R+Dr]
) -> None:
    """In place: row lengths[b] + i of request b := the norm of kv[b, i, :R], then its other dims after the rotation.

    Rows at S or beyond are skipped, and all rows of a request whose length is negative. No other row changes.
    """
    rank = norm_weight.shape[0]
    for b, length in enumerate(lengths.tolist()):
        for i in range(kv.shape[1]):
            if length >= 0 and length + i < cache.shape[1]:
                one = (slice(b, b + 1), slice(i, i + 1))
                cache[b, length + i, :rank] = rms_norm(kv[b, i, :rank], norm_weight, eps)
                cache[b, length + i, rank:] = rope(kv[one][:, :, None, rank:], cos_rows[one], sin_rows[one]).flatten()


def make_lengths(generator: torch.Generator, size: str, batch: int, tokens: int, num_rows: int) -> torch.Tensor:
    """Rows in use, with room for the new ones; adversarial: full, nearly full, no room, no request, an idle slot."""
    lengths = torch.randint(num_rows - tokens + 1, (batch,), generator=generator)
    if size == "adversarial":
        lengths[:6] = torch.tensor([0, num_rows - 1, num_rows, -1, 2**63 - 1, num_rows - tokens])
    return lengths


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: a cache full of NaN, which stays where nothing is written; far positions; rows without a place."""
    generator = torch.Generator().manual_seed(seed)
    batch, tokens, rank, rotary, num_rows = SIZES[size]
    num_positions = 8192 if size == "adversarial" else 64
    cos, sin = cos_sin(inv_freq(rotary, 10000.0), num_positions)
    positions = torch.randint(num_positions, (batch, tokens), generator=generator)
    cache = torch.randn(batch, num_rows, rank + rotary, generator=generator)
    kv = torch.randn(batch, tokens, rank + rotary, generator=generator)
    if size == "adversarial":
        cache[:] = torch.nan
        kv[3:5] = torch.nan  # requests that write nothing
    return {
        "kv": kv,
        "norm_weight": 1 + 0.3 * torch.randn(rank, generator=generator),
        "eps": 1e-6,
        "cos_rows": cos[positions][:, :, None],
        "sin_rows": sin[positions][:, :, None],
        "lengths": make_lengths(generator, size, batch, tokens, num_rows),
        "cache": cache,
    }


def num_written(lengths: torch.Tensor, tokens: int, num_rows: int) -> int:
    """New rows that have a place in the cache."""
    return sum(max(0, min(tokens, num_rows - length)) for length in lengths.tolist() if length >= 0)


def cost(
    kv: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    lengths: torch.Tensor,
    cache: torch.Tensor,
) -> dict[str, int]:
    """Fewest bytes (a row that has a place in and out, its table rows; weight and lengths once) and flops."""
    rows, width = num_written(lengths, kv.shape[1], cache.shape[1]), kv.shape[2]
    rank, half = norm_weight.shape[0], cos_rows.shape[-1]
    moved = rows * (width * (kv.element_size() + cache.element_size()) + 2 * half * cos_rows.element_size())
    once = norm_weight.nbytes + lengths.nbytes
    return {"bytes": moved + once, "flops": rows * (4 * rank + 6 * half)}
