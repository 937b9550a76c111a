"""Training of the drafter: block mask, loss, anchors, and a measure that tells what the engine will accept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.probe import NullProbe
from ddbench.engine.types import Request, RoundOutcome
from ddbench.models.drafter import Drafter
from ddbench.models.weights import Models, load_models, random_models
from ddbench.spec import ARMS, EngineSpec
from ddbench.train.continuations import Continuations, continue_prompts
from ddbench.train.drafter import (
    GAMMA,
    GROUP,
    DrafterRecipe,
    block_logits,
    block_mask,
    draft_loss,
    initialize,
    replay,
    sample_anchors,
    train_drafter,
)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_the_block_mask_is_the_rule_written_out(window: int | None, causal: bool):
    anchors, context, block = torch.tensor([[0, 5, 9], [3, 3, 11]]), 12, 4
    mask = block_mask(anchors, context, block, window, causal)
    assert mask.shape == (2, 1, 12, 24)
    for row in range(2):
        for query in range(12):
            owner, slot = divmod(query, block)
            anchor = int(anchors[row, owner])
            for key in range(24):
                if key < context:
                    expected = key < anchor and (window is None or anchor + slot - key < window)
                else:
                    other_owner, other_slot = divmod(key - context, block)
                    expected = other_owner == owner and (not causal or other_slot <= slot)
                assert bool(mask[row, 0, query, key]) == expected


def test_the_loss_weighs_positions_and_has_none_for_slot_0():
    """exp(-(k-1)/gamma) for the k-th drafted token; the anchor's own slot predicts nothing."""
    generator = torch.Generator().manual_seed(1)
    ids, anchors, gamma = torch.randint(9, (2, 20), generator=generator), torch.tensor([[3, 8], [16, 0]]), 2.5
    logits = torch.randn(2, 2, 3, 9, generator=generator)
    total = weight_sum = 0.0
    for row in range(2):
        for which in range(2):
            for k in (1, 2, 3):
                weight = math.exp(-(k - 1) / gamma)
                wanted = ids[row, anchors[row, which] + k]
                total -= weight * float(logits[row, which, k - 1].log_softmax(-1)[wanted])
                weight_sum += weight
    assert float(draft_loss(logits, ids, anchors, gamma)) == pytest.approx(total / weight_sum, rel=1e-5)


def test_the_decay_of_the_weights_is_the_published_one():
    assert GAMMA == {16: 7.0, 10: 5.0, 8: 4.0}


def test_anchors_lie_in_the_answer_with_their_whole_block():
    prompt_lengths, total, block = torch.tensor([5, 24, 30]), 36, 6
    anchors = sample_anchors(prompt_lengths, total, block, 4000, torch.Generator().manual_seed(1))
    assert anchors.shape == (3, 4000)
    for row, prompt in zip(anchors, prompt_lengths.tolist(), strict=True):
        assert sorted(set(row.tolist())) == list(range(prompt, total - block + 1))  # every place, nothing else


def test_a_fresh_drafter_predicts_almost_uniformly():
    target = random_models("tiny-gqa").target
    drafter = Drafter(random_models("tiny-gqa").drafter.shape, 64)  # type: ignore[union-attr]
    initialize(drafter, 0)
    hidden = drafter.norm(torch.randn(5, 48, generator=torch.Generator().manual_seed(1)))
    assert target.head(hidden).detach().std().item() < 0.5
    norms = {
        name: p for name, p in drafter.named_parameters() if name.endswith("norm.weight") and name != "norm.weight"
    }
    assert all(bool((p == 1).all()) for p in norms.values())


# ---------------------------------------------------------------------------------------------------------- replay


class Outcomes(NullProbe):
    def __init__(self) -> None:
        self.heard: list[RoundOutcome] = []

    def committed(self, outcome: RoundOutcome) -> None:
        self.heard.append(outcome)


def greedy_rows(models: Models, rows: int, prompt_length: int, total: int) -> Continuations:
    generator = torch.Generator().manual_seed(4)
    prompts = torch.randint(3, models.target.shape.vocab, (rows, prompt_length), generator=generator)
    with torch.inference_mode():
        tokens = continue_prompts(models.target, prompts, total, torch.zeros(rows), generator)
    return Continuations(tokens.int(), torch.full((rows,), prompt_length), 0, rows)


