"""Hazards of whole runs: who else is in the batch, slots that are used again, limits, and degenerate settings."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from ddbench.engine.batch import Batch
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import Request
from ddbench.errors import UnsupportedVariant, UserError
from ddbench.harness.workload import build_workload
from ddbench.spec import ARMS, WorkloadSpec

SPECULATIVE = ("chain", "chain_via_tree", "ddtree")
CERTAIN = (100.0,)


class Heard(NullProbe):
    """Everything that the engine tells, in order."""

    def __init__(self):
        self.events = []
        self.outcomes = []

    def admitted(self, request_id):
        self.events.append(("admitted", request_id))

    @contextmanager
    def stage(self, stage):
        self.events.append(("stage", stage.value))
        yield

    def first_token(self, request_id, token):
        self.events.append(("first_token", request_id))

    def round_started(self, batch_size):
        self.events.append(("round_started", batch_size))

    def committed(self, outcome):
        self.events.append(("committed", len(outcome.request_ids)))
        self.outcomes.append(outcome)

    def finished(self, request_id, reason):
        self.events.append(("finished", request_id))


def histories(seen, requests):
    return {r.request_id: [one.history for one in seen if one.request_id == r.request_id] for r in requests}


# ------------------------------------------------------------------------------------------------ company and slots


@pytest.mark.parametrize("arm", SPECULATIVE)
def test_a_requests_rounds_are_the_same_in_any_company(pair, make_requests, run_watched, arm):
    """H64, H93, I1: trees and accepted lengths, not only tokens; rows move together, slots are used again."""
    requests = make_requests(5)
    alone = {r.request_id: [one.history for one in run_watched(pair, [r], 1, arm)[1]] for r in requests}
    assert len({len(rounds) for rounds in alone.values()}) > 1
    for order, concurrency in ((requests, 2), (requests, 50), (requests[::-1], 3)):
        assert histories(run_watched(pair, order, concurrency, arm)[1], requests) == alone


@pytest.mark.parametrize("arm", SPECULATIVE)
def test_a_used_slot_leaves_nothing_behind(pair, make_requests, run_watched, arm):
    """A long request, then a short one in its slot, then the long one again: as if each were the first."""
    short, *_, long = make_requests(6)
    order = [long, short, replace(long, request_id=90), replace(short, request_id=91)]
    _, seen = run_watched(pair, order, 1, arm)
    rounds = histories(seen, order)
    assert rounds[long.request_id] == rounds[90]
    assert rounds[short.request_id] == rounds[91]
    _, alone = run_watched(pair, [short], 1, arm)
    assert rounds[91] == [one.history for one in alone]


@pytest.mark.parametrize("num_waiting", [0, 1, 2, 5])
@pytest.mark.parametrize("arm", ["ar", "chain", "ddtree"])
def test_requests_may_finish_in_the_same_round(gqa, make_engine, run_watched, greedy, arm, num_waiting):
    """Some of their rows are filled again and some are closed, in one go; a survivor sits before, between or behind."""
    for survivor in (0, 1, 3):
        requests = [Request(i, (4 + i,) * (1 + 2 * i), 24 if i == survivor else 6) for i in range(4)]
        requests += [Request(10 + i, (50 + i, 3), 6 + 5 * i) for i in range(num_waiting)]
        if arm == "ar":
            results = make_engine(gqa, arm).run(requests, 4)
            assert [r.num_rounds for r in results[:4]] == [23 if i == survivor else 5 for i in range(4)]
        else:
            results, seen = run_watched(gqa, requests, 4, arm, nudges=CERTAIN, debug=True)
            assert [one.num_accepted for one in seen[:4]] == [4] * 4  # one round for the three, five for the fourth
        assert [r.tokens for r in results] == [greedy(gqa, r) for r in requests]
        assert [r.request_id for r in results] == [r.request_id for r in requests]


@pytest.mark.parametrize("arm", list(ARMS))
def test_more_slots_than_requests_change_nothing(pair, make_requests, make_engine, arm):
    requests = make_requests(3)
    probes = [Heard(), Heard()]
    results = [make_engine(pair, arm).run(requests, c, probe) for c, probe in zip((3, 64), probes, strict=True)]
    assert results[0] == results[1]
    assert probes[0].outcomes == probes[1].outcomes


# ---------------------------------------------------------------------------------------------- degenerate settings


@pytest.mark.parametrize("tree_build", ["heap", "device"])
def test_a_budget_of_zero_is_plain_decoding(pair, make_requests, make_engine, tree_build):
    """H39: the drafter runs, nothing is proposed: as many rounds as steps, a verified width of one."""
    requests = make_requests(4)
    plain, zero = Heard(), Heard()
    expected = make_engine(pair, "ar").run(requests, 2, plain)
    assert make_engine(pair, node_budget=0, tree_build=tree_build).run(requests, 2, zero) == expected
    assert zero.outcomes == plain.outcomes
    assert {o.verify_width for o in zero.outcomes} == {1}


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "ar"])
def test_a_horizon_of_one_token_works(pair, make_requests, make_engine, run_watched, greedy, arm):
    """A block of two: the anchor and one mask; at most two tokens a round, and some rounds reach them."""
    requests = make_requests(4)
    probe = Heard()
    results = make_engine(pair, arm, block_size=2).run(requests, 2, probe)
    assert [r.tokens for r in results] == [greedy(pair, r) for r in requests]
    assert {o.verify_width for o in probe.outcomes} == {13 if arm == "ddtree" else 2}
    if arm in SPECULATIVE:
        _, seen = run_watched(pair, requests, 2, arm, block_size=2)
        assert {one.num_accepted for one in seen} == {0, 1}


@pytest.mark.parametrize("tree_build", ["heap", "device"])
def test_a_budget_beyond_the_vocabulary_works(pair, make_requests, make_engine, greedy, tree_build):
    requests = make_requests(2)
    results = make_engine(pair, node_budget=200, tree_build=tree_build).run(requests, 2)
    assert [r.tokens for r in results] == [greedy(pair, r) for r in requests]


@pytest.mark.parametrize("arm", list(ARMS))
def test_a_request_may_fill_the_whole_context(gqa, make_engine, greedy, arm):
    """H26: the last tree and block lie at the end of every table; one token more is refused."""
    engine = make_engine(gqa, arm)
    slack = max(engine.parts.verify_width, 1 if arm == "ar" else 5) + 1
    new = 11
    prompt = tuple(i * i % 96 for i in range(512 - new - slack))
    request = Request(0, prompt, new)
    assert engine.run([request], 1)[0].tokens == greedy(gqa, request)
    with pytest.raises(UserError, match="more than the context"):
        engine.run([replace(request, max_new_tokens=new + 1)], 1)


@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_lookup_in_prompts_of_any_kind_gives_the_targets_text(pair, make_engine, greedy, block_size):
    """Shorter than any n-gram, without a match, with a match whose continuation runs into the anchor."""
    prompts = [(5,), (5, 5), (5, 6), (1, 2, 3, 1, 2, 3, 1, 2), tuple(range(30))]
    requests = [Request(i, prompt, 14) for i, prompt in enumerate(prompts)]
    results = make_engine(pair, "prompt_lookup", block_size=block_size).run(requests, 5)
    assert [r.tokens for r in results] == [greedy(pair, r) for r in requests]


@pytest.mark.parametrize("variant", ["stage_graphs", "round_graph"])
def test_an_executor_that_is_not_there_is_refused_not_replaced(gqa, make_engine, variant):
    """H89: no engine runs eagerly under a graph's name."""
    with pytest.raises(UnsupportedVariant, match=f"executor '{variant}'"):
        make_engine(gqa, executor=variant)


