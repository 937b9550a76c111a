"""Claims about the rotary embedding's specification."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.reference.rope import cos_sin, inv_freq, rope, yarn_mscale

YARN = {"factor": 40.0, "original_context": 4096, "beta_fast": 32.0, "beta_slow": 1.0}


def _rotate(x, positions, frequencies):
    cos, sin = cos_sin(frequencies, 300)
    return rope(x, cos[positions][:, :, None], sin[positions][:, :, None])


def _x(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_pairs_are_complex_multiplication():
    """Pair (i, i + rd/2) is a complex number turned by position * theta^(-2i/rd): half-split, not interleaved."""
    x, positions = _x(1, 3, 2, 8), torch.tensor([[0, 7, 113]])
    out = _rotate(x, positions, inv_freq(8, 10000.0))
    turned = torch.complex(x[..., :4], x[..., 4:])
    for t, position in enumerate(positions[0].tolist()):
        for i in range(4):
            turned[0, t, :, i] *= complex(
                math.cos(position * 10000 ** (-i / 4)), math.sin(position * 10000 ** (-i / 4))
            )
    torch.testing.assert_close(out, torch.cat((turned.real, turned.imag), -1), atol=1e-5, rtol=0)


def test_scores_depend_on_distance_only():
    q, k = _x(1, 1, 1, 16), _x(1, 1, 1, 16, seed=1)
    frequencies = inv_freq(16, 10000.0)

    def score(at_q, at_k):
        return float(
            (_rotate(q, torch.tensor([[at_q]]), frequencies) * _rotate(k, torch.tensor([[at_k]]), frequencies)).sum()
        )

    assert score(5, 2) == pytest.approx(score(203, 200), abs=1e-5)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)


def test_tail_passes_through_unrotated():
    """H11: with rotary_dim < head dim the remaining dims are untouched, bit for bit."""
    x = _x(2, 4, 3, 10)
    out = _rotate(x, torch.tensor([[1, 2, 3, 4]]).expand(2, -1), inv_freq(6, 10000.0))
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert not torch.equal(out[..., :6], x[..., :6])


def test_theta_decides_the_frequencies():
    """H10: a theta that was read from nowhere and defaulted shows."""
    assert not torch.allclose(inv_freq(16, 1e4), inv_freq(16, 1e6))
    torch.testing.assert_close(inv_freq(4, 1e6), torch.tensor([1.0, 1e-3]))


def test_yarn_of_deepseek_v3():
    """Pairs 0..10 turn more than 32 times within 4096 tokens, pairs from 23 on less than once; a ramp between."""
    plain, extended = inv_freq(64, 10000.0), inv_freq(64, 10000.0, YARN)
    ratio = (extended / plain).tolist()
    assert all(value == pytest.approx(1.0) for value in ratio[:11])
    assert all(value == pytest.approx(1 / 40) for value in ratio[23:])
    for pair in range(10, 24):
        share = (pair - 10) / (23 - 10)
        assert ratio[pair] == pytest.approx(1 - share + share / 40, rel=1e-5)
    turns = [4096 * float(frequency) / (2 * math.pi) for frequency in plain]  # an independent view of the two bounds
    assert turns[10] > 32 > turns[11]
    assert turns[22] > 1 > turns[23]


def test_yarn_with_equal_bounds_is_a_step():
    extended = inv_freq(4, 10000.0, {"factor": 2.0, "original_context": 6.0, "beta_fast": 1.0, "beta_slow": 1.0})
    assert (extended / inv_freq(4, 10000.0)).tolist() == [1.0, 0.5]


def test_mscale():
    assert yarn_mscale(1.0, 1.0) == 1.0
    assert yarn_mscale(0.5, 1.0) == 1.0
    assert yarn_mscale(40.0, 1.0) == pytest.approx(1.3688879454)
    assert yarn_mscale(40.0, 0.5) == pytest.approx(1 + 0.05 * math.log(40))


def test_tables_are_scaled_and_exact_far_out():
    frequencies = inv_freq(8, 10000.0)
    cos, sin = cos_sin(frequencies, 100001, 1.25)
    assert cos.dtype == sin.dtype == torch.float32
    angle = 100000 * float(frequencies[1])
    assert float(cos[-1, 1]) == pytest.approx(1.25 * math.cos(angle), abs=1e-6)
    assert float(sin[-1, 1]) == pytest.approx(1.25 * math.sin(angle), abs=1e-6)
