"""Specification of RMS normalisation over the last dim. Letters: M the normalised dim."""

from __future__ import annotations

from typing import Any

import torch

SIZES = {"small": (2, 5, 16), "odd": (3, 7, 37), "degenerate": (1, 1, 1), "adversarial": (2, 4, 64)}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight`, [..., M]; fp32 (fp64 for fp64 inputs) inside, rounded once to x.dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    values = x.to(wide)
    mean_square = (values * values).mean(dim=-1, keepdim=True)
    return (values / torch.sqrt(mean_square + eps) * weight.to(wide)).to(x.dtype)


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: an all-zero row, tiny rows where eps decides, and rows whose squares are large."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SIZES[size], generator=generator)
    if size == "adversarial":
        x[0, 0] = 0
        x[0, 1] *= 1e-6
        x[1, 0] *= 1e12
    return {"x": x, "weight": 1 + 0.3 * torch.randn(x.shape[-1], generator=generator), "eps": 1e-6}


def cost(x: torch.Tensor, weight: torch.Tensor, eps: float) -> dict[str, int]:
    """Fewest bytes (x in and out once, the weight once) and flops."""
    return {"bytes": (2 * x.numel() + weight.numel()) * x.element_size(), "flops": 4 * x.numel()}
