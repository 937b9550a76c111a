"""Specification of MoE routing: sigmoid scores, selection with a bias, weights without it.

Letters: T tokens, M hidden, E experts, k chosen experts.
"""

from __future__ import annotations

from typing import Any

import torch

# tokens, hidden, experts, top_k
SIZES = {"small": (6, 16, 8, 2), "odd": (5, 19, 11, 3), "degenerate": (1, 1, 1, 1), "adversarial": (7, 8, 12, 4)}


def moe_route(
    x: torch.Tensor,  # [T, M]
    gate_weight: torch.Tensor,  # [E, M]
    bias: torch.Tensor,  # [E]
    top_k: int,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (expert ids [T,k] int64, weights [T,k] fp32), by falling `sigmoid(x . gate_e) + bias_e`, then rising e.

    The weights are the chosen experts' sigmoid scores without the bias, divided by their sum (+1e-20), times scaling.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = torch.sigmoid(x.to(wide) @ gate_weight.to(wide).T)  # [T, E]
    expert_ids, weights = [], []
    for row in scores:
        selection = (row + bias.to(wide)).tolist()
        chosen = sorted(range(len(selection)), key=lambda e: (-selection[e], e))[:top_k]
        picked = row[chosen]
        expert_ids.append(chosen)
        weights.append(picked / (picked.sum() + 1e-20) * scaling)
    out = torch.stack(weights) if weights else x.new_empty(0, top_k)
    return torch.tensor(expert_ids, dtype=torch.int64).reshape(-1, top_k), out.to(wide)


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: small integers, so that scores are exact and tie often; a token without signal; a strong bias."""
    generator = torch.Generator().manual_seed(seed)
    tokens, hidden, experts, top_k = SIZES[size]
    x = torch.randn(tokens, hidden, generator=generator)
    gate_weight = torch.randn(experts, hidden, generator=generator) * hidden**-0.5
    bias = 0.1 * torch.randn(experts, generator=generator)
    if size == "adversarial":
        x = torch.randint(-1, 2, (tokens, hidden), generator=generator).float()
        x[0] = 0
        gate_weight = torch.randint(-1, 2, (experts, hidden), generator=generator).float()
        bias = torch.zeros(experts)
        bias[5] = 4.0
    return {"x": x, "gate_weight": gate_weight, "bias": bias, "top_k": top_k, "scaling": 2.5}


def cost(x: torch.Tensor, gate_weight: torch.Tensor, bias: torch.Tensor, top_k: int, scaling: float) -> dict[str, int]:
    """Fewest bytes (tokens, gate and bias once; 12 bytes per choice) and flops (the gate's product)."""
    moved = sum(t.nbytes for t in (x, gate_weight, bias))
    return {"bytes": moved + 12 * x.shape[0] * top_k, "flops": 2 * x.numel() * gate_weight.shape[0]}
