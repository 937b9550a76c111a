"""One round taken apart: what goes into the target, what comes out at every node, and the state it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ddbench.engine.batch import Batch
from ddbench.engine.engine import Engine
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import Request
from ddbench.models.inputs import VerifyInputs, VerifyOutput
from ddbench.models.weights import Models
from ddbench.spec import ARMS, EngineSpec

QUALITY = (0.75, 0.7, 0.65, 0.6, 0.5)


@pytest.fixture
def started() -> Callable[..., Batch]:
    """A batch with all requests prefilled and materialized, and some rounds run."""

    @torch.inference_mode()
    def start(engine: Engine, requests: list[Request], num_rounds: int = 0) -> Batch:
        batch = engine.new_batch(requests, len(requests))
        for row, request in enumerate(requests):
            batch.admit(row, engine.prefill(batch, row, request))
        engine.materialize_prompts(batch)
        for _ in range(num_rounds):
            engine.step(batch)
        batch.update_bound()
        return batch

    return start


@pytest.fixture
def watched() -> Callable[[Models], list[tuple[VerifyInputs, VerifyOutput]]]:
    """The list that receives what goes in and out of the target from now on."""
    handles = []

    def watch(models: Models) -> list[tuple[VerifyInputs, VerifyOutput]]:
        seen = []

        def hook(module, args, out):
            # Inputs may be views of state that the round changes in place: keep what the target saw.
            inputs = args[0]
            state = {name: getattr(inputs, name).clone() for name in ("input_ids", "positions", "lengths")}
            seen.append((replace(inputs, **state), out))

        handles.append(models.target.register_forward_hook(hook))
        return seen

    yield watch
    for handle in handles:
        handle.remove()


def full_logits(models: Models, tokens: list[int]) -> torch.Tensor:
    """Logits after `tokens`, from one causal forward over all of them on an empty cache."""
    engine = Engine(EngineSpec(target=models.facts.target, **ARMS["ar"]), models)
    request = Request(0, tuple(tokens), 1)
    batch = engine.new_batch([request], 1)
    ids = torch.tensor([tokens])
    inputs = VerifyInputs(ids, torch.arange(len(tokens))[None], torch.zeros(1, dtype=torch.int64), None, 0)
    layers = batch.cache.view(slice(0, 1)).layers
    return models.target(inputs, layers, engine.parts.attention).logits[0, -1]


@torch.inference_mode()
def test_the_logits_of_every_node_are_those_of_its_path_as_plain_text(
    models, make_engine, make_requests, greedy, started
):
    """H59, H61, H64: all nodes of all trees of an unequal batch, the root row being the control."""
    requests = make_requests(3, new=30)
    truth = {r.request_id: greedy(models, r) for r in requests}
    engine = make_engine(models, draft="oracle", continuations=truth, quality=QUALITY, node_budget=14)
    batch = started(engine, requests, num_rounds=2)
    tree = engine.parts.tree_build(engine.parts.draft(batch))
    inputs = engine.parts.tree_compile(tree, batch)
    logits = models.target(inputs, batch.caches.layers, engine.parts.attention).logits
    checked = 0
    for row in range(batch.size):
        context = batch.tokens[row, : int(batch.lengths[row]) + 1].tolist()  # up to the anchor
        parents = tree.parents[row].tolist()
        for node in range(int(tree.num_nodes[row]) + 1):
            path, at = [], node
            while at > 0:
                path.append(int(tree.tokens[row, at]))
                at = parents[at]
            text = context + path[::-1]
            assert int(inputs.positions[row, node]) == len(text) - 1
            torch.testing.assert_close(logits[row, node], full_logits(models, text), atol=2e-4, rtol=2e-4)
            checked += 1
    assert checked == 3 * 15
    assert int(tree.depths.max()) >= 3
    assert len(set(tree.parents[0].tolist())) < 15  # there are siblings


@torch.inference_mode()
def test_a_chain_through_the_tree_machinery_is_the_chain(models, make_engine, make_requests, started, watched):
    """H57 (tree of width one), H80 (identity path): ids, positions, logits, outputs and caches agree bit by bit."""
    requests = make_requests(3, new=12)
    seen = watched(models)
    states = []
    for arm in ("chain", "chain_via_tree"):
        engine = make_engine(models, arm, debug=False)
        batch = started(engine, requests)
        seen.clear()
        outcomes = [engine.step(batch) for _ in range(4)]
        caches = [
            cache[:, row, : int(batch.lengths[row])]
            for cache in (*batch.caches.target, *batch.caches.draft)
            for row in range(batch.size)
        ]
        states.append((list(seen), outcomes, caches))
    (chain_seen, chain_outcomes, chain_caches), (tree_seen, tree_outcomes, tree_caches) = states
    assert chain_outcomes == tree_outcomes
    for (a, a_out), (b, b_out) in zip(chain_seen, tree_seen, strict=True):
        assert a.visible is None
        assert b.visible is not None
        assert torch.equal(a.input_ids, b.input_ids)
        assert torch.equal(a.positions, b.positions)
        assert torch.equal(a_out.logits, b_out.logits)
    assert all(torch.equal(a, b) for a, b in zip(chain_caches, tree_caches, strict=True))


@torch.inference_mode()
def test_context_stays_visible_when_a_smaller_tree_follows_a_larger_one(
    gqa_models, make_engine, make_requests, greedy, started, watched
):
    """H58: no column of the past is masked by what a former round left behind."""
    requests = make_requests(3, new=24)
    truth = {r.request_id: greedy(gqa_models, r) for r in requests}
    engine = make_engine(gqa_models, draft="oracle", continuations=truth, quality=QUALITY, debug=False)
    batch = started(engine, requests)
    seen = watched(gqa_models)
    build = engine.parts.tree_build
    for budget in (12, 3, 9, 1):
        build._node_budget, build.num_slots = budget, budget + 1
        engine.step(batch)
    assert [inputs.input_ids.shape[1] for inputs, _ in seen] == [13, 4, 10, 2]
    for inputs, _ in seen:
        mask = engine.parts.attention.prepare(inputs, torch.float32)
        for row, length in enumerate(inputs.lengths.tolist()):
            assert mask[row, 0, :, :length].all()
            assert not mask[row, 0, :, length + inputs.input_ids.shape[1] :].any()


@torch.inference_mode()
@pytest.mark.parametrize(
    ("num_rounds", "arm", "quality"),
    [(1, "ddtree", 0.7), (10, "ddtree", 0.6), (100, "ddtree", 0.2), (100, "chain", 0.1)],
)
def test_state_does_not_drift(models, make_engine, greedy, started, num_rounds, arm, quality):
    """H87: after 1, 10 and 100 rounds the caches are those of a fresh prefill of the same text."""
    requests = [Request(1, (5, 9, 33), 350), Request(2, tuple(range(20)), 300)]
    truth = {r.request_id: [t % 96 for t in range(7, 7 + r.max_new_tokens)] for r in requests}
    if num_rounds < 100:  # an oracle that knows the truth makes long paths; a wrong one makes many short rounds
        requests = [Request(r.request_id, r.prompt, 60) for r in requests]
        truth = {r.request_id: greedy(models, r) for r in requests}
    engine = make_engine(
        models, arm, draft="oracle", continuations=truth, quality=(quality,) * 5, node_budget=6, debug=False
    )
    batch = started(engine, requests, num_rounds)
    for row in range(batch.size):
        length = int(batch.lengths[row])
        assert length >= num_rounds
        text = tuple(batch.tokens[row, : length + 1].tolist())
        fresh = started(make_engine(models, arm, debug=False), [Request(0, text[:-1], 2)])
        for cache, expected in zip(
            (*batch.caches.target, *batch.caches.draft), (*fresh.caches.target, *fresh.caches.draft), strict=True
        ):
            torch.testing.assert_close(cache[:, row, :length], expected[:, 0, :length], atol=5e-4, rtol=5e-4)
        inputs = VerifyInputs(
            batch.anchors[row : row + 1, None], batch.lengths[row : row + 1, None], batch.lengths[row : row + 1],
            None, length,
        )  # fmt: skip
        layers = batch.cache.view(slice(row, row + 1)).layers
        logits = models.target(inputs, layers, engine.parts.attention).logits[0, -1]
        torch.testing.assert_close(logits, full_logits(models, list(text)), atol=5e-4, rtol=5e-4)


@torch.inference_mode()
def test_rows_move_whole_when_a_request_leaves(models, make_engine, make_requests, greedy, started):
    """The last row takes the place of one that has finished and goes on as if nothing had happened."""
    requests = make_requests(4, new=20)
    engine = make_engine(models)
    batch = started(engine, requests, num_rounds=2)
    batch.drop(1)
    assert [running.request.request_id for running in batch.running] == [10, 13, 12]
    while not all(running.finish_reason for running in batch.running):
        engine.step(batch)
        for row in reversed(range(batch.size)):
            running = batch.running[row]
            if running.finish_reason and batch.size > 1:
                assert tuple(running.tokens) == greedy(models, running.request)
                batch.drop(row)
    assert tuple(batch.running[0].tokens) == greedy(models, batch.running[0].request)


@torch.inference_mode()
def test_an_autoregressive_step_needs_one_token_and_no_mask(models, make_engine, make_requests, started, watched):
    engine = make_engine(models, "ar")
    batch = started(engine, make_requests(3))
    lengths = batch.lengths.clone()
    seen = watched(models)
    outcome = engine.step(batch)
    (inputs, _), *rest = seen
    assert not rest
    assert inputs.input_ids.shape == (3, 1)
    assert inputs.visible is None
    assert torch.equal(inputs.positions[:, 0], lengths)
    assert torch.equal(batch.lengths, lengths + 1)
    assert outcome.verify_width == 1
    assert outcome.num_nodes == outcome.num_accepted == (0, 0, 0)
    assert outcome.expected_length == (1.0, 1.0, 1.0)


class ValueShapes(TorchDispatchMode):
    """Refuses operations whose result has a shape that depends on values: on a GPU they wait for it."""

    _FORBIDDEN = ("aten.nonzero", "aten.masked_select", "aten._unique", "aten.bincount", "aten._local_scalar_dense")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not str(func).startswith(self._FORBIDDEN), f"{func} reads the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_host_reads(monkeypatch):
    """A context in which handing a tensor's value to Python is an AssertionError."""

    def refuse(*_, **__):
        raise AssertionError("Python reads the device")

    @contextmanager
    def refusing():
        with monkeypatch.context() as patch, ValueShapes():
            for name in ("tolist", "numpy", "cpu", "item", "__bool__", "__int__", "__float__", "__index__"):
                patch.setattr(torch.Tensor, name, refuse)
            yield

    return refusing


