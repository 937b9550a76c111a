"""RMS normalisation: every layer's input, the final norm, and the per-head norms of q and k.

Letters: M hidden (or head dim for the per-head norms).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim, [..., M] -> [..., M]; fp32 inside, result in x.dtype."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)
