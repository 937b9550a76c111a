"""The product's top-k against its specification and against a stable sort, on every device present."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.kernels.draft_topk import draft_topk, has_nan
from ddbench.reference import draft_topk as reference

INF = math.inf
SIZES = ["small", "odd", "degenerate", "adversarial"]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size, dtype, device):
    for seed in range(3):
        inputs = reference.make_inputs(seed, size)
        logits = inputs["logits"].to(dtype).clamp(max=6e4)  # fp16 has no 1e5; its -inf stays
        expected = reference.draft_topk(logits, inputs["k"])
        log_probs, token_ids = draft_topk(logits.to(device), inputs["k"])
        assert torch.equal(token_ids.cpu(), expected[1])
        torch.testing.assert_close(log_probs.cpu(), expected[0], rtol=1e-6, atol=2e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    vocab=st.integers(1, 700),
    k=st.integers(0, 40),
    levels=st.sampled_from([1, 2, 5, 40]),
    kind=st.sampled_from(["round", "constant", "mostly -inf", "spread"]),
)
def test_selection_is_a_stable_sort_whatever_the_ties(seed, vocab, k, levels, kind):
    """H43: the block maxima of the first pass must not lose a lower id among equal values."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels + 1, (2, 3, vocab), generator=generator).float()
    if kind == "constant":
        logits = torch.zeros_like(logits)
    if kind == "mostly -inf":
        logits = logits.where(torch.rand(logits.shape, generator=generator) < 0.05, -INF)
    if kind == "spread":
        logits = logits * torch.randn(logits.shape, generator=generator)
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    log_probs, token_ids = draft_topk(logits, k)
    assert torch.equal(token_ids, ids[..., :k])
    assert torch.equal(log_probs == -INF, ordered[..., :k] == -INF)


def test_a_large_vocabulary_with_ties_across_blocks_equals_a_stable_sort():
    logits = (torch.randn(1, 2, 32003, generator=torch.Generator().manual_seed(0)) * 3).to(torch.bfloat16)
    assert draft_topk(logits, 64)[0].unique().numel() < 64  # bf16 ties
    expected = logits.float().sort(dim=-1, descending=True, stable=True).indices
    for k in (1, 2, 64, 512):
        assert torch.equal(draft_topk(logits, k)[1], expected[..., :k])


@pytest.mark.parametrize("k", [1, 3, 16])
def test_a_row_without_candidates_has_no_nan(k):
    logits = torch.randn(2, 2, 50)
    logits[0, 1] = -INF
    log_probs, _ = draft_topk(logits, k)
    assert (log_probs[0, 1] == -INF).all()
    assert not has_nan(log_probs).any()


@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000, 0x7F800000], ids=["nan", "negative nan", "inf"])
@pytest.mark.parametrize("rest", [0.0, -INF])
@pytest.mark.parametrize("k", [1, 2, 16])
def test_a_broken_logit_shows_in_the_few_columns_kept(bits, rest, k):
    """H46: also a NaN whose sign bit sorts it behind everything."""
    logits = torch.full((3, 2, 300), rest)
    logits[1, 0, 217] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)[0]
    log_probs, token_ids = draft_topk(logits, k)
    assert has_nan(log_probs).tolist() == [False, True, False]
    assert ((token_ids >= 0) & (token_ids < 300)).all()


def test_requests_do_not_see_each_other():
    """H64"""
    logits = reference.make_inputs(0, "odd")["logits"]
    order = torch.tensor([2, 0, 1])
    log_probs, token_ids = draft_topk(logits, 7)
    permuted = draft_topk(logits[order], 7)
    assert torch.equal(permuted[0], log_probs[order])
    assert torch.equal(permuted[1], token_ids[order])


@pytest.mark.parametrize("k", [1, 5, 64])
def test_no_value_is_read_on_the_host(k):
    """H38: a tensor of the meta device has no values to read."""
    log_probs, token_ids = draft_topk(torch.empty(2, 3, 4096, device="meta", dtype=torch.bfloat16), k)
    assert log_probs.shape == token_ids.shape == (2, 3, k)
    assert (log_probs.dtype, token_ids.dtype) == (torch.float32, torch.int64)
    assert has_nan(log_probs).shape == (2,)


def test_negative_k_is_an_error():
    with pytest.raises(ValueError, match="got -2"):
        draft_topk(torch.zeros(1, 1, 3), -2)
