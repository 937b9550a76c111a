"""Which texts share a run of words with others: keeps training prompts apart from the sets that a drafter is judged on.

A text overlaps when `NUM_WORDS` words in a row, without case and punctuation, stand in a held-out text too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NUM_WORDS = 8
_WORD = re.compile(r"[a-z0-9]+")


def grams(text: str) -> set[tuple[str, ...]]:
    """All runs of `NUM_WORDS` words of a text; a shorter text is one run."""
    found = _WORD.findall(text.lower())
    if len(found) < NUM_WORDS:
        return {tuple(found)} if found else set()
    return {tuple(found[i : i + NUM_WORDS]) for i in range(len(found) - NUM_WORDS + 1)}


def without_overlap(texts: Iterable[str], heldout: Iterable[str]) -> list[int]:
    """Places in `texts` of those that share no run with a held-out text."""
    known: set[tuple[str, ...]] = set()
    for text in heldout:
        known |= grams(text)
    return [place for place, text in enumerate(texts) if known.isdisjoint(grams(text))]
