"""Claims about the rotary embedding's implementation."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels import rope as kernel
from ddbench.reference import rope as spec
from ddbench.testing import assert_within_budget

YARNS = [
    None,
    {"factor": 40.0, "original_context": 4096, "beta_fast": 32.0, "beta_slow": 1.0},
    {"factor": 4.0, "original_context": 128, "beta_fast": 32.0, "beta_slow": 1.0},
    {"factor": 2.0, "original_context": 6, "beta_fast": 1.0, "beta_slow": 1.0},
]


@pytest.mark.parametrize("yarn", YARNS, ids=["plain", "deepseek", "short", "step"])
@pytest.mark.parametrize(("rotary_dim", "theta"), [(64, 50000.0), (16, 10000.0), (2, 1e6)])
def test_tables_equal_the_specification(rotary_dim, theta, yarn):
    """H10: theta and the YaRN fields all reach the frequencies."""
    frequencies = kernel.inv_freq(rotary_dim, theta, yarn)
    torch.testing.assert_close(frequencies, spec.inv_freq(rotary_dim, theta, yarn), rtol=2e-7, atol=0)
    for ours, theirs in zip(kernel.cos_sin(frequencies, 500, 1.1), spec.cos_sin(frequencies, 500, 1.1), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


def test_mscale_equals_the_specification():
    for factor in (0.5, 1.0, 4.0, 64.0):
        assert kernel.yarn_mscale(factor, 0.7) == spec.yarn_mscale(factor, 0.7)


@pytest.mark.parametrize("size", ["small", "odd"])
def test_low_precision_within_budget(size):
    """H11: with a tail (odd), which passes through bit for bit; the tables stay fp32."""
    inputs = spec.make_inputs(0, size)
    inputs["x"] = inputs["x"].bfloat16()
    out = kernel.rope(**inputs)
    exact = spec.rope(**{name: tensor.double() for name, tensor in inputs.items()})
    assert_within_budget(out, spec.rope(**inputs), exact)
    tail = 2 * inputs["cos_rows"].shape[-1]
    assert torch.equal(out[..., tail:], inputs["x"][..., tail:])


def test_one_row_of_tables_serves_all_requests():
    inputs = spec.make_inputs(0, "small")
    cos, sin = inputs["cos_rows"][:1], inputs["sin_rows"][:1]
    out = kernel.rope(inputs["x"], cos, sin)
    assert torch.equal(out, kernel.rope(inputs["x"], cos.expand(2, -1, -1, -1), sin.expand(2, -1, -1, -1)))
