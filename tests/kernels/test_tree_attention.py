"""Claims about tree attention's implementation. Poison past a short request is finite, as caches always are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.kernels.tree_attention import dense_mask, tree_attention_dense
from ddbench.reference import tree_attention as spec
from ddbench.testing import assert_within_budget, poison

SCALE = 0.3


def _random(batch=2, num_new=5, rows=24, heads=4, kv_heads=2, dim=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, num_new, heads, dim, generator=g)
    k, v = torch.randn(2, batch, rows, kv_heads, dim, generator=g)
    return q, k, v, spec.random_visible(batch, num_new, g)


def _run(q, k, v, lengths, visible=None, bound=None, **mask):
    bound = int(lengths.max()) if bound is None else bound
    return tree_attention_dense(q, k, v, dense_mask(lengths, q.shape[1], bound, visible, **mask), SCALE)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from(["tree", "any", "causal", "block"]),
    st.sampled_from([None, 1, 2, 5]),
    st.integers(0, 3),
)
def test_mask_equals_the_specification(lengths, num_new, kind, window, slack):
    """Every kind of visibility, window and bound; H12: causal and bidirectional blocks in windowed layers."""
    lengths, bound = torch.tensor(lengths), max(lengths) + slack
    g, visible = torch.Generator().manual_seed(0), None
    if kind == "tree":
        visible = spec.random_visible(len(lengths), num_new, g)
    elif kind == "any":  # not a tree: nothing may be assumed, not even that the root is seen
        visible = torch.rand(len(lengths), num_new, num_new, generator=g) < 0.5
    mask = dense_mask(lengths, num_new, bound, visible, window, causal=kind == "causal")
    if kind == "block":
        visible = torch.ones(len(lengths), num_new, num_new, dtype=torch.bool)
    assert mask.shape == (len(lengths), 1, num_new, bound + num_new)
    assert torch.equal(mask[:, 0], spec.sees(lengths, num_new, bound + num_new, visible, window))


def test_unread_rows_never_matter():
    """Huge finite values past a short request, NaN past the bound: not one bit changes."""
    q, k, v, visible = _random(batch=3)
    lengths = torch.tensor([0, 7, 15])
    k[:, 20:], v[:, 20:] = 0, 0
    clean = _run(q, k, v, lengths, visible)
    for b, length in enumerate(lengths.tolist()):
        poison(k[b, length + 5 :], 1e4)
        poison(v[b, length + 5 :], -1e4)
    poison(k[:, 20:])
    poison(v[:, 20:])
    assert torch.equal(_run(q, k, v, lengths, visible), clean)


def test_larger_bound_changes_nothing():
    """A stale or rounded-up host bound costs time, not correctness (H58: nothing of another shape survives)."""
    q, k, v, visible = _random()
    lengths = torch.tensor([3, 11])
    torch.testing.assert_close(_run(q, k, v, lengths, visible, bound=19), _run(q, k, v, lengths, visible))


def test_too_small_a_cache_is_refused():
    q, k, v, _ = _random(rows=10)
    with pytest.raises(AssertionError, match="cache has 10 rows, the mask looks at 11"):
        _run(q, k, v, torch.tensor([6, 6]))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_groups_equal_heads_run_one_by_one(kv_heads):
    q, k, v, visible = _random(kv_heads=kv_heads)
    lengths = torch.tensor([4, 13])
    out = _run(q, k, v, lengths, visible)
    for head in range(4):
        g = head * kv_heads // 4
        single = _run(q[:, :, head : head + 1], k[:, :, g : g + 1], v[:, :, g : g + 1], lengths, visible)
        torch.testing.assert_close(single[:, :, 0], out[:, :, head])


def test_polarity():
    """H63: true means visible. All true gives full attention, the inverted tree mask gives something else."""
    q, k, v, visible = _random(batch=1)
    lengths = torch.tensor([6])
    everything = _run(q, k, v, lengths, causal=False)
    full = spec.tree_attention(q, k, v, lengths, torch.ones_like(visible), SCALE)
    torch.testing.assert_close(everything, full)
    tree = dense_mask(lengths, 5, 6, visible)
    assert not torch.allclose(tree_attention_dense(q, k, v, ~tree, SCALE), _run(q, k, v, lengths, visible), atol=1e-2)


def test_block_is_bidirectional():
    """H14: the last slot of a draft block reaches slot 1 where the layer is not causal, and only there."""
    q, k, v, _ = _random(batch=1)
    lengths = torch.tensor([6])
    before = [_run(q, k, v, lengths, causal=causal) for causal in (False, True)]
    v[0, 6 + 4] += 10
    after = [_run(q, k, v, lengths, causal=causal) for causal in (False, True)]
    assert not torch.allclose(after[0][0, 1], before[0][0, 1])
    assert torch.equal(after[1][0, :4], before[1][0, :4])


def test_requests_do_not_mix():
    """H64, H93: unequal trees and lengths; swapping requests swaps outputs, company only adds rounding."""
    q, k, v, visible = _random(batch=3)
    lengths = torch.tensor([2, 14, 8])
    out, order = _run(q, k, v, lengths, visible), torch.tensor([2, 0, 1])
    torch.testing.assert_close(_run(q[order], k[order], v[order], lengths[order], visible[order]), out[order])
    torch.testing.assert_close(_run(q[:1], k[:1], v[:1], lengths[:1], visible[:1])[0], out[0])


def test_chain_shaped_tree_equals_causal():
    """A lower-triangular tree mask and no mask are the same mask, bit for bit."""
    lengths = torch.tensor([3, 9])
    chain = torch.ones(5, 5).tril().bool().expand(2, -1, -1)
    assert torch.equal(dense_mask(lengths, 5, 9, chain), dense_mask(lengths, 5, 9, None))


def test_low_precision_within_budget():
    q, k, v, visible = _random(num_new=9, rows=40)
    q, k, v = (t.bfloat16() for t in (q, k, v))
    lengths = torch.tensor([10, 31])
    exact = spec.tree_attention(q.double(), k.double(), v.double(), lengths, visible, SCALE)
    assert_within_budget(_run(q, k, v, lengths, visible), spec.tree_attention(q, k, v, lengths, visible, SCALE), exact)


def test_host_reads_nothing():
    """H38: runs on tensors without values, so it cannot wait for one."""
    meta = torch.device("meta")
    mask = dense_mask(
        torch.empty(2, dtype=torch.int64, device=meta), 5, 9, torch.empty(2, 5, 5, dtype=torch.bool, device=meta), 4
    )
    q, kv = torch.empty(2, 5, 4, 8, device=meta), torch.empty(2, 20, 2, 8, device=meta)
    assert tree_attention_dense(q, kv, kv, mask, SCALE).shape == (2, 5, 4, 8)
