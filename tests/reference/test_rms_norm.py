"""Claims about the RMS normalisation's specification."""

from __future__ import annotations

import numpy as np
import torch

from ddbench.reference.rms_norm import add_rms_norm, make_add_inputs, rms_norm


def _x(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equals_numpy_formula():
    x, weight = _x(3, 7), _x(7, seed=1)
    expected = x.numpy() / np.sqrt((x.numpy() ** 2).mean(-1, keepdims=True) + 1e-3) * weight.numpy()
    np.testing.assert_allclose(rms_norm(x, weight, 1e-3).numpy(), expected, rtol=1e-14)


def test_result_has_unit_rms_at_any_scale():
    x, one = _x(4, 33), torch.ones(33, dtype=torch.float64)
    out = rms_norm(x, one, 0.0)
    torch.testing.assert_close(out.square().mean(-1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(rms_norm(x * 1e6, one, 0.0), out)


def test_zero_row_stays_zero():
    assert rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-6).tolist() == [[0.0] * 4]


def test_low_precision_is_rounded_once():
    x, weight = _x(5, 16).bfloat16(), _x(16, seed=1).bfloat16()
    out = rms_norm(x, weight, 1e-6)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, rms_norm(x.float(), weight.float(), 1e-6).bfloat16())


def test_the_sum_is_rounded_and_then_normalised():
    """H08: what is stored is what is normalised; a sum of zero stays zero."""
    inputs = make_add_inputs(0, "adversarial")
    normed, total = add_rms_norm(**inputs)
    assert torch.equal(total, inputs["x"] + inputs["residual"])
    assert torch.equal(normed, rms_norm(total, inputs["weight"], inputs["eps"]))
    assert not normed[0, 2].any()
    low = {name: inputs[name].bfloat16() for name in ("x", "residual", "weight")}
    normed, total = add_rms_norm(**low, eps=1e-6)
    assert normed.dtype == total.dtype == torch.bfloat16
    assert torch.equal(total, (low["x"].float() + low["residual"].float()).bfloat16())
    assert torch.equal(normed, rms_norm(total, low["weight"], 1e-6))
