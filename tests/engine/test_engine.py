"""Whole runs: every arm and variant gives the target's own output, whoever else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddbench.engine.batch import Batch
from ddbench.engine.engine import Engine
from ddbench.engine.parts import PARTS, SpeculativeParts, build_parts
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import Finished, Request, RoundOutcome
from ddbench.errors import DdbenchError, UnsupportedVariant, UserError
from ddbench.models.weights import random_models
from ddbench.spec import ARMS

QUALITY = (0.75, 0.7, 0.65, 0.6, 0.5)

VARIANTS = [  # arm, changes
    *((arm, {}) for arm in ARMS),
    *(("ddtree", {"materialize": name}) for name in PARTS["materialize"]),
    *(("ddtree", {"tree_build": name}) for name in PARTS["tree_build"]),
    *(("ddtree", {"node_budget": budget}) for budget in (0, 1, 3, 40)),
    *((arm, {"draft": "random"}) for arm in ("chain", "ddtree")),
    *((arm, {"block_size": 3}) for arm in ("prompt_lookup", "chain", "ddtree")),
    ("prompt_lookup", {"tree_build": "heap", "tree_compile": "ancestors", "node_budget": 12}),
    ("prompt_lookup", {"tree_build": "device", "tree_compile": "ancestors", "node_budget": 12}),
]


class Recorder(NullProbe):
    """Keeps what the engine tells."""

    def __init__(self):
        self.events = []
        self.outcomes: list[RoundOutcome] = []
        self.paths = {}

    def admitted(self, request_id):
        self.events.append(("admitted", request_id))

    def first_token(self, request_id, token):
        self.events.append(("first_token", request_id))

    def committed(self, outcome):
        self.outcomes.append(outcome)

    def finished(self, request_id, reason):
        self.events.append(("finished", request_id))

    def path_used(self, part, name):
        self.paths[part] = name


def tokens_of(results: list[Finished]) -> list[tuple[int, ...]]:
    return [result.tokens for result in results]


@pytest.mark.parametrize(("arm", "changes"), VARIANTS, ids=[f"{a}-{c}" for a, c in VARIANTS])
def test_greedy_output_of_every_variant_is_the_targets(models, make_engine, make_requests, greedy, arm, changes):
    """H39, H40 (budgets 0 and 1), H20 (smaller block), H93 (batched); more requests than slots, unequal sizes."""
    requests = make_requests(5)
    results = make_engine(models, arm, **changes).run(requests, 3)
    assert tokens_of(results) == [greedy(models, request) for request in requests]
    assert [r.request_id for r in results] == [r.request_id for r in requests]
    assert all(r.finish_reason == "length" for r in results)


@pytest.mark.parametrize("arm", list(ARMS))
def test_greedy_output_of_every_arm_alone_is_the_targets(models, make_engine, make_requests, greedy, arm):
    requests = make_requests(3)[1:]
    results = make_engine(models, arm).run(requests, 1)
    assert tokens_of(results) == [greedy(models, request) for request in requests]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("changes", [{"tree_build": name} for name in PARTS["tree_build"]], ids=str)
def test_deep_paths_and_wrong_siblings_do_not_change_the_output(
    models, make_engine, make_requests, greedy, changes, concurrency
):
    requests = make_requests(6)
    truth = [greedy(models, request) for request in requests]
    continuations = {r.request_id: t for r, t in zip(requests, truth, strict=True)}
    probe = Recorder()
    engine = make_engine(models, draft="oracle", continuations=continuations, quality=QUALITY, **changes)
    assert tokens_of(engine.run(requests, concurrency, probe)) == truth
    accepted = [n for outcome in probe.outcomes for n in outcome.num_accepted]
    assert {1, 2, 3, 4} <= set(accepted)
    if changes["tree_build"] != "chain":
        assert not all(is_identity for outcome in probe.outcomes for is_identity in outcome.is_identity_path)


@pytest.mark.parametrize("arm", ["chain", "chain_via_tree", "ddtree"])
def test_a_perfect_draft_is_accepted_whole(gqa_models, make_engine, make_requests, greedy, arm):
    """H91: an acceptance length of 1.00 from a good draft would be a broken engine; the converse is a random draft."""
    requests = make_requests(3, new=20)
    continuations = {r.request_id: greedy(gqa_models, r) for r in requests}
    probe = Recorder()
    engine = make_engine(gqa_models, arm, draft="oracle", continuations=continuations, quality=(1.0,) * 4)
    engine.run(requests, 1, probe)
    lengths = [len(tokens) for outcome in probe.outcomes for tokens in outcome.tokens]
    assert lengths == [
        n for r in requests for n in [5] * ((r.max_new_tokens - 1) // 5) + [(r.max_new_tokens - 1) % 5] if n
    ]
    assert all(n >= 4 for outcome in probe.outcomes for n in outcome.num_accepted[:1] if outcome is probe.outcomes[0])


def test_a_draft_that_never_helps_emits_one_token_a_round(gqa_models, make_engine, make_requests):
    """H91, the other side: nearly nothing is accepted and every round still emits the target's token."""
    probe = Recorder()
    make_engine(gqa_models, "chain", draft="random").run(make_requests(4, new=20), 2, probe)
    lengths = [len(tokens) for outcome in probe.outcomes for tokens in outcome.tokens]
    assert 1.0 <= sum(lengths) / len(lengths) < 1.15


