"""A projection without bias. Letters: T tokens, I inputs, O outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, *, is_join: bool = False) -> torch.Tensor:
    """x [..., I] times weight [O, I] -> [..., O]. `is_join` is for kernels: how they are launched."""
    return F.linear(x, weight)


def head_linear(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Head h of every token, x [T, H, I], times its weight, [H, O, I] -> [T, H, O]; by strides without `out`."""
    heads_first = x.transpose(0, 1), weight.transpose(1, 2)
    if out is None:
        return torch.bmm(*heads_first).transpose(0, 1)
    torch.bmm(*heads_first, out=out.transpose(0, 1))
    return out
