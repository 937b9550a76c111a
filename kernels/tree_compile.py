"""Draft trees to the target's verify inputs: input ids, positions and the ancestor mask; no host synchronisation.

Where in the flow: TREE_COMPILE, between the tree builder and the target's forward.
Letters: B batch rows, N node slots (slot 0 the root = anchor).

The mask is built by pointer doubling: after s steps a row holds a node's 2^s nearest ancestors (itself included), and
its pointer is the 2^s-th; so ceil(log2(depth + 1)) row gathers replace a walk over the nodes.
"""

from __future__ import annotations

from functools import lru_cache

import torch


def tree_compile(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64
    depths: torch.Tensor,  # [B, N] int64
    num_nodes: torch.Tensor,  # [B] int64, root not counted
    anchors: torch.Tensor,  # [B] int64 token ids
    lengths: torch.Tensor,  # [B] int64 committed rows
    max_depth: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> input_ids [B, N] int64, positions [B, N] int64, visible [B, N, N] bool (true = may attend).

    Unused slots get id 0, the anchor's position, and see themselves only; what they hold is never read as an index.
    `max_depth`: a bound on the trees' depth known to the host (the draft horizon); saves steps, changes nothing.
    """
    slots = tokens.shape[1]
    index = torch.arange(slots, device=tokens.device)  # [N]
    used = (index > 0) & (index <= num_nodes.unsqueeze(1))  # [B, N] non-root nodes
    input_ids = tokens.where(used, 0)
    input_ids[:, 0] = anchors
    positions = lengths.unsqueeze(1) + depths.where(used, 0)

    jump = parents.where(used, index)  # [B, N] the root and unused slots point at themselves
    visible = (index == index.unsqueeze(1)) | (index == jump.unsqueeze(2))  # [B, N, N] itself and its parent
    path_nodes = min(slots, slots if max_depth is None else max_depth + 1)  # on the longest path, root included
    for _ in range(1, (path_nodes - 1).bit_length()):
        jump = jump.gather(1, jump)
        visible = visible | visible.gather(1, jump.unsqueeze(2).expand(-1, -1, slots))
    return input_ids, positions, visible


def tree_compile_chain(
    tokens: torch.Tensor,  # [B, N] int64
    parents: torch.Tensor,  # [B, N] int64, not looked at: a chain's nodes follow each other
    depths: torch.Tensor,  # [B, N] int64, likewise
    num_nodes: torch.Tensor,  # [B] int64, likewise
    anchors: torch.Tensor,  # [B] int64 token ids
    lengths: torch.Tensor,  # [B] int64 committed rows
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of chains, whose order is the causal one: -> input_ids and positions [B, N] int64, without a mask.

    Unused slots come last, where no used one sees them: their id is a legal one and their position any.
    """
    input_ids = tokens.clamp(min=0)
    input_ids[:, 0] = anchors
    return input_ids, lengths[:, None] + _offsets(tokens.shape[1], tokens.device)


@lru_cache(maxsize=64)
def _offsets(slots: int, device: torch.device) -> torch.Tensor:
    return torch.arange(slots, device=device)
