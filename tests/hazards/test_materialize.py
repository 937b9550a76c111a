"""Hazards of materialize inside the engine: which rows, of whom, when, and what must never reach the draft cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddbench.engine.parts import PARTS
from ddbench.engine.types import Part, Request


class Kept(Part):
    """A materializer that notes which positions of which cache slot it was given."""

    def __init__(self, materialize):
        self._materialize = materialize
        self.calls = []

    def __call__(self, rows, caches):
        counts = rows.num_rows.tolist()
        self.calls.append([p[:n] for p, n in zip(rows.positions.tolist(), counts, strict=True)])
        self._materialize(rows, caches)


@pytest.mark.parametrize("arm", ["chain", "ddtree"])
def test_every_committed_row_is_materialized_once_and_the_anchors_never(pair, make_requests, run_watched, arm):
    """I1, I2, I4: first the prompt's P rows, then the a rows of each round, root included; none for the anchor."""
    request = make_requests(4, new=25)[3]
    kept = []

    def wrap(engine, parts):
        kept.append(Kept(parts.materialize))
        return replace(parts, materialize=kept[0])

    _, seen = run_watched(pair, [request], 1, arm, wrap=wrap)
    prompt, *rounds = [call[0] for call in kept[0].calls]
    assert prompt == list(range(len(request.prompt)))
    assert [len(rows) for rows in rounds] == [len(one.tokens) for one in seen]
    assert len({len(rows) for rows in rounds}) > 2
    for rows, one in zip(rounds, seen, strict=True):
        assert rows == list(range(one.start, one.start + len(one.tokens)))  # the bonus at the end has no row


class SpoilsRejected(Part):
    """Makes NaN of the features of every node that is not kept, before anything else sees them."""

    def __init__(self, sampling, features):
        self._sampling, self._features = sampling, features

    def begin(self, requests):
        self._sampling.begin(requests)

    def choose(self, logits):
        return self._sampling.choose(logits)

    def __call__(self, tree, logits, batch):
        accepted = self._sampling(tree, logits, batch)
        features = self._features.pop()  # [B, N, K*M] of this round's target forward
        nodes = torch.arange(features.shape[1])
        counts = torch.arange(accepted.path.shape[1]) < accepted.num_emitted[:, None]  # [B, P] after any cut
        kept = accepted.path.where(counts, -1)
        keeps = (nodes[None, :, None] == kept[:, None, :]).any(-1)  # [B, N]
        features[~keeps] = torch.nan
        self.num_spoiled = int((~keeps).sum())
        return accepted


@torch.inference_mode()
@pytest.mark.parametrize("name", list(PARTS["materialize"]))
@pytest.mark.parametrize("arm", ["chain", "chain_via_tree", "ddtree"])
def test_features_of_rejected_nodes_never_reach_the_draft_cache(pair, make_requests, run_watched, arm, name):
    """H32, H81: rows that do not count may hold anything, NaN included."""
    requests = make_requests(3)
    features, samplers = [], []

    def wrap(engine, parts):
        samplers.append(SpoilsRejected(parts.sampling, features))
        return replace(parts, sampling=samplers[0])

    def keep(module, args, out):
        if args[0].logit_rows is None:  # a round's forward, not a prefill
            features.append(out.features)

    clean = run_watched(pair, requests, 3, arm, materialize=name)
    handle = pair.target.register_forward_hook(keep)
    try:
        results, seen = run_watched(pair, requests, 3, arm, materialize=name, wrap=wrap)
    finally:
        handle.remove()
    assert samplers[0].num_spoiled > 0
    assert results == clean[0]
    for one, other in zip(seen, clean[1], strict=True):
        assert torch.equal(one.logits, other.logits)


def test_all_materializers_lead_to_the_same_rounds(pair, make_requests, run_watched):
    """H30: not only the same output, but the same trees and accepted lengths, round by round."""
    requests = make_requests(5)
    rounds = {}
    for name in PARTS["materialize"]:
        _, seen = run_watched(pair, requests, 2, materialize=name)
        rounds[name] = [one.history for one in seen]
    first, *others = rounds.values()
    assert others
    assert all(other == first for other in others)


@torch.inference_mode()
@pytest.mark.parametrize("name", list(PARTS["materialize"]))
def test_a_newcomer_leaves_its_neighbours_rows_alone(pair, make_requests, make_engine, started, name):
    """H35, H36: nothing is shared between requests, so that a first draft writes nowhere but in its own row."""
    requests = make_requests(4)
    engine = make_engine(pair, materialize=name, debug=False)
    batch = started(engine, requests[:3])
    engine.step(batch)
    before = [cache.clone() for cache in (*batch.caches.target, *batch.caches.draft)]
    batch.admit(1, engine.prefill(batch, 1, requests[3]))
    engine.materialize_prompts(batch)
    length = len(requests[3].prompt)
    for cache, old in zip((*batch.caches.target, *batch.caches.draft), before, strict=True):
        assert torch.equal(cache[:, [0, 2]], old[:, [0, 2]])
        assert torch.equal(cache[:, 1, length:], old[:, 1, length:])
        assert not torch.equal(cache[:, 1, :length], old[:, 1, :length])


def test_equal_prompts_side_by_side_do_not_share_their_state(pair, run_watched, greedy):
    """H35: the same text three times, with unequal limits and one common prefix of another length."""
    prompt = (7, 3, 95, 0, 12, 7, 3)
    requests = [Request(i, prompt, 6 + 5 * i) for i in range(3)] + [Request(9, prompt[:4], 15)]
    results, seen = run_watched(pair, requests, 3)
    assert [r.tokens for r in results] == [greedy(pair, r) for r in requests]
    assert results[0].tokens == results[1].tokens[:6] == results[2].tokens[:6]
    for request in requests:
        _, alone = run_watched(pair, [request], 1)
        assert [one.history for one in seen if one.request_id == request.request_id] == [one.history for one in alone]
