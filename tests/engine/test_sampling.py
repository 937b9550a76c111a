"""The target's choices and the path that follows them."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine.engine import setting_of
from ddbench.engine.parts import PARTS
from ddbench.engine.types import DraftTree, Setting
from ddbench.models.kernel_set import TORCH
from ddbench.spec import EngineSpec


class FakeBatch:
    """The two limits that sampling reads."""

    def __init__(self, stop_ids, remaining):
        self.stop_ids = torch.tensor(stop_ids)
        self.remaining = torch.tensor(remaining)


@pytest.fixture
def setting(gqa_models) -> Setting:
    return setting_of(EngineSpec(target="tiny-gqa", temperature=0.7), gqa_models)


def tree_of(*trees: list[tuple[int, int]], slots: int) -> DraftTree:
    """Trees from (parent, token) lists, nodes 1, 2, ... in order."""
    tokens = torch.full((len(trees), slots), -1)
    parents = torch.full((len(trees), slots), -1)
    depths = torch.zeros(len(trees), slots, dtype=torch.int64)
    scores = torch.full((len(trees), slots), -torch.inf)
    scores[:, 0] = 0
    for row, nodes in enumerate(trees):
        for node, (parent, token) in enumerate(nodes, 1):
            tokens[row, node], parents[row, node] = token, parent
            depths[row, node] = depths[row, parent] + 1
            scores[row, node] = -1.0 * node
    return DraftTree(tokens, parents, depths, scores, torch.tensor([len(nodes) for nodes in trees]))


def one_hot(choices: list[list[int]], vocab: int = 10) -> torch.Tensor:
    """Logits whose argmax at every node is given."""
    return torch.nn.functional.one_hot(torch.tensor(choices), vocab).float()


def test_the_walk_follows_the_targets_tokens_and_ends_with_its_own(setting):
    """H67: a token that no child carries ends the path and is the bonus; token 0 is an ordinary token."""
    tree = tree_of(
        [(0, 5), (0, 0), (2, 7), (2, 5), (4, 1)],  # 0 -> 5 | 0 -> (7, 5 -> 1)
        [(0, 5), (1, 6)],
        [],
        slots=6,
    )
    logits = one_hot([[0, 9, 5, 9, 1, 8], [4, 6, 3, 9, 9, 9], [2, 2, 2, 2, 2, 2]])
    sampler = PARTS["sampling"]["greedy"](setting)
    accepted = sampler(tree, logits, FakeBatch([[-1]] * 3, [50] * 3))
    assert accepted.path.tolist() == [[0, 2, 4, 5, -1], [0, -1, -1, -1, -1], [0, -1, -1, -1, -1]]
    assert accepted.num_accepted.tolist() == [3, 0, 0]
    assert accepted.tokens.tolist() == [[0, 5, 1, 8, -1], [4, -1, -1, -1, -1], [2, -1, -1, -1, -1]]
    assert accepted.num_emitted.tolist() == [4, 1, 1]


def test_stop_tokens_and_limits_cut_what_is_emitted_and_not_what_was_accepted(setting):
    """H82: the cut falls behind the stop token and the bonus token goes with the rest; padding stops nothing."""
    chain = [(0, 1), (1, 2), (2, 3), (3, 4)]
    tree = tree_of(chain, chain, chain, chain, slots=5)
    logits = one_hot([[1, 2, 3, 4, 5]] * 4)
    limits = FakeBatch([[2, -1], [-1, -1], [9, 5], [4, 3]], [50, 3, 50, 2])
    accepted = PARTS["sampling"]["greedy"](setting)(tree, logits, limits)
    assert accepted.num_accepted.tolist() == [4, 4, 4, 4]
    assert accepted.num_emitted.tolist() == [2, 3, 5, 2]


def test_equal_logits_choose_the_lowest_token(setting):
    logits = torch.zeros(2, 3, 300)
    logits[0, 1, 40] = logits[0, 1, 200] = 1.0
    assert PARTS["sampling"]["greedy"](setting).choose(logits).tolist() == [[0, 40, 0], [0, 0, 0]]


def _chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_draws_follow_the_tempered_distribution(setting):
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    sampler = PARTS["sampling"]["stochastic"](setting)
    drawn = sampler.choose(logits.expand(200, 100, 4)).flatten()
    counts = torch.bincount(drawn, minlength=4).double()
    expected = (logits.double() / 0.7).softmax(-1) * 20_000
    assert _chi_square(counts, expected) < 25  # 3 degrees of freedom


def test_draws_are_independent_between_nodes_requests_and_rounds(setting):
    """H76: no two places of a round, and no place of two rounds, share their randomness."""
    sampler = PARTS["sampling"]["stochastic"](setting)
    logits = torch.zeros(4000, 3, 4)
    first, second = sampler.choose(logits), sampler.choose(logits)
    pairs = {
        "nodes": (first[:, 0], first[:, 1]),
        "distant nodes": (first[:, 0], first[:, 2]),
        "rounds": (first[:, 0], second[:, 0]),
        "requests": (first[:-1, 1], first[1:, 1]),
    }
    for name, (a, b) in pairs.items():
        counts = torch.bincount(a * 4 + b, minlength=16).double()
        assert _chi_square(counts, torch.full((16,), len(a) / 16.0).double()) < 50, name  # 15 degrees of freedom
    same = torch.bincount(first[:, 0] * 4 + first[:, 0], minlength=16).double()
    assert _chi_square(same, torch.full((16,), 250.0).double()) > 1000  # the test can fail


def test_sampling_repeats_from_run_to_run(setting):
    sampler = PARTS["sampling"]["stochastic"](setting)
    logits = torch.randn(3, 5, 50, generator=torch.Generator().manual_seed(0))
    first = sampler.choose(logits)
    assert not torch.equal(first, sampler.choose(logits))
    sampler.begin(())
    assert torch.equal(first, sampler.choose(logits))


def test_a_token_without_a_tree_is_a_walk_over_a_root_alone():
    """What an autoregressive step accepts: idle, at its last token, with room, at a stop."""
    tokens = torch.tensor([[7], [7], [7], [9]])
    stop_ids, remaining = torch.tensor([[9, -1]] * 4), torch.tensor([0, 1, 5, 5])
    root = (torch.full_like(tokens, -1), torch.full_like(tokens, -1), torch.zeros(4, dtype=torch.int64))
    expected = TORCH.accept(*root, tokens, stop_ids, remaining, 0)
    found = TORCH.accept_token(tokens, stop_ids, remaining)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert found[3].tolist() == [0, 1, 1, 1]
    assert found[4].tolist() == [True, True, False, True]
