"""The end of a round in one launch against its specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import advance as reference
from ddbench.testing import copied

kernels = pytest.importorskip("ddbench.kernels.advance_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check_everything_equals_the_reference():
    """H82: tokens, lengths, limits, anchors, positions and report; rows that are idle keep anchor and length."""
    for size in reference.SIZES:
        for seed in range(4):
            inputs = reference.make_inputs(seed, size)
            mine, expected = copied(inputs, DEVICE), copied(inputs)
            report, positions = kernels.advance_triton(**mine)
            right, places = reference.advance(**expected)
            assert torch.equal(positions.cpu(), places)
            assert torch.equal(report[:, :-1].cpu(), right[:, :-1])
            torch.testing.assert_close(report[:, -1].cpu(), right[:, -1], rtol=1e-6, atol=0)
            for name in ("tokens", "lengths", "remaining", "anchors"):
                assert torch.equal(mine[name].cpu(), expected[name]), (size, seed, name)


def check_nan_on_the_root_reaches_the_report():
    inputs = copied(reference.make_inputs(0, "small"), DEVICE)
    inputs["tree"][1][1, 0] = torch.nan
    assert kernels.advance_triton(**inputs)[0][:, -1].isnan().tolist() == [False, True, False]


def check_scores_in_16_bits():
    inputs = reference.make_inputs(0, "small")
    nodes, scores = inputs["tree"]
    narrow = kernels.advance_triton(**copied(inputs | {"tree": (nodes, scores.bfloat16())}, DEVICE))
    wide = kernels.advance_triton(**copied(inputs | {"tree": (nodes, scores.bfloat16().float())}, DEVICE))
    assert torch.equal(narrow[0], wide[0])


CHECKS = [name for name in globals() if name.startswith("check_")]


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


@pytest.mark.parametrize("name", [entry["name"] for entry in kernels.AOT])
def test_compiles_for_hopper_without_spills(name, compiled):
    assert compiled[name]["STACK"] == 0
    assert compiled[name]["LOCAL"] == 0