@torch.inference_mode()
@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("ar", {}),
        ("prompt_lookup", {}),
        ("chain", {}),
        ("chain_via_tree", {"draft": "random"}),
        *(("ddtree", {"tree_build": "device", "materialize": name}) for name in ("sequential", "batched", "fused")),
        ("ddtree", {"tree_build": "device", "draft": "oracle"}),
        ("ddtree", {"tree_build": "device", "sampling": "stochastic"}),
    ],
    ids=str,
)
def test_a_round_of_device_parts_reads_nothing_on_the_host(
    gqa_models, make_engine, make_requests, started, no_host_reads, arm, changes
):
    """H38: shapes are fixed and the one copy to the host comes after the round."""
    requests = make_requests(3)
    oracle = {r.request_id: range(20) for r in requests}
    engine = make_engine(gqa_models, arm, continuations=oracle, quality=(0.5,) * 4, debug=False, **changes)
    batch = started(engine, requests, num_rounds=1)
    with no_host_reads():
        report = engine.parts.executor(engine._round, batch, NullProbe())
    columns = 2 * (1 if arm == "ar" else engine.setting.facts.block_size) + 4
    assert [len(row) for row in report.rows()] == [columns] * 3


@torch.inference_mode()
def test_the_search_for_host_reads_finds_the_heaps(gqa_models, make_engine, make_requests, started, no_host_reads):
    engine = make_engine(gqa_models, tree_build="heap", debug=False)
    batch = started(engine, make_requests(2), num_rounds=1)
    with no_host_reads(), pytest.raises(AssertionError, match="reads the device"):
        engine.parts.executor(engine._round, batch, NullProbe())
