"""Specification of a projection without bias. Letters: I inputs, O outputs."""

from __future__ import annotations

from typing import Any

import torch

# leading dims, inputs, outputs
SIZES = {
    "small": ((2, 3), 16, 8),
    "odd": ((3, 5), 37, 21),
    "degenerate": ((1,), 1, 1),
    "adversarial": ((2, 4), 130, 65),
}


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """out[..., o] = sum over i of x[..., i] * weight[o, i]; fp32 (fp64 for fp64 inputs) inside, rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide)[..., None, :] * weight.to(wide)).sum(-1).to(x.dtype)


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: a token of zeros, one so large that its neighbours' values drown, a weight row of zeros."""
    leading, inputs, outputs = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*leading, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    if size == "adversarial":
        x[0, 0] = 0
        x[0, 1] *= 1e12
        weight[3] = 0
    return {"x": x, "weight": weight}


def cost(x: torch.Tensor, weight: torch.Tensor) -> dict[str, int]:
    """Fewest bytes (each operand once in, the result once out) and flops."""
    tokens = x.numel() // x.shape[-1]
    size = (x.numel() + weight.numel() + tokens * weight.shape[0]) * x.element_size()
    return {"bytes": size, "flops": 2 * tokens * weight.numel()}
