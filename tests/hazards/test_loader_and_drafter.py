"""Hazards of the drafter's input and memory (anchor, features, positions, masks): they cost acceptance, never output.

Every draft of whole runs, with scattered paths, several requests and reused batch rows, is held against the drafter's
formulas applied to the committed text alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddbench.harness.workload import build_workload
from ddbench.models.lab_format import load_strict
from ddbench.models.target import Target
from ddbench.models.weights import Models, dequantize_experts
from ddbench.spec import ARMS, WorkloadSpec

NAMES = ("tiny-gqa", "tiny-mla-moe")  # K = 2 features in 2 drafter layers, and in 3: H06


def assert_drafts_follow_from_the_text(models, requests, seen, greedy, features_of, plain_draft, block_size=None):
    texts = {r.request_id: (*r.prompt, *greedy(models, r)) for r in requests}
    features = {request_id: features_of(models, text) for request_id, text in texts.items()}
    for one in seen:
        anchor = texts[one.request_id][one.start]
        expected = plain_draft(models, anchor, features[one.request_id][: one.start], block_size)
        torch.testing.assert_close(one.logits.double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("arm", "concurrency"), [("chain", 1), ("ddtree", 2), ("ddtree", 3)])
def test_every_draft_follows_from_the_committed_text_alone(
    pair, make_requests, run_watched, greedy, features_of, plain_draft, arm, concurrency
):
    """H01, H02, H12, H14, H21, H22, H81, I1, I2: anchor, features by layer and by row, positions, masks, cache."""
    requests = make_requests(5)
    results, seen = run_watched(pair, requests, concurrency, arm)
    assert [r.tokens for r in results] == [greedy(pair, r) for r in requests]
    assert {0, 1, 2} <= {one.num_accepted for one in seen}
    assert len({one.row for one in seen}) == concurrency
    assert_drafts_follow_from_the_text(pair, requests, seen, greedy, features_of, plain_draft)


@pytest.mark.parametrize(
    ("name", "target", "drafter"),
    [
        ("tiny-gqa", {"embedding_scale": 3.0, "logit_softcap": 2.0}, {}),  # H19
        ("tiny-gqa", {}, {"target_layer_ids": (2, 0)}),  # H07: the last layer before the final norm; order of the list
        ("tiny-gqa", {}, {"target_layer_ids": (1,)}),
        ("tiny-gqa", {}, {"is_causal": True}),
        ("tiny-mla-moe", {}, {"is_causal": False}),
        ("tiny-mla-moe", {}, {"sliding_window": 1}),  # the window counts the query itself: it sees no context
        ("tiny-mla-moe", {}, {"sliding_window": 2}),
        ("tiny-mla-moe", {}, {"mask_token_id": 0}),
    ],
    ids=str,
)
def test_drafts_follow_from_the_text_for_every_kind_of_drafter(
    make_pair, make_requests, run_watched, greedy, features_of, plain_draft, name, target, drafter
):
    """H06, H07, H12, H19: what a drafter's configuration may say reaches its drafts."""
    models = make_pair(name, target=target, drafter=drafter)
    requests = make_requests(3)
    results, seen = run_watched(models, requests, 2)
    assert [r.tokens for r in results] == [greedy(models, r) for r in requests]
    assert_drafts_follow_from_the_text(models, requests, seen, greedy, features_of, plain_draft)


@pytest.mark.parametrize("block_size", [2, 4])
def test_a_smaller_block_is_drafted_as_a_smaller_block(
    gqa, make_requests, run_watched, greedy, features_of, plain_draft, block_size
):
    """H20: fewer mask tokens change the predictions themselves; they are not the first rows of the full block's."""
    requests = make_requests(3)
    _, seen = run_watched(gqa, requests, 2, block_size=block_size)
    assert_drafts_follow_from_the_text(gqa, requests, seen, greedy, features_of, plain_draft, block_size)
    one = seen[-1]
    request = next(r for r in requests if r.request_id == one.request_id)
    text = (*request.prompt, *greedy(gqa, request))
    full = plain_draft(gqa, text[one.start], features_of(gqa, text)[: one.start])
    assert (one.logits - full[: block_size - 1]).abs().max() > 0.05


def test_the_last_block_is_as_full_as_the_first(pair, make_requests, run_watched, greedy, features_of, plain_draft):
    """H21: one token is left, the budget is smaller than the block, and row 0 is still about the token after s."""
    requests = [replace(r, max_new_tokens=2 + i) for i, r in enumerate(make_requests(3))]
    _, seen = run_watched(pair, requests, 3, node_budget=1)
    assert {one.logits.shape[0] for one in seen} == {pair.drafter.shape.block_size - 1}
    ends = {r.request_id: len(r.prompt) + r.max_new_tokens for r in requests}
    assert any(one.start + 2 == ends[one.request_id] for one in seen)  # one token left
    assert_drafts_follow_from_the_text(pair, requests, seen, greedy, features_of, plain_draft)


