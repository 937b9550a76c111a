"""Claims about absorbed latent attention's implementation."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels import mla_tree_attention as module
from ddbench.kernels.mla_tree_attention import mla_tree_attention_dense
from ddbench.kernels.tree_attention import dense_mask
from ddbench.reference import mla_tree_attention as spec
from ddbench.testing import assert_within_budget, poison

METHODS = pytest.mark.parametrize("method", ["matmul", "sdpa"])


def _run(q, latent, rank, lengths, visible, scale, method, bound=None):
    bound = int(lengths.max()) if bound is None else bound
    return mla_tree_attention_dense(q, latent, rank, dense_mask(lengths, q.shape[1], bound, visible), scale, method)


@METHODS
def test_unread_rows_never_matter(method):
    inputs = spec.make_inputs(0, "small")
    lengths, latent = inputs["lengths"], inputs["latent"]
    dirty = _run(**inputs, method=method)
    for b, length in enumerate(lengths.tolist()):
        poison(latent[b, length + 5 :], 0.0)
    assert torch.equal(_run(**inputs, method=method), dirty)
    assert dirty.isfinite().all()


@METHODS
def test_larger_bound_and_company_change_nothing(method):
    inputs = spec.make_inputs(1, "small")
    poison(inputs["latent"][:, int(inputs["lengths"].max()) + 5 :], 1e4)
    out = _run(**inputs, method=method)
    torch.testing.assert_close(_run(**inputs, method=method, bound=19), out)
    one = {name: inputs[name][:1] for name in ("q", "latent", "lengths", "visible")}
    torch.testing.assert_close(_run(**inputs | one, method=method)[0], out[0])


@METHODS
def test_low_precision_within_budget(method):
    inputs = spec.make_inputs(2, "small")
    low = inputs | {name: inputs[name].bfloat16() for name in ("q", "latent")}
    exact = spec.mla_tree_attention(**low | {name: low[name].double() for name in ("q", "latent")})
    assert_within_budget(_run(**low, method=method), spec.mla_tree_attention(**low), exact)


@METHODS
def test_host_reads_nothing(method):
    """H38: runs on tensors without values."""
    mask = torch.empty(2, 1, 5, 14, dtype=torch.bool, device="meta")
    q, latent = torch.empty(2, 5, 3, 12, device="meta"), torch.empty(2, 20, 12, device="meta")
    assert mla_tree_attention_dense(q, latent, 8, mask, 0.3, method).shape == (2, 5, 3, 8)


def test_many_new_tokens_attend_in_pieces(monkeypatch):
    """As they would together; at most so many scores at once, or those of one token."""
    inputs = spec.make_inputs(3, "small")
    whole = _run(**inputs, method="matmul")
    for most in (1, 200):
        monkeypatch.setattr(module, "MOST_SCORES", most)
        torch.testing.assert_close(_run(**inputs, method="matmul"), whole)
