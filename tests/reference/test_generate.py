"""Claims about the specification of generation: speculation never changes the text, only the number of rounds."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.reference.generate import best_first_tree, decode, speculative_decode

VOCAB, HORIZON = 7, 4


def _logits(*key):
    seed = hash(tuple(int(k) for k in key)) % (1 << 31)  # hashes of integers are the same in every process
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def _target(tokens):
    """Logits that depend on the whole prefix; the features are the running sums of the tokens."""
    logits = torch.stack([_logits(*tokens[: i + 1]) for i in range(len(tokens))])
    return logits, torch.tensor(list(itertools.accumulate(tokens)), dtype=torch.float32)[:, None]


def _perfect(tokens, features):
    future = decode(lambda t: _target(t)[0], tokens, HORIZON)
    return torch.nn.functional.one_hot(torch.tensor(future), VOCAB) * 50.0


def _wrong(tokens, features):
    return -_perfect(tokens, features)


def _random(tokens, features):
    return torch.stack([_logits(*tokens, -1, i) for i in range(HORIZON)])


def _plain(prompt, limit, stop=()):
    return decode(lambda t: _target(t)[0], prompt, limit, stop)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
    st.sampled_from([_perfect, _wrong, _random]),
    st.integers(0, 9),
    st.integers(0, 12),
    st.sampled_from([(), (3,), (0, 5)]),
)
def test_speculative_equals_autoregressive(prompt, draft, budget, limit, stop):
    """Whatever the drafter, budget, length limit and stop tokens (H82: a stop inside a path ends the text)."""
    generation = speculative_decode(_target, draft, prompt, limit, budget, stop)
    assert list(generation.tokens) == _plain(prompt, limit, stop)
    emitted = [token for r in generation.rounds for token in r.emitted]
    assert list(generation.tokens[1:]) == emitted


def test_stop_inside_the_path_drops_the_rest():
    """H82: the cut falls before the end of what was accepted."""
    text = _plain([1], 12)
    stop = text[3]
    assert stop not in text[:3]
    generation = speculative_decode(_target, _perfect, [1], 12, HORIZON, (stop,))
    assert list(generation.tokens) == text[:4]
    assert len(generation.rounds[-1].path) == HORIZON + 1
    assert len(generation.rounds[-1].emitted) == 3


def test_perfect_drafter_fills_every_round():
    generation = speculative_decode(_target, _perfect, [2, 4], 11, HORIZON)
    assert [len(r.emitted) for r in generation.rounds] == [HORIZON + 1] * 2
    assert generation.rounds[0].path == (0, 1, 2, 3, 4)


def test_no_budget_is_autoregressive():
    """H39: a root-only tree emits one token per round."""
    generation = speculative_decode(_target, _perfect, [2], 5, 0)
    assert [len(r.nodes) for r in generation.rounds] == [1] * 4
    assert [r.path for r in generation.rounds] == [(0,)] * 4


def test_drafter_sees_features_of_all_but_the_anchor():
    """I2: no feature row of the anchor; after each round there is one more row per emitted token."""
    seen = []

    def draft(tokens, features):
        seen.append((len(tokens), features.shape[0]))
        return _random(tokens, features)

    generation = speculative_decode(_target, draft, [1, 2, 3], 8, 6)
    assert seen[0] == (4, 3)
    assert all(rows == length - 1 for length, rows in seen)
    grown = [after[1] - before[1] for before, after in itertools.pairwise(seen)]
    assert grown == [len(r.emitted) for r in generation.rounds[:-1]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [1, 3, 7])
def test_tree_has_the_best_objective(seed, budget):
    """H50: the sum of node probabilities equals that of the best prefix-closed set, by enumerating all prefixes."""
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) * 2
    nodes = best_first_tree(logits, budget)
    q = logits.double().softmax(-1)
    prefixes = [p for depth in (1, 2, 3) for p in itertools.product(range(4), repeat=depth)]
    masses = sorted((math.prod(float(q[i, t]) for i, t in enumerate(p)) for p in prefixes), reverse=True)
    assert sum(math.exp(node.score) for node in nodes[1:]) == pytest.approx(sum(masses[:budget]), rel=1e-5)
    assert len(nodes) == budget + 1


def test_tree_is_well_formed_under_ties():
    """H43, H44, H54: equal rows and certain rows; parents first, no duplicate siblings, canonical order."""
    equal = best_first_tree(torch.zeros(2, 3), 7)
    assert [(n.depth, n.parent, n.token) for n in equal[1:4]] == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]
    certain = best_first_tree(torch.tensor([[0.0, 1e4], [1e4, 0.0], [0.0, 1e4]]), 3)
    assert [n.token for n in certain] == [-1, 1, 0, 1]
    for nodes in (equal, certain):
        assert all(node.parent < i for i, node in enumerate(nodes))
        assert len({(n.parent, n.token) for n in nodes}) == len(nodes)


def test_impossible_tokens_are_no_candidates():
    logits = torch.full((2, 4), -torch.inf)
    logits[:, 2] = 0
    assert [n.token for n in best_first_tree(logits, 9)] == [-1, 2, 2]
