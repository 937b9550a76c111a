"""Drafts copied from the text, by hand."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels.prompt_lookup import prompt_lookup as prompt_lookup_torch
from ddbench.reference.prompt_lookup import prompt_lookup


@pytest.mark.parametrize("run", [prompt_lookup, prompt_lookup_torch], ids=["reference", "torch"])
@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ([5], []),
        ([5, 5], [5]),
        ([5, 6], []),
        ([5, 6, 5], [6, 5]),
        ([4, 5, 4, 5], [4, 5]),
        ([1, 2, 3, 9, 8, 2, 3, 7, 3, 6, 1, 2, 3], [9, 8, 2]),  # the match of 3, though others are more recent
        ([2, 3, 9, 3, 8, 2, 3], [9, 3, 8]),  # the match of 2, though the anchor alone stands later
        ([3, 9, 1, 3, 8, 2, 3], [8, 2, 3]),  # of equal matches the latter
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2]),
        ([6, 6, 6, 6, 6], [6]),  # the latest match is followed by the anchor alone
        ([7, 1, 7], [1, 7]),
    ],
)
def test_proposals_are_those_found_by_hand(run, text, proposed):
    tokens = torch.tensor([[*text, *[9] * 5]])
    logits = run(tokens, torch.tensor([len(text) - 1]), 3, 10, len(text))
    expected = torch.full((1, 3, 10), -torch.inf)
    for j, token in enumerate(proposed):
        expected[0, j, token] = 0.0
    assert logits.dtype == torch.float32
    assert torch.equal(logits, expected)
