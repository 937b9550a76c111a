"""Specification of grouped-query attention's queries and new cache rows: per-head norms, then the rotation.

Letters: B batch rows, N new tokens, H query heads, G KV heads, D head dim, rd = rotary_dim <= D, S cache rows.
"""

from __future__ import annotations

from typing import Any

import torch

from .latent_rows import make_lengths, num_written
from .rms_norm import rms_norm
from .rope import cos_sin, inv_freq, rope

# batch, tokens, query heads, KV heads, head dim, rotary dims, cache rows, norms
SIZES = {
    "small": (2, 3, 4, 2, 16, 16, 12, True),
    "odd": (3, 5, 9, 3, 22, 14, 23, False),
    "degenerate": (1, 1, 1, 1, 2, 2, 1, True),
    "adversarial": (6, 4, 6, 3, 20, 12, 9, True),
}


def qk_rows(
    q: torch.Tensor,  # [B, N, H, D]
    k: torch.Tensor,  # [B, N, G, D]
    v: torch.Tensor,  # [B, N, G, D]
    q_norm: torch.Tensor | None,  # [D], or no norms
    k_norm: torch.Tensor | None,  # [D], or no norms
    eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, rd/2]
    sin_rows: torch.Tensor,  # [B, N, 1, rd/2]
    lengths: torch.Tensor,  # [B] int64 rows in use
    k_cache: torch.Tensor,  # [B, S, G, D]
    v_cache: torch.Tensor,  # [B, S, G, D]
) -> torch.Tensor:
    """-> q after its norm and rotation; in place: row lengths[b] + i of k_cache := k[b, i] after its, of v_cache := v.

    Rows at S or beyond are skipped, and all rows of a request whose length is negative. No other row changes.
    """
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    k = rope(k, cos_rows, sin_rows)
    for b, length in enumerate(lengths.tolist()):
        for i in range(k.shape[1]):
            if length >= 0 and length + i < k_cache.shape[1]:
                k_cache[b, length + i] = k[b, i]
                v_cache[b, length + i] = v[b, i]
    return rope(q, cos_rows, sin_rows).contiguous()


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Odd: no norms, some dims pass. Adversarial: caches full of NaN, tokens without a place, zero and tiny heads."""
    generator = torch.Generator().manual_seed(seed)
    batch, tokens, heads, kv_heads, dim, rotary, num_rows, has_norms = SIZES[size]
    num_positions = 8192 if size == "adversarial" else 64
    cos, sin = cos_sin(inv_freq(rotary, 10000.0), num_positions)
    positions = torch.randint(num_positions, (batch, tokens), generator=generator)
    q = torch.randn(batch, tokens, heads, dim, generator=generator)
    k, v = torch.randn(2, batch, tokens, kv_heads, dim, generator=generator)
    caches = torch.randn(2, batch, num_rows, kv_heads, dim, generator=generator)
    norms = 1 + 0.3 * torch.randn(2, dim, generator=generator)
    if size == "adversarial":
        caches[:] = torch.nan
        q[0, 0, 0], k[0, 0, 0] = 0, 0
        q[0, 1] *= 1e-6
        q[3], k[3:5], v[3:5] = torch.nan, torch.nan, torch.nan  # no request, and one that writes nothing
    return {
        "q": q,
        "k": k,
        "v": v,
        "q_norm": norms[0] if has_norms else None,
        "k_norm": norms[1] if has_norms else None,
        "eps": 1e-6,
        "cos_rows": cos[positions][:, :, None],
        "sin_rows": sin[positions][:, :, None],
        "lengths": make_lengths(generator, size, batch, tokens, num_rows),
        "k_cache": caches[0],
        "v_cache": caches[1],
    }


def cost(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_rows: torch.Tensor,
    sin_rows: torch.Tensor,
    lengths: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> dict[str, int]:
    """Fewest bytes (q, and k and v where they have a place, in and out; tables, norms, lengths once) and flops."""
    rows, kv_width = num_written(lengths, k.shape[1], k_cache.shape[1]), k.shape[2] * k.shape[3]
    once = [t for t in (cos_rows, sin_rows, lengths, q_norm, k_norm) if t is not None]
    moved = 2 * (q.numel() + 2 * rows * kv_width) * q.element_size()
    heads = q.numel() // q.shape[3] + rows * k.shape[2]
    per_head = 6 * cos_rows.shape[-1] + (0 if q_norm is None else 4 * q.shape[3])
    return {"bytes": moved + sum(t.nbytes for t in once), "flops": heads * per_head}
