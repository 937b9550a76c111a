"""Projections that become one product, and what happens to their weights meanwhile."""

from __future__ import annotations

import pytest
import torch

from ddbench.models.layers import JoinedProjections, linear

SIZES = (6, 2, 3)


@pytest.fixture
def apart() -> torch.nn.ModuleList:
    torch.manual_seed(0)
    return torch.nn.ModuleList(linear(4, size) for size in SIZES)


def assert_same(joined: JoinedProjections, apart: torch.nn.ModuleList) -> None:
    x = torch.randn(2, 5, 4, dtype=apart[0].weight.dtype)
    for got, one in zip(joined(x), apart, strict=True):
        torch.testing.assert_close(got, one(x))


@torch.no_grad()
def test_joined_products_are_each_projections_own(apart) -> None:
    names, joined = list(apart.state_dict()), JoinedProjections(*apart)
    before = [one.weight.clone() for one in apart]
    places = []
    for wanted in (False, True, True, False, True):
        joined.join(wanted)
        assert_same(joined, apart)
        places.append(apart[0].weight.data_ptr())
    assert len(set(places[1:])) == 1, "a recorded graph finds them where they were"
    assert list(apart.state_dict()) == names, "a checkpoint keeps them apart"
    assert all(torch.equal(one.weight, old) for one, old in zip(apart, before, strict=True))
    assert len({one.weight.untyped_storage().data_ptr() for one in apart}) == 1, "no second copy"


@torch.no_grad()
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_weights_that_are_loaded_later_are_the_ones_used(apart, assign: bool) -> None:
    joined = JoinedProjections(*apart)
    joined.join(True)
    apart.load_state_dict({name: torch.randn_like(old) for name, old in apart.state_dict().items()}, assign=assign)
    joined.join(True)
    assert_same(joined, apart)


@torch.no_grad()
def test_weights_that_are_converted_later_are_the_ones_used(apart) -> None:
    joined = JoinedProjections(*apart)
    joined.join(True)
    apart.to(torch.float64)
    joined.join(True)
    assert_same(joined, apart)
