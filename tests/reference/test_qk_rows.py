"""Claims about the specification of queries and new K/V rows."""

from __future__ import annotations

import torch

from ddbench.reference.qk_rows import cost, make_inputs, qk_rows


def _by_hand(x, norm, inputs):
    """Norm and rotation of [B, N, heads, D] by complex multiplication."""
    if norm is not None:
        x = x / (x.square().mean(-1, keepdim=True) + inputs["eps"]).sqrt() * norm
    half = inputs["cos_rows"].shape[-1]
    turn = torch.complex(inputs["cos_rows"], inputs["sin_rows"])
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * turn
    return torch.cat((turned.real, turned.imag, x[..., 2 * half :]), dim=-1)


def test_equals_norm_and_complex_rotation():
    """With norms and without; where only some dims rotate the rest pass."""
    for size in ("small", "odd"):
        inputs = make_inputs(3, size)
        caches = [inputs["k_cache"].clone(), inputs["v_cache"].clone()]
        q = qk_rows(**inputs)
        torch.testing.assert_close(q, _by_hand(inputs["q"], inputs["q_norm"], inputs))
        assert q.is_contiguous()
        k = _by_hand(inputs["k"], inputs["k_norm"], inputs)
        for b, length in enumerate(inputs["lengths"].tolist()):
            for cache, rows in zip(caches, (k, inputs["v"]), strict=True):
                cache[b, length : length + k.shape[1]] = rows[b]
        torch.testing.assert_close(inputs["k_cache"], caches[0])
        assert torch.equal(inputs["v_cache"], caches[1])


def test_rows_without_a_place_are_skipped():
    inputs = make_inputs(1, "adversarial")
    qk_rows(**inputs)
    for cache in (inputs["k_cache"], inputs["v_cache"]):
        written = ~cache.isnan().flatten(2).any(-1)
        assert written.sum(1).tolist() == [4, 1, 0, 0, 0, 4]


def test_only_rows_with_a_place_cost():
    inputs = make_inputs(1, "adversarial")
    none = inputs | {"lengths": torch.full((6,), -1)}
    assert cost(**none)["flops"] == inputs["q"].numel() // 20 * (4 * 20 + 6 * 6)
    assert cost(**inputs)["bytes"] - cost(**none)["bytes"] == 9 * 2 * 2 * 3 * 20 * 4
