"""Specification of the draft's top-k: draft logits to the K most probable tokens of every drafted position.

Where in the flow: the last step of DRAFT; its two outputs are all that a tree builder reads.
Letters: B batch rows, L draft horizon, V vocabulary, K = min(k, V).

Rules
- Logits are cast to fp32 first; a log-probability is `logit - logsumexp(row)` at temperature 1, whatever the target is
  sampled with, so the draft tree does not change with the sampling temperature.
- Order: logit descending, equal logits by lower token id. (The logit decides, not the log-probability: subtracting the
  row's constant may round two different logits to one value, and then both orders agree with the log-probabilities.)
- A logit of -inf gives -inf, "no candidate". A row of nothing but -inf gives -inf everywhere ("no draft here").
- A row with a NaN or a +inf logit is broken: it holds a NaN log-probability (in column 0 at least), its ids are legal
  but unspecified, and `has_nan` reports the request. Whoever consumes the result must raise on it.
"""

from __future__ import annotations

import math

import torch


def draft_topk(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, L, V] of any float dtype to (log_probs [B, L, K] fp32, token_ids [B, L, K] int64), best first."""
    if k < 0:
        raise ValueError(f"k must not be negative: got {k}; pass the node budget or a smaller width")
    batch, horizon, vocab = logits.shape
    width = min(k, vocab)
    log_probs = torch.empty(batch, horizon, width, dtype=torch.float32)  # [B, L, K]
    token_ids = torch.empty(batch, horizon, width, dtype=torch.int64)  # [B, L, K]
    for b in range(batch):
        for position in range(horizon):
            row = logits[b, position].to(torch.float32).tolist()  # exact: Python floats hold every fp32
            ids = sorted(range(vocab), key=lambda token: (-row[token], token))[:width]
            normaliser = _logsumexp(row)
            values = [_log_prob(row[token], normaliser) for token in ids]
            log_probs[b, position] = torch.tensor(values, dtype=torch.float32)
            token_ids[b, position] = torch.tensor(ids, dtype=torch.int64)
    return log_probs, token_ids


def has_nan(values: torch.Tensor) -> torch.Tensor:
    """[B] bool: does this request's [B, L, ...] tensor (logits or log-probabilities) hold a NaN?"""
    return torch.tensor([any(math.isnan(value) for value in row.flatten().tolist()) for row in values])


def _logsumexp(row: list[float]) -> float:
    if any(math.isnan(value) or value == math.inf for value in row):
        return math.nan
    peak = max(row)
    if peak == -math.inf:
        return -math.inf
    return peak + math.log(math.fsum(math.exp(value - peak) for value in row))


def _log_prob(logit: float, normaliser: float) -> float:
    if math.isnan(normaliser):
        return math.nan
    return -math.inf if logit == -math.inf else logit - normaliser


def make_inputs(seed: int, size: str) -> dict[str, object]:
    """Arguments of `draft_topk` for a named size; `adversarial` mixes ties, saturated, constant and -inf rows."""
    generator = torch.Generator().manual_seed(seed)
    batch, horizon, vocab, k = {
        "small": (2, 3, 11, 4),
        "odd": (3, 5, 131, 17),
        "degenerate": (1, 1, 3, 8),
        "adversarial": (2, 7, 37, 16),
    }[size]
    logits = torch.randn(batch, horizon, vocab, generator=generator) * 4  # [B, L, V]
    if size == "adversarial":
        logits = logits.round()  # many equal logits, at the cut as well
        logits[:, 1] = 0.0
        logits[0, 1, ::2] = -0.0  # equal to 0.0, with other bits
        logits[:, 2] = torch.randn(vocab, generator=generator).to(torch.bfloat16).float() * 1e-3
        logits[:, 3, 5] = 1e4  # saturated: log-probability exactly 0
        logits[0, 4, 3:] = -torch.inf
        logits[1, 4] = -torch.inf
        logits[:, 5] = -torch.inf
        logits[:, 5, vocab - 1] = -3e38
    return {"logits": logits, "k": k}


def cost(logits: torch.Tensor, k: int) -> dict[str, int]:
    """Fewest bytes (every logit once, the result once) and flops (one exp and one add per logit)."""
    batch, horizon, vocab = logits.shape
    written = batch * horizon * min(k, vocab) * (4 + 8)
    return {"bytes": logits.nbytes + written, "flops": 2 * logits.numel()}
