"""The draft cache holds what the drafter itself would compute from the features of the committed text."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine.parts import PARTS


@torch.inference_mode()
@pytest.mark.parametrize("name", list(PARTS["materialize"]))
def test_draft_cache_rows_are_the_drafters_projections_of_the_texts_features(
    models, make_engine, make_requests, greedy, features_of, name
):
    """H81, H32, I1: after prefill and after rounds that kept scattered rows, for requests of unequal lengths."""
    requests = make_requests(3, new=20)
    truth = {r.request_id: greedy(models, r) for r in requests}
    engine = make_engine(models, materialize=name, draft="oracle", continuations=truth, quality=(0.7,) * 5, debug=False)
    batch = engine.new_batch(requests, 3)
    for row, request in enumerate(requests):
        batch.admit(row, engine.prefill(batch, row, request))
    outcomes = [engine.step(batch) for _ in range(4)]
    assert not all(is_identity for outcome in outcomes for is_identity in outcome.is_identity_path)
    drafter = models.drafter
    for row, length in enumerate(batch.lengths.tolist()):
        context = drafter.context(features_of(models, batch.tokens[row, :length].tolist()))
        rotary_rows = drafter.rotary.rows(torch.arange(length)[None])
        for number, layer in enumerate(drafter.layers):
            k, v = layer.attention.key_value(context, rotary_rows)
            torch.testing.assert_close(batch.caches.draft[0][number, row, :length], k[0], atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(batch.caches.draft[1][number, row, :length], v[0], atol=1e-3, rtol=1e-3)