# ----------------------------------------------------------------------------------------------- books and mirrors


@torch.inference_mode()
@pytest.mark.parametrize("arm", list(ARMS))
def test_a_loose_host_bound_changes_nothing(pair, make_requests, make_engine, monkeypatch, arm):
    """H94: the host's idea of the context is an upper bound and no more, in every arm."""
    requests = make_requests(4)
    engine = make_engine(pair, arm, debug=False)
    expected, loose = Heard(), Heard()
    engine.run(requests, 4, expected)
    slack = max(engine.parts.verify_width, 1 if arm == "ar" else pair.drafter.shape.block_size)
    monkeypatch.setattr(
        Batch, "update_bound", lambda self, num_unread=0: setattr(self, "context_bound", self.num_rows - slack - 1)
    )
    engine.run(requests, 4, loose)
    for one, other in zip(expected.outcomes, loose.outcomes, strict=True):
        assert (one.tokens, one.num_accepted, one.num_nodes) == (other.tokens, other.num_accepted, other.num_nodes)


@pytest.mark.parametrize("arm", list(ARMS))
def test_the_rounds_books_balance(pair, make_requests, make_engine, greedy, arm):
    """H100 and the identities of acceptance: emitted = accepted + 1 up to the cut, accepted <= depth <= nodes."""
    requests = make_requests(6)
    requests = [replace(r, stop_token_ids=(greedy(pair, r)[8],)) if i % 2 else r for i, r in enumerate(requests)]
    probe = Heard()
    results = make_engine(pair, arm).run(requests, 3, probe)
    rounds = {r.request_id: [] for r in requests}
    for o in probe.outcomes:
        for request_id, accepted, nodes, tokens in zip(
            o.request_ids, o.num_accepted, o.num_nodes, o.tokens, strict=True
        ):
            rounds[request_id].append((accepted, len(tokens)))
            assert accepted <= nodes < o.verify_width
            assert accepted < pair.drafter.shape.block_size or arm == "prompt_lookup"
    for result in results:
        own = rounds[result.request_id]
        assert result.num_rounds == len(own)
        assert len(result.tokens) == 1 + sum(emitted for _, emitted in own)
        assert all(emitted == accepted + 1 for accepted, emitted in own[:-1])
        assert all(1 <= emitted <= accepted + 1 for accepted, emitted in own[-1:])


