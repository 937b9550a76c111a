"""The gated activation of an MLP, between its two products.

Letters: I MLP width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of [..., 2I], gate first -> [..., I] in gate_up.dtype, rounded after each of the two steps."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
