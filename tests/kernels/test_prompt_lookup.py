"""The product's drafts copied from the text against their specification, on every device present."""

from __future__ import annotations

from itertools import islice, takewhile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.kernels.prompt_lookup import prompt_lookup
from ddbench.reference import prompt_lookup as reference
from ddbench.testing import copied

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def texts(*rows: list[int], room: int = 4, garbage: int = 0) -> dict[str, torch.Tensor]:
    """Texts of different lengths, each with its anchor, and room for so many tokens behind the longest."""
    width = max(map(len, rows)) + room
    return {
        "tokens": torch.tensor([row + [garbage] * (width - len(row)) for row in rows]),
        "lengths": torch.tensor([len(row) - 1 for row in rows]),
    }


def proposals(logits: torch.Tensor) -> list[list[int]]:
    """The candidates of every request's positions, as far as there are any; each must be a sure thing, and alone."""
    is_candidate = logits > -torch.inf
    assert bool((is_candidate.sum(-1) <= 1).all())
    assert bool((logits[is_candidate] == 0).all())
    counts = is_candidate.any(-1).sum(-1).tolist()
    rows = is_candidate.float().argmax(-1).tolist()
    found = [row[:count] for row, count in zip(rows, counts, strict=True)]
    assert sum(counts) == int(is_candidate.sum())
    assert all(bool(is_candidate[b, :count].any(-1).all()) for b, count in enumerate(counts)), "proposals without gaps"
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", reference.SIZES)
def test_equals_the_reference(size, device):
    for seed in range(8):
        inputs = reference.make_inputs(seed, size)
        logits = prompt_lookup(**copied(inputs, device))
        assert logits.dtype == torch.float32
        assert torch.equal(logits.cpu(), reference.prompt_lookup(**inputs))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4),
    horizon=st.integers(0, 7),
    garbage=st.integers(-1, 3),
)
def test_any_texts_give_what_the_reference_gives(rows, horizon, garbage):
    given_texts = texts(*rows, room=horizon + 1, garbage=garbage)
    sizes = {"horizon": horizon, "vocab": 5, "context_bound": int(given_texts["lengths"].max())}
    logits = prompt_lookup(**given_texts, **sizes)
    assert torch.equal(logits, reference.prompt_lookup(**given_texts, **sizes))


def likeness(text: list[int], end: int) -> int:
    """How many tokens up to `end`, 3 at most, are those that the text ends with."""
    ways = zip(reversed(text[: end + 1]), reversed(text), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], islice(ways, 3))))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(text=st.lists(st.integers(0, 4), min_size=1, max_size=30), horizon=st.integers(1, 6))
def test_proposals_follow_the_place_most_like_the_end_of_the_text(text, horizon):
    """And are all that is known there."""
    found = proposals(prompt_lookup(**texts(text, room=7), horizon=horizon, vocab=5, context_bound=len(text) - 1))[0]
    like, end = max(((likeness(text, end), end) for end in range(len(text) - 1)), default=(0, 0))
    assert found == (text[end + 1 :][:horizon] if like else [])


def test_a_text_of_only_an_anchor_proposes_nothing():
    logits = prompt_lookup(**texts([3], [3, 3], [3, 4], [3, 4, 3]), horizon=3, vocab=5, context_bound=2)
    assert proposals(logits) == [[], [3], [], [4, 3]]


def test_a_match_at_the_very_end_proposes_up_to_the_anchor():
    logits = prompt_lookup(**texts([1, 2, 1, 2], [2, 2, 2, 2, 2], [0, 1, 2, 3, 3]), horizon=4, vocab=5, context_bound=4)
    assert proposals(logits) == [[1, 2], [2], [3]]


def test_the_room_before_the_text_matches_nothing():
    """What a match of 3 would need stands before the first token."""
    logits = prompt_lookup(**texts([1, 4, 1, 0, 1], [4, 1, 4, 1]), horizon=2, vocab=5, context_bound=4)
    assert proposals(logits) == [[0, 1], [4, 1]]


def test_a_repeated_text_is_proposed_as_far_as_it_is_known():
    text = [0, 1, 2, 3, 4, 5, 6]
    logits = prompt_lookup(**texts(text * 3 + text[:3], room=12), horizon=9, vocab=7, context_bound=23)
    assert proposals(logits) == [[3, 4, 5, 6, 0, 1, 2]]


def test_nothing_beyond_the_anchor_counts():
    for seed in range(4):
        inputs = reference.make_inputs(seed, "adversarial")
        expected = prompt_lookup(**inputs)
        beyond = torch.arange(inputs["tokens"].shape[1]) > inputs["lengths"][:, None]
        anchors = inputs["tokens"].gather(1, inputs["lengths"][:, None])
        for garbage in (torch.tensor(-1), torch.tensor(0), anchors):
            tokens = inputs["tokens"].where(~beyond, garbage)
            assert torch.equal(prompt_lookup(**inputs | {"tokens": tokens}), expected)


def test_any_bound_of_the_context_gives_the_same():
    inputs = reference.make_inputs(0, "odd")
    longest, largest = int(inputs["lengths"].max()), int(inputs["context_bound"])
    expected = prompt_lookup(**inputs)
    for bound in range(longest, largest + 1):
        assert torch.equal(prompt_lookup(**inputs | {"context_bound": bound}), expected)


def test_permuting_requests_permutes_their_drafts():
    """H64: unequal texts."""
    inputs = reference.make_inputs(0, "adversarial")
    order = torch.tensor([4, 2, 0, 8, 3, 1, 7, 5, 6])
    permuted = inputs | {name: inputs[name][order] for name in ("tokens", "lengths")}
    assert torch.equal(prompt_lookup(**permuted), prompt_lookup(**inputs)[order])


def test_no_value_is_read_on_the_host_and_inputs_stay_as_they_were():
    """H38: a tensor of the meta device has no values to read."""
    inputs = reference.make_inputs(0, "odd")
    before = copied(inputs)
    prompt_lookup(**inputs)
    assert all(torch.equal(inputs[name], before[name]) for name in ("tokens", "lengths"))
    logits = prompt_lookup(**copied(inputs, "meta"))
    assert logits.shape == (5, 7, 131)
    assert logits.dtype == torch.float32
