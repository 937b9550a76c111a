"""The specification of the commit, by hand and by its invariants."""

import pytest
import torch

from ddbench.reference.commit_kv import commit_kv, cost, make_inputs

SIZES = ["small", "odd", "degenerate", "adversarial"]


def rows_cache(layers=1, batch=1, rows=16):
    """Every row holds its own number: layer * 10000 + request * 100 + row."""
    layer, request, row = torch.arange(layers), torch.arange(batch), torch.arange(rows)
    return (layer[:, None, None] * 10_000 + request[:, None] * 100 + row).unsqueeze(-1).float()  # [Y, B, S, 1]


def test_an_accepted_path_moves_to_the_end_of_the_context():
    """H78: path 0, 3, 7 after five committed rows; the rest, sentinel rows included, stays."""
    cache = rows_cache()
    commit_kv([cache], torch.tensor([5]), torch.tensor([[0, 3, 7, -1]]), torch.tensor([2]))
    assert cache.flatten().tolist() == [0, 1, 2, 3, 4, 5, 8, 12, 8, 9, 10, 11, 12, 13, 14, 15]


def test_overlapping_moves_read_before_they_write():
    """H78: each destination is the next one's source."""
    cache = rows_cache()
    commit_kv([cache], torch.tensor([2]), torch.tensor([[0, 2, 3, 4]]), torch.tensor([3]))
    assert cache.flatten()[:8].tolist() == [0, 1, 2, 4, 5, 6, 6, 7]


def test_path_entries_beyond_the_accepted_count_are_not_read():
    """H68: pads of -1 would otherwise be row lengths - 1."""
    cache = rows_cache()
    commit_kv([cache], torch.tensor([5]), torch.tensor([[0, 4, -1, -1]]), torch.tensor([1]))
    assert cache.flatten().tolist() == [0, 1, 2, 3, 4, 5, 9, 7, 8, 9, 10, 11, 12, 13, 14, 15]


def test_an_identity_path_changes_nothing():
    """H80"""
    cache = rows_cache(2, 2)
    before = cache.clone()
    commit_kv([cache], torch.tensor([3, 8]), torch.tensor([[0, 1, 2], [0, 1, -1]]), torch.tensor([2, 1]))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("size", SIZES)
def test_every_row_comes_from_its_own_layer_and_request(size):
    """H64: rows of one request never reach another; rows outside the window stay."""
    inputs = make_inputs(0, size)
    layers, batch, rows = inputs["caches"][0].shape[:3]
    cache = rows_cache(layers, batch, rows)
    commit_kv([cache], inputs["lengths"], inputs["path"], inputs["num_accepted"])
    for y in range(layers):
        for b in range(batch):
            start, count = int(inputs["lengths"][b]), int(inputs["num_accepted"][b])
            expected = list(range(rows))
            expected[start : start + count + 1] = [start + node for node in inputs["path"][b, : count + 1].tolist()]
            assert cache[y, b, :, 0].tolist() == [y * 10_000 + b * 100 + row for row in expected]


def test_cost_counts_only_rows_that_move():
    cache = torch.zeros(2, 1, 16, 3)
    lengths, path, num_accepted = torch.tensor([5]), torch.tensor([[0, 1, 4, -1]]), torch.tensor([2])
    indices = (1 + 4 + 1) * 8
    assert cost([cache], lengths, path, num_accepted) == {"bytes": 2 * (2 * 3 * 4) + indices, "flops": 0}
