"""Claims about the RMS normalisation's implementation."""

from __future__ import annotations

import torch

from ddbench.kernels.rms_norm import add_rms_norm, rms_norm
from ddbench.reference import rms_norm as spec
from ddbench.testing import assert_within_budget


def test_low_precision_within_budget():
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(9, 65, generator=g).bfloat16(), torch.randn(65, generator=g).bfloat16()
    exact = spec.rms_norm(x.double(), weight.double(), 1e-6)
    assert_within_budget(rms_norm(x, weight, 1e-6), spec.rms_norm(x, weight, 1e-6), exact)


def test_batch_invariance():
    x, weight = torch.randn(8, 3, 40, generator=torch.Generator().manual_seed(0)), torch.ones(40)
    together = rms_norm(x, weight, 1e-6)
    assert all(torch.equal(rms_norm(x[i : i + 1], weight, 1e-6)[0], together[i]) for i in range(8))


def test_strided_heads_and_fp32_weight():
    """Per-head norms get views of a wider projection, and a checkpoint may hold norms in fp32 beside bf16 weights."""
    x = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.linspace(0.5, 1.5, 8)
    out = rms_norm(x[..., :8], weight, 1e-6)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, spec.rms_norm(x[..., :8], weight, 1e-6))


def test_addition_and_norm_are_the_two_ops_one_after_the_other():
    """H08: the sum is what is stored, and what is normalised; neither argument changes."""
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x, residual = torch.randn(2, 3, 4, 65, generator=g).to(dtype)
        weight, before = torch.linspace(0.5, 1.5, 65).to(dtype), residual.clone()
        normed, total = add_rms_norm(x, residual, weight, 1e-6)
        assert torch.equal(total, x + residual)
        assert torch.equal(normed, rms_norm(x + residual, weight, 1e-6))
        assert torch.equal(residual, before)


def test_parts_and_the_residual_are_added_in_fp32_and_rounded_once():
    """Against fp64; a single part is the product as it was, bit for bit."""
    g = torch.Generator().manual_seed(0)
    weight = torch.linspace(0.5, 1.5, 65)
    for num_parts in (1, 2, 4):
        parts, residual = torch.randn(num_parts, 3, 4, 65, generator=g), torch.randn(3, 4, 65, generator=g)
        exact = parts.double().sum(0) + residual.double()
        normed, total = add_rms_norm(parts, residual, weight, 1e-6, in_parts=True)
        torch.testing.assert_close(total.double(), exact, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(normed.double(), spec.rms_norm(exact, weight.double(), 1e-6), rtol=1e-5, atol=1e-6)
        low = residual.bfloat16()
        normed, total = add_rms_norm(parts, low, weight, 1e-6, in_parts=True)
        assert normed.dtype == total.dtype == torch.bfloat16
        once = (parts.double().sum(0) + low.double()).float().bfloat16()
        torch.testing.assert_close(total, once, rtol=2**-8, atol=1e-6)
        assert (total != once).float().mean() < 0.01, "rounded once, but for sums that lie halfway"
        assert torch.equal(normed, rms_norm(total, weight, 1e-6)), "what is stored is what is normalised"
    x, low = torch.randn(2, 3, 65, generator=g).bfloat16(), torch.randn(2, 3, 65, generator=g).bfloat16()
    together = add_rms_norm(x[None], low, weight, 1e-6, in_parts=True)
    assert all(torch.equal(*pair) for pair in zip(together, add_rms_norm(x, low, weight, 1e-6), strict=True))
