"""The specification of the draft tree, against enumeration of all prefixes and of all prefix-closed sets."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.reference.tree_build import cost, make_inputs, tree_build, tree_build_brute_force, tree_build_chain

INF = math.inf
SIZES = ["small", "odd", "degenerate", "adversarial"]
KINDS = ["spread", "rounded", "saturated", "equal", "missing", "cut"]


def candidates(seed: int, horizon: int, vocab: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One request's candidates [1, L, V] of a named kind, in draft order."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, horizon, vocab, generator=generator) * 2
    if kind == "rounded":
        logits = logits.round()
    elif kind == "saturated":
        logits[..., vocab // 2] = 1e4
    elif kind == "equal":
        logits.zero_()
    elif kind == "missing":
        logits[..., 1:] = logits[..., 1:].where(torch.rand(1, horizon, vocab - 1, generator=generator) < 0.5, -INF)
    elif kind == "cut":
        logits[:, horizon // 2] = -INF
    ordered, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    normaliser = logits.logsumexp(-1, keepdim=True).clamp(min=-1e30)
    return (ordered - normaliser).clamp(max=0.0), token_ids


def assert_same(trees, others):
    for mine, other in zip(trees, others, strict=True):
        assert torch.equal(mine, other)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    horizon=st.integers(1, 4),
    vocab=st.integers(1, 4),
    node_budget=st.integers(0, 40),
    kind=st.sampled_from(KINDS),
)
def test_best_first_search_equals_sorting_all_prefixes(seed, horizon, vocab, node_budget, kind):
    """H43, H44: same nodes in the same order, with ties, saturated rows and missing candidates."""
    log_probs, token_ids = candidates(seed, horizon, vocab, kind)
    assert_same(
        tree_build(log_probs, token_ids, node_budget), tree_build_brute_force(log_probs, token_ids, node_budget)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("horizon", "vocab", "node_budget"), [(2, 3, 4), (3, 2, 5), (1, 4, 3)])
def test_no_prefix_closed_set_of_the_budget_weighs_more(kind, horizon, vocab, node_budget):
    """H50: the sum of node probabilities is the optimum over all prefix-closed sets."""
    log_probs, token_ids = candidates(7, horizon, vocab, kind)
    every = tree_build_brute_force(log_probs, token_ids, 100)
    count, parents = int(every[4]), every[1][0].tolist()
    weight = every[3][0].double().exp().tolist()
    best = max(
        sum(weight[i] for i in nodes)
        for size in range(min(node_budget, count) + 1)
        for nodes in combinations(range(1, count + 1), size)
        if all(parents[i] == 0 or parents[i] in nodes for i in nodes)
    )
    scores = tree_build(log_probs, token_ids, node_budget)[3][0]
    assert float(scores[1:].double().exp().sum()) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_trees_keep_the_contract(size, seed):
    """H42, H54: parents precede children, siblings differ, scores never rise, unused slots are blank."""
    inputs = make_inputs(seed, size)
    budget = inputs["node_budget"]
    tokens, parents, depths, scores, num_nodes = tree_build(**inputs)
    assert tokens.shape == parents.shape == depths.shape == scores.shape == (len(num_nodes), budget + 1)
    assert (tokens[:, 0] == -1).all()
    assert (parents[:, 0] == -1).all()
    assert (depths[:, 0] == 0).all()
    assert (scores[:, 0] == 0).all()
    for b, count in enumerate(num_nodes.tolist()):
        assert 0 <= count <= budget  # the root is not counted
        for i in range(1, count + 1):
            parent = int(parents[b, i])
            assert 0 <= parent < i
            assert depths[b, i] == depths[b, parent] + 1 <= inputs["log_probs"].shape[1]
            assert -INF < scores[b, i] <= scores[b, i - 1]
        edges = list(zip(parents[b, 1 : count + 1].tolist(), tokens[b, 1 : count + 1].tolist(), strict=True))
        assert len(set(edges)) == len(edges)
        unused = slice(count + 1, None)
        assert (tokens[b, unused] == -1).all()
        assert (parents[b, unused] == -1).all()
        assert (depths[b, unused] == 0).all()
        assert (scores[b, unused] == -INF).all()


def test_a_budget_of_zero_is_the_root_and_a_negative_one_an_error():
    """H39"""
    log_probs, token_ids = candidates(0, 3, 4, "spread")
    tokens, parents, depths, scores, num_nodes = tree_build(log_probs, token_ids, 0)
    assert (tokens.tolist(), parents.tolist(), depths.tolist(), scores.tolist()) == ([[-1]], [[-1]], [[0]], [[0.0]])
    assert num_nodes.tolist() == [0]
    with pytest.raises(ValueError, match="got -1"):
        tree_build(log_probs, token_ids, -1)


def test_a_budget_of_one_is_the_first_argmax():
    """H40"""
    log_probs, token_ids = candidates(0, 3, 4, "spread")
    tokens, parents, depths, _, num_nodes = tree_build(log_probs, token_ids, 1)
    assert tokens[0, 1] == token_ids[0, 0, 0]
    assert (int(parents[0, 1]), int(depths[0, 1]), int(num_nodes)) == (0, 1, 1)


def test_equal_rows_fill_level_by_level_in_rank_order():
    """H43: by hand, two equal candidates at each of two positions."""
    log_probs = torch.full((1, 2, 2), -math.log(2))
    token_ids = torch.tensor([[[7, 3], [0, 9]]])
    tokens, parents, depths, _, num_nodes = tree_build(log_probs, token_ids, 8)
    assert tokens.tolist() == [[-1, 7, 3, 0, 9, 0, 9, -1, -1]]
    assert parents.tolist() == [[-1, 0, 0, 1, 1, 2, 2, -1, -1]]
    assert depths.tolist() == [[0, 1, 1, 2, 2, 2, 2, 0, 0]]
    assert num_nodes.tolist() == [6]  # H42: all there is, below the budget of 8


def test_saturated_rows_give_the_chain_in_depth_order():
    """H44: log q = 0 everywhere, every node of the spine ties with its parent."""
    log_probs = torch.tensor([[[0.0, -50.0]] * 4])
    token_ids = torch.tensor([[[0, 1]] * 4])
    tokens, parents, depths, scores, _ = tree_build(log_probs, token_ids, 4)
    assert parents.tolist() == [[-1, 0, 1, 2, 3]]
    assert depths.tolist() == [[0, 1, 2, 3, 4]]
    assert scores.tolist() == [[0.0] * 5]
    assert tokens.tolist() == [[-1, 0, 0, 0, 0]]


@pytest.mark.parametrize("broken", [math.nan, 0.5, INF])
def test_broken_log_probs_are_an_explicit_error(broken):
    """H46"""
    log_probs, token_ids = candidates(0, 2, 3, "spread")
    log_probs[0, 1, 0] = broken
    with pytest.raises(ValueError, match="NaN"):
        tree_build(log_probs, token_ids, 4)


def test_a_mask_of_lowest_finite_values_is_still_a_candidate():
    """Two masked positions sum below fp32's range; their node exists and its score is not -inf."""
    lowest = torch.finfo(torch.float32).min
    log_probs = torch.tensor([[[0.0, lowest]] * 2])
    _, _, _, scores, num_nodes = tree_build(log_probs, torch.tensor([[[0, 1]] * 2]), 8)
    assert num_nodes.tolist() == [6]
    assert scores[0, 6] == lowest


def test_the_chain_stops_at_the_first_position_without_a_candidate():
    """H57: rank 0 at every position."""
    log_probs = torch.tensor([[[-0.5, -1.0], [-INF, -INF], [-0.1, -3.0]]])
    token_ids = torch.tensor([[[4, 2], [0, 1], [5, 6]]])
    tokens, parents, depths, scores, num_nodes = tree_build_chain(log_probs, token_ids)
    assert tokens.tolist() == [[-1, 4, -1, -1]]
    assert parents.tolist() == [[-1, 0, -1, -1]]
    assert depths.tolist() == [[0, 1, 0, 0]]
    assert scores.tolist() == [[0.0, -0.5, -INF, -INF]]
    assert num_nodes.tolist() == [1]


def test_cost_counts_inputs_and_outputs_once():
    inputs = make_inputs(0, "odd")
    assert cost(**inputs) == {"bytes": 3 * 7 * 13 * 12 + 3 * 30 * 28 + 3 * 8, "flops": 2 * 3 * 29}
