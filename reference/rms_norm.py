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


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, more: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (norm of the sum, the sum), [..., M] both: the sum is rounded to x.dtype, and what is stored is normalised.

    `more`, where given, is added to x first, and that sum rounded, too.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if more is not None:
        x = (x.to(wide) + more.to(wide)).to(x.dtype)
    total = (x.to(wide) + residual.to(wide)).to(x.dtype)
    return rms_norm(total, weight, eps), total


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


def make_add_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: also a residual that cancels the row, and one that drowns it."""
    inputs = make_inputs(seed, size)
    x = inputs["x"]
    residual = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + 1))
    if size == "adversarial":
        residual[0, 2] = -x[0, 2]
        residual[0, 3] *= 1e8
    return {"x": x, "residual": residual, "weight": inputs["weight"], "eps": inputs["eps"]}


def add_cost(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> dict[str, int]:
    """Fewest bytes (two rows in, two out, the weight once) and flops."""
    return {"bytes": (4 * x.numel() + weight.numel()) * x.element_size(), "flops": 5 * x.numel()}