@pytest.mark.parametrize("name", ["nano-k2", "tiny-gqa"])
def test_replayed_acceptance_is_what_the_engines_chain_accepts(name: str):
    """The same anchors, the same accepted tokens: training is steered by the number that counts."""
    spec = EngineSpec(target=name, **ARMS["chain"])
    models = load_models(spec)
    assert models.drafter is not None
    prompt_length, total = 12, 48
    data = greedy_rows(models, 4, prompt_length, total)
    requests = [
        Request(row, tuple(tokens[:prompt_length].tolist()), total - prompt_length)
        for row, tokens in enumerate(data.tokens)
    ]
    probe = Outcomes()
    finished = Engine(spec, models).run(requests, 4, probe)
    for row, done in enumerate(finished):
        assert list(done.tokens) == data.tokens[row, prompt_length:].tolist()
    block = models.drafter.shape.block_size
    anchors = [prompt_length] * len(requests)
    rounds = emitted = 0
    for outcome in probe.heard:
        for request, accepted in zip(outcome.request_ids, outcome.num_accepted, strict=True):
            if anchors[request] + block <= total:  # the replay has recorded tokens for whole blocks only
                rounds, emitted = rounds + 1, emitted + accepted + 1
            anchors[request] += accepted + 1
    assert replay(models.drafter, models.target, data, block, "cpu")["chain_tau"] == pytest.approx(emitted / rounds)
    assert name != "nano-k2" or emitted / rounds > 1.5


def test_replay_wants_rows_of_one_prompt_length():
    models = random_models("tiny-gqa")
    data = Continuations(torch.zeros(2, 20, dtype=torch.int32), torch.tensor([5, 6]), 0, 2)
    with pytest.raises(AssertionError, match="one prompt length"):
        replay(models.drafter, models.target, data, 4, "cpu")  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- training

RECIPE = DrafterRecipe(batch_rows=8, anchors_per_row=6, warmup_steps=2, steps=40, peak_rate=2e-2)


@pytest.fixture(scope="module")
def models() -> Models:
    return load_models(EngineSpec(target="tiny-gqa"))


@pytest.fixture(scope="module")
def data(models: Models) -> Continuations:
    return greedy_rows(models, 16, 8, 32)


def train(models: Models, data: Continuations, folder: Path, **changes: object):
    shape = models.drafter.shape  # type: ignore[union-attr]
    drafter = Drafter(shape, models.target.shape.max_context)
    initialize(drafter, 0)
    recipe = DrafterRecipe(**{**{f: getattr(RECIPE, f) for f in RECIPE.__slots__}, **changes})  # type: ignore[arg-type]
    return train_drafter(models.target, drafter, data, data, recipe, folder, "cpu", print)


def test_training_learns_its_targets_continuations_and_leaves_the_target_alone(
    models: Models, data: Continuations, tmp_path: Path
):
    before = {name: tensor.clone() for name, tensor in models.target.state_dict().items()}
    drafter, curve = train(models, data, tmp_path)
    assert curve[-1]["chain_tau"] > curve[0]["chain_tau"] + 0.2
    assert all(torch.equal(tensor, before[name]) for name, tensor in models.target.state_dict().items())
    assert not any(p.requires_grad for p in drafter.parameters())


def test_training_the_same_data_twice_gives_the_same_weights(models: Models, data: Continuations, tmp_path: Path):
    first, _ = train(models, data, tmp_path / "one", steps=5)
    second, _ = train(models, data, tmp_path / "two", steps=5)
    other, _ = train(models, data, tmp_path / "three", steps=5, seed=1)
    assert all(torch.equal(t, second.state_dict()[name]) for name, t in first.state_dict().items())
    assert not torch.equal(first.fc.weight, other.fc.weight)


# ---------------------------------------------------------------------------------------- many blocks in one pass


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla-moe"])
def test_many_blocks_in_one_pass_are_each_the_block_drafted_alone(name: str):
    """And alone means: with the features of what stands before its anchor, and no others in reach."""
    models = load_models(EngineSpec(target=name))
    drafter, target = models.drafter, models.target
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, target.shape.vocab, (2, 30), generator=generator)
    anchors = torch.randint(1, 24, (2, 2 * GROUP), generator=generator)
    block = drafter.shape.block_size
    with torch.inference_mode():
        features = target.full(ids)[1]
        together = block_logits(drafter, target, features, ids, anchors, block)
        for row in range(2):
            for which in range(0, 2 * GROUP, 5):
                anchor = int(anchors[row, which])
                seen, alone = features[row : row + 1, :anchor], ids[row : row + 1, : anchor + 1]
                ids_there = torch.cat((alone, alone[:, :1]), dim=1)[:, : anchor + 1]
                padded = torch.cat((seen, torch.zeros_like(features[row : row + 1, :1])), dim=1)
                logits = block_logits(drafter, target, padded, ids_there, torch.tensor([[anchor]]), block)
                torch.testing.assert_close(together[row, which], logits[0, 0], rtol=1e-4, atol=1e-4)


def test_no_block_sees_features_from_its_anchor_on():
    models = random_models("tiny-gqa")
    drafter, target = models.drafter, models.target
    ids = torch.randint(3, 90, (1, 30), generator=torch.Generator().manual_seed(5))
    anchors, block = torch.tensor([[4, 11, 18, 25]]), models.drafter.shape.block_size
    with torch.inference_mode():
        features = target.full(ids)[1]
        before = block_logits(drafter, target, features, ids, anchors, block)
        features[:, 11:] = 1e3
        ids[:, 12:] = 7
        after = block_logits(drafter, target, features, ids, anchors, block)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])
