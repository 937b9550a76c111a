"""Specification of the draft without a model: what followed the latest tokens where they last occurred in the text.

Where in the flow: DRAFT, in place of a drafter.
Letters: B batch rows, L draft horizon, V vocabulary, S tokens a row has room for.

Rules. A request's text is `tokens[b, : lengths[b] + 1]`, its last token the anchor; the ids are in the vocabulary, and
what stands behind the anchor has no meaning. An n-gram match is an earlier place in the text that the anchor's n tokens
end at as well, whole within the text. The longest of a 3-, 2- or 1-gram match counts, of that length the most recent.
The tokens behind it, up to the anchor, are the proposals for positions 1, 2, ...: logit 0 (a sure thing) at the
proposed token of a position, -inf elsewhere and wherever the known text ends. Where nothing matches, nothing is
proposed. `context_bound` >= `lengths` is known to the host, changes no result, and `context_bound` + L < S.
"""

from __future__ import annotations

import torch

# batch, horizon, vocabulary, tokens a row has room for
SIZES = {"small": (3, 4, 11, 24), "odd": (5, 7, 131, 61), "degenerate": (1, 1, 2, 3), "adversarial": (9, 5, 64, 48)}


def prompt_lookup(
    tokens: torch.Tensor,  # [B, S] int64
    lengths: torch.Tensor,  # [B] int64, position of the anchor
    horizon: int,  # L
    vocab: int,  # V
    context_bound: int,
) -> torch.Tensor:
    """-> logits [B, L, V] fp32; row j is about the token at position `lengths[b]` + 1 + j."""
    logits = torch.full((len(tokens), horizon, vocab), -torch.inf, dtype=torch.float32)
    for b, length in enumerate(lengths.tolist()):
        text = tokens[b, : length + 1].tolist()
        for j, token in enumerate(_followers(text)[:horizon]):
            logits[b, j, token] = 0.0
    return logits


def _followers(text: list[int]) -> list[int]:
    """All that stands behind the match that counts."""
    for size in (3, 2, 1):
        for end in range(len(text) - 2, size - 2, -1):
            if text[end - size + 1 : end + 1] == text[len(text) - size :]:
                return text[end + 1 :]
    return []


def make_inputs(seed: int, size: str) -> dict[str, object]:
    """Few different ids, so that all lengths of matches occur; behind the anchor anything.

    Degenerate: only an anchor. Adversarial: contexts of 0 to 2, none and all alike, an older match that is longer.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, horizon, vocab, room = SIZES[size]
    bound = room - horizon - 1
    some = torch.randperm(vocab, generator=generator)[:6]
    tokens = some[torch.randint(len(some), (batch, room), generator=generator)]
    lengths = torch.randint(bound // 2, bound + 1, (batch,), generator=generator)
    if size == "degenerate":
        lengths.zero_()
    if size == "adversarial":
        lengths[:3] = torch.arange(3)
        lengths[3:6] = bound
        tokens[3] = torch.arange(room)  # no match
        tokens[4] = vocab - 1  # a match of 3 right before the anchor
        tokens[5] = torch.arange(room) % 2
        for row, text in enumerate(([1, 2, 3, 9, 8, 2, 3, 7, 3, 6, 1, 2, 3], [2, 3, 9, 3, 8, 2, 3], [5, 6, 5]), 6):
            tokens[row, : len(text)] = torch.tensor(text)
            lengths[row] = len(text) - 1
    beyond = torch.arange(room) > lengths[:, None]
    garbage = torch.randint(-1, vocab, (batch, room), generator=generator)
    return {
        "tokens": torch.where(beyond, garbage, tokens),
        "lengths": lengths,
        "horizon": horizon,
        "vocab": vocab,
        "context_bound": bound,
    }


def cost(tokens: torch.Tensor, lengths: torch.Tensor, horizon: int, vocab: int, context_bound: int) -> dict[str, int]:
    """Fewest bytes (every text once, every logit once); no flops."""
    read = 8 * int((lengths + 1).sum()) + lengths.nbytes
    return {"bytes": read + 4 * len(tokens) * horizon * vocab, "flops": 0}
