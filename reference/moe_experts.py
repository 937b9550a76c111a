"""Specification of the routed experts: per token, the weighted sum of its chosen experts' SwiGLU outputs.

Letters: T tokens, M hidden, E experts, k chosen per token, I expert width.
"""

from __future__ import annotations

from typing import Any

import torch

from .int4 import dequantize, quantize

# tokens, hidden, experts, top_k, width
SIZES = {
    "small": (5, 16, 6, 2, 8),
    "odd": (7, 24, 5, 3, 16),
    "degenerate": (1, 8, 1, 1, 8),
    "adversarial": (9, 16, 8, 2, 8),
}


def moe_experts(
    x: torch.Tensor,  # [T, M]
    expert_ids: torch.Tensor,  # [T, k] int64
    weights: torch.Tensor,  # [T, k] fp32
    gate_up: torch.Tensor,  # [E, 2I, M], gate rows first
    down: torch.Tensor,  # [E, M, I]
) -> torch.Tensor:
    """`sum_j weights[t,j] * down_e (silu(gate_e x_t) * (up_e x_t))` with e = expert_ids[t,j], -> [T, M] in x.dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    width = down.shape[2]
    out = torch.zeros(x.shape, dtype=wide)
    for t in range(x.shape[0]):
        for expert, weight in zip(expert_ids[t].tolist(), weights[t], strict=True):
            gate = gate_up[expert, :width].to(wide) @ x[t].to(wide)
            up = gate_up[expert, width:].to(wide) @ x[t].to(wide)
            hidden = gate / (1 + torch.exp(-gate)) * up
            out[t] += weight * (down[expert].to(wide) @ hidden)
    return out.to(x.dtype)


def moe_experts_int4(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up_packed: torch.Tensor,  # [E, 2I, M/8] int32
    gate_up_scales: torch.Tensor,  # [E, 2I, M/group] bf16
    down_packed: torch.Tensor,  # [E, M, I/8] int32
    down_scales: torch.Tensor,  # [E, M, I/group] bf16
    group: int,
) -> torch.Tensor:
    """`moe_experts` with the weights dequantised to x.dtype first."""
    gate_up = dequantize(gate_up_packed, gate_up_scales, group, x.dtype)
    down = dequantize(down_packed, down_scales, group, x.dtype)
    return moe_experts(x, expert_ids, weights, gate_up, down)


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: all tokens on the same two experts, the others hold huge weights. Odd: some experts unused."""
    generator = torch.Generator().manual_seed(seed)
    tokens, hidden, experts, top_k, width = SIZES[size]
    x = torch.randn(tokens, hidden, generator=generator)
    order = torch.rand(tokens, experts, generator=generator).argsort(dim=1)
    expert_ids = order[:, :top_k].contiguous()
    gate_up = torch.randn(experts, 2 * width, hidden, generator=generator) * hidden**-0.5
    down = torch.randn(experts, hidden, width, generator=generator) * width**-0.5
    weights = torch.rand(tokens, top_k, generator=generator)
    if size == "adversarial":
        expert_ids[:] = torch.tensor([experts - 1, 0])
        weights[0] = torch.tensor([0.0, 2.5])
    unused = [e for e in range(experts) if e not in expert_ids]
    gate_up[unused], down[unused] = 1e4, 1e4
    return {"x": x, "expert_ids": expert_ids, "weights": weights, "gate_up": gate_up, "down": down}


def make_int4_inputs(seed: int, size: str) -> dict[str, Any]:
    """The same experts quantised in groups of 8."""
    inputs = make_inputs(seed, size)
    gate_up_packed, gate_up_scales = quantize(inputs.pop("gate_up"), 8)
    down_packed, down_scales = quantize(inputs.pop("down"), 8)
    return inputs | {
        "gate_up_packed": gate_up_packed,
        "gate_up_scales": gate_up_scales,
        "down_packed": down_packed,
        "down_scales": down_scales,
        "group": 8,
    }


def _cost(x: torch.Tensor, expert_ids: torch.Tensor, bytes_per_expert: float, width: int) -> dict[str, int]:
    in_use = len(set(expert_ids.flatten().tolist()))
    activations = 2 * x.nbytes + 12 * expert_ids.numel()
    flops = expert_ids.numel() * 6 * width * x.shape[1]
    return {"bytes": activations + int(in_use * bytes_per_expert), "flops": flops}


def cost(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> dict[str, int]:
    """Fewest bytes (each expert in use once, tokens in and out) and flops."""
    width = down.shape[2]
    return _cost(x, expert_ids, 3 * width * x.shape[1] * gate_up.element_size(), width)


def int4_cost(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up_packed: torch.Tensor,
    gate_up_scales: torch.Tensor,
    down_packed: torch.Tensor,
    down_scales: torch.Tensor,
    group: int,
) -> dict[str, int]:
    """As `cost`, with half a byte per weight and two bytes per group."""
    width = down_packed.shape[2] * 8
    return _cost(x, expert_ids, 3 * width * x.shape[1] * (0.5 + 2 / group), width)
