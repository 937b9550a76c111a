"""Named shapes: the published numbers, and what follows from them."""

from __future__ import annotations

import pytest
import torch

from ddbench.errors import UserError
from ddbench.models.drafter import Drafter
from ddbench.models.moe import MoE
from ddbench.models.shapes import DRAFTERS, TARGETS, MLAShape, MoEShape, drafter_shape, target_shape
from ddbench.models.target import Target
from ddbench.models.weights import count_parameters

BF16 = 2  # bytes


def on_meta(name: str) -> tuple[Target, Drafter | None]:
    with torch.device("meta"):
        drafter = DRAFTERS.get(name)
        target = Target(TARGETS[name], () if drafter is None else drafter.target_layer_ids)
        return target, None if drafter is None else Drafter(drafter, target.shape.max_context)


PARAMETERS = {  # as published: names of the models, sizes of the checkpoints
    "qwen3-4b": 4.02e9,
    "qwen3-8b": 8.19e9,
    "llama-3.1-8b": 8.03e9,
    "deepseek-v3": 671e9,
    "kimi-k2.6": 1.026e12,
    "k2.6-ep8-rank": 1.0262e12 - 60 * 336 * 3 * 7168 * 2048,  # without the experts of seven other ranks
    "k2.6-ep8-rank-l8": 18.68e9,
    "nano-k2": 9.86e6,
    "tiny-gqa": 79e3,
    "tiny-mla-moe": 195e3,
}


@pytest.mark.parametrize("name", TARGETS)
def test_every_named_shape_can_be_built_and_has_its_size(name: str):
    target, drafter = on_meta(name)
    assert count_parameters(target) == pytest.approx(PARAMETERS[name], rel=5e-3)
    assert all(p.is_meta for p in target.parameters())
    if drafter is not None:
        assert drafter.shape.num_target_layers == len(target.layers)
        assert drafter.shape.mask_token_id < target.shape.vocab


def test_kimi_k2_6_as_published():
    shape = target_shape("kimi-k2.6")
    a, moe, rope = shape.attention, shape.moe, shape.rope
    assert isinstance(a, MLAShape)
    assert moe is not None
    assert rope.yarn is not None
    assert (shape.num_layers, shape.hidden, shape.vocab, shape.dense_width) == (61, 7168, 163840, 18432)
    assert [shape.is_moe_layer(i) for i in (0, 1, 60)] == [False, True, True]
    assert (a.num_heads, a.q_lora_rank, a.kv_lora_rank) == (64, 1536, 512)
    assert (a.qk_nope_dim, a.qk_rope_dim, a.v_head_dim) == (128, 64, 128)
    assert (moe.num_experts, moe.top_k, moe.expert_width, moe.num_shared) == (384, 8, 2048, 1)
    assert moe.routed_scaling == 2.827
    assert (moe.weight_format, moe.group_size) == ("int4", 32)
    assert (rope.theta, rope.yarn.factor, rope.yarn.original_context) == (50000.0, 64.0, 4096)
    assert (rope.yarn.beta_fast, rope.yarn.beta_slow, rope.yarn.mscale, rope.yarn.mscale_all_dim) == (32, 1, 1, 1)
    assert (shape.norm_eps, shape.max_context, shape.tie_embeddings) == (1e-5, 262144, False)
    assert shape.stop_token_ids == (163586,)


def test_only_the_routed_experts_of_kimi_are_int4():
    target, _ = on_meta("kimi-k2.6")
    packed = {name for name, buffer in target.named_buffers() if buffer.dtype == torch.int32}
    assert len(packed) == 60 * 2
    assert all(".mlp.experts." in name for name in packed)
    assert not any(".experts." in name for name, _ in target.named_parameters())
    experts = sum(8 * buffer.numel() for name, buffer in target.named_buffers() if name in packed)
    assert experts == 60 * 384 * 3 * 7168 * 2048


