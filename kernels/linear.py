"""A projection without bias. Letters: T tokens, I inputs, O outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [..., I] times weight [O, I] -> [..., O]."""
    return F.linear(x, weight)
