"""Claims about draft-KV materialize's specification."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.reference.materialize_kv import cost, make_inputs, materialize_kv


def _run(inputs, **changes):
    inputs = inputs | changes
    inputs["k_cache"], inputs["v_cache"] = inputs["k_cache"].clone(), inputs["v_cache"].clone()
    materialize_kv(**inputs)
    return inputs["k_cache"], inputs["v_cache"]


def _norm(values, weight, eps):
    rms = math.sqrt(sum(x * x for x in values) / len(values) + eps)
    return [x / rms * float(w) for x, w in zip(values, weight, strict=True)]


def _dot(row, values):
    return sum(float(a) * b for a, b in zip(row, values, strict=True))


def test_row_equals_scalar_arithmetic():
    """One written row by plain Python: fc, norm, projection; K per head normed then rotated (H11 tail), V untouched."""
    inputs = make_inputs(0, "odd")
    k_cache, v_cache = _run(inputs)
    b, j, layer = 1, 0, 1
    position = int(inputs["positions"][b, j])
    feature = [float(x) for x in inputs["features"][b, j]]
    context = _norm([_dot(row, feature) for row in inputs["fc"]], inputs["hidden_norm"], 1e-6)
    kv = [_dot(row, context) for row in inputs["kv_weights"][layer]]
    heads, dim, half = 3, 10, 3
    for head in range(heads):
        k = _norm(kv[head * dim : (head + 1) * dim], inputs["k_norms"][layer], 1e-6)
        for i in range(half):
            angle = position * 10000.0 ** (-2 * i / (2 * half))
            a, b_ = k[i], k[i + half]
            k[i], k[i + half] = (
                a * math.cos(angle) - b_ * math.sin(angle),
                b_ * math.cos(angle) + a * math.sin(angle),
            )
        assert k_cache[layer, b, position, head].tolist() == pytest.approx(k, abs=1e-4)
        v = kv[(heads + head) * dim : (heads + head + 1) * dim]
        assert v_cache[layer, b, position, head].tolist() == pytest.approx(v, abs=1e-4)


def test_only_rows_that_count_change():
    """H32: with counts 0, some and all, exactly the named cache rows differ from the sentinel, in every layer."""
    inputs = make_inputs(0, "adversarial")
    caches = _run(inputs)
    expected = {
        (b, int(position))
        for b, count in enumerate(inputs["num_rows"].tolist())
        for position in inputs["positions"][b, :count]
    }
    assert inputs["num_rows"].tolist()[:3] == [0, 3, 5]
    for before, after in zip((inputs["k_cache"], inputs["v_cache"]), caches, strict=True):
        for layer in range(before.shape[0]):
            changed = (before[layer] != after[layer]).any(-1).any(-1).nonzero().tolist()
            assert {tuple(row) for row in changed} == expected
        assert after.isfinite().all()


def test_twice_is_once():
    """H34."""
    inputs = make_inputs(2, "small")
    k_cache, v_cache = _run(inputs)
    again = _run(inputs, k_cache=k_cache, v_cache=v_cache)
    assert torch.equal(again[0], k_cache)
    assert torch.equal(again[1], v_cache)


def test_no_rows_no_change():
    """H24."""
    inputs = make_inputs(0, "small")
    empty = _run(
        inputs,
        features=inputs["features"][:, :0],
        positions=inputs["positions"][:, :0],
        num_rows=0 * inputs["num_rows"],
    )
    assert torch.equal(empty[0], inputs["k_cache"])
    assert cost(**inputs | {"num_rows": 0 * inputs["num_rows"]})["flops"] == 0


def test_bounds_and_shapes_are_checked():
    """H26: the first position beyond the table raises. H27: as many positions as rows."""
    inputs = make_inputs(0, "small")
    limit = inputs["k_cache"].shape[2]
    with pytest.raises(IndexError, match=f"position {limit} is beyond"):
        _run(inputs, positions=limit + torch.arange(4).expand(2, -1).flip(1) - 3, num_rows=torch.tensor([4, 4]))
    with pytest.raises(IndexError, match="beyond the last one, 1"):
        _run(inputs, cos=inputs["cos"][:2], positions=2 + 0 * inputs["positions"])
    with pytest.raises(ValueError, match="positions have shape"):
        _run(inputs, positions=inputs["positions"][:, :3])


def test_order_of_rows_and_company_do_not_matter():
    inputs = make_inputs(1, "adversarial")
    inputs["num_rows"] = torch.tensor([5, 5, 5, 5])
    inputs["positions"] = torch.stack(
        [torch.randperm(16, generator=torch.Generator().manual_seed(i))[:5] for i in range(4)]
    )
    inputs["features"] = torch.randn(4, 5, 24, generator=torch.Generator().manual_seed(9))
    k_cache, _ = _run(inputs)
    order = torch.tensor([3, 1, 4, 0, 2])
    shuffled, _ = _run(inputs, positions=inputs["positions"][:, order], features=inputs["features"][:, order])
    torch.testing.assert_close(shuffled, k_cache)
    one = {name: inputs[name][2:3] for name in ("features", "positions", "num_rows")}
    alone, _ = _run(inputs, **one, k_cache=inputs["k_cache"][:, 2:3], v_cache=inputs["v_cache"][:, 2:3])
    torch.testing.assert_close(alone[:, 0], k_cache[:, 2])
