"""Training of the target: what is trained is what is stored, routing balances itself, compression is counted right."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ddbench.kernels import int4
from ddbench.models.attention import DenseMask
from ddbench.models.inputs import VerifyInputs
from ddbench.models.moe import MoE
from ddbench.models.shapes import TARGETS, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import dequantize_experts
from ddbench.train.target import (
    BALANCE_RATE,
    TargetRecipe,
    balance,
    bits_per_byte,
    float_shape,
    initialize,
    next_token_loss,
    pack,
    train_target,
)
from ddbench.train.tokens import TokenStream


@pytest.fixture
def trained(toy_shapes) -> Target:
    """Float weights that are on no grid."""
    shape, drafter = toy_shapes
    model = Target(float_shape(shape), drafter.target_layer_ids)
    initialize(model, 3)
    return model.requires_grad_(False)


def ids_of(rows: int, length: int) -> torch.Tensor:
    return torch.randint(320, (rows, length), generator=torch.Generator().manual_seed(8))


def cached_logits(model: Target, ids: torch.Tensor) -> torch.Tensor:
    """The forward that inference runs, over a fresh cache."""
    rows, length = ids.shape
    row_shapes = model.shape.attention.row_shapes
    cache = [tuple(torch.zeros(rows, length, *row) for row in row_shapes) for _ in model.layers]
    zeros = torch.zeros(rows, dtype=torch.int64)
    inputs = VerifyInputs(ids, torch.arange(length).expand(rows, -1), zeros, None, 0)
    return model(inputs, cache, DenseMask()).logits


def test_what_is_trained_with_rounded_experts_is_what_is_stored(trained: Target, toy_shapes):
    """The fake-quantised training forward equals the packed model's inference forward."""
    ids = ids_of(2, 12)
    packed = pack(trained, toy_shapes[0])
    expected = trained.head(trained.full(ids, fake_quantize=True)[0])
    torch.testing.assert_close(cached_logits(packed, ids), expected, rtol=1e-4, atol=1e-5)
    plain = trained.head(trained.full(ids)[0])
    assert not torch.allclose(plain, expected, atol=1e-4)


def test_packing_keeps_everything_but_the_experts(trained: Target, toy_shapes):
    packed = pack(trained, toy_shapes[0])
    state = packed.state_dict()
    for name, tensor in trained.state_dict().items():
        if name.endswith((".experts.gate_up", ".experts.down")):
            words, scales = int4.quantize(tensor, 32)
            assert torch.equal(state[f"{name}_packed"], words)
            assert torch.equal(state[f"{name}_scales"], scales)
        else:
            assert torch.equal(state[name], tensor)
    assert not packed.training
    assert not any(p.requires_grad for p in packed.parameters())


def test_packing_what_was_packed_changes_nothing(trained: Target, toy_shapes):
    shape = toy_shapes[0]
    once = pack(trained, shape)
    unpacked = copy.deepcopy(once)
    dequantize_experts(unpacked, torch.float32)
    for name, tensor in pack(unpacked, shape).state_dict().items():
        assert torch.equal(tensor, once.state_dict()[name]), name


def test_packing_a_float_shape_is_a_copy(trained: Target, toy_shapes):
    shape = float_shape(toy_shapes[0])
    again = pack(trained, shape)
    assert again.shape == shape
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in trained.state_dict().items())


def test_float_shapes_differ_in_their_experts_only(toy_shapes):
    shape, dense = toy_shapes[0], TARGETS["tiny-gqa"]
    changed = float_shape(shape)
    assert changed.moe is not None
    assert changed.moe.weight_format == "float"
    assert changed.model_copy(update={"moe": shape.moe}) == shape
    assert float_shape(dense) is dense


def test_selection_bias_moves_against_the_load(trained: Target):
    (layer,) = [child for child in trained.modules() if isinstance(child, MoE)]
    before = layer.bias.clone()
    balance(trained, torch.tensor([[10.0, 2.0, 6.0, 6.0]]))
    assert (layer.bias - before).tolist() == pytest.approx([-BALANCE_RATE, BALANCE_RATE, 0.0, 0.0])