@pytest.mark.parametrize("arm", ["ar", "prompt_lookup", "chain", "ddtree"])
def test_stop_tokens_end_the_output_wherever_they_fall(models, make_engine, make_requests, greedy, arm):
    """H82: in the middle of an accepted path, as the bonus token, as the very first token."""
    free = make_requests(6, new=16)
    truth = {r.request_id: greedy(models, r) for r in free}
    requests = [
        replace(r, stop_token_ids=(truth[r.request_id][min(3 * i, len(truth[r.request_id]) - 1)], 95)[: 1 + i % 2])
        for i, r in enumerate(free)
    ]
    oracle = {} if arm in ("ar", "prompt_lookup") else {"draft": "oracle", "continuations": truth, "quality": QUALITY}
    results = make_engine(models, arm, **oracle).run(requests, 3)
    for request, result in zip(requests, results, strict=True):
        assert result.tokens == greedy(models, request)
        assert result.finish_reason == ("stop" if result.tokens[-1] in request.stop_token_ids else "length")
    assert results[0].tokens[-1] in requests[0].stop_token_ids
    assert results[0].num_rounds == 0


@pytest.mark.parametrize("arm", ["ar", "prompt_lookup", "ddtree"])
def test_one_new_token_is_the_prefills(models, make_engine, make_requests, greedy, arm):
    requests = [replace(r, max_new_tokens=1) for r in make_requests(3)]
    probe = Recorder()
    results = make_engine(models, arm).run(requests, 2, probe)
    assert tokens_of(results) == [greedy(models, r) for r in requests]
    assert probe.outcomes == []
    assert {r.num_rounds for r in results} == {0}


def test_output_tokens_equal_to_the_mask_are_kept_and_stop_tokens_may_be_the_mask(make_engine, make_requests, greedy):
    """H16: nothing is detected or filtered by value."""
    base = random_models("tiny-gqa")
    request = make_requests(3, new=16)[2]
    truth = greedy(base, request)
    for mask in (truth[2], truth[5]):
        base.drafter.shape = base.drafter.shape.model_copy(update={"mask_token_id": mask})
        assert make_engine(base, "chain").run([request], 1)[0].tokens == truth
        stopping = replace(request, stop_token_ids=(mask,))
        assert make_engine(base, "ddtree").run([stopping], 1)[0].tokens == greedy(base, stopping)


def test_a_mask_without_an_embedding_row_is_refused(make_engine):
    """H16."""
    base = random_models("tiny-gqa")
    base.drafter.shape = base.drafter.shape.model_copy(update={"mask_token_id": 96})
    with pytest.raises(UnsupportedVariant, match="mask_token_id 96"):
        make_engine(base, "chain")


def test_a_request_does_not_depend_on_its_neighbours(models, make_engine, make_requests):
    """H64, H93: unequal trees in one batch; swapping requests swaps outputs."""
    requests = make_requests(4, new=14)
    changes = {"tree_compile": "ancestors"}
    probe = Recorder()
    forward = make_engine(models, "prompt_lookup", **changes).run(requests, 4, probe)
    backward = make_engine(models, "prompt_lookup", **changes).run(requests[::-1], 4)
    alone = [make_engine(models, "prompt_lookup", **changes).run([r], 1)[0] for r in requests]
    assert forward == backward[::-1] == alone
    assert any(len(set(outcome.num_nodes)) > 1 for outcome in probe.outcomes)


