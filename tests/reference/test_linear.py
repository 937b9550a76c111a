"""Claims about the specification of a projection."""

from __future__ import annotations

import torch

from ddbench.kernels.linear import head_linear as plain_heads
from ddbench.kernels.linear import linear as plain
from ddbench.reference.linear import SIZES, cost, head_cost, head_linear, linear, make_head_inputs, make_inputs


def test_equals_a_product_by_hand():
    out = linear(torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 0.0]]))
    assert out.tolist() == [[11.0, 17.0, 0.0], [-4.0, -6.0, 0.0]]


def test_plain_pytorch_is_the_same():
    for size in SIZES:
        inputs = {name: tensor.double() for name, tensor in make_inputs(0, size).items()}
        torch.testing.assert_close(plain(**inputs), linear(**inputs))


def test_heads_are_products_of_their_own():
    for size in SIZES:
        inputs = {name: tensor.double() for name, tensor in make_head_inputs(0, size).items()}
        expected = head_linear(**inputs)
        torch.testing.assert_close(plain_heads(**inputs), expected)
        torch.testing.assert_close(plain_heads(**inputs, out=torch.empty_like(expected)), expected)
        torch.testing.assert_close(torch.einsum("thi,hoi->tho", inputs["x"], inputs["weight"]), expected)


def test_cost_counts_every_operand_once():
    assert cost(**make_inputs(0, "small")) == {"bytes": 4 * (6 * 16 + 8 * 16 + 6 * 8), "flops": 2 * 6 * 8 * 16}
    by_head = {"bytes": 4 * (15 * 16 + 3 * 8 * 16 + 15 * 8), "flops": 2 * 15 * 8 * 16}
    assert head_cost(**make_head_inputs(0, "small")) == by_head
