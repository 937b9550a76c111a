"""Hazards of the tree builders as parts of the engine: from draft logits [B, L, V] to a DraftTree."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ddbench.engine.engine import setting_of
from ddbench.engine.parts import PARTS
from ddbench.reference.generate import best_first_tree
from ddbench.spec import EngineSpec

BEST_FIRST = ("heap", "device")


@pytest.fixture
def build(gqa):
    """`build(name, logits, budget, **spec)`: one call of the named part on logits [B, L, V]."""

    def run(name, logits, budget=12, **spec):
        block_size = min(logits.shape[1] + 1, gqa.drafter.shape.block_size)
        setting = setting_of(
            EngineSpec(target="tiny-gqa", tree_build=name, node_budget=budget, block_size=block_size, **spec), gqa
        )
        return PARTS["tree_build"][name](setting)(logits)

    return run


def random_logits(*shape, seed=0, scale=3.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def nodes_of(tree, row=0):
    used = slice(1, 1 + int(tree.num_nodes[row]))
    return list(zip(tree.parents[row, used].tolist(), tree.tokens[row, used].tolist(), strict=True))


@pytest.mark.parametrize("name", [*BEST_FIRST, "chain"])
def test_the_sampling_temperature_does_not_change_the_tree(build, name):
    """H56: drafts are ranked at temperature 1, whatever the target is sampled with."""
    logits = random_logits(2, 4, 50)
    trees = [
        build(name, logits, sampling=sampling, temperature=temperature)
        for sampling, temperature in (("greedy", 1.0), ("stochastic", 0.1), ("stochastic", 2.0))
    ]
    for field in ("tokens", "parents", "depths", "scores", "num_nodes"):
        assert torch.equal(getattr(trees[0], field), getattr(trees[1], field))
        assert torch.equal(getattr(trees[0], field), getattr(trees[2], field))


@pytest.mark.parametrize("name", BEST_FIRST)
@pytest.mark.parametrize("budget", [1, 2, 7, 30, 200])
def test_the_tree_is_the_best_over_the_whole_vocabulary(build, name, budget):
    """H43, H44, H50: keeping only the first `budget` ranks loses nothing, ties at the cut included."""
    logits = torch.cat([random_logits(1, 4, 40), random_logits(1, 4, 40, seed=1).round(), torch.zeros(1, 4, 40)])
    logits[2, :, 17] = 1e4  # sure things: log q = 0
    logits = torch.cat([logits, torch.zeros(1, 4, 40)])
    tree = build(name, logits, budget)
    for row in range(4):
        expected = best_first_tree(logits[row], budget)[1:]
        assert nodes_of(tree, row) == [(node.parent, node.token) for node in expected]


@pytest.mark.parametrize("name", BEST_FIRST)
def test_a_smaller_budget_gives_the_beginning_of_the_larger_tree(build, name):
    """Node indices do not depend on the budget: parents first, and scores never rise."""
    logits = random_logits(3, 4, 60)
    large = build(name, logits, 64)
    assert bool((large.scores[:, 1:] <= large.scores[:, :-1]).all())
    assert bool((large.parents[:, 1:] < torch.arange(1, 65)).all())
    for budget in (1, 2, 9, 63):
        small = build(name, logits, budget)
        for field in ("tokens", "parents", "depths", "scores"):
            assert torch.equal(getattr(small, field), getattr(large, field)[:, : budget + 1])


@pytest.mark.parametrize("name", BEST_FIRST)
def test_a_tree_holds_no_more_than_there_is(build, name):
    """H42: vocabularies and horizons smaller than the budget; used slots are counted, not detected by their token."""
    for vocab, horizon in ((1, 3), (2, 2), (3, 2), (5, 1)):
        tree = build(name, random_logits(2, horizon, vocab), 50)
        reachable = sum(vocab**depth for depth in range(1, horizon + 1))
        assert tree.num_nodes.tolist() == [reachable] * 2
        assert len(set(nodes_of(tree))) == reachable
        assert tree.tokens[:, reachable + 1 :].eq(-1).all()
        assert tree.scores.exp().sum(1) == pytest.approx([1.0 + horizon] * 2, abs=1e-5)  # each level is certain


@pytest.mark.parametrize("name", [*BEST_FIRST, "chain"])
def test_token_0_is_a_node_like_any_other(build, name):
    """A draft of nothing but token 0 fills the tree from root to leaf."""
    logits = torch.full((2, 4, 30), -torch.inf)
    logits[..., 0] = 0.0
    logits[1, :, 1] = -1.0
    tree = build(name, logits, 8)
    assert tree.num_nodes.tolist() == ([4, 4] if name == "chain" else [4, 8])
    assert nodes_of(tree)[:4] == [(0, 0), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("name", BEST_FIRST)
def test_siblings_come_by_rank_and_differ(build, name):
    """H54, at a horizon of one as well: the children of the root are the best tokens in order."""
    logits = random_logits(1, 1, 40)
    tree = build(name, logits, 10)
    assert nodes_of(tree) == [(0, token) for token in logits[0, 0].topk(10).indices.tolist()]
    deep = build(name, random_logits(1, 4, 6), 60)
    ranked = random_logits(1, 4, 6)[0].argsort(-1, descending=True).tolist()
    for parent in range(61):
        children = [node for node in range(1, 61) if int(deep.parents[0, node]) == parent]
        tokens = [int(deep.tokens[0, node]) for node in children]
        if tokens:
            assert tokens == ranked[int(deep.depths[0, parent])][: len(tokens)]


@pytest.mark.parametrize("name", BEST_FIRST)
def test_bf16_logits_are_ranked_as_their_fp32_values(build, name):
    """H47: a logsumexp in bf16 would shift whole rows against each other."""
    logits = random_logits(2, 4, 300, scale=6.0).to(torch.bfloat16)
    tree, expected = build(name, logits, 40), build(name, logits.float(), 40)
    assert nodes_of(tree) == nodes_of(expected)
    assert torch.equal(tree.scores, expected.scores)


@pytest.mark.parametrize("name", [*BEST_FIRST, "chain"])
def test_the_sum_of_node_probabilities_is_the_expected_acceptance_length(build, name):
    """By enumeration: the true continuation drawn from the draft's own marginals, walked through the tree."""
    logits = random_logits(1, 3, 4, scale=1.0)
    tree = build(name, logits, 9)
    rows = logits[0].double().softmax(-1)
    children = {}
    for node, (parent, token) in enumerate(nodes_of(tree), start=1):
        children[parent, token] = node
    expected = 0.0
    for text in product(range(4), repeat=3):
        probability, node, depth = 1.0, 0, 0
        for place, token in enumerate(text):
            probability *= float(rows[place, token])
            if node is not None:
                node = children.get((node, token))
                depth += node is not None
        expected += probability * (1 + depth)
    assert float(tree.scores.double().exp().sum()) == pytest.approx(expected, abs=1e-6)
