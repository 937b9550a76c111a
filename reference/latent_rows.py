"""Specification of MLA's new cache rows: the latent normalised, the key part that all heads share rotated.

Letters: B batch rows, N new tokens, Q rank of the compressed query, R latent rank, Dr rotary dims, S cache rows,
X parts of a product whose inner dimension was split.
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


def compressed_rows(
    parts: torch.Tensor,  # [X, B, N, Q+R+Dr]
    q_weight: torch.Tensor,  # [Q]
    kv_weight: torch.Tensor,  # [R]
    q_eps: float,
    kv_eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2]
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2]
    lengths: torch.Tensor,  # [B] int64 rows in use
    cache: torch.Tensor,  # [B, S, R+Dr]
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """-> the norm of the first Q columns of the parts' sum, [B, N, Q] in `dtype` or the parts' own; the rest in place,
    as `latent_rows` does. The sum is made part by part in fp32 (fp64 for fp64 parts) and not rounded.
    """
    rows = torch.zeros(parts.shape[1:], dtype=torch.promote_types(parts.dtype, torch.float32))
    for part in parts:
        rows = rows + part
    rank = q_weight.shape[0]
    latent_rows(rows[..., rank:], kv_weight, kv_eps, cos_rows, sin_rows, lengths, cache)
    return rms_norm(rows[..., :rank], q_weight, q_eps).to(dtype or parts.dtype)


def make_compressed_inputs(seed: int, size: str) -> dict[str, Any]:
    """`make_inputs` with the columns of a query before them, in one to four parts; adversarial: parts that cancel."""
    inputs = make_inputs(seed, size)
    generator = torch.Generator().manual_seed(seed + 1)
    num_parts = {"small": 2, "odd": 3, "degenerate": 1, "adversarial": 4}[size]
    rank = 2 * SIZES[size][2] - 1
    kv = inputs.pop("kv")
    parts = torch.randn(num_parts, *kv.shape[:2], rank + kv.shape[2], generator=generator)
    parts[0, ..., rank:] = kv
    if size == "adversarial":
        parts[2] = -parts[1]
        parts[1:3, :3] *= 100
    return {
        "parts": parts,
        "q_weight": 1 + 0.3 * torch.randn(rank, generator=generator),
        "kv_weight": inputs.pop("norm_weight"),
        "q_eps": 1e-5,
        "kv_eps": inputs.pop("eps"),
        **inputs,
    }


def compressed_cost(
    parts: torch.Tensor,
    q_weight: torch.Tensor,
    kv_weight: torch.Tensor,
    q_eps: float,
    kv_eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    lengths: torch.Tensor,
    cache: torch.Tensor,
    dtype: torch.dtype | None = None,
) -> dict[str, int]:
    """Of q's columns in every part and out, and of `cost` with every part of a row."""
    num_parts, rank = len(parts), q_weight.shape[0]
    kv = parts[0, ..., rank:]
    rest = cost(kv, kv_weight, kv_eps, cos_rows, sin_rows, lengths, cache)
    rows, elements = num_written(lengths, kv.shape[1], cache.shape[1]), kv[..., 0].numel() * rank
    more = (num_parts - 1) * rows * kv.shape[2]  # elements of the parts behind the first
    moved = elements * (num_parts * parts.element_size() + (dtype or parts.dtype).itemsize)
    return {
        "bytes": rest["bytes"] + more * parts.element_size() + moved + q_weight.nbytes,
        "flops": rest["flops"] + more + elements * (4 + num_parts - 1),
    }