@torch.inference_mode()
def test_host_mirrors_decide_nothing(models, make_engine, make_requests, greedy, monkeypatch):
    """H94: garbage in the host's memory and the loosest possible bound leave every token as it was."""
    requests = [replace(r, max_new_tokens=20) for r in make_requests(4)]
    truth = {r.request_id: list(greedy(models, r)) for r in requests}
    engine = make_engine(models, draft="oracle", continuations=truth, quality=QUALITY, debug=False)
    batch = engine.new_batch(requests, 4)
    loosest = batch.num_rows - 14  # a tree of 13 slots still fits behind it
    monkeypatch.setattr(Batch, "update_bound", lambda self, num_unread=0: setattr(self, "context_bound", loosest))
    got = {}
    for row, request in enumerate(requests):
        running = engine.prefill(batch, row, request)
        got[request.request_id] = list(running.tokens)
        batch.admit(row, running)
    engine.materialize_prompts(batch)
    for running in batch.running:
        running.request = replace(running.request, prompt=(1,), stop_token_ids=(), max_new_tokens=7)
    for _ in range(4):
        outcome = engine.step(batch)
        for running, tokens in zip(batch.running, outcome.tokens, strict=True):
            got[running.request.request_id] += tokens
            running.tokens[:] = [0, 0, 77]
    for request_id, tokens in got.items():
        assert tokens == truth[request_id][: len(tokens)]
        assert len(tokens) >= 5


@pytest.mark.parametrize("sampling", list(PARTS["sampling"]))
def test_runs_repeat_exactly_and_debug_changes_nothing(models, make_engine, make_requests, sampling):
    """H92: for the same shapes the result is the same, token by token, whatever ran before."""
    requests = make_requests(5)
    engine = make_engine(models, sampling=sampling, debug=False)
    first = engine.run(requests, 2)
    assert engine.run(requests, 2) == first
    assert make_engine(models, sampling=sampling).run(requests, 2) == first


def test_seeds_decide_sampled_output(gqa_models, make_engine, make_requests):
    requests = make_requests(3, new=16)
    outputs = [make_engine(gqa_models, sampling="stochastic", seed=seed).run(requests, 3) for seed in (0, 1)]
    assert tokens_of(outputs[0]) != tokens_of(outputs[1])


def test_low_temperature_sampling_is_greedy(models, make_engine, make_requests, greedy):
    requests = make_requests(4)
    engine = make_engine(models, sampling="stochastic", temperature=1e-4)
    assert tokens_of(engine.run(requests, 2)) == [greedy(models, r) for r in requests]


def test_requests_are_served_in_order_with_the_asked_concurrency(gqa_models, make_engine, make_requests):
    requests = make_requests(7)
    probe = Recorder()
    make_engine(gqa_models, "chain").run(requests, 3, probe)
    admitted = [request_id for kind, request_id in probe.events if kind == "admitted"]
    assert admitted == [r.request_id for r in requests]
    in_flight = set()
    for kind, request_id in probe.events:
        if kind == "admitted":
            in_flight.add(request_id)
        if kind == "finished":
            in_flight.remove(request_id)
        assert len(in_flight) <= 3
    assert max(len(outcome.request_ids) for outcome in probe.outcomes) == 3
    assert sorted(r for k, r in probe.events if k == "finished") == admitted
    assert [len(o.request_ids) for o in probe.outcomes][-1] < 3


def test_the_probe_hears_every_token_once(models, make_engine, make_requests):
    requests = make_requests(5)
    probe = Recorder()
    results = make_engine(models).run(requests, 2, probe)
    heard = {r.request_id: 1 for r in requests}  # the prefill's token
    for outcome in probe.outcomes:
        assert outcome.verify_width == 13
        for request_id, tokens, accepted in zip(outcome.request_ids, outcome.tokens, outcome.num_accepted, strict=True):
            heard[request_id] += len(tokens)
            assert len(tokens) <= accepted + 1
    assert heard == {r.request_id: len(r.tokens) for r in results}
    assert probe.paths["tree_build"] == "heap"
    assert probe.paths["materialize"] == "fused"
    assert all(length > 1.0 for outcome in probe.outcomes for length in outcome.expected_length)


