"""Training on answers: it learns, a killed run goes on as if it had not been, and what it reports is what counts."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import Request, RoundOutcome
from ddbench.models.drafter import Drafter
from ddbench.models.shapes import TARGETS, DrafterShape, GQAShape, RopeShape, TargetShape
from ddbench.models.weights import Models, load_models
from ddbench.spec import ARMS, EngineSpec
from ddbench.train.answer_data import AnswerBatch, block_targets
from ddbench.train.answer_pipeline import answer_jobs, curve_table, drafter_for
from ddbench.train.answer_training import (
    AnswerRecipe,
    batch_loss,
    cost_of_int8,
    replay_answers,
    train_on_answers,
)
from ddbench.train.answers import Answers
from ddbench.train.decode import Decoder, Jobs
from ddbench.train.drafter import block_logits, initialize
from ddbench.train.folded import FoldedMask
from ddbench.train.int8 import at_rounded_weights

RECIPE = AnswerRecipe(
    tokens_per_step=320, anchor_share=0.2, peak_rate=2e-2, warmup_steps=2, steps=24, int8_share=0.3, widths=(40,)
)


@pytest.fixture(scope="module")
def models() -> Models:
    return load_models(EngineSpec(target="tiny-gqa", **ARMS["chain"]))


@pytest.fixture(scope="module")
def answers(models: Models) -> Answers:
    generator = torch.Generator().manual_seed(6)
    prompts = [torch.randint(3, 90, (6 + i % 5,), generator=generator).tolist() for i in range(20)]
    with torch.inference_mode():
        decoder = Decoder(models.target, Jobs(prompts, [0.0] * 20), 20, 40, FoldedMask(), (), generator)
    decoder.run(60.0, lambda _: None)
    lengths = decoder.lengths[:-1].numpy().astype(np.int32)
    flat = np.concatenate([row[:n].numpy() for row, n in zip(decoder.tokens[:-1], lengths.tolist(), strict=True)])
    sizes = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    return Answers(flat.astype(np.uint16), lengths, sizes, np.arange(20, dtype=np.int32), np.ones(20, dtype=bool))


def train(models: Models, answers: Answers, folder: Path, **changes: object) -> tuple[Drafter, object, bool]:
    drafter = Drafter(models.drafter.shape, models.target.shape.max_context)
    initialize(drafter, 0)
    options = {name: changes.pop(name) for name in ("stop_after", "clock") if name in changes}
    recipe = replace(RECIPE, **changes)  # type: ignore[arg-type]
    run, is_over = train_on_answers(
        models.target,
        drafter,
        answers,
        answers,
        recipe,
        folder,
        "cpu",
        lambda _: None,
        **options,  # type: ignore[arg-type]
    )
    return drafter, run, is_over


def test_the_loss_is_the_plain_one_over_what_is_recorded(models: Models):
    """Slot 0 predicts nothing, and positions beyond the end of an answer count nothing."""
    target, drafter = models.target, models.drafter
    block = drafter.shape.block_size
    ids = torch.randint(3, 90, (2, 20), generator=torch.Generator().manual_seed(1))
    lengths, anchors = torch.tensor([20, 14]), torch.tensor([[5, 17], [3, 12]])
    batch = AnswerBatch(ids, lengths, anchors, *block_targets(ids, lengths, anchors, block, 4.0))
    with torch.no_grad():
        features = target.full(ids)[1]
        logits = block_logits(drafter, target, features, ids, anchors, block)
        total = weight_sum = 0.0
        for row in range(2):
            for which in range(2):
                for k in range(1, block):
                    place = int(anchors[row, which]) + k
                    if place < lengths[row]:
                        weight = float(np.exp(-(k - 1) / 4.0))
                        total -= weight * float(logits[row, which, k - 1].log_softmax(-1)[ids[row, place]])
                        weight_sum += weight
        assert float(batch_loss(drafter, target, features, batch, block)) == pytest.approx(total / weight_sum, rel=1e-5)


class Outcomes(NullProbe):
    def __init__(self) -> None:
        self.rounds = self.emitted = 0

    def committed(self, outcome: RoundOutcome) -> None:
        self.rounds += len(outcome.request_ids)
        self.emitted += sum(len(tokens) for tokens in outcome.tokens)


def test_replayed_acceptance_is_what_the_engines_chain_emits(models: Models, answers: Answers):
    spec = EngineSpec(target="tiny-gqa", **ARMS["chain"])
    requests = [
        Request(i, tuple(answers.tokens[start : start + prompt].tolist()), int(length - prompt))
        for i, (start, prompt, length) in enumerate(
            zip(answers.starts, answers.prompt_lengths, answers.lengths, strict=True)
        )
    ]
    probe = Outcomes()
    Engine(spec, models).run(requests, 8, probe)
    found = replay_answers(models.drafter, models.target, answers, models.drafter.shape.block_size, "cpu")
    assert found["chain_tau"] == pytest.approx(probe.emitted / probe.rounds)


def test_training_learns_the_answers_and_costs_nothing_in_int8(models: Models, answers: Answers, tmp_path: Path):
    before = {name: tensor.clone() for name, tensor in models.target.state_dict().items()}
    drafter, run, is_over = train(models, answers, tmp_path, steps=50)
    assert is_over
    curve = run.curve  # type: ignore[attr-defined]
    assert curve[-1]["chain_tau"] > curve[0]["chain_tau"] + 0.1
    assert all(torch.equal(tensor, before[name]) for name, tensor in models.target.state_dict().items())
    cost = cost_of_int8(drafter, models.target, answers, "cpu")
    assert cost["chain_tau_int8"] == pytest.approx(cost["chain_tau_float"], abs=0.1)
    assert curve_table(curve).count("\n") == len(curve) + 2


def test_a_stopped_run_goes_on_as_if_it_had_not_been(models: Models, answers: Answers, tmp_path: Path):
    """The same stream of batches, the same weights, bit for bit."""
    whole, _, _ = train(models, answers, tmp_path / "whole")
    ticks = iter(range(1000))
    half = train(models, answers, tmp_path / "cut", stop_after=20.0, clock=lambda: float(next(ticks)))
    assert not half[2]
    assert 0 < half[1].step < RECIPE.steps  # type: ignore[attr-defined]
    resumed, run, is_over = train(models, answers, tmp_path / "cut")
    assert is_over
    assert run.step == RECIPE.steps  # type: ignore[attr-defined]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_every_prompt_is_answered_twice_once_greedily():
    jobs = answer_jobs(50, 3)
    assert sorted(place for place, _ in jobs) == sorted([*range(50), *range(50)])
    assert sorted(place for place, temperature in jobs if temperature == 0) == list(range(50))
    assert all(0.6 <= temperature <= 1.0 for _, temperature in jobs if temperature > 0)
    assert {place for place, _ in jobs[:50]} == set(range(50))  # the second answers come after all first ones
    assert answer_jobs(50, 3) == jobs != answer_jobs(50, 4)


def test_a_drafter_takes_its_widths_from_the_target_and_features_from_its_depth():
    shape = TargetShape(
        name="smol", num_layers=30, hidden=576, vocab=49152, dense_width=1536, tie_embeddings=True,
        attention=GQAShape(num_heads=9, num_kv_heads=3, head_dim=64), rope=RopeShape(theta=1e5, rotary_dim=64),
        norm_eps=1e-5,
    )  # fmt: skip
    drafter = drafter_for(shape, layers=3, block=8)
    assert isinstance(drafter, DrafterShape)
    assert drafter.target_layer_ids == (1, 8, 14, 21, 27)
    assert (drafter.mask_token_id, drafter.block_size, drafter.norm_eps) == (16, 8, 1e-5)
    with torch.device("meta"):
        assert sum(p.numel() for p in Drafter(drafter, 16).parameters()) == 12_280_704
    assert len(drafter_for(TARGETS["tiny-gqa"], 1, 4).target_layer_ids) >= 1


def test_a_step_of_training_asks_the_host_nothing(models: Models):
    """On tensors without values: launches of a step are not held up by what the device has computed."""
    nowhere = torch.device("meta")
    target = copy.deepcopy(models.target).to(nowhere)
    drafter = copy.deepcopy(models.drafter).to(nowhere).requires_grad_(True)
    ids = torch.zeros(4, 64, dtype=torch.int64, device=nowhere)
    lengths, anchors = torch.full((4,), 50, device=nowhere), torch.zeros(4, 32, dtype=torch.int64, device=nowhere)
    block = drafter.shape.block_size
    batch = AnswerBatch(ids, lengths, anchors, *block_targets(ids, lengths, anchors, block, 4.0))
    with at_rounded_weights(drafter):
        with torch.no_grad():
            features = target.full(ids)[1]
        loss = batch_loss(drafter, target, features, batch, block)
    loss.backward()
    assert loss.shape == ()
    assert all(p.grad is not None for p in drafter.parameters())
