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
