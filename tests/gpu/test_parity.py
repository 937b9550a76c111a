"""Executors change no token: against plain decoding in FP32, against each other in BF16, whoever shares the batch."""

from __future__ import annotations

import pytest

from ddbench.harness.parity import compare, next_token_logits, outputs_of
from ddbench.spec import ARMS

pytestmark = pytest.mark.gpu

TINY = ("tiny-gqa", "tiny-mla-moe")
EXECUTORS = ("eager", "stage_graphs", "round_graph")
ATTENTIONS = ("tree_triton", "dense_mask")


def variants():
    """Every arm with every executor and attention; trees built on the host and on the device."""
    for target in TINY:
        for arm in ARMS:
            for build in ("heap", "device") if arm == "ddtree" else (None,):
                for executor in EXECUTORS:
                    for attention in ATTENTIONS:
                        changes = {"executor": executor, "attention": attention}
                        changes |= {} if build is None else {"tree_build": build}
                        yield pytest.param(target, arm, changes, id=f"{target}-{arm}-{'-'.join(changes.values())}")
        for materialize in ("sequential", "batched"):
            changes = {"executor": "round_graph", "materialize": materialize}
            yield pytest.param(target, "ddtree", changes, id=f"{target}-ddtree-round_graph-{materialize}")
        for arm in ARMS:
            changes = {"executor": "round_graph", "prefill": "graph"}
            yield pytest.param(target, arm, changes, id=f"{target}-{arm}-round_graph-prefill_graph")


@pytest.mark.parametrize(("target", "arm", "changes"), [*variants()])
def test_every_variant_emits_what_plain_decoding_emits(lab, target, arm, changes):
    """H92: in FP32, alone and in company, with ragged prompts, length limits and stop tokens that surprise the host."""
    requests = lab.stopping(target, lab.requests(target))
    expected = lab.plain(target, requests)
    assert {done.finish_reason for done in expected} == {"stop", "length"}
    engine = lab.engine(target, arm, **changes)
    for concurrency in (3, 1):
        got = engine.run(requests, concurrency)
        assert [(d.tokens, d.finish_reason) for d in got] == [(d.tokens, d.finish_reason) for d in expected]
    if changes["executor"] != "eager":
        counts = engine.parts.executor.counters()
        assert counts["eager_rounds"] == 0
        assert counts["graph_replays"] > 0
    if changes.get("prefill") == "graph":
        assert engine.parts.prefill.counters()["eager_prefills"] == 0


@pytest.mark.parametrize("build", ["heap", "device"])
def test_trees_of_more_nodes_than_a_kernel_keeps_candidates_are_graphs_too(lab, build):
    """Their candidates are chosen in plain torch, and nothing waits for the host."""
    requests = lab.requests("nano-k2", 3, new=16)
    engine = lab.engine("nano-k2", executor="round_graph", tree_build=build, node_budget=512)
    got = engine.run(requests, 2)
    assert [done.tokens for done in got] == lab.texts("nano-k2", requests)
    assert engine.parts.tree_build.plain_ops == ("draft_topk",)
    assert engine.parts.executor.counters()["eager_rounds"] == 0


BF16: tuple[tuple[str, dict[str, str]], ...] = (
    ("ar", {}),
    ("ddtree", {"tree_build": "device"}),
    ("ddtree", {"tree_build": "heap"}),
)


@pytest.mark.parametrize(("arm", "changes"), BF16, ids=["ar", "ddtree-device", "ddtree-heap"])
def test_graphs_and_eager_rounds_agree_in_every_bit_at_equal_shapes(lab, arm, changes):
    """H92: in BF16 too, since nothing but the launching differs.

    Without stop tokens rounds have the same requests whether they are read late or not; bounds are loosened for all.
    """
    requests = lab.requests("nano-k2", 3, new=16, is_ragged=False)
    engines = [lab.engine("nano-k2", arm, dtype="bfloat16", executor=name, **changes) for name in EXECUTORS]
    eager, *graphs = (engine.run(requests, 2) for engine in engines)
    assert graphs == [eager, eager], "tokens, and in how many rounds"
    assert all(engine.parts.executor.counters()["eager_rounds"] == 0 for engine in engines[1:])


@pytest.mark.parametrize("target", TINY)
@pytest.mark.parametrize("arm", ["ar", "chain", "ddtree"])
def test_four_requests_under_one_graph_get_what_each_gets_alone(lab, target, arm):
    """H93, FP32: no token differs."""
    requests = lab.requests(target, 6)
    engine = lab.engine(target, arm, executor="round_graph")
    together = outputs_of(engine, requests, 4)
    assert together == outputs_of(engine, requests, 1)
    assert [together[request.request_id] for request in requests] == lab.texts(target, requests)


@pytest.mark.parametrize("arm", ["ar", "ddtree"])
def test_company_under_one_graph_changes_nothing_but_near_ties(lab, arm):
    """H93, BF16: batches of other sizes round differently, so that two tokens of nearly equal logit may swap."""
    requests = lab.requests("nano-k2", 5, new=12)
    engine = lab.engine("nano-k2", arm, dtype="bfloat16", executor="round_graph")
    together, alone = (outputs_of(engine, requests, concurrency) for concurrency in (4, 1))
    logits = next_token_logits(engine.spec, engine.models)
    verdict = compare(engine.spec, requests, alone, together, logits, "together against alone")
    assert verdict.status in ("identical", "near_tie"), verdict.divergences
