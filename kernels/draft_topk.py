"""Top-k of the draft logits with log-probabilities; vectorised, no host synchronisation, fixed shapes.

Where in the flow: the last step of DRAFT. Letters: B batch rows, L draft horizon, V vocabulary, K = min(k, V).

`torch.topk` leaves the order of equal values and the choice at the cut open, and bf16 logits tie all the time. So the
selection runs on 64-bit keys, the logit's order-preserving integer above the complement of the token id: keys are
distinct, hence the result is unique on every device.

Keys for the whole vocabulary would cost more than the top-k itself, so a first pass takes the maximum of every block
of consecutive tokens. An element outside the K best blocks (maximum descending, equal maxima by lower block) is beaten
by the maxima of K other blocks, equal ones having lower ids: the K best elements lie inside the K best blocks.
"""

from __future__ import annotations

import math

import torch


def draft_topk(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, L, V] of any float dtype to (log_probs [B, L, K] fp32, token_ids [B, L, K] int64), best first.

    Equal logits rank by lower token id; -inf stays -inf ("no candidate"). A NaN or +inf logit leaves a NaN in its row:
    check `has_nan(log_probs)`, which reads K columns instead of V.
    """
    if k < 0:
        raise ValueError(f"k must not be negative: got {k}; pass the node budget or a smaller width")
    values = logits.float()  # [B, L, V] a bf16 logsumexp is wrong by 1e-2
    width = min(k, logits.shape[-1])
    if width == 1:  # a chain pays for no selection; argmax returns the first of equal values
        token_ids = values.argmax(dim=-1, keepdim=True)  # [B, L, 1]
    else:
        token_ids = _top_ids(values, width)  # [B, L, K]
    top = values.gather(-1, token_ids)
    normaliser = values.logsumexp(dim=-1, keepdim=True)  # [B, L, 1]
    # A row of nothing but -inf has a normaliser of -inf, and -inf - -inf is NaN.
    log_probs = torch.where(normaliser == -torch.inf, top, top - normaliser)
    return log_probs, token_ids


def has_nan(values: torch.Tensor) -> torch.Tensor:
    """[B] bool, on the device: does this request's [B, L, ...] tensor (logits or log-probabilities) hold a NaN?"""
    return values.isnan().flatten(1).any(dim=1)


def _top_ids(values: torch.Tensor, width: int) -> torch.Tensor:
    """Token ids [..., width] of the largest fp32 values [..., V], equal values by lower id."""
    vocab = values.shape[-1]
    block = math.isqrt(vocab // width) if width else vocab  # balances the two selections
    num_blocks = vocab // block
    if block < 2 or num_blocks <= width:
        return _top_keys(values, torch.arange(vocab, device=values.device), width)
    blocked = values[..., : num_blocks * block].unflatten(-1, (num_blocks, block))  # [..., V/C, C] view
    block_ids = _top_keys(blocked.amax(-1), torch.arange(num_blocks, device=values.device), width)
    inside = torch.arange(block, device=values.device)  # [C]
    tail = torch.arange(num_blocks * block, vocab, device=values.device)  # the last, incomplete block always competes
    candidates = (block_ids.unsqueeze(-1) * block + inside).flatten(-2)  # [..., width * C]
    candidates = torch.cat([candidates, tail.expand(*candidates.shape[:-1], -1)], dim=-1)
    return _top_keys(values.gather(-1, candidates), candidates, width)


def _top_keys(values: torch.Tensor, ids: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` best of `ids` [..., M], ordered by fp32 value descending, then id ascending."""
    bits = values.view(torch.int32)
    # Sign-magnitude to two's complement: order-preserving, and -0.0 meets 0.0.
    ordered = torch.where(bits < 0, -(2**31) - bits, bits)
    keys = torch.add(~ids & 0xFFFFFFFF, ordered, alpha=2**32)  # [..., M] int64
    top = keys.topk(width, dim=-1, sorted=True).values
    return ~top & 0xFFFFFFFF
