"""The gated activation of an MLP, between its two products.

Letters: I MLP width, S parts of a product whose inner dimension was split.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .linear import added


def swiglu(gate_up: torch.Tensor, *, in_parts: bool = False, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`silu(gate) * up` of [..., 2I], gate first -> [..., I] in `dtype` or gate_up's, rounded after each of two steps.

    In parts [S, ..., 2I]: of their sum in fp32, which nothing rounds before the result.
    """
    gate, up = (added(gate_up) if in_parts else gate_up).chunk(2, dim=-1)
    out = F.silu(gate) * up
    return out if dtype is None else out.to(dtype)
