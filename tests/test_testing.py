"""Claims about the error budget that kernels are judged by."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.testing import (
    assert_within_budget,
    copied,
    error_budget,
    named_tensors,
    poison,
    relative_error,
    to_float64,
)

NAN, INF = float("nan"), float("inf")


def test_error_is_relative_to_the_largest_value():
    assert relative_error(torch.tensor([1.0, 102.0]), torch.tensor([0.0, 100.0])) == pytest.approx(0.02)
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
    assert relative_error(torch.empty(0), torch.empty(0)) == 0.0


def test_non_finite_values_must_stand_in_the_same_places():
    ref = torch.tensor([NAN, INF, -INF, 2.0])
    assert relative_error(ref.clone(), ref) == 0.0
    assert relative_error(torch.tensor([NAN, INF, -INF, 3.0]), ref) == 0.5
    for place in range(4):
        broken = ref.clone()
        broken[place] = 0.0 if place < 3 else NAN
        assert math.isinf(relative_error(broken, ref))


def test_shapes_are_never_broadcast():
    with pytest.raises(ValueError, match=r"got shape \(1,\), expected \(3,\)"):
        relative_error(torch.zeros(1), torch.zeros(3))


def test_budget_is_twice_the_low_precision_error():
    exact = torch.tensor([1.0, 1.0], dtype=torch.float64)
    low = torch.tensor([1.0, 1.01])
    assert error_budget(low, exact) == pytest.approx(0.02)
    assert error_budget(low, exact, factor=4) == pytest.approx(0.04)
    assert_within_budget(torch.tensor([0.981, 1.0]), low, exact)
    with pytest.raises(AssertionError, match=r"exceeds the budget 0\.02"):
        assert_within_budget(torch.tensor([0.979, 1.0]), low, exact)
    with pytest.raises(AssertionError, match=r"got torch\.float64"):
        assert_within_budget(exact, low, exact)


def test_copies_are_deep_and_keep_structure():
    value = {"a": [torch.ones(2), torch.ones(1, dtype=torch.int64)], "n": 3, "t": (torch.zeros(1).bfloat16(),)}
    wide, twin = to_float64(value), copied(value)
    poison(twin["a"][0])
    assert value["a"][0].tolist() == [1.0, 1.0]
    assert wide["a"][0].dtype == wide["t"][0].dtype == torch.float64
    assert wide["a"][1].dtype == torch.int64
    assert list(named_tensors(value, "v")) == ["v.a[0]", "v.a[1]", "v.t[0]"]
