"""Group-limited routing of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2): experts of the best groups only.

Plain torch on every device, without a host sync; routing without groups is `kernels/moe_route.py`.
Letters: T tokens, M hidden, E experts, k chosen experts.
"""

from __future__ import annotations

import torch

from ddbench.models.shapes import MoEShape

BEST_OF_GROUP = 2  # a group is as good as its two best experts together


def grouped_route(
    x: torch.Tensor,  # [T, M]
    gate_weight: torch.Tensor,  # [E, M]
    bias: torch.Tensor,  # [E]
    shape: MoEShape,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (expert ids [T, k] int64, weights [T, k] fp32), best first; equal scores go to the lower id.

    Sigmoid scores in fp32. `bias` takes part in the choice of groups and experts, the weights come from the plain
    scores, normalised to sum to 1 and scaled.
    """
    scores = (x.float() @ gate_weight.float().T).sigmoid()  # [T, E]
    choice = (scores + bias.float()).unflatten(1, (shape.num_groups, -1))  # [T, groups, E/groups]
    of_groups = choice.topk(BEST_OF_GROUP, dim=-1).values.sum(dim=-1)
    best = torch.sort(of_groups, dim=-1, descending=True, stable=True).indices[:, : shape.top_groups]
    is_open = torch.zeros_like(of_groups, dtype=torch.bool).scatter(1, best, True)
    choice = choice.masked_fill(~is_open[..., None], -torch.inf).flatten(1)
    expert_ids = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, : shape.top_k]
    chosen = scores.gather(1, expert_ids)
    return expert_ids, chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20) * shape.routed_scaling
