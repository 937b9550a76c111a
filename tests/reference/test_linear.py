"""Claims about the specification of a projection."""

from __future__ import annotations

import torch

from ddbench.kernels.linear import linear as plain
from ddbench.reference.linear import SIZES, cost, linear, make_inputs


def test_equals_a_product_by_hand():
    out = linear(torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 0.0]]))
    assert out.tolist() == [[11.0, 17.0, 0.0], [-4.0, -6.0, 0.0]]


def test_plain_pytorch_is_the_same():
    for size in SIZES:
        inputs = {name: tensor.double() for name, tensor in make_inputs(0, size).items()}
        torch.testing.assert_close(plain(**inputs), linear(**inputs))


def test_cost_counts_every_operand_once():
    assert cost(**make_inputs(0, "small")) == {"bytes": 4 * (6 * 16 + 8 * 16 + 6 * 8), "flops": 2 * 6 * 8 * 16}
