"""Cross-entropy through a frozen head without all its logits: chunk by chunk, loss and gradient in one go.

65,536 drafted positions of 49,152 logits would be 6.4 GB in bf16 and twice that in fp32, several times over; the head
gets no gradient, so that of the hidden rows can be computed while a chunk's probabilities are there.
Letters: R rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

TINY = 1e-37  # a loss is shown as 85 where it is larger; its gradient is right all the same
CHUNK = 8192  # rows: 805 MB of bf16 logits and 1.6 GB of fp32 probabilities at V = 49,152


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor, chunk: int
    ) -> torch.Tensor:
        gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for rows in torch.arange(len(hidden)).split(chunk):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            share, weight = torch.softmax(hidden[part] @ head.T, dim=-1, dtype=torch.float32), weights[part]
            column = wanted[part, None]
            picked = share.gather(1, column)
            total -= (picked.clamp(min=TINY).log()[:, 0] * weight).sum()
            share.scatter_(1, column, picked - 1)
            error = torch.mul(share, weight[:, None], out=torch.empty_like(share, dtype=hidden.dtype))
            gradient[part] = error @ head
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return gradient * above.to(gradient.dtype), None, None, None, None


def head_loss(
    hidden: torch.Tensor, head: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor, chunk: int = CHUNK
) -> torch.Tensor:
    """Sum over rows of `weights * cross-entropy(hidden @ head.T, wanted)`, as a fp32 scalar.

    hidden [R, D], head [V, D] frozen, both of one dtype; wanted [R] int64; weights [R] fp32.
    """
    assert not head.requires_grad, "the head is the target's: frozen"
    assert hidden.dtype == head.dtype, f"hidden {hidden.dtype}, head {head.dtype}"
    loss: torch.Tensor = _HeadLoss.apply(hidden, head, wanted, weights.float(), chunk)  # type: ignore[no-untyped-call]
    return loss
