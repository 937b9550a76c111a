"""Claims about tree attention's specification."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.reference.tree_attention import cost, make_inputs, random_visible, sees, tree_attention

SCALE = 0.3


def _random(batch=2, num_new=4, rows=20, heads=4, kv_heads=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, num_new, heads, 6, generator=g, dtype=torch.float64)
    k, v = torch.randn(2, batch, rows, kv_heads, 6, generator=g, dtype=torch.float64)
    return q, k, v


def test_equals_scalar_softmax_per_head():
    """GQA: query heads 0,1 read KV head 0 and heads 2,3 KV head 1, by plain Python arithmetic."""
    q, k, v = _random(batch=1)
    out = tree_attention(q, k, v, torch.tensor([5]), None, SCALE)
    for head in range(4):
        for token in range(4):
            rows = range(5 + token + 1)
            scores = [SCALE * sum(float(x) for x in q[0, token, head] * k[0, r, head // 2]) for r in rows]
            weights = [math.exp(s - max(scores)) for s in scores]
            for dim in range(6):
                expected = sum(w * float(v[0, r, head // 2, dim]) for w, r in zip(weights, rows, strict=True))
                assert float(out[0, token, head, dim]) == pytest.approx(expected / sum(weights), abs=1e-12)


def test_every_node_equals_its_path_run_as_a_chain():
    """H59: a node's output is what its root-to-node path gives as plain causal text; the root is the control."""
    q, k, v = _random(batch=1, num_new=7)
    visible = random_visible(1, 7, torch.Generator().manual_seed(3))
    length = 6
    out = tree_attention(q, k, v, torch.tensor([length]), visible, SCALE)
    for node in range(7):
        path = visible[0, node].nonzero().squeeze(1)
        rows = torch.cat((torch.arange(length), length + path))
        chain = tree_attention(q[:, path], k[:, rows], v[:, rows], torch.tensor([length]), None, SCALE)
        torch.testing.assert_close(chain[0, -1], out[0, node])


def test_unread_rows_never_matter():
    """NaN in every row past a request's own new rows leaves no trace."""
    q, k, v = _random(batch=3)
    lengths = torch.tensor([0, 9, 16])
    clean = tree_attention(q, k, v, lengths, None, SCALE)
    for b, length in enumerate(lengths.tolist()):
        k[b, length + 4 :], v[b, length + 4 :] = float("nan"), float("nan")
    assert torch.equal(tree_attention(q, k, v, lengths, None, SCALE), clean)
    assert clean.isfinite().all()


def test_siblings_do_not_see_each_other():
    q, k, v = _random(batch=1, num_new=3)
    fan = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]).bool()
    before = tree_attention(q, k, v, torch.tensor([4]), fan, SCALE)
    v[0, 4 + 1] += 100
    after = tree_attention(q, k, v, torch.tensor([4]), fan, SCALE)
    assert torch.equal(after[0, [0, 2]], before[0, [0, 2]])
    assert not torch.equal(after[0, 1], before[0, 1])


def test_window_counts_the_query_itself():
    """Window 3 at position t sees t-2 and t-1 of the context, and itself: one more or less is a fault."""
    mask = sees(torch.tensor([10]), 2, 12, None, window=3)[0]
    assert mask[0].nonzero().squeeze(1).tolist() == [8, 9, 10]
    assert mask[1].nonzero().squeeze(1).tolist() == [9, 10, 11]
    one = sees(torch.tensor([10]), 1, 11, None, window=1)[0]
    assert one[0].nonzero().squeeze(1).tolist() == [10]


def test_window_does_not_hide_new_rows():
    """Bidirectional block in a sliding layer (H12, causal off): slots see the whole block, later ones less context."""
    everything = torch.ones(1, 4, 4, dtype=torch.bool)
    mask = sees(torch.tensor([6]), 4, 10, everything, window=3)[0]
    assert mask[:, 6:].all()
    assert mask[:, :6].sum(1).tolist() == [2, 1, 0, 0]


def test_window_as_long_as_the_text_is_no_window():
    assert torch.equal(sees(torch.tensor([9]), 3, 12, None, 12), sees(torch.tensor([9]), 3, 12, None))
    assert not torch.equal(sees(torch.tensor([9]), 3, 12, None, 11), sees(torch.tensor([9]), 3, 12, None))


def test_requests_do_not_mix():
    """H64: each request alone gives the same; swapping requests swaps outputs."""
    q, k, v = _random(batch=3, num_new=5)
    visible = random_visible(3, 5, torch.Generator().manual_seed(1))
    lengths = torch.tensor([2, 11, 7])
    out = tree_attention(q, k, v, lengths, visible, SCALE)
    order = torch.tensor([2, 0, 1])
    swapped = tree_attention(q[order], k[order], v[order], lengths[order], visible[order], SCALE)
    assert torch.equal(swapped, out[order])
    alone = tree_attention(q[1:2], k[1:2], v[1:2], lengths[1:2], visible[1:2], SCALE)
    assert torch.equal(alone[0], out[1])


def test_cost_counts_what_is_seen():
    """Rows and pairs of the closed formula equal a count over the mask itself."""
    for size in ("small", "odd", "degenerate", "adversarial"):
        inputs = make_inputs(0, size)
        q, k = inputs["q"], inputs["k"]
        mask = sees(inputs["lengths"], q.shape[1], k.shape[1], inputs["visible"], inputs["window"])
        assert cost(**inputs)["flops"] == 4 * int(mask.sum()) * q.shape[2] * q.shape[3]
        rows_bytes = 2 * int(mask.any(1).sum()) * k.shape[2] * k.shape[3] * 4
        tree_bytes = 0 if inputs["visible"] is None else (inputs["visible"].numel() + 7) // 8
        assert cost(**inputs)["bytes"] == 2 * q.numel() * 4 + rows_bytes + tree_bytes
