"""Acceptance on the device: the tree walk, the cut at a stop token, the draw at every node; no host synchronisation.

Where in the flow: ACCEPT, after the target's forward over all nodes.
Letters: B batch rows, N node slots (slot 0 the root = anchor), L draft horizon, P = L + 1, V vocabulary, Q stop ids.

The walk needs no loop over nodes: a node is visited if and only if it and all its ancestors carry their parents'
posterior token. Siblings differ, so these nodes are one path, in index order. "All ancestors" by pointer doubling.
"""

from __future__ import annotations

import torch


def accept_walk(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    posterior: torch.Tensor,  # [B, N] int64
    horizon: int,  # L, no tree is deeper
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> path [B, P] node indices, root first; num_accepted [B]; emitted [B, P] tokens; num_emitted [B]. Padding: -1.

    `emitted` ends with the bonus token. Unused slots never match and what they hold is never used as an index.
    """
    batch, slots = tokens.shape
    width = horizon + 1
    index = torch.arange(slots, device=tokens.device).expand(batch, -1)  # [B, N]
    is_root = index == 0
    used = ~is_root & (index <= num_nodes.unsqueeze(1))
    jump = parents.where(used, index)  # [B, N] the root and unused slots point at themselves
    visited = is_root | (used & (posterior.gather(1, jump) == tokens))
    for _ in range(max(min(horizon, slots - 1) - 1, 0).bit_length()):  # each step doubles the ancestors looked at
        visited = visited & visited.gather(1, jump)
        jump = jump.gather(1, jump)
    place = visited.cumsum(1) - 1  # [B, N] a visited node's place on the path
    path = torch.full((batch, width + 1), -1, device=tokens.device)  # one more column takes what is not on the path
    path = path.scatter(1, place.where(visited, width), index)[:, :width]
    num_emitted = visited.sum(1)
    emitted = posterior.gather(1, path.clamp(min=0)).where(path >= 0, -1)
    return path, num_emitted - 1, emitted, num_emitted


def truncate(
    emitted: torch.Tensor,  # [B, P] int64
    num_emitted: torch.Tensor,  # [B] int64
    stop_ids: torch.Tensor,  # [B, Q] int64, padded with -1; a pad never matches
    remaining: torch.Tensor,  # [B] int64 tokens the request may still emit
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (num_emitted [B], finished [B] bool): cut after the first stop token, or when `remaining` is used up."""
    width = emitted.shape[1]
    place = torch.arange(width, device=emitted.device)
    is_stop = ((emitted.unsqueeze(2) == stop_ids.unsqueeze(1)) & (stop_ids >= 0).unsqueeze(1)).any(2)  # [B, P]
    # A stop token beyond num_emitted cuts later than num_emitted does: it needs no mask of its own.
    until_stop = (place + 1).where(is_stop, width + 1).amin(1)  # [B] tokens up to the first stop token, itself included
    count = torch.minimum(torch.minimum(num_emitted, until_stop), remaining.clamp(min=0))
    return count, (count == until_stop) | (count >= remaining)


def sample_posterior(
    logits: torch.Tensor,  # [B, N, V]
    temperature: float,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """The target's token at every node, [B, N] int64: the argmax (ties: lower id) at temperature 0, else one draw each.

    Draws by an exponential race: argmax of p / e over independent e ~ Exp(1) has the law p.
    """
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (greedy) or more: got {temperature}")
    if temperature == 0:
        return logits.argmax(dim=-1)
    probabilities = (logits.float() / temperature).softmax(-1)
    race = torch.empty_like(probabilities).exponential_(generator=generator)
    # An exact 0 from the generator would make an impossible token 0 / 0 = NaN, which wins.
    return probabilities.div_(race.clamp_(min=torch.finfo(race.dtype).tiny)).argmax(dim=-1)
