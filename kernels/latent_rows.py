"""New latent rows of MLA into the cache: the latent normalised, the shared key part rotated.

Where in the flow: VERIFY (and prefill), after a layer's key/value product, before its attention.
Letters: B batch rows, N new tokens, Q rank of the compressed query, R latent rank, Dr rotary dims, S cache rows,
X parts of a product whose inner dimension was split.
"""

from __future__ import annotations

import torch

from .linear import added
from .rms_norm import rms_norm
from .rope import rope


def write_rows(cache: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> None:
    """Rows [B, N, ...] into cache [B, S, ...] from row `lengths[b]` on; those that fall outside of it are skipped.

    Reads nothing on the host. A row that must not be written repeats the last one of its request that must be (same
    place, same value, so the order of writing does not matter); where there is none, row 0 gets back what stands there.
    """
    batch, num_new = rows.shape[:2]
    b = torch.arange(batch, device=rows.device)[:, None]
    room = (cache.shape[1] - lengths).clamp(0, num_new).where((lengths >= 0) & (lengths < cache.shape[1]), 0)
    place = torch.arange(num_new, device=rows.device).minimum((room - 1).clamp(min=0)[:, None])  # [B, N]
    is_any = (room > 0)[:, None]
    values = rows[b, place].to(cache.dtype).where(is_any.view(batch, *(1,) * (rows.dim() - 1)), cache[:, :1])
    cache[b, (lengths[:, None] + place).where(is_any, 0)] = values


def latent_rows(
    kv: torch.Tensor,  # [B, N, R+Dr]
    norm_weight: torch.Tensor,  # [R]
    eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    lengths: torch.Tensor,  # [B] int64
    cache: torch.Tensor,  # [B, S, R+Dr]
) -> None:
    """In place: cache row `lengths[b] + i` := [rms_norm of kv[b, i, :R], rope of the rest]; outside of it, nothing."""
    rank = norm_weight.shape[0]
    rotated = rope(kv[:, :, None, rank:], cos_rows, sin_rows)[:, :, 0]
    write_rows(cache, torch.cat((rms_norm(kv[..., :rank], norm_weight, eps), rotated), dim=-1), lengths)


def compressed_rows(
    parts: torch.Tensor,  # [X, B, N, Q+R+Dr], of the product that makes q's compressed row and kv's at once
    q_weight: torch.Tensor,  # [Q]
    kv_weight: torch.Tensor,  # [R]
    q_eps: float,
    kv_eps: float,
    cos_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    sin_rows: torch.Tensor,  # [B, N, 1, Dr/2] fp32
    lengths: torch.Tensor,  # [B] int64
    cache: torch.Tensor,  # [B, S, R+Dr]
    dtype: torch.dtype | None = None,  # of q; None: the parts'
) -> torch.Tensor:
    """`rms_norm` of q's compressed row, returned [B, N, Q], and `latent_rows` of the rest, in place.

    Parts are added in fp32 and their sum is rounded only with the results; a single part came rounded to its dtype.
    """
    q, kv = added(parts).split((len(q_weight), parts.shape[-1] - len(q_weight)), dim=-1)
    latent_rows(kv, kv_weight, kv_eps, cos_rows, sin_rows, lengths, cache)
    return rms_norm(q, q_weight, q_eps).to(dtype or parts.dtype)
