"""The end of a round, by hand."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels.advance import advance as advance_torch
from ddbench.reference.advance import advance

INTS = torch.int64


@pytest.mark.parametrize("run", [advance, advance_torch], ids=["reference", "torch"])
def test_a_round_ends_as_computed_by_hand(run):
    """H82: request 0 emits two of its three tokens and is done; request 1 is idle."""
    state = {
        "tokens": torch.tensor([[7, 8, 0, 0, 0, 0], [5, 6, 4, 0, 0, 0]]),
        "lengths": torch.tensor([1, 2]),
        "remaining": torch.tensor([9, 0]),
        "anchors": torch.tensor([8, 4]),
    }
    tree = (torch.tensor([4, 1]), torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
    report, positions = run(
        torch.tensor([[0, 2, 3], [0, -1, -1]]),
        torch.tensor([2, 0]),
        torch.tensor([[11, 12, 13], [21, -1, -1]]),
        torch.tensor([2, 0]),
        torch.tensor([True, True]),
        tree,
        **state,
    )
    assert positions.tolist() == [[1, 2, 3], [2, 3, 4]]
    assert state["tokens"][0, :4].tolist() == [7, 8, 11, 12]
    assert state["tokens"][1, :3].tolist() == [5, 6, 4]
    assert state["lengths"].tolist() == [3, 2]
    assert state["remaining"].tolist() == [0, 0]
    assert state["anchors"].tolist() == [12, 4]
    assert report.tolist() == [[0, 2, 3, 11, 12, 13, 2, 2, 4, 1], [0, -1, -1, 21, -1, -1, 0, 0, 1, 2]]


@pytest.mark.parametrize("run", [advance, advance_torch], ids=["reference", "torch"])
def test_a_step_without_a_tree_reports_itself(run):
    one = torch.ones(1, dtype=INTS)
    state = {"tokens": torch.zeros(1, 4, dtype=INTS), "lengths": one.clone(), "remaining": 5 * one, "anchors": 0 * one}
    report, _ = run(0 * one[:, None], 0 * one, 9 * one[:, None], one, one > 1, None, **state)
    assert report.tolist() == [[0, 9, 0, 1, 0, 1]]
    assert state["anchors"].tolist() == [9]
    assert state["remaining"].tolist() == [4]
