"""Hazards of verification and the walk: what the target sees of a tree, and which of its choices are emitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ddbench.engine.distribution_check import tiny_vocabulary_models
from ddbench.engine.draft import DFlashDraft
from ddbench.engine.engine import Engine, setting_of
from ddbench.engine.parts import PARTS, build_parts
from ddbench.engine.types import Request
from ddbench.spec import EngineSpec


def follow(nodes, text):
    """How far a text leads down a tree of (parent, token) nodes: the accepted node indices, root first."""
    path = [0]
    for token in text:
        below = [i for i, (parent, its) in enumerate(nodes, start=1) if parent == path[-1] and its == token]
        if not below:
            break
        path.append(below[0])
    return path


@pytest.mark.parametrize(("arm", "tree_build"), [("chain", "chain"), ("ddtree", "heap"), ("ddtree", "device")])
def test_a_round_accepts_as_far_as_the_targets_text_leads(pair, make_requests, run_watched, greedy, arm, tree_build):
    """H59, H67: accepted = the deepest prefix of the true continuation in the tree; emitted = that and one more."""
    requests = make_requests(5)
    _, seen = run_watched(pair, requests, 3, arm, tree_build=tree_build)
    texts = {r.request_id: (*r.prompt, *greedy(pair, r)) for r in requests}
    paths = []
    for one in seen:
        rest = texts[one.request_id][one.start + 1 :]
        path = follow(one.nodes, rest)
        assert one.tokens == rest[: len(path)]
        is_last = len(rest) <= len(path)  # beyond the limit the text is unknown: more may be accepted and cut
        assert one.num_accepted == len(path) - 1 or (is_last and one.num_accepted >= len(path) - 1)
        paths.append(path)
    assert any(len(path) > 2 for path in paths)
    assert any(path != list(range(len(path))) for path in paths) == (arm == "ddtree")


@pytest.mark.parametrize("sampling", list(PARTS["sampling"]))
def test_a_tree_of_everything_accepts_whatever_the_target_says(sampling):
    """H42, H67: budget beyond all reachable nodes; greedy or sampled, every round goes to a leaf."""
    models = tiny_vocabulary_models()
    vocab, horizon = models.target.shape.vocab, 2
    budget = vocab + vocab**2 + 9
    spec = EngineSpec(target="tiny-gqa", sampling=sampling, block_size=horizon + 1, node_budget=budget)
    results = Engine(spec, models, debug=True).run([Request(i, (1, 4, i), 1 + 3 * 6) for i in range(3)], 2)
    assert [(len(r.tokens), r.num_rounds) for r in results] == [(19, 6)] * 3


@torch.inference_mode()
def test_trees_do_not_depend_on_what_the_target_draws(gqa, make_requests, started):
    """The condition under which walking along the draws is exact: the same state drafts the same tree, any seed."""
    requests = make_requests(3)
    reports, trees = [], []
    for seed in (0, 1, 2):
        spec = EngineSpec(target="tiny-gqa", sampling="stochastic", seed=seed, node_budget=12)
        engine = Engine(spec, gqa)
        batch = started(engine, requests)
        batch.anchors.copy_(torch.tensor([5, 6, 7]))  # prefill drew the first tokens: set them equal
        trees.append(engine.parts.tree_build(engine.parts.draft(batch)))
        inputs = engine.parts.tree_compile(trees[-1], batch)
        out = gqa.target(inputs, batch.caches.layers, engine.parts.attention)
        reports.append(engine.parts.sampling(trees[-1], out.logits, batch).tokens)
    assert all(torch.equal(tree.tokens, trees[0].tokens) for tree in trees)
    assert all(torch.equal(tree.parents, trees[0].parents) for tree in trees)
    assert not all(torch.equal(report, reports[0]) for report in reports)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 10.0])
def test_impossible_tokens_are_never_drawn(gqa, temperature):
    """A masked-out vocabulary stays masked out at any temperature, token 0 included."""
    spec = EngineSpec(target="tiny-gqa", sampling="stochastic", temperature=temperature)
    sampler = PARTS["sampling"]["stochastic"](setting_of(spec, gqa))
    logits = torch.full((200, 20, 96), -torch.inf)
    logits[..., 40:44] = torch.tensor([0.0, -5.0, 3.0, -80.0])
    drawn = sampler.choose(logits)
    assert 40 <= int(drawn.min()) <= int(drawn.max()) <= 43


class OnlyToken0(DFlashDraft):
    """Proposes token 0 alone, everywhere: far fewer nodes than slots."""

    def __call__(self, batch):
        logits = super().__call__(batch).fill_(-torch.inf)
        logits[..., 0] = 0.0
        return logits


@pytest.mark.parametrize("tree_build", list(PARTS["tree_build"]))
def test_token_0_is_emitted_accepted_and_verified_like_any_other(make_pair, tree_build):
    """A target that says nothing but token 0: unused slots, whose input id is 0 too, must not count as nodes."""
    models = make_pair(target={"name": "says-0"})
    models.target.lm_head.weight.zero_()  # equal logits: the lowest id
    spec = EngineSpec(target="tiny-gqa", tree_build=tree_build, node_budget=12)
    setting = setting_of(spec, models)
    parts = replace(build_parts(setting), draft=OnlyToken0(setting))
    result = Engine(spec, models, parts=parts, debug=True).run([Request(0, (0, 0), 1 + 5 * 4)], 1)[0]
    assert result.tokens == (0,) * 21
    assert result.num_rounds == 4  # four drafted and one bonus each
    stopping = Engine(spec, models, parts=parts, debug=True).run([Request(0, (0, 3), 9, stop_token_ids=(0,))], 1)[0]
    assert (stopping.tokens, stopping.num_rounds, stopping.finish_reason) == ((0,), 0, "stop")


@torch.inference_mode()
@pytest.mark.parametrize("budgets", [(12, 1, 7, 0, 12, 3), (1, 12, 0, 5)], ids=str)
def test_budgets_may_change_from_round_to_round(pair, make_requests, make_engine, started, greedy, budgets):
    """H58: rows that a larger tree left behind are never seen by a smaller one after it, nor the reverse."""
    requests = make_requests(3, new=60)
    engine = make_engine(pair, debug=False)
    batch = started(engine, requests)
    build = engine.parts.tree_build
    for budget in budgets * 3:
        build._node_budget, build.num_slots = budget, budget + 1
        engine.step(batch)
    for running in batch.running:
        assert tuple(running.tokens) == greedy(pair, running.request)[: len(running.tokens)]
        assert len(running.tokens) > len(budgets) * 3


@torch.inference_mode()
@pytest.mark.parametrize("arm", ["chain_via_tree", "ddtree"])
def test_changing_a_node_changes_what_is_below_it_and_nothing_else(pair, make_requests, make_engine, started, arm):
    """H59, H61, H64: another token at one node of one request reaches its descendants' logits only."""
    requests = make_requests(3)
    engine = make_engine(pair, arm, debug=False)
    batch = started(engine, requests)
    tree = engine.parts.tree_build(engine.parts.draft(batch))
    inputs = engine.parts.tree_compile(tree, batch)

    def logits():
        return pair.target(inputs, batch.caches.layers, engine.parts.attention).logits

    before, parents = logits(), tree.parents[1].tolist()
    for node in range(1, int(tree.num_nodes[1]) + 1, 3):
        changed = {node}
        for later in range(node + 1, int(tree.num_nodes[1]) + 1):
            if parents[later] in changed:
                changed.add(later)
        old = int(inputs.input_ids[1, node])
        inputs.input_ids[1, node] = (old + 1) % 96
        distance = (logits() - before).abs().amax(-1)  # [B, N]
        inputs.input_ids[1, node] = old
        for row in range(3):
            for place in range(distance.shape[1]):
                if row == 1 and place in changed:
                    assert float(distance[row, place]) > 1e-3
                else:
                    assert float(distance[row, place]) < 1e-4