@pytest.mark.parametrize("arm", SPECULATIVE)
def test_the_prompts_draft_rows_are_on_the_account_of_the_first_round(gqa, make_requests, make_engine, arm):
    """H98: nothing of the drafter's prefill happens outside a round's clock, or inside the first token's."""
    probe = Heard()
    make_engine(gqa, arm, debug=False).run(make_requests(3), 2, probe)
    inside = False
    for (kind, value), following in itertools.pairwise(probe.events):
        if kind == "round_started":
            inside = True
            assert following[0] == "stage"
        if kind == "committed":
            inside = False
        if kind == "stage":
            assert inside == (value != "prefill"), f"{value} {'inside' if inside else 'outside'} a round"
    first = probe.events[probe.events.index(("round_started", 2)) :]
    stages = [value for kind, value in first if kind == "stage"][:3]
    assert stages == ["materialize", "materialize", "draft"]  # two newcomers


# ------------------------------------------------------------------------------------------------- the trained pair


@pytest.fixture(scope="module")
def heard_of(nano, make_engine):
    """Outputs and rounds of the trained pair on held-out prompts, by arm."""
    workload = build_workload(WorkloadSpec(num_requests=8, max_new_tokens=28), nano.target.shape, nano.folder, 0)
    requests = [replace(request, prompt=request.prompt[:40]) for request in workload.measured]
    heard = {}
    for arm in ("ar", "chain", "ddtree"):
        changes = {"node_budget": 32} if arm == "ddtree" else {}
        probe = Heard()
        results = make_engine(nano, arm, debug=False, **changes).run(requests, 8, probe)
        heard[arm] = [r.tokens for r in results], probe.outcomes
    return heard


def test_the_trained_pair_gains_from_every_step_of_the_method(heard_of):
    """H91, H111: the same output, and tau 1 = ar < chain < ddtree."""
    lengths = {}
    for arm, (outputs, outcomes) in heard_of.items():
        assert outputs == heard_of["ar"][0]
        emitted = [len(tokens) for o in outcomes for tokens in o.tokens]
        lengths[arm] = sum(emitted) / len(emitted)
    assert lengths["ar"] == 1.0
    assert 1.5 < lengths["chain"] < lengths["ddtree"]


def test_the_surrogate_length_tells_more_from_less(heard_of):
    """Rounds from which the tree expects more do give more: the calibration that a report prints has a meaning."""
    pairs = sorted(
        (expected, accepted + 1)
        for o in heard_of["ddtree"][1]
        for expected, accepted in zip(o.expected_length, o.num_accepted, strict=True)
    )
    third = len(pairs) // 3
    low, high = pairs[:third], pairs[-third:]
    assert sum(got for _, got in high) > 1.3 * sum(got for _, got in low)
    mean_expected, mean_got = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    assert 0.6 < mean_expected / mean_got < 1.6
