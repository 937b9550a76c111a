"""Claims about the four-bit weight format's specification."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.reference.int4 import dequantize, make_inputs, quantize


def test_layout_of_a_word():
    """Values -8..-1 are the nibbles 0..7, low nibble first; -8 * scale is the group's largest magnitude."""
    packed, scales = quantize(torch.tensor([[-8.0, -7, -6, -5, -4, -3, -2, -1]]), 8)
    assert packed.tolist() == [[0x76543210]]
    assert scales.tolist() == [[1.0]]
    packed, scales = quantize(torch.tensor([[0.0, 1, 2, 3, 4, 5, 6, 8]]), 8)
    assert scales.tolist() == [[-1.0]]  # the largest is positive: the scale is negative, 8 is stored as -8
    assert packed.tolist() == [[0x02345678]]
    words = quantize(torch.tensor([[-8.0, 0, 0, 0, 0, 0, 0, 7]]), 8)[0]
    assert [word & 0xFFFFFFFF for word in words[0].tolist()] == [0xF8888880]  # the sign bit belongs to value 7


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(-8, 7), min_size=16, max_size=16), st.sampled_from([0.5, -0.25, 3.0]))
def test_representable_weights_survive(values, scale):
    """Weights that are on the grid of their own group (one of them at -8) come back exactly."""
    values[3], values[9] = -8, -8
    w = torch.tensor([values], dtype=torch.float32) * scale
    packed, scales = quantize(w, 8)
    assert torch.equal(dequantize(packed, scales, 8, torch.float32), w)


def test_quantising_twice_changes_nothing():
    for size in ("small", "odd", "adversarial"):
        inputs = make_inputs(3, size)
        packed, scales = quantize(**inputs)
        again = quantize(dequantize(packed, scales, inputs["group"], torch.float32), inputs["group"])
        assert torch.equal(again[0], packed)
        assert torch.equal(again[1], scales)


def test_error_is_half_a_step():
    """Only the end opposite to the largest magnitude is clamped, by a step at most; the scale is off by 1/256."""
    w = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    packed, scales = quantize(w, 32)
    error = (dequantize(packed, scales, 32, torch.float32) - w).unflatten(-1, (-1, 32)).abs()
    steps = error / scales.float().abs()[..., None]
    assert float(steps.max()) <= 1.0 + 8 / 256
    assert float((steps <= 0.5 + 1e-6).float().mean()) > 0.97


def test_zero_group_is_zero():
    packed, scales = quantize(torch.zeros(2, 16), 8)
    assert scales.abs().max() == 0
    assert dequantize(packed, scales, 8, torch.float32).abs().max() == 0
