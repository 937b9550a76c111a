"""What changes with precision and what must not: rotary tables, selection bias, INT4 experts packed and unpacked."""

from __future__ import annotations

import copy

import pytest
import torch

from ddbench.models.layers import RotaryTable
from ddbench.models.moe import MoE
from ddbench.models.shapes import RopeShape, YarnShape
from ddbench.models.weights import Models, dequantize_experts, load_models, random_models
from ddbench.reference import int4, rope
from ddbench.spec import EngineSpec
from ddbench.testing import relative_error

YARN = YarnShape(factor=4.0, original_context=64, mscale=0.7, mscale_all_dim=1.0)


@pytest.fixture(scope="module")
def packed() -> Models:
    return random_models("tiny-mla-moe")


@pytest.mark.parametrize("yarn", [None, YARN])
def test_rotary_tables_are_the_references_and_fp32_for_good(yarn: YarnShape | None):
    shape = RopeShape(theta=5e4, rotary_dim=12, yarn=yarn)
    table = RotaryTable(shape, 300)
    scale = 1.0
    if yarn is not None:
        scale = rope.yarn_mscale(4.0, 0.7) / rope.yarn_mscale(4.0, 1.0)
    frequencies = rope.inv_freq(12, 5e4, None if yarn is None else yarn.model_dump())
    cos, sin = rope.cos_sin(frequencies, 300, scale)
    torch.testing.assert_close(table.cos, cos)
    torch.testing.assert_close(table.sin, sin)
    before = table.cos.clone()
    table.to(torch.bfloat16)
    assert table.cos.dtype == torch.float32
    assert torch.equal(table.cos, before)
    assert not table.state_dict()


def test_a_model_in_bfloat16_keeps_what_must_be_exact(packed: Models):
    target = copy.deepcopy(packed.target)
    before = {name: buffer.clone() for name, buffer in target.named_buffers()}
    target.to(torch.bfloat16)
    assert {p.dtype for p in target.parameters()} == {torch.bfloat16}
    for name, buffer in target.named_buffers():
        assert torch.equal(buffer, before[name]), name
        assert buffer.dtype == before[name].dtype
    kinds = {name.rsplit(".", 1)[-1]: buffer.dtype for name, buffer in before.items()}
    assert kinds["bias"] == kinds["cos"] == torch.float32
    assert kinds["down_scales"] == torch.bfloat16


def test_a_model_moves_to_another_device_whole(packed: Models):
    target = copy.deepcopy(packed.target).to("meta")
    assert all(tensor.is_meta for tensor in (*target.parameters(), *target.buffers()))


def test_experts_unpacked_at_load_are_those_unpacked_at_use(packed: Models, session, make_ids):
    """INT4: the same values, so the same tokens."""
    ids = make_ids(12)[None]
    at_use = session(packed.target, 1, 16).run(ids)
    target = copy.deepcopy(packed.target)
    dequantize_experts(target, torch.float32)
    for one, other in zip(session(target, 1, 16).run(ids), at_use, strict=True):
        assert torch.equal(one, other)


def test_unpacking_replaces_words_by_the_references_values(packed: Models):
    target = copy.deepcopy(packed.target)
    experts = target.layers[1].mlp.experts  # type: ignore[union-attr]
    words, scales = experts.gate_up_packed, experts.gate_up_scales
    dequantize_experts(target, torch.float32)
    assert torch.equal(experts.gate_up, int4.dequantize(words, scales, 32, torch.float32))
    assert not any("packed" in name or "scales" in name for name in target.state_dict())
    assert not experts.gate_up.requires_grad
    dequantize_experts(target, torch.float32)  # nothing left to unpack


@pytest.mark.parametrize("experts", ["packed", "dequantized"])
def test_the_spec_decides_how_experts_are_held(experts: str):
    models = load_models(EngineSpec(target="tiny-mla-moe", experts=experts))
    held = {child.experts.is_packed for child in models.target.modules() if isinstance(child, MoE)}
    assert held == {experts == "packed"}


def test_the_wide_form_is_the_routed_one(packed: Models):
    """Every expert on every token, unchosen ones times zero: what training and generation run."""
    moe = copy.deepcopy(packed.target.layers[1].mlp)
    assert isinstance(moe, MoE)
    moe.experts.dequantize(torch.float32)
    x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(3))
    routed = moe(x)
    wide, load = moe.full(x)
    assert relative_error(wide, routed) < 1e-5
    ids, _ = moe.route(x.flatten(0, 1))
    assert load.tolist() == torch.bincount(ids.flatten(), minlength=8).tolist()
    moe.is_wide = True
    assert torch.equal(moe(x), wide)


def test_fake_quantisation_rounds_forwards_and_passes_gradients(packed: Models):
    moe = copy.deepcopy(packed.target.layers[1].mlp)
    assert isinstance(moe, MoE)
    moe.experts.dequantize(torch.float32)
    moe.experts.requires_grad_(True)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))
    on_grid = moe.full(x)[0]
    torch.testing.assert_close(moe.full(x, fake_quantize=True)[0], on_grid)  # rounding twice changes nothing
    with torch.no_grad():
        moe.experts.down.add_(0.01 * torch.randn(moe.experts.down.shape, generator=torch.Generator().manual_seed(4)))
    rounded = moe.full(x, fake_quantize=True)[0]
    assert not torch.allclose(rounded, moe.full(x)[0], atol=1e-4)
    rounded.square().sum().backward()
    assert moe.experts.down.grad is not None
    assert float(moe.experts.down.grad.abs().sum()) > 0
