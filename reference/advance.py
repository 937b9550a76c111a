"""Specification of the end of a round: emitted tokens behind the anchor, the anchor moved, the host's report.

Where in the flow: COMMIT, after the cache rows were moved.
Letters: B batch rows, S context length, P = draft horizon + 1, N tree node slots.

Rules. `positions[b, j]` := old `lengths[b]` + j. In place: `tokens[b, lengths[b] + 1 + j]` := `emitted[b, j]` for every
j (beyond the new anchor anything may stand); `lengths` grow by `num_emitted`; `remaining` shrinks by it, to 0 where
`finished`; the anchor is the last emitted token, and stays where there is none. The report's columns: path, emitted,
num_accepted, num_emitted, num_nodes and the sum of the nodes' probabilities exp(score); without a tree the last two are
num_accepted and num_emitted. fp64 holds every token id exactly.
"""

from __future__ import annotations

import math

import torch

# batch, horizon, slots, context
SIZES = {"small": (3, 4, 9, 24), "odd": (5, 7, 33, 61), "degenerate": (1, 0, 1, 4), "adversarial": (4, 8, 65, 40)}


def advance(
    path: torch.Tensor,  # [B, P] int64
    num_accepted: torch.Tensor,  # [B] int64
    emitted: torch.Tensor,  # [B, P] int64
    num_emitted: torch.Tensor,  # [B] int64
    finished: torch.Tensor,  # [B] bool
    tree: tuple[torch.Tensor, torch.Tensor] | None,  # num_nodes [B] int64, scores [B, N] fp32
    tokens: torch.Tensor,  # [B, S] int64, changed in place as are the next three
    lengths: torch.Tensor,  # [B] int64
    remaining: torch.Tensor,  # [B] int64
    anchors: torch.Tensor,  # [B] int64
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (report [B, 2P+4] fp64, positions [B, P] int64)."""
    batch, width = path.shape
    report = torch.zeros(batch, 2 * width + 4, dtype=torch.float64)
    positions = torch.zeros_like(path)
    for b in range(batch):
        start, count = int(lengths[b]), int(num_emitted[b])
        for j in range(width):
            positions[b, j] = start + j
            tokens[b, start + 1 + j] = emitted[b, j]
        lengths[b] = start + count
        remaining[b] = 0 if bool(finished[b]) else int(remaining[b]) - count
        if count:
            anchors[b] = emitted[b, count - 1]
        nodes, expected = int(num_accepted[b]), float(count)
        if tree is not None:
            nodes, expected = int(tree[0][b]), math.fsum(math.exp(score) for score in tree[1][b].tolist())
        scalars = [int(num_accepted[b]), count, nodes, expected]
        report[b] = torch.tensor([*path[b].tolist(), *emitted[b].tolist(), *scalars], dtype=torch.float64)
    return report, positions


def make_inputs(seed: int, size: str) -> dict[str, object]:
    """Odd: no tree. Adversarial: an idle row, a row cut short, the last rows of the context, unused slots."""
    generator = torch.Generator().manual_seed(seed)
    batch, horizon, slots, context = SIZES[size]
    width = horizon + 1
    emitted = torch.randint(2**40, (batch, width), generator=generator)
    num_emitted = torch.randint(1, width + 1, (batch,), generator=generator)
    lengths = torch.randint(0, context - width, (batch,), generator=generator)
    finished = torch.rand(batch, generator=generator) < 0.3
    scores = -torch.rand(batch, slots, generator=generator) * 8
    scores[:, 0] = 0.0
    if size == "adversarial":
        num_emitted[0], finished[0] = 0, True
        num_emitted[1], finished[1] = 2, True
        lengths[2] = context - width - 1
        scores[3, 5:] = -torch.inf
    return {
        "path": torch.randint(-1, slots, (batch, width), generator=generator),
        "num_accepted": torch.randint(0, width, (batch,), generator=generator),
        "emitted": emitted,
        "num_emitted": num_emitted,
        "finished": finished,
        "tree": None if size == "odd" else (torch.randint(0, slots, (batch,), generator=generator), scores),
        "tokens": torch.randint(1000, (batch, context), generator=generator),
        "lengths": lengths,
        "remaining": torch.randint(width, 50, (batch,), generator=generator),
        "anchors": torch.randint(1000, (batch,), generator=generator),
    }


def cost(
    path: torch.Tensor,
    num_accepted: torch.Tensor,
    emitted: torch.Tensor,
    num_emitted: torch.Tensor,
    finished: torch.Tensor,
    tree: tuple[torch.Tensor, torch.Tensor] | None,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    remaining: torch.Tensor,
    anchors: torch.Tensor,
) -> dict[str, int]:
    """Fewest bytes: what is read once, the tokens, positions and report written once. No flops worth counting."""
    read = [path, num_accepted, emitted, num_emitted, finished, *(tree or ()), lengths, remaining]
    written = 2 * emitted.nbytes + path.shape[0] * (2 * path.shape[1] + 4) * 8 + 3 * lengths.nbytes
    return {"bytes": sum(tensor.nbytes for tensor in read) + written, "flops": 0}
