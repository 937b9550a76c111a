"""The specification of the draft's top-k, against hand cases and torch's fp64 log-softmax."""

import math

import pytest
import torch

from ddbench.reference.draft_topk import cost, draft_topk, has_nan, make_inputs

INF = math.inf
SIZES = ["small", "odd", "degenerate", "adversarial"]


@pytest.mark.parametrize("size", SIZES)
def test_values_are_the_log_softmax_of_the_whole_row(size):
    inputs = make_inputs(0, size)
    log_probs, token_ids = draft_topk(**inputs)
    expected = inputs["logits"].double().log_softmax(-1).nan_to_num(nan=-INF, neginf=-INF).gather(-1, token_ids)
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_rows_descend_and_hold_distinct_tokens(size):
    """H54: two children of one parent never share a token."""
    log_probs, token_ids = draft_topk(**make_inputs(1, size))
    assert (log_probs[..., 1:] <= log_probs[..., :-1]).all()
    ids = token_ids.sort(-1).values
    assert (ids[..., 1:] > ids[..., :-1]).all()


def test_equal_logits_rank_by_lower_token_id():
    """H43: ties have one order, also between 0.0 and -0.0 and at the cut."""
    row = torch.tensor([[[0.0, 3.0, -0.0, 3.0, 0.0, 3.0]]])
    assert draft_topk(row, 4)[1].tolist() == [[[1, 3, 5, 0]]]


def test_the_logit_orders_even_where_log_probabilities_round_to_one_value():
    row = torch.tensor([[[1e-9, 2e-9, 30.0]]])
    log_probs, token_ids = draft_topk(row, 3)
    assert token_ids.tolist() == [[[2, 1, 0]]]
    assert log_probs[0, 0, 1] == log_probs[0, 0, 2]


def test_minus_infinity_is_no_candidate_and_never_nan():
    """H49: padded vocabulary columns come after every real token. A row of -inf alone says "no draft here"."""
    logits = torch.tensor([[[-INF, 1.0, -INF, 1.0], [-INF] * 4]])
    log_probs, token_ids = draft_topk(logits, 4)
    assert token_ids.tolist() == [[[1, 3, 0, 2], [0, 1, 2, 3]]]
    torch.testing.assert_close(log_probs[0, 0], torch.tensor([-math.log(2), -math.log(2), -INF, -INF]))
    assert (log_probs[0, 1] == -INF).all()
    assert not has_nan(log_probs).any()


def test_bf16_logits_are_normalised_in_fp32():
    """H47: a bf16 logsumexp is off by up to 2^-7 of its value; ours is exact to fp32 rounding."""
    logits = (torch.randn(1, 3, 500, generator=torch.Generator().manual_seed(0)) * 2 + 20).to(torch.bfloat16)
    log_probs, token_ids = draft_topk(logits, 5)
    expected = logits.double().log_softmax(-1).gather(-1, token_ids)
    torch.testing.assert_close(log_probs.double(), expected, rtol=0, atol=4e-6)
    in_bf16 = (logits - logits.logsumexp(-1, keepdim=True)).double().gather(-1, token_ids)
    assert (in_bf16 - expected).abs().max() > 1e-3


@pytest.mark.parametrize("broken", [math.nan, INF])
def test_a_broken_row_is_reported_for_its_request_only(broken):
    """H46"""
    logits = torch.zeros(3, 2, 4)
    logits[1, 1, 2] = broken
    log_probs, token_ids = draft_topk(logits, 3)
    assert has_nan(log_probs).tolist() == [False, True, False]
    assert ((token_ids >= 0) & (token_ids < 4)).all()


def test_width_is_limited_by_the_vocabulary_and_negative_k_is_an_error():
    logits = torch.randn(1, 2, 3)
    assert draft_topk(logits, 9)[0].shape == (1, 2, 3)
    assert draft_topk(logits, 0)[1].shape == (1, 2, 0)
    with pytest.raises(ValueError, match="got -1"):
        draft_topk(logits, -1)


def test_inputs_repeat_for_a_seed_and_cost_counts_every_logit_once():
    first, again, other = make_inputs(3, "odd"), make_inputs(3, "odd"), make_inputs(4, "odd")
    assert torch.equal(first["logits"], again["logits"])
    assert not torch.equal(first["logits"], other["logits"])
    assert cost(**first) == {"bytes": 3 * 5 * (131 * 4 + 17 * 12), "flops": 2 * 3 * 5 * 131}
