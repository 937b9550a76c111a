"""The product's tree builders against the specification and against each other, on every device present."""

import math
from itertools import product

import pytest
import torch

from ddbench.kernels.draft_topk import draft_topk
from ddbench.kernels.tree_build import tree_build_chain, tree_build_heap, tree_build_levelwise
from ddbench.kernels.tree_compile import tree_compile
from ddbench.reference import tree_build as reference

INF = math.inf
SIZES = ["small", "odd", "degenerate", "adversarial"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BUILDERS = [tree_build_heap, tree_build_levelwise]


def mixed_logits(generator: torch.Generator, batch: int, horizon: int, vocab: int) -> torch.Tensor:
    """[B, L, V]: a sixth each of spread, rounded, saturated, all equal, missing candidates, and cut off."""
    logits = torch.randn(batch, horizon, vocab, generator=generator) * 2.5
    kind = torch.arange(batch) % 6
    logits[kind == 1] = logits[kind == 1].round()
    logits[kind == 2, :, vocab // 2] = 1e4
    logits[kind == 3] = 0.0
    missing = (kind == 4)[:, None, None] & (torch.rand(logits.shape, generator=generator) < 0.6)
    logits[missing] = -INF
    logits[kind == 5] = logits[kind == 5].round()
    logits[kind == 5, torch.randint(horizon, (), generator=generator)] = -INF
    return logits


def assert_same(trees, others):
    for mine, other in zip(trees, others, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other)


def assert_builders_agree(num_cases: int, seed: int, device: str = "cpu") -> None:
    """Heap, level-wise and specification give equal ordered node lists on `num_cases` random requests."""
    generator = torch.Generator().manual_seed(seed)
    batch = 240  # cases of one shape run as one batch
    for _ in range(math.ceil(num_cases / batch)):
        horizon, vocab, node_budget, k = (
            int(torch.randint(low, high, (), generator=generator)) for low, high in ((1, 9), (2, 40), (1, 70), (1, 70))
        )
        if torch.rand((), generator=generator) < 0.5:
            k = node_budget  # the exact tree; otherwise the best tree over k ranks
        log_probs, token_ids = draft_topk(mixed_logits(generator, batch, horizon, vocab), k)
        expected = reference.tree_build(log_probs, token_ids, node_budget)
        for builder in BUILDERS:
            assert_same(builder(log_probs.to(device), token_ids.to(device), node_budget), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_ten_thousand_trees_agree_in_order(device):
    """H43, H44, H52, H54: ties, saturated rows, -inf, fewer nodes than the budget; fp64 sums leave no near-ties."""
    assert_builders_agree(num_cases=10_000, seed=0, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size, builder, device):
    for seed in range(3):
        inputs = reference.make_inputs(seed, size)
        on_device = {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}
        assert_same(builder(**on_device), reference.tree_build(**inputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_chain_equals_the_reference(size, device):
    inputs = reference.make_inputs(0, size)
    log_probs, token_ids = inputs["log_probs"], inputs["token_ids"]
    assert_same(
        tree_build_chain(log_probs.to(device), token_ids.to(device)), reference.tree_build_chain(log_probs, token_ids)
    )


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(("horizon", "node_budget"), [(15, 64), (15, 256), (7, 512)])
def test_production_sizes_equal_the_reference(builder, horizon, node_budget):
    logits = torch.randn(2, horizon, 2000, generator=torch.Generator().manual_seed(1)) * 3
    log_probs, token_ids = draft_topk(logits.to(torch.bfloat16), node_budget)
    assert_same(builder(log_probs, token_ids, node_budget), reference.tree_build(log_probs, token_ids, node_budget))


@pytest.mark.parametrize("builder", BUILDERS)
def test_equals_static_enumeration_of_the_rank_tuples_that_can_be_selected(builder):
    """H51: of the tuples whose weakly dominating tuples fit the budget, the stable best `node_budget`, in order."""
    horizon, node_budget = 4, 16
    rank_tuples = [
        ranks
        for depth in range(1, horizon + 1)
        for ranks in product(range(1, node_budget + 1), repeat=depth)
        if sum(math.prod(ranks[:j]) for j in range(1, depth + 1)) <= node_budget
    ]
    log_probs, token_ids = draft_topk(torch.randn(5, horizon, 50, generator=torch.Generator().manual_seed(2)), 16)
    tokens, parents, _, scores, _ = builder(log_probs, token_ids, node_budget)
    for b in range(5):
        weights = [sum(float(log_probs[b, d, r - 1]) for d, r in enumerate(ranks)) for ranks in rank_tuples]
        best = sorted(range(len(weights)), key=lambda i: -weights[i])[:node_budget]
        torch.testing.assert_close(scores[b, 1:], torch.tensor([weights[i] for i in best]))
        expected = [[int(token_ids[b, d, r - 1]) for d, r in enumerate(rank_tuples[i])] for i in best]
        assert [prefix(tokens[b], parents[b], node) for node in range(1, node_budget + 1)] == expected


def prefix(tokens: torch.Tensor, parents: torch.Tensor, node: int) -> list[int]:
    head = prefix(tokens, parents, int(parents[node])) if parents[node] > 0 else []
    return [*head, int(tokens[node])]


@pytest.mark.parametrize("builder", BUILDERS)
def test_budgets_of_zero_and_below(builder):
    """H39"""
    log_probs, token_ids = torch.zeros(2, 3, 0), torch.zeros(2, 3, 0, dtype=torch.int64)
    for trees in (builder(log_probs, token_ids, 0), builder(log_probs[:, :0], token_ids[:, :0], 0)):
        tokens, parents, depths, scores, num_nodes = trees
        assert (tokens.tolist(), parents.tolist(), depths.tolist()) == ([[-1]] * 2, [[-1]] * 2, [[0]] * 2)
        assert (scores.tolist(), num_nodes.tolist()) == ([[0.0]] * 2, [0, 0])
    with pytest.raises(ValueError, match="got -3"):
        builder(log_probs, token_ids, -3)


@pytest.mark.parametrize("builder", BUILDERS)
def test_no_candidate_anywhere_is_the_root_alone(builder):
    log_probs, token_ids = torch.full((2, 3, 4), -INF), torch.arange(4).expand(2, 3, 4)
    tokens, parents, depths, scores, num_nodes = builder(log_probs, token_ids, 5)
    assert num_nodes.tolist() == [0, 0]
    assert (tokens == -1).all()
    assert (parents == -1).all()
    assert (depths == 0).all()
    assert scores.tolist() == [[0.0, -INF, -INF, -INF, -INF, -INF]] * 2


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_mask_of_lowest_finite_values_is_still_a_candidate(builder):
    log_probs = torch.tensor([[[0.0, torch.finfo(torch.float32).min]] * 2])
    token_ids = torch.tensor([[[0, 1]] * 2])
    assert_same(builder(log_probs, token_ids, 8), reference.tree_build(log_probs, token_ids, 8))


@pytest.mark.parametrize("builder", BUILDERS)
def test_near_ties_below_fp32_resolution_keep_their_order(builder):
    """H52: sums that fp32 would round together are told apart, as the specification does."""
    log_probs = torch.tensor([[[-1000.0, -1000.0 - 2**-13], [-(2.0**-20), -(2.0**-19)], [-(2.0**-21), -(2.0**-20)]]])
    token_ids = torch.tensor([[[0, 1]] * 3])
    trees = builder(log_probs, token_ids, 14)
    assert_same(trees, reference.tree_build_brute_force(log_probs, token_ids, 14))
    assert trees[3].unique().numel() < 14  # equal once rounded to fp32


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_width_of_one_is_the_chain(builder):
    """H57: same tokens, positions and mask as the chain path; the mask is plain causal."""
    log_probs, token_ids = draft_topk(torch.randn(3, 5, 17), 1)
    tree, chain = builder(log_probs, token_ids, 5), tree_build_chain(log_probs, token_ids)
    assert_same(tree, chain)
    assert chain[0][:, 1:].tolist() == token_ids[:, :, 0].tolist()
    lengths = torch.tensor([4, 9, 1])
    _, positions, visible = tree_compile(*tree[:3], tree[4], anchors=torch.tensor([1, 2, 3]), lengths=lengths)
    assert torch.equal(positions, lengths[:, None] + torch.arange(6))
    assert torch.equal(visible, torch.ones(3, 6, 6, dtype=torch.bool).tril())


@pytest.mark.parametrize("builder", [*BUILDERS, lambda scores, ids, _: tree_build_chain(scores, ids)])
def test_permuting_requests_permutes_trees(builder):
    """H64: trees of unequal sizes, one batch."""
    inputs = reference.make_inputs(0, "adversarial")
    log_probs, token_ids, order = inputs["log_probs"], inputs["token_ids"], torch.tensor([3, 0, 5, 4, 1, 2])
    trees = builder(log_probs, token_ids, 100)
    assert trees[4].unique().numel() > 1
    for permuted, tree in zip(builder(log_probs[order], token_ids[order], 100), trees, strict=True):
        assert torch.equal(permuted, tree[order])


@pytest.mark.parametrize("broken", [math.nan, 0.25])
def test_the_heap_refuses_broken_log_probs(broken):
    """H46"""
    log_probs = torch.tensor([[[-0.1, -0.2], [broken, -0.2]]])
    with pytest.raises(ValueError, match="NaN"):
        tree_build_heap(log_probs, torch.tensor([[[0, 1]] * 2]), 3)


def test_the_device_builders_stay_legal_on_nan():
    """H46: without a host to raise, a NaN ends the tree; the caller learns of it from `has_nan`, one round late."""
    log_probs = torch.tensor([[[-0.1, -0.2], [math.nan, math.nan]], [[-0.1, -0.2], [-0.3, -0.4]]])
    token_ids = torch.tensor([[[5, 6]] * 2] * 2)
    tokens, parents, _, _, num_nodes = tree_build_levelwise(log_probs, token_ids, 3)
    assert (tokens[0].tolist(), parents[0].tolist()) == ([-1, 5, 6, -1], [-1, 0, 0, -1])
    assert num_nodes.tolist() == [2, 3]
    assert tree_build_chain(log_probs, token_ids)[4].tolist() == [1, 2]


def test_the_level_wise_build_reads_nothing_on_the_host():
    """H38: a tensor of the meta device has no values to read."""
    log_probs = torch.empty(2, 7, 16, device="meta")
    token_ids = torch.empty(2, 7, 16, device="meta", dtype=torch.int64)
    assert [tuple(part.shape) for part in tree_build_levelwise(log_probs, token_ids, 16)] == [(2, 17)] * 4 + [(2,)]
    assert [tuple(part.shape) for part in tree_build_chain(log_probs, token_ids)] == [(2, 8)] * 4 + [(2,)]
