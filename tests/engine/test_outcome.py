"""What the host reads is what the device meant."""

from __future__ import annotations

import math

import pytest
import torch

from ddbench.engine import outcome
from ddbench.engine.types import Accepted, DraftTree
from ddbench.errors import DdbenchError
from ddbench.kernels.advance import advance


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


def report_of(tree, accepted) -> list[list[float]]:
    """As the end of a round packs it."""
    size, width = accepted.path.shape
    state = [torch.zeros(size, dtype=torch.int64) for _ in range(3)]
    report, _ = advance(
        accepted.path,
        accepted.num_accepted,
        accepted.tokens,
        accepted.num_emitted,
        accepted.finished,
        None if tree is None else (tree.num_nodes, tree.scores),
        torch.zeros(size, width + 1, dtype=torch.int64),
        *state,
    )
    return report.tolist()


def test_every_field_survives_the_packing():
    tree, accepted = make([[0.0, -0.5, -1.0, -2.0], [0.0, -1.0, -1.5, -math.inf]])
    result = outcome.unpack(report_of(tree, accepted), (11, 4), 4)
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
        outcome.unpack(report_of(tree, accepted), (11, 4), 4)


def test_a_step_without_a_tree_verifies_nothing():
    one = torch.ones(2, dtype=torch.int64)
    accepted = Accepted(torch.zeros(2, 1, dtype=torch.int64), 0 * one, torch.tensor([[3], [4]]), one, one > 1)
    result = outcome.unpack(report_of(None, accepted), (1, 2), 1)
    assert result.tokens == ((3,), (4,))
    assert result.num_nodes == (0, 0)
    assert result.expected_length == (1.0, 1.0)
    assert result.is_identity_path == (True, True)