def test_a_draft_does_not_depend_on_how_its_context_was_accepted(pair, make_requests, run_watched):
    """The draft cache after tree rounds is that after chain rounds; only the gathered rows differ on the way."""
    requests = make_requests(4)
    drafts = {}
    for arm in ("chain", "chain_via_tree", "ddtree"):
        _, seen = run_watched(pair, requests, 2, arm)
        drafts[arm] = {(one.request_id, one.start): one.logits for one in seen}
    assert set(drafts["ddtree"]) != set(drafts["chain"])
    for arm in ("chain_via_tree", "ddtree"):
        common = set(drafts["chain"]) & set(drafts[arm])
        assert len(common) > 2 * len(requests)
        for key in common:
            torch.testing.assert_close(drafts[arm][key], drafts["chain"][key], atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------- the trained pair


@pytest.fixture(scope="module")
def prompts(nano):
    """Held-out prompts, short ones: the beginning of each."""
    spec = WorkloadSpec(num_requests=6, max_new_tokens=26, ignore_stop=True)
    workload = build_workload(spec, nano.target.shape, nano.folder, 0)
    return [replace(request, prompt=request.prompt[:40]) for request in workload.measured]


@pytest.fixture(scope="module")
def hit_rate(nano, prompts, make_engine, features_of, plain_draft):
    """`hit_rate(shift, anchor)`: how often slot 1's first choice is the token `shift` places from its own position."""
    outputs = make_engine(nano, "ar", debug=False).run(prompts, 8)
    texts = [(*request.prompt, *result.tokens) for request, result in zip(prompts, outputs, strict=True)]
    features = [features_of(nano, text) for text in texts]

    def measure(shift=0, anchor=None):
        hits = []
        for text, rows in zip(texts, features, strict=True):
            for start in range(40, len(text) - 2, 5):
                logits = plain_draft(nano, text[start] if anchor is None else anchor, rows[:start])
                hits.append(int(logits[0].argmax()) == text[start + 1 + shift])
        return sum(hits) / len(hits)

    return measure


def test_the_trained_drafter_fills_its_own_positions(hit_rate):
    """Row j is about the token at s + 1 + j: no next-token shift, neither way."""
    assert hit_rate() > 0.4
    for shift in (-1, 1):
        assert hit_rate(shift) < hit_rate() / 2


def test_a_block_of_masks_alone_costs_the_trained_drafter_its_hits(nano, hit_rate):
    """H01: slot 0 without the anchor is what a collapse of tau looks like."""
    assert hit_rate(anchor=nano.drafter.shape.mask_token_id) < 0.6 * hit_rate()


def tau(models, prompts, run_watched):
    _, seen = run_watched(models, prompts, 8, "chain", nudges=())
    return sum(len(one.tokens) for one in seen) / len(seen)


def test_the_shipped_layer_ids_are_those_of_the_training(nano, prompts, run_watched):
    """H02, H03: features one layer off load without complaint and cost acceptance."""
    ids = nano.drafter.shape.target_layer_ids
    lengths = {}
    for shift in (-1, 0, 1):
        target = Target(nano.target.shape, tuple(i + shift for i in ids))
        load_strict(target, nano.folder / "target.safetensors")
        target.requires_grad_(False).eval()
        dequantize_experts(target, torch.float32)
        lengths[shift] = tau(Models(target, nano.drafter, nano.facts, nano.folder), prompts, run_watched)
    assert max(lengths[-1], lengths[1]) < 0.95 * lengths[0]


def test_prompts_may_hold_the_mask_and_the_end_token(nano, make_engine, prompts):
    """H16: both are ordinary data in a prompt; an end token that is generated ends the text, a drafted one does not."""
    mask, end = nano.drafter.shape.mask_token_id, nano.target.shape.stop_token_ids[0]
    assert (end, mask) == (0, 1)
    texts = [(end, *p.prompt[:15], mask, *p.prompt[15:20], end, mask) for p in prompts[:2]]
    requests = [replace(p, prompt=t, max_new_tokens=10) for p, t in zip(prompts, texts, strict=False)]
    requests += [replace(r, request_id=r.request_id + 50, stop_token_ids=(end, mask)) for r in requests]
    alone = [make_engine(nano, "ar").run([r], 1)[0].tokens for r in requests]
    for arm in ARMS:
        assert [r.tokens for r in make_engine(nano, arm).run(requests, 4)] == alone
    assert all(len(tokens) == 10 for tokens in alone[:2])
