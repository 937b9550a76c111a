"""Specification of attention of N new tokens over a K/V cache in which their own rows already stand.

Letters: B batch rows, N new tokens, S cache rows, H query heads, G KV heads (H/G queries share one), D head dim.
"""

from __future__ import annotations

from typing import Any

import torch

# batch, new tokens, cache rows, query heads, KV heads, head dim
SIZES = {
    "small": (2, 5, 24, 4, 2, 8),
    "odd": (3, 7, 31, 6, 3, 12),
    "degenerate": (1, 1, 1, 1, 1, 4),
    "adversarial": (4, 6, 40, 4, 1, 8),
}


def sees(
    lengths: torch.Tensor, num_new: int, num_rows: int, visible: torch.Tensor | None, window: int | None = None
) -> torch.Tensor:
    """Which cache rows each new token sees, [B, N, num_rows] bool.

    Context rows (below `lengths[b]`), with `window` only those p with t - p < window for the query's absolute position
    t = lengths[b] + i; and new rows lengths[b] + j where visible[b, i, j], or j <= i where `visible` is None.
    """
    mask = torch.zeros(len(lengths), num_new, num_rows, dtype=torch.bool)
    for b, length in enumerate(lengths.tolist()):
        for i in range(num_new):
            for p in range(length):
                mask[b, i, p] = window is None or length + i - p < window
            for j in range(num_new):
                mask[b, i, length + j] = j <= i if visible is None else visible[b, i, j]
    return mask


def tree_attention(
    q: torch.Tensor,  # [B, N, H, D]
    k: torch.Tensor,  # [B, S, G, D]
    v: torch.Tensor,  # [B, S, G, D]
    lengths: torch.Tensor,  # [B] int64
    visible: torch.Tensor | None,  # [B, N, N] bool
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Softmax attention per request, token and head over exactly the rows that `sees` names, -> [B, N, H, D].

    No other cache row is read. Every token must see at least one row (it sees itself in a well-formed tree).
    """
    batch, num_new, num_heads, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = sees(lengths, num_new, k.shape[1], visible, window)
    out = torch.empty_like(q)
    for b in range(batch):
        for i in range(num_new):
            rows = mask[b, i].nonzero().squeeze(1)
            for h in range(num_heads):
                g = h // (num_heads // k.shape[2])
                scores = k[b, rows, g].to(wide) @ q[b, i, h].to(wide) * scale
                out[b, i, h] = (scores.softmax(dim=0) @ v[b, rows, g].to(wide)).to(q.dtype)
    return out


def random_visible(batch: int, num_new: int, generator: torch.Generator) -> torch.Tensor:
    """Ancestor masks of random trees, [B, N, N]: each node sees its parent's row and itself."""
    visible = torch.zeros(batch, num_new, num_new, dtype=torch.bool)
    for b in range(batch):
        for i in range(num_new):
            if i:
                visible[b, i] = visible[b, int(torch.randint(i, (1,), generator=generator))]
            visible[b, i, i] = True
    return visible


def make_lengths(seed: int, size: str) -> tuple[torch.Tensor, int]:
    """Context lengths of the requests, and the cache rows: unequal; an empty context; a full cache (adversarial)."""
    batch, num_new, num_rows = SIZES[size][:3]
    generator = torch.Generator().manual_seed(seed)
    spare = 0 if size in ("adversarial", "degenerate") else 3
    longest = num_rows - num_new - spare
    lengths = torch.randint(0, longest + 1, (batch,), generator=generator)
    lengths[-1] = longest
    if batch > 1:
        lengths[0] = 0 if size == "adversarial" else longest // 2
    return lengths, num_rows


def poison_unread(cache: torch.Tensor, lengths: torch.Tensor, num_new: int) -> torch.Tensor:
    """Fill what attention must not use: huge finite values past each request's rows, NaN past every request's rows."""
    for b, length in enumerate(lengths.tolist()):
        cache[b, length + num_new :] = 1e4
    cache[:, int(lengths.max()) + num_new :] = float("nan")
    return cache


def make_inputs(seed: int, size: str) -> dict[str, Any]:
    """Small: trees. Odd: causal, windowed. Adversarial: MQA, equal scores, one-hot softmax, windowed full block."""
    generator = torch.Generator().manual_seed(seed)
    batch, num_new, num_rows, num_heads, num_kv, dim = SIZES[size]
    lengths, _ = make_lengths(seed, size)
    q = torch.randn(batch, num_new, num_heads, dim, generator=generator)
    k = torch.randn(batch, num_rows, num_kv, dim, generator=generator)
    v = torch.randn(batch, num_rows, num_kv, dim, generator=generator)
    if size == "adversarial":
        k[1] = k[1, :1]  # every score of request 1 is equal
        q[2] *= 30  # near one-hot softmax
    visible = None if size == "odd" else random_visible(batch, num_new, generator)
    if visible is not None and size == "adversarial":
        visible[:] = True
    return {
        "q": q,
        "k": poison_unread(k, lengths, num_new),
        "v": poison_unread(v, lengths, num_new),
        "lengths": lengths,
        "visible": visible,
        "scale": dim**-0.5,
        "window": {"odd": 4, "adversarial": 9}.get(size),
    }


def cost(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    window: int | None = None,
) -> dict[str, int]:
    """Fewest bytes (q, out, each row that anyone sees once; one bit per pair of a tree) and flops (pairs that see)."""
    batch, num_new, num_heads, dim = q.shape
    rows, pairs = rows_and_pairs(lengths, num_new, visible, window)
    moved = 2 * q.numel() + 2 * rows * k.shape[2] * dim
    tree_bits = 0 if visible is None else batch * num_new * num_new
    return {"bytes": moved * q.element_size() + (tree_bits + 7) // 8, "flops": 4 * pairs * num_heads * dim}


def rows_and_pairs(
    lengths: torch.Tensor, num_new: int, visible: torch.Tensor | None, window: int | None
) -> tuple[int, int]:
    """Cache rows that at least one token sees, and (token, row) pairs that see each other, summed over the batch."""
    rows = pairs = 0
    for b, length in enumerate(lengths.tolist()):
        context = [min(length, max(window - i - 1, 0)) if window is not None else length for i in range(num_new)]
        rows += max(context) + num_new
        among_new = num_new * (num_new + 1) // 2 if visible is None else int(visible[b].sum())
        pairs += sum(context) + among_new
    return rows, pairs
