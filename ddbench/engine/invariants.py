"""The engine's debug mode: invariants of the state between rounds, checked by content.

I1 the draft cache holds exactly the rows below the anchor. I2 features exist for the kept rows only. I3 the same for
the target cache. I4 a round commits between 1 and P rows. I5 is the draft's by construction: right of the anchor there
is nothing but mask tokens. Cache rows that nobody may read are filled with a mark: a round that reads one computes
something else, and one that fails to write a row below the new anchor leaves the mark standing.
Slow, and full of host reads. Letters: B batch rows, S cache rows, P = draft horizon + 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.parts import Draft, SpeculativeParts
from ddbench.engine.types import RoundOutcome

_MARK = 8192.0  # finite in every dtype, and far from what a norm or a projection produces


def mark_unread_rows(batch: Batch, caches: Iterable[torch.Tensor]) -> None:
    """Fill every row of `caches` at or beyond its request's anchor."""
    unread = torch.arange(batch.num_rows, device=batch.device) >= batch.lengths[:, None]  # [B, S]
    for cache in caches:
        cache.masked_fill_(unread.view(1, *unread.shape, *(1,) * (cache.dim() - 3)), _MARK)


class MarkingDraft:
    """A draft after which the draft cache is marked again: the block's own K/V, which is scratch, hides the marks."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def __call__(self, batch: Batch) -> torch.Tensor:
        logits = self._draft(batch)
        mark_unread_rows(batch, batch.caches.draft)
        return logits


def watched(parts: SpeculativeParts) -> SpeculativeParts:
    """The same parts, arranged so that `check_state` notices draft cache rows that a round did not materialize."""
    return replace(parts, draft=MarkingDraft(parts.draft))


def check_bound(batch: Batch) -> None:
    """A round is about to run: its bound covers every context."""
    lengths = batch.lengths.tolist()
    assert max(lengths, default=0) <= batch.context_bound, f"lengths {lengths}, bound {batch.context_bound}"


def check_state(batch: Batch) -> None:
    """I1, I3, and the agreement of device and host on lengths, anchors, tokens and limits."""
    lengths = batch.lengths.tolist()
    for row, (running, length) in enumerate(zip(batch.running, lengths, strict=True)):
        assert length == running.length, f"row {row}: {length} rows on the device, {running.length} on the host"
        expected = [*running.request.prompt, *running.tokens]
        got = batch.tokens[row, : length + 1].tolist()
        assert got == expected, f"row {row}: tokens {got}, expected {expected}"
        assert int(batch.anchors[row]) == expected[-1], f"row {row}: anchor {int(batch.anchors[row])}"
        remaining = 0 if running.finish_reason else running.request.max_new_tokens - len(running.tokens)
        assert int(batch.remaining[row]) == remaining, f"row {row}: remaining {int(batch.remaining[row])}"
        caches = [("I3 target", cache) for cache in batch.caches.target]
        if running.prompt_rows is None:
            caches += [("I1 draft", cache) for cache in batch.caches.draft]
        for name, cache in caches:
            stale = (cache[:, row, :length] == _MARK).flatten(2).all(-1).any(0).nonzero().flatten().tolist()
            assert not stale, f"{name} cache, row {row}: positions {stale} were never written (anchor at {length})"


def check_outcome(outcome: RoundOutcome, block_size: int) -> None:
    """I2, I4: what a round kept."""
    for tokens, accepted, nodes in zip(outcome.tokens, outcome.num_accepted, outcome.num_nodes, strict=True):
        assert 1 <= len(tokens) <= accepted + 1 <= block_size, f"{len(tokens)} tokens from {accepted} accepted"
        assert accepted <= nodes < outcome.verify_width, f"{accepted} accepted of {nodes} nodes"
