"""What is proposed, and on what grounds."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from ddbench.engine.batch import Running
from ddbench.engine.profiles import recorded_quality
from ddbench.engine.types import Request
from ddbench.errors import UserError
from ddbench.models.weights import random_models


@pytest.fixture
def drafter_calls():
    """The list that receives the arguments of every drafter forward from now on."""
    handles = []

    def watch(models):
        calls = []

        def hook(module, args):
            calls.append((args[0].clone(), args[1].clone()))

        handles.append(models.drafter.register_forward_pre_hook(hook))
        return calls

    yield watch
    for handle in handles:
        handle.remove()


def test_every_block_is_the_anchor_and_masks_up_to_the_last_token(models, make_engine, make_requests, drafter_calls):
    """H01, H21, I5: slot 0 is the anchor, all else MASK, and the block is full however little is left to generate."""
    requests = make_requests(3)
    calls = drafter_calls(models)
    results = make_engine(models, node_budget=2).run(requests, 1)
    shape = models.drafter.shape
    texts = [(*request.prompt, *result.tokens) for request, result in zip(requests, results, strict=True)]
    call = iter(calls)
    for text, request, result in zip(texts, requests, results, strict=True):
        for number in range(result.num_rounds):
            block, lengths = next(call)
            assert block.shape == (1, shape.block_size)
            assert int(block[0, 0]) == text[int(lengths[0])]
            assert (block[0, 1:] == shape.mask_token_id).all()
            if number == 0:
                assert int(lengths[0]) == len(request.prompt)
    assert next(call, None) is None


@pytest.mark.parametrize("draft", ["dflash", "random", "oracle"])
def test_a_smaller_block_drafts_fewer_positions(models, make_engine, make_requests, greedy, drafter_calls, draft):
    """H20."""
    request = make_requests(2)[1]
    truth = {request.request_id: greedy(models, request)}
    calls = drafter_calls(models)
    engine = make_engine(models, draft=draft, block_size=3, continuations=truth, quality=(0.5, 0.5))
    assert engine.run([request], 1)[0].tokens == truth[request.request_id]
    assert {block.shape for block, _ in calls} == {(1, 3)}


@torch.inference_mode()
def test_drafting_leaves_the_draft_cache_as_it_was(models, make_engine, make_requests):
    """H22: rows below the anchor are not touched, and a second call gives the same bits."""
    engine = make_engine(models, debug=False)
    requests = make_requests(3)
    batch = engine.new_batch(requests, 3)
    for row, request in enumerate(requests):
        batch.admit(row, engine.prefill(batch, row, request))
    engine.materialize_prompts(batch)
    batch.update_bound()
    before = [cache.clone() for cache in batch.caches.draft]
    first, second = engine.parts.draft(batch), engine.parts.draft(batch)
    assert torch.equal(first, second)
    for cache, old in zip(batch.caches.draft, before, strict=True):
        for row, length in enumerate(batch.lengths.tolist()):
            assert torch.equal(cache[:, row, :length], old[:, row, :length])
            assert not torch.equal(cache[:, row, length : length + 3], old[:, row, length : length + 3])


@torch.inference_mode()
def test_block_slots_see_later_slots_where_attention_is_bidirectional():
    """H14: perturbing the last slot changes what the first one predicts; with causal blocks it does not."""
    models = random_models("tiny-gqa")
    logits = {}
    for is_causal in (None, True):  # None: full-attention layers are bidirectional
        models.drafter.shape = models.drafter.shape.model_copy(update={"is_causal": is_causal})
        for last in (95, 3):
            caches = [torch.zeros(2, 1, 16, 2, 16) for _ in range(2)]
            block = torch.tensor([[7, 95, 95, 95, last]])
            logits[is_causal, last] = models.drafter(block, torch.tensor([4]), *caches, 4, models.target)[0, 0]
    assert not torch.equal(logits[None, 95], logits[None, 3])
    assert torch.equal(logits[True, 95], logits[True, 3])


def test_random_drafts_differ_from_round_to_round_and_repeat_from_run_to_run(gqa_models, make_engine, make_requests):
    engine = make_engine(gqa_models, draft="random")
    requests = make_requests(2)
    batch = engine.new_batch(requests, 1)
    with torch.inference_mode():
        batch.admit(0, engine.prefill(batch, 0, requests[0]))
        engine.materialize_prompts(batch)
        batch.update_bound()
        first, second = engine.parts.draft(batch), engine.parts.draft(batch)
        engine.parts.draft.begin(())
        again = engine.parts.draft(batch)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert abs(float(first.mean())) < 0.2


# ------------------------------------------------------------------------------------------------- prompt lookup


def looked_up(tokens: list[int], horizon: int) -> list[int]:
    """The specification: what followed the latest 3-, 2- or 1-gram where it last occurred before."""
    last = len(tokens) - 1
    for size in (3, 2, 1):
        gram = tokens[last - size + 1 :]
        if len(gram) < size or last - size + 1 < 0:
            continue
        for end in range(last - 1, size - 2, -1):
            if tokens[end - size + 1 : end + 1] == gram:
                return tokens[end + 1 : end + 1 + horizon]
    return []


@torch.inference_mode()
def test_prompt_lookup_finds_the_latest_of_the_longest_matches(gqa_models, make_engine):
    engine = make_engine(gqa_models, "prompt_lookup", block_size=5)
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(4, (int(n),), generator=generator).tolist() for n in torch.arange(2, 42)]
    texts += [[1, 2, 3, 9, 1, 2, 3, 8, 5, 1, 2, 3], [4, 4, 4, 4], [1, 2, 3, 4], [7, 7], [1, 5, 1, 6, 1]]
    batch = engine.new_batch([Request(0, tuple(range(45)), 2)], len(texts))
    for row, text in enumerate(texts):
        batch.admit(row, Running(Request(row, tuple(text[:-1]), 2), text[-1:]))
        batch.tokens[row, len(text) :] = torch.randint(-1, 4, (batch.num_rows - len(text),), generator=generator)
    batch.update_bound()
    logits = engine.parts.draft(batch)
    assert logits.shape == (len(texts), 4, 96)
    num_empty = 0
    for row, text in enumerate(texts):
        proposal = looked_up(text, 4)
        for place in range(4):
            candidates = (logits[row, place] > -torch.inf).nonzero().flatten().tolist()
            assert candidates == proposal[place : place + 1], text
            assert all(float(logits[row, place, token]) == 0.0 for token in candidates)
        num_empty += not proposal
    assert 0 < num_empty < len(texts) // 2


def test_a_text_that_repeats_itself_is_looked_up_whole(make_engine):
    """A copying target is not at hand; a constant one is: every token equals the last, so all proposals are right."""
    models = random_models("tiny-gqa")
    models.target.lm_head.weight.zero_()  # equal logits everywhere: the lowest id wins
    result = make_engine(models, "prompt_lookup", block_size=4).run([Request(0, (5, 0, 0, 0, 0, 0, 0, 0), 17)], 1)[0]
    assert result.tokens == (0,) * 17
    # The latest match ends one token before the anchor and is followed by the anchor alone: two tokens a round.
    assert result.num_rounds == 8


# -------------------------------------------------------------------------------------------------------- oracle


@torch.inference_mode()
def oracle_logits(engine, request, truth, places):
    batch = engine.new_batch([request], 1)
    batch.admit(0, engine.prefill(batch, 0, request))
    engine.materialize_prompts(batch)
    rows = []
    for place in places:
        batch.lengths.fill_(len(request.prompt) + place)
        batch.context_bound = int(batch.lengths.max())
        rows.append(engine.parts.draft(batch)[0])
    return torch.stack(rows)  # [places, L, V]


def test_the_oracle_is_calibrated_around_the_true_continuation(gqa_models, make_engine):
    """How often a rank is right equals the probability the draft gives to it, depth by depth."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(96, (400,), generator=generator).tolist()
    quality = (0.8, 0.5, 0.3, 0.1)
    request = Request(4, (1, 2), 400)
    engine = make_engine(gqa_models, draft="oracle", continuations={4: truth, 9: truth[::-1]}, quality=quality)
    logits = oracle_logits(engine, request, truth, range(395))
    ranked = logits.sort(dim=-1, descending=True)
    assert torch.allclose(ranked.values.exp().sum(-1), torch.ones(395, 4), atol=1e-3)
    for depth in range(4):
        expected = torch.tensor([truth[place + 1 + depth] for place in range(395)])
        given = logits[torch.arange(395), depth, expected].exp()
        assert (given > 0).all()  # the truth is always a candidate
        best = ranked.values[:, depth, 0].exp()
        hit = (ranked.indices[:, depth, 0] == expected).double()
        assert abs(float(hit.mean() - best.double().mean())) < 4 * 0.5 / 395**0.5
    top_hit = [sum(int(logits[p, d].argmax()) == truth[p + 1 + d] for p in range(395)) / 395 for d in range(3)]
    assert top_hit[0] > top_hit[1] > top_hit[2]


