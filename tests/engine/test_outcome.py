"""What the host reads is what the device meant."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.engine import outcome
from ddbench.engine.types import Accepted, DraftTree
from ddbench.errors import DdbenchError


def make(scores):
    accepted = Accepted(
        path=torch.tensor([[0, 1, 2, -1], [0, 2, -1, -1]]),
        num_accepted=torch.tensor([2, 1]),
        tokens=torch.tensor([[163_839, 0, 2**40 + 1, -1], [5, 6, -1, -1]]),
        num_emitted=torch.tensor([3, 1]),
        finished=torch.tensor([False, False]),
    )
    nodes = torch.zeros(2, 4, dtype=torch.int64)
    return DraftTree(nodes, nodes, nodes, torch.tensor(scores), torch.tensor([3, 2])), accepted


def test_every_field_survives_the_packing():
    tree, accepted = make([[0.0, -0.5, -1.0, -2.0], [0.0, -1.0, -1.5, -math.inf]])
    result = outcome.unpack(outcome.pack(tree, accepted).tolist(), (11, 4), 4)
    assert result.request_ids == (11, 4)
    assert result.num_nodes == (3, 2)
    assert result.num_accepted == (2, 1)
    assert result.tokens == ((163_839, 0, 2**40 + 1), (5,))
    assert result.is_identity_path == (True, False)
    assert result.verify_width == 4
    expected = [1 + math.exp(-0.5) + math.exp(-1) + math.exp(-2), 1 + math.exp(-1) + math.exp(-1.5)]
    assert result.expected_length == pytest.approx(expected, rel=1e-6)


def test_a_marked_tree_raises_and_names_the_request():
    """H46."""
    tree, accepted = make([[0.0, -0.5, -1.0, -2.0], [math.nan, -1.0, -1.5, -math.inf]])
    with pytest.raises(DdbenchError, match="request 4: NaN"):
        outcome.unpack(outcome.pack(tree, accepted).tolist(), (11, 4), 4)


def test_a_step_without_a_tree_verifies_nothing():
    one = torch.ones(2, dtype=torch.int64)
    accepted = Accepted(torch.zeros(2, 1, dtype=torch.int64), 0 * one, torch.tensor([[3], [4]]), one, one > 1)
    result = outcome.unpack(outcome.pack(None, accepted).tolist(), (1, 2), 1)
    assert result.tokens == ((3,), (4,))
    assert result.num_nodes == (0, 0)
    assert result.expected_length == (1.0, 1.0)
    assert result.is_identity_path == (True, True)