def test_balancing_evens_out_a_skewed_router(trained: Target):
    """Driven for some steps, the overloaded expert loses tokens to the others."""
    (layer,) = [child for child in trained.modules() if isinstance(child, MoE)]
    layer.bias[0] = 0.2
    ids = ids_of(4, 32)

    def spread() -> float:
        load = trained.full(ids)[2][0]
        return float(load.max() - load.min())

    before = spread()
    for _ in range(150):
        balance(trained, trained.full(ids)[2])
    assert spread() < before / 2


def test_the_loss_is_that_of_the_next_token(trained: Target):
    ids = ids_of(2, 9)
    loss, loads = next_token_loss(trained, ids, fake_quantize=False)
    log_probs = trained.head(trained.full(ids)[0]).log_softmax(dim=-1)  # the last position has no next token
    expected = -torch.stack([log_probs[b, t, ids[b, t + 1]] for b in range(2) for t in range(8)]).mean()
    torch.testing.assert_close(loss, expected)
    assert loads.sum() == 2 * 8 * 2  # tokens x top_k


def stream_of(tokens: list[int], num_bytes: int) -> TokenStream:
    return TokenStream(np.array(tokens, dtype=np.uint16), np.array([0]), ("prose",), np.array([num_bytes]), "digest")


@pytest.mark.parametrize(("length", "window"), [(200, 16), (129, 16), (40, 64)])
def test_bits_per_byte_of_a_model_that_knows_nothing(trained: Target, length: int, window: int):
    """Uniform logits cost log2(V) bits a token, whatever the windows."""
    trained.lm_head.weight.zero_()
    measured = bits_per_byte(trained, stream_of(ids_of(1, length)[0].tolist(), 3 * length), window)
    assert measured == pytest.approx(math.log2(320) / 3)


def test_bits_per_byte_is_the_mean_over_whole_windows(trained: Target):
    tokens = ids_of(1, 50)[0]
    windows = [tokens[start : start + 17] for start in (0, 16, 32)]
    nats = torch.stack([next_token_loss(trained, w[None], False)[0] for w in windows]).mean()
    expected = float(nats) / math.log(2) * 50 / 120
    assert bits_per_byte(trained, stream_of(tokens.tolist(), 120), 16) == pytest.approx(expected, rel=1e-5)


def test_a_fresh_model_predicts_almost_uniformly(trained: Target):
    loss, _ = next_token_loss(trained, ids_of(4, 32), False)
    assert float(loss) == pytest.approx(math.log(320), rel=0.05)
    assert all(bool((p == 1).all()) for name, p in trained.named_parameters() if name.endswith("norm.weight"))


RECIPE = TargetRecipe(batch_rows=8, window=24, warmup_steps=3, steps=16, peak_rate=1e-2)


def test_training_learns_and_returns_the_packed_model(toy_shapes, toy_stream, tmp_path: Path):
    shape, drafter = toy_shapes
    lines: list[str] = []
    model, curve = train_target(shape, drafter, toy_stream, toy_stream, RECIPE, tmp_path, "cpu", lines.append)
    assert model.shape == shape
    assert curve[-1]["bits_per_byte"] < 0.9 * curve[0]["bits_per_byte"]
    dequantize_experts(model, torch.float32)
    assert bits_per_byte(model, toy_stream, 24) == pytest.approx(curve[-1]["bits_per_byte"], rel=1e-5)


@pytest.mark.parametrize("weight_format", ["int4", "float"])
def test_experts_are_rounded_late_and_only_where_they_are_stored_in_int4(
    toy_shapes, toy_stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight_format: str
):
    shape, drafter = toy_shapes
    values = shape.model_dump()
    values["moe"]["weight_format"] = weight_format
    rounded: list[bool] = []
    original = Target.full

    def full(self: Target, ids: torch.Tensor, fake_quantize: bool = False):
        if torch.is_grad_enabled():
            rounded.append(fake_quantize)
        return original(self, ids, fake_quantize)

    monkeypatch.setattr(Target, "full", full)
    train_target(TargetShape(**values), drafter, toy_stream, toy_stream, RECIPE, tmp_path, "cpu", print)
    assert rounded == [False] * 12 + [weight_format == "int4"] * 4