def test_a_rank_of_kimi_is_kimi_but_for_the_experts_it_holds():
    whole, rank, slice_ = (target_shape(name) for name in ("kimi-k2.6", "k2.6-ep8-rank", "k2.6-ep8-rank-l8"))
    assert whole.moe is not None
    assert rank.moe is not None
    assert (rank.moe.num_experts, rank.moe.num_held, rank.moe.first_expert, rank.moe.is_share) == (384, 48, 0, True)
    assert not whole.moe.is_share
    held = whole.moe.model_copy(update={"num_local_experts": 48})
    assert rank == whole.model_copy(update={"name": rank.name, "moe": held})
    assert slice_ == rank.model_copy(update={"name": slice_.name, "num_layers": 8})
    assert [slice_.is_moe_layer(i) for i in range(8)] == [False] + [True] * 7
    for name in (rank.name, slice_.name):
        changes = {"name": f"{name}-dflash", "num_target_layers": target_shape(name).num_layers}
        changes["target_layer_ids"] = drafter_shape(name).target_layer_ids
        assert drafter_shape(name) == drafter_shape("kimi-k2.6").model_copy(update=changes)
    assert drafter_shape(rank.name).target_layer_ids == (1, 12, 24, 35, 47, 58)


def test_the_router_of_a_rank_chooses_among_all_experts_and_only_its_own_have_weights():
    target, _ = on_meta("k2.6-ep8-rank-l8")
    mlp = target.layers[1].mlp
    assert isinstance(mlp, MoE)
    assert mlp.gate.shape == (384, 7168)
    assert mlp.experts.gate_up_packed.shape == (48, 4096, 896)
    assert mlp.experts.down_scales.shape == (48, 7168, 64)


@pytest.mark.parametrize(("held", "first"), [(9, 0), (4, 5), (None, 1)])
def test_a_share_of_experts_that_are_not_there_is_refused(held: int | None, first: int):
    with pytest.raises(ValueError, match=r"are held here, there are 8"):
        MoEShape(num_experts=8, top_k=2, expert_width=8, num_local_experts=held, first_expert=first)


def test_the_kimi_drafter_as_published():
    shape = drafter_shape("kimi-k2.6")
    assert (shape.num_layers, shape.hidden, shape.width, shape.block_size) == (6, 7168, 18432, 8)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (64, 8, 128)
    assert shape.target_layer_ids == (1, 12, 24, 35, 47, 58)
    assert shape.mask_token_id == 163838
    assert shape.sliding_window == 2048
    assert shape.norm_eps == 1e-5
    assert (shape.rope.theta, shape.rope.yarn) == (50000.0, target_shape("kimi-k2.6").rope.yarn)
    _, drafter = on_meta("kimi-k2.6")
    assert drafter is not None
    assert count_parameters(drafter) * BF16 == pytest.approx(6.48 * 2**30, rel=1e-3)  # the size of the checkpoint


@pytest.mark.parametrize(("name", "fc_bytes", "kv_bytes"), [("kimi-k2.6", 617e6, 176e6), ("qwen3-8b", 167.8e6, 83.9e6)])
def test_bytes_that_materialize_reads(name: str, fc_bytes: float, kv_bytes: float):
    """The floor of materialize at decode: `fc` and all layers' K/V projections, once."""
    _, drafter = on_meta(name)
    assert drafter is not None
    w = drafter.materialize_weights()
    assert w.fc.numel() * BF16 == pytest.approx(fc_bytes, rel=2e-3)
    assert w.kv_weights.numel() * BF16 == pytest.approx(kv_bytes, rel=2e-3)


def test_cache_rows_per_token():
    """Bytes per token and layer: 147,456 B over all layers of Qwen3-8B; a latent row of 1,152 B for Kimi."""
    qwen, kimi = target_shape("qwen3-8b"), target_shape("kimi-k2.6")
    numbers = [sum(torch.Size(row).numel() for row in s.attention.row_shapes) for s in (qwen, kimi)]
    assert numbers[0] * qwen.num_layers * BF16 == 147456
    assert numbers[1] * BF16 == 1152


def test_windows_and_causality_by_layer():
    """H12: no causal field means causal in the block on sliding layers only."""
    shape = drafter_shape("kimi-k2.6")
    assert [shape.window(i) for i in range(6)] == [2048] * 5 + [None]
    assert [shape.causal_in_block(i) for i in range(6)] == [True] * 5 + [False]
    for fixed in (True, False):
        assert {shape.model_copy(update={"is_causal": fixed}).causal_in_block(i) for i in range(6)} == {fixed}
    assert {drafter_shape("qwen3-8b").window(i) for i in range(5)} == {None}


def test_unknown_names_get_the_closest_one():
    with pytest.raises(UserError, match="unknown target 'qwen3-8': did you mean 'qwen3-8b'"):
        target_shape("qwen3-8")
    with pytest.raises(UserError, match=r"'llama-3\.1-8b' has no DFlash drafter"):
        drafter_shape("llama-3.1-8b")
