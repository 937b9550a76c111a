"""The specification of acceptance: the walk against exhaustive search, the cut by hand, the law of sampled output."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.reference.accept_walk import accept_walk, cost, make_inputs, sample_posterior, truncate

SIZES = ["small", "odd", "degenerate", "adversarial"]


def walk(tokens, parents, num_nodes, posterior, horizon):
    """One request's lists -> lists of path and emitted tokens, padding removed."""
    path, num_accepted, emitted, num_emitted = accept_walk(
        torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([num_nodes]), torch.tensor([posterior]), horizon
    )
    assert int(num_emitted) == int(num_accepted) + 1
    assert (path[0, int(num_emitted) :] == -1).all()
    assert (emitted[0, int(num_emitted) :] == -1).all()
    return path[0, : int(num_emitted)].tolist(), emitted[0, : int(num_emitted)].tolist()


def test_a_hand_drawn_walk_through_token_zero():
    #   root -> 1(0) -> 3(5) -> 4(0)
    #        -> 2(4)
    tokens, parents = [-1, 0, 4, 5, 0], [-1, 0, 0, 1, 3]
    assert walk(tokens, parents, 4, [0, 5, 7, 0, 8], 3) == ([0, 1, 3, 4], [0, 5, 0, 8])
    assert walk(tokens, parents, 4, [4, 5, 7, 0, 8], 3) == ([0, 2], [4, 7])


def test_a_token_absent_from_the_children_becomes_the_bonus():
    """H67: at least one token is emitted; nodes elsewhere that match their own parents don't help."""
    assert walk([-1, 0, 4, 5], [-1, 0, 0, 1], 3, [6, 5, 1, 1], 3) == ([0], [6])


def test_a_tree_of_the_root_alone_emits_the_roots_token():
    """H66: also where unused slots carry that token."""
    assert walk([-1, 3, 3], [-1, 0, 0], 0, [3, 3, 3], 2) == ([0], [3])
    assert walk([-1], [-1], 0, [3], 1) == ([0], [3])


@pytest.mark.parametrize("drawn", [-1, 0])
def test_unused_slots_never_match_a_pad_or_zero(drawn):
    """H68: a posterior of -1 (no token) meets pads of -1; neither is a token nor an index."""
    assert walk([-1, 7, -1, 0], [-1, 0, -1, 0], 1, [drawn, 1, 1, 1], 3) == ([0], [drawn])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_the_path_is_the_longest_whose_every_step_the_target_would_take(size, seed):
    inputs = make_inputs(seed, size)
    tokens, parents, posterior = inputs["tokens"], inputs["parents"], inputs["posterior"]
    path, num_accepted, emitted, _ = accept_walk(**inputs)
    for b, count in enumerate(inputs["num_nodes"].tolist()):
        best = [0]
        for node in range(1, count + 1):
            line = [node]
            while line[0] != 0:
                line.insert(0, int(parents[b, line[0]]))
            taken = all(posterior[b, a] == tokens[b, c] for a, c in pairwise(line))
            best = max(best, line, key=len) if taken else best
        accepted = int(num_accepted[b])
        assert path[b, : accepted + 1].tolist() == best
        drafted = [int(tokens[b, node]) for node in best[1:]]
        assert emitted[b, : accepted + 1].tolist() == [*drafted, int(posterior[b, best[-1]])]


@pytest.mark.parametrize(
    ("emitted", "num_emitted", "stops", "remaining", "expected"),
    [
        ([5, 6, 7, -1], 3, [9, -1], 10, (3, False)),
        ([5, 9, 7, 8], 4, [9, -1], 10, (2, True)),  # the path ends at the stop token, the bonus is dropped
        ([5, 6, 9, -1], 3, [9, -1], 10, (3, True)),  # the bonus itself stops
        ([9, 6, 9, -1], 3, [-1, 9], 10, (1, True)),  # the first of two
        ([5, 6, 7, -1], 3, [-1, -1], 10, (3, False)),  # pads match nothing, not even padding
        ([0, 6, 7, -1], 3, [0, -1], 10, (1, True)),  # token 0 may stop
        ([5, 9, 7, 8], 2, [7, 8], 10, (2, False)),  # beyond num_emitted nothing counts
        ([5, 6, 7, -1], 3, [9, -1], 2, (2, True)),
        ([5, 6, 7, -1], 3, [9, -1], 3, (3, True)),  # used up to the last token
        ([5, 6, 9, -1], 3, [9, -1], 2, (2, True)),  # the limit comes before the stop token
        ([5, 6, 7, -1], 3, [9, -1], 0, (0, True)),
        ([-1, -1, -1, -1], 0, [9, -1], 4, (0, False)),  # an idle row
    ],
)
def test_the_cut(emitted, num_emitted, stops, remaining, expected):
    """H82"""
    count, finished = truncate(
        torch.tensor([emitted]), torch.tensor([num_emitted]), torch.tensor([stops]), torch.tensor([remaining])
    )
    assert (int(count), bool(finished)) == expected


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_greedy_posterior_is_the_argmax_with_ties_to_the_lower_id(seed):
    logits = torch.randint(-2, 3, (2, 3, 5), generator=torch.Generator().manual_seed(seed)).float()
    drawn = sample_posterior(logits, 0.0)
    for b in range(2):
        for i in range(3):
            row = logits[b, i].tolist()
            assert drawn[b, i] == row.index(max(row))


def test_sampled_posterior_follows_the_softmax_at_the_temperature():
    logits = torch.tensor([0.0, 1.0, -torch.inf, 2.0])
    drawn = sample_posterior(logits.expand(1, 40_000, 4), 0.5, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn.flatten(), minlength=4) / 40_000
    torch.testing.assert_close(share, (logits / 0.5).softmax(-1), atol=0.01, rtol=0)
    assert share[2] == 0
    with pytest.raises(ValueError, match="got -1"):
        sample_posterior(logits.expand(1, 1, 4), -1.0)


def test_cost_counts_inputs_and_outputs_once():
    inputs = make_inputs(0, "small")
    assert cost(**inputs) == {"bytes": 3 * 3 * 7 * 8 + 3 * 8 + 3 * (2 * 4 + 2) * 8, "flops": 0}
