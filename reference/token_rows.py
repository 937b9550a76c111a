"""Specification of what a forward begins with: embeddings by token id, rotary rows by position.

Letters: B batch rows, N new tokens, V vocabulary, M hidden, S positions of the rotary table, Dr rotary dims.
"""

from __future__ import annotations

from typing import Any

import torch

from .rope import cos_sin, inv_freq

# batch, tokens, vocabulary, hidden, rotary dims, table rows
SIZES = {
    "small": (2, 3, 11, 16, 8, 12),
    "odd": (3, 5, 23, 37, 14, 31),
    "degenerate": (1, 1, 1, 1, 2, 1),
    "adversarial": (4, 9, 7, 1030, 12, 17),
}


def token_rows(
    ids: torch.Tensor, positions: torch.Tensor, embedding: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> x[b, i] = embedding[ids[b, i]]; cos and sin of position p[b, i], each [B, N, 1, Dr/2].

    p[b, i] = positions[b, i] or, where one is given per request, positions[b, 0] + i.
    """
    batch, num_tokens = ids.shape
    x = embedding.new_empty(batch, num_tokens, embedding.shape[1])
    rows = cos.new_empty(2, batch, num_tokens, 1, cos.shape[1])
    for b in range(batch):
        for i in range(num_tokens):
            position = positions[b, i] if positions.shape[1] == num_tokens else positions[b, 0] + i
            x[b, i] = embedding[ids[b, i]]
            rows[0, b, i, 0], rows[1, b, i, 0] = cos[position], sin[position]
    return x, rows[0], rows[1]


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Adversarial: rows that reach over a program's columns, first and last rows of both tables, counted positions."""
    batch, num_tokens, vocab, hidden, rotary, table = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab, (batch, num_tokens), generator=generator)
    positions = torch.randint(table, (batch, num_tokens), generator=generator)
    if size == "adversarial":
        ids[0, 0], ids[0, 1] = 0, vocab - 1
        positions = torch.tensor([[0], [table - num_tokens], [3], [1]])
    cos, sin = cos_sin(inv_freq(rotary, 10000.0), table)
    embedding = torch.randn(vocab, hidden, generator=generator)
    return {"ids": ids, "positions": positions, "embedding": embedding, "cos": cos, "sin": sin}


def cost(
    ids: torch.Tensor, positions: torch.Tensor, embedding: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> dict[str, int]:
    """Fewest bytes (ids, positions, every row in and out once; equal ones count again); no flops."""
    row = embedding.shape[1] * embedding.element_size() + 2 * cos.shape[1] * cos.element_size()
    return {"bytes": (ids.numel() + positions.numel()) * 8 + 2 * ids.numel() * row, "flops": 0}
