"""The draft without a model: what followed the latest tokens where they last occurred in the request's own text.

Where in the flow: DRAFT, in place of a drafter. Fixed shapes, nothing is read by the host.
Letters: B batch rows, L draft horizon, V vocabulary, S tokens a row has room for.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

_NO_CANDIDATE = -torch.inf


def prompt_lookup(
    tokens: torch.Tensor,  # [B, S] int64; meaningful up to the anchor, behind it below V
    lengths: torch.Tensor,  # [B] int64 position of the anchor, at most `context_bound`
    horizon: int,  # L
    vocab: int,  # V
    context_bound: int,  # any value not below the longest context gives the same; + L < S
) -> torch.Tensor:
    """-> logits [B, L, V] fp32: 0 at the proposed token of each position, -inf elsewhere.

    The longest of a 3-, 2- or 1-gram match counts, the most recent occurrence of that length first. Where nothing
    matches or the known text ends there is no candidate.
    """
    ahead, latest = _offsets(horizon, tokens.device)
    lengths = lengths[:, None]  # [B, 1] = s
    known = F.pad(tokens[:, : context_bound + 1], (2, 0), value=-1)  # [B, 2 + s_max + 1]
    place = torch.arange(known.shape[1] - 2, device=known.device)  # where an earlier n-gram could end
    last, before, earliest = known.gather(1, lengths + latest).unbind(1)
    one = (known[:, 2:] == last[:, None]) & (place < lengths)
    two = one & (known[:, 1:-1] == before[:, None])
    three = two & (known[:, :-2] == earliest[:, None])
    score = (one.long() + two.long() + three.long()) * len(place) + place  # longer first, then later
    best, end = score.where(one, -1).max(dim=1, keepdim=True)  # [B, 1]
    source = end + ahead  # [B, L]
    proposal = tokens.gather(1, source).clamp_(min=0)  # beyond the anchor anything may stand
    logit = torch.where((best >= 0) & (source <= lengths), 0.0, _NO_CANDIDATE)  # [B, L]
    logits = logit.new_full((*proposal.shape, vocab), _NO_CANDIDATE)
    return logits.scatter_(2, proposal[..., None], logit[..., None])


@lru_cache(maxsize=64)
def _offsets(horizon: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """1 .. L, how far behind a match the proposals stand; shifts into the padded text: last, before, earliest."""
    return torch.arange(1, horizon + 1, device=device), torch.tensor((2, 1, 0), device=device)
