"""Claims about the gated activation's implementation."""

from __future__ import annotations

import torch

from ddbench.kernels.swiglu import swiglu
from ddbench.reference import swiglu as spec
from ddbench.testing import assert_within_budget


def test_low_precision_within_budget():
    x = torch.randn(9, 130, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert_within_budget(swiglu(x), spec.swiglu(x), spec.swiglu(x.double()))


def test_rows_are_independent():
    x = torch.randn(8, 3, 40, generator=torch.Generator().manual_seed(0))
    together = swiglu(x)
    assert all(torch.equal(swiglu(x[i : i + 1])[0], together[i]) for i in range(8))
    assert swiglu(torch.zeros(0, 4)).shape == (0, 2)


def test_parts_are_added_in_fp32_and_rounded_once_behind_the_gate():
    """Against fp64, in which S and the order do not matter; a single part is the product as it was."""
    for num_parts in (1, 2, 4):
        parts = torch.randn(num_parts, 3, 5, 46, generator=torch.Generator().manual_seed(num_parts))
        gate, up = parts.double().sum(0).chunk(2, dim=-1)
        exact = gate * torch.sigmoid(gate) * up
        torch.testing.assert_close(swiglu(parts, in_parts=True).double(), exact, rtol=1e-5, atol=1e-6)
        low = swiglu(parts, in_parts=True, dtype=torch.bfloat16)
        assert low.dtype == torch.bfloat16
        assert torch.equal(low, swiglu(parts, in_parts=True).bfloat16())
    low = torch.randn(1, 9, 130, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(swiglu(low, in_parts=True), swiglu(low[0]))
    assert torch.equal(swiglu(low, in_parts=True, dtype=torch.bfloat16), swiglu(low[0]))
