"""Specification of the gated activation of an MLP. Letters: I MLP width."""

from __future__ import annotations

from typing import Any

import torch

SIZES = {"small": (2, 5, 32), "odd": (3, 7, 74), "degenerate": (1, 1, 2), "adversarial": (2, 4, 130)}


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`g / (1 + exp(-g)) * u`, g the first half of the last dim, u the second; fp32 inside, rounded once; [..., I]."""
    width = gate_up.shape[-1] // 2
    values = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    gate, up = values[..., :width], values[..., width:]
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: gates of zero, so large that the exponential overflows, and on both sides so that it vanishes."""
    generator = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(SIZES[size], generator=generator)
    if size == "adversarial":
        width = gate_up.shape[-1] // 2
        gate_up[0, 0, :width] = 0
        gate_up[0, 1, :width] = -200
        gate_up[1, 0, :width] = 200
        gate_up[1, 1, width:] *= 1e6
    return {"gate_up": gate_up}


def cost(gate_up: torch.Tensor) -> dict[str, int]:
    """Fewest bytes (both halves in, one out) and flops."""
    num_outputs = gate_up.numel() // 2
    return {"bytes": 3 * num_outputs * gate_up.element_size(), "flops": 4 * num_outputs}
