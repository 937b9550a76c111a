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


def head_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """out[t, h] = linear(x[t, h], weight[h])."""
    return torch.stack([linear(x[:, h], weight[h]) for h in range(x.shape[1])], dim=1)


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


def make_head_inputs(seed: int, size: str) -> dict[str, Any]:
    """Tokens of several heads, and weights that lie turned."""
    leading, inputs, outputs = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    heads = leading[-1]
    x = torch.randn(5, heads, inputs, generator=generator)
    return {"x": x, "weight": torch.randn(heads, inputs, outputs, generator=generator).transpose(1, 2)}


def head_cost(x: torch.Tensor, weight: torch.Tensor) -> dict[str, int]:
    """Fewest bytes (each operand once in, the result once out) and flops."""
    size = (x.numel() + weight.numel() + x.shape[0] * weight.shape[0] * weight.shape[1]) * x.element_size()
    return {"bytes": size, "flops": 2 * x.shape[0] * weight.numel()}
