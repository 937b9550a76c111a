"""Claims about the four-bit weight format's implementation."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels import int4 as kernel
from ddbench.reference import int4 as spec


def _w(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_nibble_is_read_back():
    """All 16 patterns at all 8 places of a word: the values -8..7, low nibble first."""
    words = torch.stack([torch.full((8,), n, dtype=torch.int64) << (4 * torch.arange(8)) for n in range(16)])
    values = kernel.dequantize(words.to(torch.int32), torch.ones(16, 8, dtype=torch.bfloat16), 8, torch.float32)
    for nibble in range(16):
        for place in range(8):
            word = values[nibble, 8 * place : 8 * place + 8].tolist()
            assert word[place] == nibble - 8
            assert all(value == -8 for i, value in enumerate(word) if i != place)


@pytest.mark.parametrize("shape", [(4, 64), (3, 5, 32), (2, 3, 4, 96)])
def test_leading_dims_quantise_like_rows(shape):
    w = _w(*shape)
    packed, scales = kernel.quantize(w, 32)
    assert packed.shape == (*shape[:-1], shape[-1] // 8)
    assert scales.shape == (*shape[:-1], shape[-1] // 32)
    flat = spec.quantize(w.flatten(0, -2), 32)
    assert torch.equal(packed.flatten(0, -2), flat[0])
    assert torch.equal(scales.flatten(0, -2), flat[1])


def test_error_is_below_absmax_over_seven():
    """The signed scale beats the usual symmetric one by a fifth of the squared error."""
    w = _w(512, 32)
    signed = kernel.dequantize(*kernel.quantize(w, 32), 32, torch.float32)
    step = (w.abs().amax(1, keepdim=True) / 7).bfloat16().float()
    usual = (w / step).round().clamp(-8, 7) * step
    assert (signed - w).square().mean() < 0.82 * (usual - w).square().mean()


def test_bf16_is_rounded_once():
    packed, scales = kernel.quantize(_w(8, 64), 32)
    exact = spec.dequantize(packed, scales, 32, torch.float64)
    assert torch.equal(kernel.dequantize(packed, scales, 32, torch.bfloat16), exact.bfloat16())


def test_strided_views_of_packed_weights():
    packed, scales = kernel.quantize(_w(4, 6, 64), 32)
    whole = kernel.dequantize(packed, scales, 32, torch.float32)
    part = kernel.dequantize(packed[:, ::2], scales[:, ::2], 32, torch.float32)
    assert torch.equal(part, whole[:, ::2])


def test_columns_must_divide():
    for columns, group in ((36, 32), (12, 12)):
        with pytest.raises(ValueError, match=f"{columns} input columns"):
            kernel.quantize(torch.zeros(2, columns), group)


def test_fake_quantize_shows_quantised_values_and_passes_gradients():
    w = _w(4, 64).requires_grad_()
    out = kernel.fake_quantize(w, 32)
    assert torch.equal(out, kernel.dequantize(*kernel.quantize(w, 32), 32, torch.float32))
    upstream = _w(4, 64, seed=1)
    out.backward(upstream)
    assert torch.equal(w.grad, upstream)


def test_host_reads_nothing():
    """H38: both directions run on tensors without values."""
    packed, scales = kernel.quantize(torch.empty(4, 64, device="meta"), 32)
    assert kernel.dequantize(packed, scales, 32, torch.bfloat16).shape == (4, 64)
