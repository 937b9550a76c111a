"""RMS normalisation: every layer's input (after the residual addition), the final norm, the per-head norms of q and k.

Letters: M hidden (or head dim for the per-head norms), S parts of a product whose inner dimension was split.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .linear import added


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim, [..., M] -> [..., M]; fp32 inside, result in x.dtype."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def add_rms_norm(
    x: torch.Tensor,  # [..., M] what a layer adds
    residual: torch.Tensor,  # [..., M]
    weight: torch.Tensor,  # [M]
    eps: float,
    more: torch.Tensor | None = None,  # [..., M] what it adds besides: first to x
    *,
    in_parts: bool = False,  # x is [S, ..., M], the parts of a split product
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (rms_norm(x + residual), x + residual), both in x.dtype: every sum is rounded, then the last normalised.

    In parts: both in residual.dtype; the parts and the residual are added in fp32 and their sum is rounded once.
    """
    if in_parts:
        assert more is None, "parts, or two addends"
        total = (added(x) + residual).to(residual.dtype)
    else:
        total = (x if more is None else x + more) + residual
    return rms_norm(total, weight, eps), total
