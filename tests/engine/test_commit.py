"""Where accepted rows, tokens and features end up."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine.batch import Batch, Running
from ddbench.engine.commit import commit
from ddbench.engine.types import Accepted, DraftTree, Request
from ddbench.models.kernel_set import TORCH

LENGTHS = (3, 6, 1)
WIDTH = 5  # P
NODES = torch.zeros(3, 13, dtype=torch.int64)  # what only the report reads of a tree
TREE = DraftTree(NODES, NODES, NODES, NODES.float(), NODES[:, 0])


@pytest.fixture
def batch(gqa_models, make_engine) -> Batch:
    """Three requests whose cache rows hold their own row number, plus 1000 per request."""
    engine = make_engine(gqa_models)
    with torch.inference_mode():
        batch = engine.new_batch([Request(0, (1,) * 6, 20)], 3)
        for row, length in enumerate(LENGTHS):
            batch.admit(row, Running(Request(row, (40 + row,) * length, 20), [9]))
        for cache in batch.caches.target:  # [Y, B, S, G, hd]
            rows = torch.arange(cache.shape[2]).float() + 1000.0 * torch.arange(3)[:, None]
            cache.copy_(rows[None, :, :, None, None].expand_as(cache))
        batch.update_bound()
    return batch


def accepted_of(paths: list[list[int]], tokens: list[list[int]], num_emitted: list[int]) -> Accepted:
    def padded(rows):
        return torch.tensor([row + [-1] * (WIDTH - len(row)) for row in rows])

    accepted = torch.tensor([len(path) - 1 for path in paths])
    return Accepted(
        padded(paths), accepted, padded(tokens), torch.tensor(num_emitted), torch.zeros(3, dtype=torch.bool)
    )


@torch.inference_mode()
def test_scattered_rows_tokens_and_features_move_into_path_order(batch):
    """H78, H81: overlapping moves included; features are those of the accepted nodes, not the first ones."""
    accepted = accepted_of([[0, 3, 7], [0], [0, 1, 2, 8, 9]], [[11, 12, 13], [21], [31, 32, 33, 34, 35]], [3, 1, 5])
    features = torch.arange(3 * 13).float().view(3, 13, 1).expand(-1, -1, 4)  # node i of request b: 13 b + i
    before = [cache.clone() for cache in batch.caches.target]
    rows, _ = commit(batch, TREE, accepted, features, moves_rows=True, kernels=TORCH)
    moved = {0: [3, 6, 10], 1: [6], 2: [1, 2, 3, 9, 10]}  # old row of each kept row
    for cache, old in zip(batch.caches.target, before, strict=True):
        for row, (length, kept) in enumerate(zip(LENGTHS, moved.values(), strict=True)):
            assert torch.equal(cache[:, row, :length], old[:, row, :length])
            for place, source in enumerate(kept):
                assert torch.equal(cache[:, row, length + place], old[:, row, source])
    assert batch.lengths.tolist() == [6, 7, 6]
    assert batch.anchors.tolist() == [13, 21, 35]
    assert batch.remaining.tolist() == [16, 18, 14]
    assert batch.tokens[0, :7].tolist() == [40, 40, 40, 9, 11, 12, 13]
    assert batch.tokens[1, :8].tolist() == [41] * 6 + [9, 21]
    assert batch.tokens[2, :7].tolist() == [42, 9, 31, 32, 33, 34, 35]
    assert rows.num_rows.tolist() == [3, 1, 5]
    assert rows.positions.tolist() == [[length + i for i in range(WIDTH)] for length in LENGTHS]
    kept_features = [rows.features[row, :count, 0].tolist() for row, count in enumerate((3, 1, 5))]
    assert kept_features == [[0, 3, 7], [13], [26, 27, 28, 34, 35]]
    assert rows.position_bound >= 6 + WIDTH


@torch.inference_mode()
def test_a_cut_path_keeps_one_row_per_emitted_token(batch):
    """H82: the last emitted token is the anchor and has no row; what was accepted behind the cut is gone."""
    accepted = accepted_of([[0, 3, 7, 8], [0, 2], [0, 1]], [[11, 12, 13, 14], [21, 22], [31, 32]], [2, 1, 2])
    old = batch.caches.target[0].clone()
    rows, _ = commit(batch, TREE, accepted, torch.zeros(3, 13, 4), moves_rows=True, kernels=TORCH)
    assert batch.lengths.tolist() == [5, 7, 3]
    assert batch.anchors.tolist() == [12, 21, 32]
    assert rows.num_rows.tolist() == [2, 1, 2]
    assert torch.equal(batch.caches.target[0][:, 0, 4], old[:, 0, 6])
    assert torch.equal(batch.caches.target[0][:, 0, 5:], old[:, 0, 5:])


@torch.inference_mode()
def test_an_identity_path_moves_nothing_with_or_without_a_move(batch):
    """H80."""
    accepted = accepted_of([[0, 1, 2], [0], [0, 1]], [[11, 12, 13], [21], [31, 32]], [3, 1, 2])
    features = torch.randn(3, WIDTH, 4)
    before = [cache.clone() for cache in batch.caches.target]
    state = [batch.lengths.clone(), batch.anchors.clone(), batch.remaining.clone(), batch.tokens.clone()]
    results = []
    for moves_rows in (True, False):
        rows, _ = commit(batch, TREE, accepted, features, moves_rows, TORCH)
        assert all(torch.equal(a, b) for a, b in zip(batch.caches.target, before, strict=True))
        results.append([batch.lengths.clone(), batch.anchors.clone(), batch.tokens.clone(), rows.positions])
        for row, count in enumerate((3, 1, 2)):
            assert torch.equal(rows.features[row, :count], features[row, :count])
        for tensor, old in zip((batch.lengths, batch.anchors, batch.remaining, batch.tokens), state, strict=True):
            tensor.copy_(old)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