def test_oracle_logits_depend_on_seed_request_and_position_only(gqa_models, make_engine):
    truth = list(range(50))
    request = Request(4, (1, 2), 70)  # room for a place past the end of what the oracle knows

    def draw(continuations, seed=0):
        engine = make_engine(gqa_models, draft="oracle", continuations=continuations, quality=(0.5,) * 4, seed=seed)
        return oracle_logits(engine, request, truth, (0, 7, 0, 49, 60))

    alone = draw({4: truth})
    assert torch.equal(alone[0], alone[2])
    assert not torch.equal(alone[0], alone[1])
    assert torch.equal(draw({2: truth[::-1], 4: truth, 8: truth})[:3], alone[:3])
    assert not torch.equal(draw({4: truth}, seed=1)[0], alone[0])
    assert torch.isfinite(alone.logsumexp(-1)).all()  # past the end of what is known, too


def test_an_oracle_without_quality_replays_the_profile(gqa_models, make_engine):
    """The same draft as with the profile's numbers given, and another with another profile."""
    truth, request = list(range(50)), Request(4, (1, 2), 40)

    def draw(quality=(), **changes):
        engine = make_engine(gqa_models, draft="oracle", continuations={4: truth}, quality=quality, **changes)
        return oracle_logits(engine, request, truth, (0, 7))

    assert torch.equal(draw(), draw(recorded_quality("nano-k2", 4)))
    docs = draw(oracle_profile="nano-k2-docs")
    assert torch.equal(docs, draw(recorded_quality("nano-k2-docs", 4)))
    assert not torch.equal(docs, draw())


@pytest.mark.parametrize(
    ("continuations", "quality", "message"),
    [
        (None, (0.5,) * 4, "continuation of every request"),
        ({1: [1, 2]}, (0.5,) * 3, "give 4 values"),
        ({1: [1, 2]}, (0.5, 0.5, 0.5, 1.5), "less than or equal to 1"),
    ],
)
def test_an_oracle_needs_truth_and_quality(gqa_models, make_engine, continuations, quality, message):
    with pytest.raises((UserError, ValidationError), match=message):
        make_engine(gqa_models, draft="oracle", continuations=continuations, quality=quality)


def test_an_oracle_refuses_requests_it_knows_nothing_of(gqa_models, make_engine, make_requests):
    engine = make_engine(gqa_models, draft="oracle", continuations={1: [1, 2]}, quality=(0.5,) * 4)
    with pytest.raises(UserError, match="request 10"):
        engine.run(make_requests(1), 1)