def test_unused_parts_have_no_path(gqa_models, make_engine, make_requests):
    probe = Recorder()
    make_engine(gqa_models, "ar").run(make_requests(1), 1, probe)
    assert set(probe.paths) == {"attention", "sampling", "prefill", "executor", "kernels"}


def test_bfloat16_runs_keep_their_invariants(make_engine, make_requests):
    requests = make_requests(4)
    models = random_models("tiny-mla-moe", dtype=torch.bfloat16)
    results = make_engine(models, dtype="bfloat16").run(requests, 2)
    assert [len(r.tokens) for r in results] == [r.max_new_tokens for r in requests]


def test_no_requests_give_no_results(gqa_models, make_engine):
    assert make_engine(gqa_models).run([], 4) == []


@pytest.mark.parametrize(
    ("request_", "concurrency", "message"),
    [
        (Request(1, (1,) * 490, 20), 1, "490 prompt tokens .* more than the context"),
        (Request(1, (), 4), 1, "prompt is empty"),
        (Request(1, (3,), 0), 1, "max_new_tokens is 0"),
        (Request(1, (3, 96), 4), 1, "must be in 0..95"),
        (Request(1, (-1,), 4), 1, "must be in 0..95"),
        (Request(1, (3,), 4), 0, "concurrency is 0"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(gqa_models, make_engine, request_, concurrency, message):
    with pytest.raises(UserError, match=message):
        make_engine(gqa_models).run([request_], concurrency)


def test_repeated_request_ids_are_refused(gqa_models, make_engine, make_requests):
    with pytest.raises(UserError, match="ids repeat"):
        make_engine(gqa_models).run([make_requests(1)[0]] * 2, 2)


def test_the_longest_request_that_fits_runs(gqa_models, make_engine):
    slack = 14  # 13 slots and one
    request = Request(1, tuple(range(90)) * 5, 512 - 450 - slack)
    result = make_engine(gqa_models, draft="random").run([request], 1)[0]
    assert len(result.tokens) == request.max_new_tokens


@pytest.mark.parametrize("tree_build", list(PARTS["tree_build"]))
def test_nan_in_the_draft_is_an_error_and_not_an_empty_tree(make_engine, make_requests, tree_build):
    """H46."""
    models = random_models("tiny-gqa")
    models.drafter.norm.weight.fill_(torch.nan)
    with pytest.raises(DdbenchError, match="NaN"):
        make_engine(models, tree_build=tree_build, debug=False).run(make_requests(2), 2)


def test_parts_can_be_replaced(gqa_models, make_engine, make_requests, greedy):
    """H66: a tree that is dropped emits the root's token only; a full one beside it is not disturbed."""
    requests = make_requests(4, new=12)
    truth = {r.request_id: greedy(gqa_models, r) for r in requests}
    engine = make_engine(gqa_models, draft="oracle", continuations=truth, quality=(1.0,) * 4)
    parts = build_parts(engine.setting)
    assert isinstance(parts, SpeculativeParts)

    class DropsOddRows(type(parts.tree_build)):
        def __call__(self, logits, *launch):
            tree = super().__call__(logits)
            tree.num_nodes[1::2] = 0
            return tree

    dropping = replace(parts, tree_build=DropsOddRows(engine.setting))
    probe = Recorder()
    again = Engine(engine.spec, gqa_models, parts=dropping, debug=True, continuations=truth)
    assert tokens_of(again.run(requests, 4, probe)) == [truth[r.request_id] for r in requests]
    first = probe.outcomes[0]
    assert [len(tokens) for tokens in first.tokens] == [5, 1, 5, 1]
    assert probe.paths["tree_build"] == "DropsOddRows"


@pytest.mark.parametrize("arm", list(ARMS))
def test_features_are_made_for_a_drafter_only(gqa_models, make_engine, make_requests, monkeypatch, arm):
    """An arm without one does not pay for them, prompts included: its steps are what others are compared with."""
    target, widths = gqa_models.target, set()
    forward = target.forward

    def watched(*args, **options):
        out = forward(*args, **options)
        widths.add(out.features.shape[-1])
        return out

    monkeypatch.setattr(target, "forward", watched)
    make_engine(gqa_models, arm).run(make_requests(2, new=4), 2)
    has_drafter = arm not in ("ar", "prompt_lookup")
    assert widths == ({len(target.capture_ids) * target.shape.hidden} if has_drafter else {0})
