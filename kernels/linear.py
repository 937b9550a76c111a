"""A projection without bias, and the sum of one that comes in parts.

Letters: T tokens, I inputs, O outputs, S parts of a product whose inner dimension was split.
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, *, is_join: bool = False) -> torch.Tensor:
    """x [..., I] times weight [O, I] -> [..., O]. `is_join` is for kernels: how they are launched."""
    return F.linear(x, weight)


def added(parts: torch.Tensor) -> torch.Tensor:
    """The sum of parts [S, ...] in their order -> [...] fp32 (fp64 of fp64); a single part stays as it is."""
    wide = torch.promote_types(parts.dtype, torch.float32)
    return parts[0] if len(parts) == 1 else reduce(torch.add, parts.to(wide).unbind())


def head_linear(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Head h of every token, x [T, H, I], times its weight, [H, O, I] -> [T, H, O]; by strides without `out`."""
    heads_first = x.transpose(0, 1), weight.transpose(1, 2)
    if out is None:
        return torch.bmm(*heads_first).transpose(0, 1)
    torch.bmm(*heads_first, out=out.transpose(0, 1))
    return out
