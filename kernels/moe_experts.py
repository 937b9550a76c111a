"""The routed experts of a MoE layer: SwiGLU of the k chosen experts per token, weighted and summed.

Weights come as float tensors, or as int4 (see int4.py) dequantised on the way. Weights of experts that nobody chose
must be finite. Letters: T tokens, M hidden, E experts held here, k chosen per token, I expert width.

A rank of an expert-parallel group holds a share: with `first_expert` given, the experts here are the E ids from it on;
choices of others, or of id -1, add nothing. Without it all choices must be here, and no op looks after them.

Which form is fastest (fp32, E=16, I=96, M=256, k=2, one thread of a 2-core x86 server, time over that of `grouped`):
    T              1     4    16    65   264  1040
    gather       3.1   4.6   4.1   9.2    48     -
    dense        1.9   2.2   1.3   2.1   3.7   5.9
So a CPU always groups: reading the counts there costs nothing. A GPU would have to wait for them, so it gathers where
the slots may all be different experts (T*k <= E: no weight is copied more often than it must be read) and otherwise
runs all experts densely (each weight is read once, and with so many slots most experts are in use anyway).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from .int4 import dequantize

Form = Literal["gather", "grouped", "dense"]
# Expert weights by index: (gate_up [2I, M], down [M, I]) for an integer, with a leading dim for a tensor or a slice.
ExpertWeights = Callable[[torch.Tensor | slice | int], tuple[torch.Tensor, torch.Tensor]]


def _share(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, first_expert: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids counted from `first_expert`, E for a choice of nobody here.

    Such choices weigh 0, and a token that has no other reads as 0: whatever an idle row holds stays out of the sums.
    """
    local = expert_ids - first_expert
    is_here = (local >= 0) & (local < num_experts)
    x = x.masked_fill(~is_here.any(dim=1, keepdim=True), 0)
    return x, local.where(is_here, num_experts), weights.masked_fill(~is_here, 0)


def _swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _gather(x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, experts: ExpertWeights) -> torch.Tensor:
    """Copies the chosen weights per (token, slot): for few tokens. No host sync."""
    num_tokens, top_k = expert_ids.shape
    gate_up, down = experts(expert_ids.flatten())  # [T*k, 2I, M], [T*k, M, I]
    tokens = x.repeat_interleave(top_k, dim=0)[..., None]  # [T*k, M, 1]
    hidden = _swiglu((gate_up @ tokens).squeeze(-1))  # [T*k, I]
    out = (down @ hidden[..., None]).view(num_tokens, top_k, x.shape[1])  # [T, k, M]
    return (out * weights[..., None]).sum(dim=1).to(x.dtype)


def _grouped(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, experts: ExpertWeights, num_experts: int
) -> torch.Tensor:
    """Sorts the token slots by expert and runs each expert in use once. One host sync (rows per expert)."""
    num_tokens, top_k = expert_ids.shape
    flat_ids = expert_ids.flatten()
    order = flat_ids.argsort(stable=True)  # token slots by expert, those of nobody here last
    counts = torch.bincount(flat_ids, minlength=num_experts).tolist()  # the one host sync
    num_here = sum(counts[:num_experts])
    order = order[:num_here] if num_here < len(order) else order
    groups = []
    for expert, tokens in enumerate(x[order // top_k].split(counts[:num_experts])):
        if counts[expert]:
            gate_up, down = experts(expert)
            groups.append(F.linear(_swiglu(F.linear(tokens, gate_up)), down))
    make = torch.empty if num_here == num_tokens * top_k else torch.zeros
    by_slot = make(num_tokens * top_k, x.shape[1], dtype=x.dtype, device=x.device)
    if groups:
        by_slot[order] = torch.cat(groups)  # back in (token, slot) order: a sum in fixed order, unlike atomics
    return (by_slot.view(num_tokens, top_k, x.shape[1]) * weights[..., None]).sum(dim=1).to(x.dtype)


def _dense(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: ExpertWeights,
    num_experts: int,
    is_share: bool,
) -> torch.Tensor:
    """Runs every expert on every token and weighs the unchosen with 0. No host sync."""
    gate_up, down = experts(slice(None))  # [E, 2I, M], [E, M, I]
    num_bins = num_experts + is_share  # one more for the choices of nobody here
    combine = weights.new_zeros(x.shape[0], num_bins).scatter_(1, expert_ids, weights)  # [T, E]
    combine = combine[:, :num_experts] if is_share else combine
    hidden = _swiglu(F.linear(x, gate_up.flatten(0, 1)).unflatten(-1, (num_experts, -1)))  # [T, E, I]
    hidden = (hidden * combine[..., None]).to(x.dtype)
    return torch.bmm(hidden.transpose(0, 1), down.transpose(1, 2)).sum(dim=0)


def choose_form(num_slots: int, num_experts: int, device_type: str) -> Form:
    """The form for `num_slots` = T*k chosen (token, expert) pairs; see the module docstring."""
    if device_type == "cpu":
        return "grouped"
    return "gather" if num_slots <= num_experts else "dense"


def _run(
    form: Form | None,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: ExpertWeights,
    num_experts: int,
    first_expert: int | None,
) -> torch.Tensor:
    form = form or choose_form(expert_ids.numel(), num_experts, x.device.type)
    is_share = first_expert is not None
    if first_expert is not None:
        x, expert_ids, weights = _share(x, expert_ids, weights, first_expert, num_experts)
    if form == "grouped":
        return _grouped(x, expert_ids, weights, experts, num_experts)
    if form == "dense":
        return _dense(x, expert_ids, weights, experts, num_experts, is_share)
    return _gather(x, expert_ids.clamp(max=num_experts - 1) if is_share else expert_ids, weights, experts)


def moe_experts(
    x: torch.Tensor,  # [T, M]
    expert_ids: torch.Tensor,  # [T, k] int64, distinct within a token
    weights: torch.Tensor,  # [T, k] fp32
    gate_up: torch.Tensor,  # [E, 2I, M], gate rows first
    down: torch.Tensor,  # [E, M, I]
    form: Form | None = None,  # None: by `choose_form`
    first_expert: int | None = None,  # the expert id of gate_up[0], where other ranks hold some; None: all are here
) -> torch.Tensor:
    """-> [T, M] by the form that suits the shape (module docstring), on a GPU one without a host sync."""

    def experts(index: torch.Tensor | slice | int) -> tuple[torch.Tensor, torch.Tensor]:
        return gate_up[index], down[index]

    return _run(form, x, expert_ids, weights, experts, gate_up.shape[0], first_expert)


def moe_experts_int4(
    x: torch.Tensor,  # [T, M]
    expert_ids: torch.Tensor,  # [T, k] int64
    weights: torch.Tensor,  # [T, k] fp32
    gate_up_packed: torch.Tensor,  # [E, 2I, M/8] int32
    gate_up_scales: torch.Tensor,  # [E, 2I, M/group] bf16
    down_packed: torch.Tensor,  # [E, M, I/8] int32
    down_scales: torch.Tensor,  # [E, M, I/group] bf16
    group: int,
    form: Form | None = None,  # None: by `choose_form`
    first_expert: int | None = None,
) -> torch.Tensor:
    """`moe_experts` over int4 weights, dequantised to x.dtype (grouped and gather: for the experts in use only)."""

    def experts(index: torch.Tensor | slice | int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            dequantize(gate_up_packed[index], gate_up_scales[index], group, x.dtype),
            dequantize(down_packed[index], down_scales[index], group, x.dtype),
        )

    return _run(form, x, expert_ids, weights, experts, gate_up_packed.shape[0], first_expert)
