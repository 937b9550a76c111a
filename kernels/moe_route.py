"""Expert routing of a MoE layer (DeepSeek-V3 / Kimi-K2 style): which k experts a token uses, and with what weight.

Letters: T tokens, M hidden, E experts, k chosen experts.
"""

from __future__ import annotations

import torch


def moe_route(
    x: torch.Tensor,  # [T, M]
    gate_weight: torch.Tensor,  # [E, M]
    bias: torch.Tensor,  # [E]
    top_k: int,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (expert ids [T,k] int64, weights [T,k] fp32), best first; equal scores go to the lower expert id.

    Sigmoid scores in fp32; `bias` takes part in the choice only, the weights come from the plain scores, normalised to
    sum to 1 and scaled.
    """
    scores = (x.float() @ gate_weight.float().T).sigmoid()  # [T, E]
    order = torch.sort(scores + bias.float(), dim=-1, descending=True, stable=True).indices  # topk breaks ties at will
    expert_ids = order[:, :top_k]
    chosen = scores.gather(1, expert_ids)
    return expert_ids, chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20) * scaling
