"""Batch rows: active requests first, rows that move whole, host and device in step."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine.batch import SMALLEST_BOUND, Batch, Running, context_bounds
from ddbench.engine.types import Request

STATE = ("tokens", "lengths", "anchors", "stop_ids", "remaining", "prompt_lengths", "request_ids")


@pytest.fixture
def batch(gqa_models, make_engine) -> Batch:
    engine = make_engine(gqa_models)
    with torch.inference_mode():
        batch = engine.new_batch([Request(0, (1,) * 6, 20, stop_token_ids=(1, 2))], 4)
        for row in range(4):
            request = Request(row + 50, (40 + row,) * (row + 1), 10 + row, stop_token_ids=(8, 9)[: row % 3])
            batch.admit(row, Running(request, [9]))
            for cache in (*batch.caches.target, *batch.caches.draft):
                cache[:, row] = float(row)
    return batch


def test_admitted_requests_have_their_state_on_the_device(batch):
    assert batch.size == 4
    assert batch.lengths.tolist() == batch.prompt_lengths.tolist() == [1, 2, 3, 4]
    assert batch.anchors.tolist() == [9] * 4
    assert batch.remaining.tolist() == [9, 10, 11, 12]
    assert batch.request_ids.tolist() == [50, 51, 52, 53]
    assert batch.stop_ids.tolist() == [[-1, -1], [8, -1], [8, 9], [-1, -1]]
    assert batch.tokens[2, :4].tolist() == [42, 42, 42, 9]
    batch.update_bound()
    assert batch.context_bound == 4


@torch.inference_mode()
def test_dropping_a_row_moves_the_last_one_into_it(batch):
    last = {name: getattr(batch, name)[3].clone() for name in STATE}
    others = {name: getattr(batch, name)[[0, 2]].clone() for name in STATE}
    batch.drop(1)
    assert batch.size == 3
    assert [running.request.request_id for running in batch.running] == [50, 53, 52]
    for name in STATE:
        assert len(getattr(batch, name)) == 3
        assert torch.equal(getattr(batch, name)[1], last[name])
        assert torch.equal(getattr(batch, name)[[0, 2]], others[name])
    for cache in (*batch.caches.target, *batch.caches.draft):
        assert cache.shape[1] == 3
        assert (cache[:, 1, :4] == 3.0).all()
        assert (cache[:, 0] == 0.0).all()
        assert (cache[:, 2] == 2.0).all()


@torch.inference_mode()
def test_a_reused_row_forgets_the_stop_tokens_of_its_former_request(batch):
    batch.admit(2, Running(Request(60, (5,), 3), [7]))
    assert batch.size == 4
    assert batch.stop_ids[2].tolist() == [-1, -1]
    assert batch.lengths.tolist() == [1, 2, 1, 4]
    assert batch.running[2].request.request_id == 60


@torch.inference_mode()
def test_dropping_every_row_leaves_nothing(batch):
    for row in (3, 1, 0, 0):
        batch.drop(row)
    batch.update_bound()
    assert batch.size == batch.context_bound == len(batch.tokens) == 0


def test_layer_views_and_stacked_views_are_the_same_memory(batch):
    caches = batch.caches
    assert len(caches.layers) == 3
    with torch.inference_mode():
        caches.layers[1][0][2, 5] = 17.0
    assert (caches.target[0][1, 2, 5] == 17.0).all()
    assert [cache.shape for cache in caches.draft] == [(2, 4, batch.num_rows, 2, 16)] * 2


@pytest.mark.parametrize(
    ("tokens", "reason"), [([3], None), ([3, 8], "stop"), ([3, 4, 5], "length"), ([3, 4, 8], "stop")]
)
def test_a_request_ends_at_a_stop_token_or_its_limit(tokens, reason):
    running = Running(Request(1, (1, 2), 3, stop_token_ids=(8,)), tokens)
    assert running.finish_reason == reason
    assert running.length == 1 + len(tokens)


@pytest.mark.parametrize("most", [1, 255, 256, 257, 1024, 1500])
def test_bounds_of_contexts_reach_every_context_and_no_further(most):
    """Beyond the longest context a round's rows would not fit into the caches."""
    bounds = context_bounds(most)
    assert bounds[-1] == most
    assert list(bounds) == sorted(set(bounds))
    for length in range(1, most + 1):
        bound = next(bound for bound in bounds if bound >= length)
        assert bound <= max(2 * length, SMALLEST_BOUND)


@torch.inference_mode()
def test_a_loosened_bound_covers_as_much_and_leaves_room_for_a_round(gqa_models, make_engine):
    engine = make_engine(gqa_models)
    batch = engine.new_batch([Request(0, (1,) * 300, 20)], 1)
    assert batch.most_context + engine.parts.verify_width <= batch.num_rows
    for bound, expected in ((1, SMALLEST_BOUND), (256, 256), (257, 320), (320, 320)):
        batch.context_bound = bound
        batch.loosen_bound()
        assert batch.context_bound == expected
