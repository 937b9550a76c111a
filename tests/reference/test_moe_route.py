"""Claims about the routing's specification."""

from __future__ import annotations

import numpy as np
import torch

from ddbench.reference.moe_route import make_inputs, moe_route


def test_equals_numpy():
    inputs = make_inputs(4, "odd")
    ids, weights = moe_route(**inputs)
    scores = 1 / (1 + np.exp(-(inputs["x"].numpy().astype(float) @ inputs["gate_weight"].numpy().T.astype(float))))
    expected = np.argsort(-(scores + inputs["bias"].numpy()), axis=1, kind="stable")[:, : inputs["top_k"]]
    assert ids.tolist() == expected.tolist()
    picked = np.take_along_axis(scores, expected, axis=1)
    np.testing.assert_allclose(weights.numpy(), picked / picked.sum(1, keepdims=True) * 2.5, rtol=1e-6)
    assert ids.dtype == torch.int64
    assert weights.dtype == torch.float32


def test_ties_go_to_the_lower_expert():
    ids, weights = moe_route(torch.zeros(2, 4), torch.ones(6, 4), torch.zeros(6), 3, 1.0)
    assert ids.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


def test_bias_chooses_but_does_not_weigh():
    x, gate = torch.zeros(1, 2), torch.zeros(4, 2)
    ids, weights = moe_route(x, gate, torch.tensor([0.0, 0.0, 9.0, 1.0]), 2, 1.0)
    assert ids.tolist() == [[2, 3]]
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5]]))


def test_weights_sum_to_scaling_and_tokens_are_independent():
    inputs = make_inputs(1, "small")
    ids, weights = moe_route(**inputs)
    torch.testing.assert_close(weights.sum(1), torch.full((6,), 2.5))
    alone = moe_route(**inputs | {"x": inputs["x"][3:4]})
    assert alone[0].tolist() == ids[3:4].tolist()


def test_vanishing_scores_give_finite_weights():
    """All sigmoids underflow to 0: the 1e-20 keeps 0/0 away."""
    _, weights = moe_route(torch.full((1, 1), -200.0), torch.ones(3, 1), torch.zeros(3), 2, 2.5)
    assert weights.tolist() == [[0.0, 0.0]]


def test_no_tokens():
    ids, weights = moe_route(torch.zeros(0, 2), torch.ones(3, 2), torch.zeros(3), 2, 1.0)
    assert ids.shape == weights.shape == (0, 2)
