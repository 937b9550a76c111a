"""The Triton tree builder against its specification and the heap: interpreted where there is no GPU."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.kernels.draft_topk import draft_topk, has_nan
from ddbench.kernels.tree_build import tree_build_chain, tree_build_heap, tree_build_levelwise
from ddbench.reference import tree_build as reference

kernels = pytest.importorskip("ddbench.kernels.tree_build_triton", reason="triton is not installed")

INF = math.inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOWEST = torch.finfo(torch.float32).min


def build(log_probs: torch.Tensor, token_ids: torch.Tensor, node_budget: int) -> list[torch.Tensor]:
    """The op under test, results on the CPU."""
    trees = kernels.tree_build_triton(log_probs.to(DEVICE), token_ids.to(DEVICE), node_budget)
    return [part.cpu() for part in trees]


def assert_same(trees, others):
    for mine, other in zip(trees, others, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other), (mine, other)


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


def check_equals_the_reference():
    for size in ("small", "odd", "degenerate", "adversarial"):
        for seed in range(2):
            inputs = reference.make_inputs(seed, size)
            assert_same(build(**inputs), reference.tree_build(**inputs))


def check_mixed_trees_agree_in_order():
    """H43, H44, H52, H54: ties, saturated rows, -inf, fewer nodes than the budget."""
    generator = torch.Generator().manual_seed(0)
    for case in range(6):
        horizon, vocab, node_budget, k = (
            int(torch.randint(low, high, (), generator=generator)) for low, high in ((1, 9), (2, 40), (1, 40), (1, 40))
        )
        log_probs, token_ids = draft_topk(mixed_logits(generator, 12, horizon, vocab), k if case % 2 else node_budget)
        expected = tree_build_heap(log_probs, token_ids, node_budget)
        assert_same(build(log_probs, token_ids, node_budget), expected)


def check_production_sizes():
    for horizon, node_budget in ((7, 64), (15, 64), (7, 256)):
        logits = torch.randn(1, horizon, 1500, generator=torch.Generator().manual_seed(node_budget)) * 3
        log_probs, token_ids = draft_topk(logits.to(torch.bfloat16), node_budget)
        expected = tree_build_heap(log_probs, token_ids, node_budget)
        assert_same(build(log_probs, token_ids, node_budget), expected)


def check_the_longest_ranks_and_depths_fit():
    """`place` holds 10 bits of rank and parent: one position with 1,100 candidates, then 1,023 positions with one."""
    wide = torch.linspace(-9, -1, 1100).flip(0).reshape(1, 1, -1)
    deep = torch.zeros(1, 1023, 1)
    for log_probs in (wide, deep):
        token_ids = torch.arange(log_probs.numel()).reshape(log_probs.shape)
        assert_same(build(log_probs, token_ids, 1024), tree_build_heap(log_probs, token_ids, 1024))


def check_near_ties_below_fp32_resolution_keep_their_order():
    """H52"""
    log_probs = torch.tensor([[[-1000.0, -1000.0 - 2**-13], [-(2.0**-20), -(2.0**-19)], [-(2.0**-21), -(2.0**-20)]]])
    token_ids = torch.tensor([[[0, 1]] * 3])
    trees = build(log_probs, token_ids, 14)
    assert_same(trees, reference.tree_build_brute_force(log_probs, token_ids, 14))
    assert trees[3].unique().numel() < 14


def check_zero_of_either_sign_ties():
    log_probs = torch.tensor([[[0.0, -0.0, -0.0], [-0.0, 0.0, -1.0], [0.0, -0.0, -INF]]])
    token_ids = torch.arange(3).expand(1, 3, 3)
    assert_same(build(log_probs, token_ids, 12), reference.tree_build(log_probs, token_ids, 12))


def check_a_mask_of_lowest_finite_values_is_still_a_candidate():
    log_probs = torch.tensor([[[0.0, LOWEST]] * 2])
    token_ids = torch.tensor([[[0, 1]] * 2])
    assert_same(build(log_probs, token_ids, 8), reference.tree_build(log_probs, token_ids, 8))


def check_budgets_of_zero_and_empty_inputs():
    """H39, H40"""
    log_probs, token_ids = draft_topk(torch.randn(2, 3, 4), 4)
    for horizon, width, node_budget in ((3, 4, 0), (0, 4, 5), (3, 0, 5), (3, 0, 0), (3, 4, 1)):
        given = log_probs[:, :horizon, :width], token_ids[:, :horizon, :width], node_budget
        assert_same(build(*given), tree_build_levelwise(*given))
    assert [part.shape[0] for part in build(log_probs[:0], token_ids[:0], 3)] == [0] * 5


def check_no_candidate_anywhere_is_the_root_alone():
    log_probs, token_ids = torch.full((2, 3, 4), -INF), torch.arange(4).expand(2, 3, 4)
    assert_same(build(log_probs, token_ids, 5), reference.tree_build(log_probs, token_ids, 5))


def check_a_width_of_one_is_the_chain():
    """H57"""
    log_probs, token_ids = draft_topk(torch.randn(3, 5, 17), 1)
    assert_same(build(log_probs, token_ids, 5), tree_build_chain(log_probs, token_ids))


def check_requests_do_not_see_each_other():
    """H64: trees of unequal sizes; an idle row may hold anything and stays legal (H46)."""
    inputs = reference.make_inputs(0, "adversarial")
    log_probs, token_ids = inputs["log_probs"][:, :3, :3], inputs["token_ids"][:, :3, :3]
    order = torch.tensor([3, 0, 5, 4, 1, 2])
    trees = build(log_probs, token_ids, 40)
    assert trees[4].unique().numel() > 1
    assert_same(build(log_probs[order], token_ids[order], 40), [tree[order] for tree in trees])
    idle_scores, idle_ids = log_probs.clone(), token_ids.clone()
    idle_scores[1], idle_ids[1] = math.nan, 2**40
    idle = build(idle_scores, idle_ids, 40)
    assert idle[4][1] == 0
    others = torch.tensor([0, 2, 3, 4, 5])
    assert_same([tree[others] for tree in idle], [tree[others] for tree in trees])


def check_nan_ends_the_candidates():
    log_probs = torch.tensor([[[-0.1, -0.2], [math.nan, math.nan]], [[-0.1, -0.2], [-0.3, -0.4]]])
    token_ids = torch.tensor([[[5, 6]] * 2] * 2)
    assert_same(build(log_probs, token_ids, 3), tree_build_levelwise(log_probs, token_ids, 3))


def check_a_nan_is_marked_on_the_root_of_its_request():
    """Wherever it stands, beyond the candidates that the tree takes too; nothing else of any tree changes."""
    torch.manual_seed(0)
    log_probs, token_ids = draft_topk(torch.randn(4, 7, 300), 100)  # more than one chunk of them
    log_probs[1, 6, 99] = math.nan
    log_probs[3, 0, 0] = math.nan
    plain = build(log_probs, token_ids, 20)
    trees = kernels.tree_build_triton(log_probs.to(DEVICE), token_ids.to(DEVICE), 20, marks_nan=True)
    trees = [part.cpu() for part in trees]
    assert trees[3][:, 0].isnan().tolist() == has_nan(log_probs).tolist() == [False, True, False, True]
    trees[3][:, 0] = plain[3][:, 0]
    assert_same(trees, plain)


def check_views_and_results_may_be_passed_in():
    storage = torch.full((3, 5, 11), math.nan, device=DEVICE)
    ids = torch.full((3, 5, 11), 2**40, device=DEVICE)
    scores, token_ids = storage[1:, :4, 2:9], ids[1:, :4, 2:9]
    nodes = [torch.full((2, 17), fill, device=DEVICE) for fill in (-9, -9, -9, math.nan)]
    out = *nodes, torch.full((2,), -9, device=DEVICE)
    for seed in range(2):
        best = draft_topk(torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(seed)), 7)
        scores.copy_(best[0])
        token_ids.copy_(best[1])
        assert kernels.tree_build_triton(scores, token_ids, 16, out=out)[0] is out[0]
        assert_same([part.cpu() for part in out], reference.tree_build(*best, 16))


@pytest.mark.parametrize("name", [name for name in list(globals()) if name.startswith("check_")])
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    one_warp = {entry["name"] for entry in kernels.AOT if entry["num_warps"] == 1}
    assert len(one_warp) == 3
    assert all("bar.sync" not in compiled[name]["accesses"] for name in one_warp)  # nothing to wait for


@pytest.mark.parametrize(
    ("horizon", "node_budget", "message"), [(3, -3, "got -3"), (3, 1025, "got 1025"), (1024, 8, "over 1024")]
)
def test_what_it_cannot_do_is_an_error(horizon, node_budget, message):
    log_probs = torch.zeros(1, horizon, 2)
    with pytest.raises(ValueError, match=message):
        kernels.tree_build_triton(log_probs, torch.zeros_like(log_probs, dtype=torch.int64), node_budget)


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_a_tensor_on_the_cpu_is_refused():
    with pytest.raises(ValueError, match="runs on a GPU: got log_probs on cpu"):
        kernels.tree_build_triton(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2, dtype=torch.int64), 4)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(("horizon", "node_budget"), [(7, 64), (15, 256), (7, 512), (3, 1024)])
def test_large_batches_equal_the_heap(horizon, node_budget):
    logits = mixed_logits(torch.Generator().manual_seed(0), 240, horizon, 600)
    log_probs, token_ids = draft_topk(logits, node_budget)
    assert_same(build(log_probs, token_ids, node_budget), tree_build_heap(log_probs, token_ids, node_budget))
