"""Hazards of the commit: what stays of a round, where a stop token or a limit cuts it, and what is never read again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddbench.engine.types import Request

CERTAIN = (100.0,)  # a nudge that makes every draft true: rounds of exactly block_size tokens
PLACES = {0: "first token", 1: "first of a path", 2: "inside a path", 4: "last accepted", 5: "bonus", 6: "second round"}


@pytest.mark.parametrize("arm", ["chain", "chain_via_tree", "ddtree"])
@pytest.mark.parametrize("place", list(PLACES), ids=list(PLACES.values()))
def test_a_stop_token_ends_the_output_wherever_it_falls(gqa, run_watched, greedy, arm, place):
    """H82: output, rounds and accepted counts say the same; the bonus behind the stop is dropped."""
    free = Request(0, (0, 60, 8), 30)
    text = greedy(gqa, free)
    stop = text[place]
    assert text.index(stop) == place
    request = replace(free, stop_token_ids=(stop,))
    beside = replace(free, request_id=1)
    (result, other), seen = run_watched(
        gqa, [request, beside], 2, arm, nudges=CERTAIN, debug=True, wrap=knowing(text, gqa, [request, beside])
    )
    assert result.tokens == text[: place + 1]
    assert result.finish_reason == "stop"
    assert result.num_rounds == -(-place // 5)
    assert other.tokens == text
    own = [one for one in seen if one.request_id == 0]
    assert [one.num_accepted for one in own] == [4] * result.num_rounds  # before the cut
    assert sum(len(one.tokens) for one in own) == place


def knowing(text, models, requests):
    """Let the draft know the whole text, also what a stop token or limit cuts off."""

    def wrap(engine, parts):
        parts.draft._texts = {r.request_id: (*r.prompt, *text) for r in requests}
        return parts

    return wrap


@pytest.mark.parametrize("arm", ["chain", "ddtree"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7, 11])
def test_the_length_limit_cuts_a_path_anywhere(gqa, run_watched, greedy, arm, limit):
    """H21, H82: accepted tokens beyond the limit are dropped, whether the path ends before, at or behind it."""
    text = greedy(gqa, Request(0, (0, 60, 8), 30))
    request = Request(0, (0, 60, 8), limit)
    (result,), seen = run_watched(
        gqa, [request], 1, arm, nudges=CERTAIN, debug=True, wrap=knowing(text, gqa, [request])
    )
    assert result.tokens == text[:limit]
    assert result.finish_reason == "length"
    assert [len(one.tokens) for one in seen] == [min(5, limit - 1 - 5 * i) for i in range(len(seen))]
    assert len(seen) == -(-(limit - 1) // 5)


def test_a_stop_token_at_the_limit_is_a_stop(gqa, run_watched, greedy):
    text = greedy(gqa, Request(0, (0, 60, 8), 30))
    request = Request(0, (0, 60, 8), text.index(text[3]) + 1, stop_token_ids=(text[3],))
    (result,), _ = run_watched(gqa, [request], 1, nudges=CERTAIN)
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_stop_tokens_belong_to_their_request(gqa, run_watched, greedy, concurrency):
    """Neither a neighbour's nor those of the slot's former user: a cut round would show in the number of rounds."""
    free = Request(0, (0, 60, 8), 21)
    text = greedy(gqa, free)
    first = Request(1, (7, 7, 3), 9)
    stops = tuple(sorted(set(text) - set(greedy(gqa, first))))
    first = replace(first, stop_token_ids=stops)
    assert len(stops) > 5
    results, seen = run_watched(gqa, [first, free, replace(first, request_id=2)], concurrency, nudges=CERTAIN)
    assert results[0].tokens == results[2].tokens == greedy(gqa, first)
    assert results[1].tokens == text
    assert [len(one.tokens) for one in seen if one.request_id == 0] == [5, 5, 5, 5]


def test_a_drafted_stop_token_that_is_not_accepted_stops_nothing(pair, make_requests, run_watched, greedy):
    """Trees full of stop tokens: only what the target says counts."""
    requests = make_requests(3)
    spoken = {token for r in requests for token in greedy(pair, r)}
    stops = tuple(sorted(set(range(96)) - spoken))
    assert len(stops) > 30
    requests = [replace(r, stop_token_ids=stops) for r in requests]
    results, seen = run_watched(pair, requests, 2, nudges=(0.0, 2.0))
    assert all(r.finish_reason == "length" for r in results)
    assert any(token in stops for one in seen for _, token in one.nodes)


@torch.inference_mode()
@pytest.mark.parametrize("arm", ["ar", "chain", "ddtree"])
def test_nothing_at_or_beyond_the_anchor_is_read(pair, make_requests, make_engine, started, arm):
    """I1, I3: neither cache holds the anchor; its row and all behind it are scratch. Rows before it do count."""
    requests = make_requests(3)
    engine = make_engine(pair, arm, debug=False)

    def after(change, rows):
        batch = started(engine, requests)
        for _ in range(3):
            engine.step(batch)
        places = torch.arange(batch.num_rows)
        for cache in (*batch.caches.target, *batch.caches.draft):
            for row, length in enumerate(batch.lengths.tolist()):
                cache[:, row, rows(places, length)] += change
        outcomes = [engine.step(batch) for _ in range(2)]
        return [(o.tokens, o.num_accepted, o.expected_length) for o in outcomes]

    untouched = after(0.0, lambda places, length: places < 0)
    assert after(300.0, lambda places, length: places >= length) == untouched
    assert after(300.0, lambda places, length: places == length - 1) != untouched
