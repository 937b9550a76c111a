"""Claims about the gated activation's specification."""

from __future__ import annotations

import numpy as np
import torch

from ddbench.reference.swiglu import make_inputs, swiglu


def test_equals_numpy_formula():
    x = torch.randn(3, 14, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gate, up = x.numpy()[:, :7], x.numpy()[:, 7:]
    np.testing.assert_allclose(swiglu(x).numpy(), gate / (1 + np.exp(-gate)) * up, rtol=1e-14)


def test_known_values():
    """Nothing passes a gate of zero or far below it; all passes one far above."""
    out = swiglu(torch.tensor([[0.0, -200.0, 200.0, 3.0, 5.0, 7.0]]))
    assert out.tolist() == [[0.0, 0.0, 1400.0]]


def test_low_precision_is_rounded_once():
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(swiglu(x), swiglu(x.float()).bfloat16())
    assert torch.isfinite(swiglu(make_inputs(0, "adversarial")["gate_up"])).all()
