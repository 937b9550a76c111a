"""What a forward begins with: the embeddings of its tokens, and the rotary rows of their positions.

Where in the flow: DRAFT and VERIFY, and prefill. Letters: B batch rows, N new tokens, V vocabulary, M hidden,
S positions of the rotary table, Dr rotary dims.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def token_rows(
    ids: torch.Tensor,  # [B, N] int64
    positions: torch.Tensor,  # [B, N] int64; or [B, 1], the first token's: the others follow
    embedding: torch.Tensor,  # [V, M]
    cos: torch.Tensor,  # [S, Dr/2] fp32
    sin: torch.Tensor,  # [S, Dr/2] fp32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> embeddings [B, N, M] in embedding.dtype, cos and sin rows, each [B, N, 1, Dr/2]."""
    if positions.shape[1] != ids.shape[1]:
        positions = positions + torch.arange(ids.shape[1], device=ids.device)
    return F.embedding(ids, embedding), cos[positions][:, :, None], sin[positions][:, :, None]
