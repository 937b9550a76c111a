"""Random weights made on a device: whole, seeded by name, of the right size, with a successor that cannot be missed.

Made here by a CPU's generator; a GPU's goes the same way.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddbench.harness.parity import NEAR_TIE
from ddbench.models.layers import RotaryTable
from ddbench.models.moe import MoE
from ddbench.models.random_weights import RESIDUAL_SCALE
from ddbench.models.shapes import DRAFTERS, TARGETS, DrafterShape, MLAShape, MoEShape, TargetShape
from ddbench.models.weights import (
    LARGE,
    Models,
    count_parameters,
    is_made_on_device,
    random_models,
    random_models_on,
)
from ddbench.reference import int4

CPU = torch.device("cpu")


ATTENTION = MLAShape(num_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_dim=32, qk_rope_dim=16, v_head_dim=32)
EXPERTS = MoEShape(
    num_experts=32, top_k=8, expert_width=128, routed_scaling=2.827, weight_format="int4",
    num_local_experts=4, first_expert=8,
)  # fmt: skip


def rank_shape(**changes: Any) -> TargetShape:
    """A rank of Kimi-K2.6, scaled down: an eighth of the experts, not the first one, the rest of its structure."""
    changes = {
        "name": "small-rank",
        "num_layers": 4,
        "hidden": 512,
        "vocab": 1024,
        "dense_width": 1024,
        "max_context": 256,
        "stop_token_ids": (),
        "attention": ATTENTION.model_dump(),
        "rope": {"theta": 5e4, "rotary_dim": 16, "yarn": {"factor": 64.0, "original_context": 16}},
        "moe": EXPERTS.model_dump(),
        **changes,
    }
    return TargetShape(**{**TARGETS["k2.6-ep8-rank"].model_dump(), **changes})


def drafter_for(target: TargetShape) -> DrafterShape:
    changes = {
        "name": "small-drafter",
        "num_layers": 2,
        "hidden": target.hidden,
        "width": 256,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "mask_token_id": 3,
        "target_layer_ids": (1, 2),
        "num_target_layers": target.num_layers,
        "target_hidden": target.hidden,
        "rope": {"theta": 5e4, "rotary_dim": 32},
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 16,
    }
    return DrafterShape(**{**DRAFTERS["k2.6-ep8-rank"].model_dump(), **changes})


def made(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Models:
    shape = rank_shape(**changes)
    return random_models_on(CPU, shape, drafter_for(shape), seed=seed, dtype=dtype)


@pytest.fixture(scope="module")
def rank() -> Models:
    return made()


def test_every_tensor_is_there_in_its_final_dtype_and_finite():
    """Nothing stays on the meta device, selection biases and rotary tables keep fp32, scales bf16, words int32."""
    models = made(dtype=torch.bfloat16)
    for module in (models.target, models.drafter):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            fixed = {"bias": torch.float32, "cos": torch.float32, "sin": torch.float32}
            expected = torch.int32 if name.endswith("_packed") else fixed.get(name.rpartition(".")[2], torch.bfloat16)
            assert tensor.dtype == expected, name
            assert tensor.device == CPU, name
            assert not tensor.requires_grad, name
            assert torch.isfinite(tensor.float()).all(), name
            assert float(tensor.float().std()) > 0, name
        assert not module.training


def test_rotary_tables_are_the_ordinary_ones(rank: Models):
    for module, positions in ((rank.target, 256), (rank.drafter, 256 + 8)):
        table = RotaryTable(module.shape.rope, positions)
        assert torch.equal(module.rotary.cos, table.cos)
        assert torch.equal(module.rotary.sin, table.sin)


def test_the_tensors_are_those_of_models_made_in_the_ordinary_way():
    name = "tiny-mla-moe"
    ordinary = random_models(name)
    there = random_models_on(CPU, TARGETS[name], DRAFTERS[name], dtype=torch.float32)
    for one, other in ((ordinary.target, there.target), (ordinary.drafter, there.drafter)):
        shapes = [{n: (t.shape, t.dtype) for n, t in (*m.named_parameters(), *m.named_buffers())} for m in (one, other)]
        assert shapes[0] == shapes[1]
    assert (there.facts.num_target_parameters, there.facts.num_drafter_parameters) == (
        ordinary.facts.num_target_parameters,
        ordinary.facts.num_drafter_parameters,
    )


def test_weights_depend_on_seed_and_name_only(rank: Models):
    again, other, deeper = made(), made(seed=1), made(num_layers=6)
    state, states = rank.target.state_dict(), [models.target.state_dict() for models in (again, other, deeper)]
    for name, tensor in state.items():
        assert torch.equal(tensor, states[0][name]), name
        assert not torch.equal(tensor, states[1][name]), name
        assert torch.equal(tensor, states[2][name]), name
    first, second = (rank.target.layers[i].attention.o_proj.weight for i in (0, 1))
    assert not torch.equal(first, second)


def test_weights_have_the_variance_of_one_over_fan_in(rank: Models):
    mlp = rank.target.layers[1].mlp
    assert isinstance(mlp, MoE)
    experts = mlp.experts
    matrices = {
        "gate_up": int4.dequantize(experts.gate_up_packed, experts.gate_up_scales, 32, torch.float32),
        "down": int4.dequantize(experts.down_packed, experts.down_scales, 32, torch.float32),
        "shared": mlp.shared.gate_up.weight,
        "gate": mlp.gate,
        "o_proj": rank.target.layers[0].attention.o_proj.weight,
        "fc": rank.drafter.fc.weight,
    }
    for name, weights in matrices.items():
        expected = RESIDUAL_SCALE if name in ("down", "o_proj") else 1.0
        assert float(weights.std()) * weights.shape[-1] ** 0.5 == pytest.approx(expected, rel=0.02), name
        assert abs(float(weights.mean())) * weights.shape[-1] ** 0.5 < 0.02, name
    assert float(rank.target.norm.weight.mean()) == pytest.approx(1, abs=0.03)
    assert float(mlp.bias.std()) == pytest.approx(0.01, rel=0.5)
    assert float(rank.target.embedding.weight.std()) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_layers", [4, 61])
def test_greedy_decoding_counts_upwards_by_a_wide_margin(
    num_layers: int, dtype: torch.dtype, session: Any, make_ids: Any
):
    """After any text that ends in t comes t + 1, and after the last token comes the first; at every depth."""
    models = made(dtype=dtype, num_layers=num_layers)
    ids = torch.stack([make_ids(24, seed, vocab=1024) for seed in range(3)])
    ids[2, -1] = 1023
    logits, _ = session(models.target, 3, 24).run(ids)  # [B, N, V]
    best = logits.topk(2, dim=-1)
    assert torch.equal(best.indices[..., 0], (ids + 1) % 1024)
    margin = (best.values[..., 0] - best.values[..., 1]) / best.values[..., 0]
    assert float(margin.min()) > 8 * NEAR_TIE["bfloat16"]  # and more in the named shapes: their hidden size is larger


def test_tied_embeddings_stay_tied_and_have_no_planted_successor():
    models = made(tie_embeddings=True)
    assert models.target.lm_head.weight is models.target.embedding.weight
    assert float(models.target.embedding.weight.std()) == pytest.approx(1, rel=0.01)
    assert models.facts.target_digest == "random-seed-0-cpu"


def test_the_facts_say_what_the_weights_are(rank: Models):
    assert rank.facts.target_digest == "random-seed-0-cpu-successor"
    assert rank.facts.drafter_digest == "random-seed-0-cpu"
    assert not rank.facts.has_trained_weights
    assert made(seed=3).facts.target_digest == "random-seed-3-cpu-successor"
    assert rank.facts.num_target_parameters == count_parameters(rank.target)


def test_only_large_shapes_on_a_gpu_are_made_there():
    """Small ones are the same on every device, so that devices can be compared."""
    large = {name for name in TARGETS if is_made_on_device(TARGETS[name], "cuda")}
    assert large == {name for name in TARGETS if not name.startswith(("tiny", "nano"))}
    assert not any(is_made_on_device(shape, "cpu") for shape in TARGETS.values())
    assert random_models("tiny-gqa").facts.num_target_parameters * 100 < LARGE


def test_a_rank_adds_what_its_own_experts_say(rank: Models):
    """The layer with all experts, less the layers of the ranks beside: what `first_expert` and the share mean."""
    mlp = rank.target.layers[1].mlp
    assert isinstance(mlp, MoE)
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0))
    ids, weights = mlp.route(x)
    assert ids.max() >= 12
    expected = mlp.shared(x)
    for token, (chosen, weight) in enumerate(zip(ids.tolist(), weights.tolist(), strict=True)):
        for expert, share in zip(chosen, weight, strict=True):
            if expert in range(8, 12):
                gate_up, down = (
                    int4.dequantize(words[expert - 8], scales[expert - 8], 32, torch.float32)
                    for words, scales in (
                        (mlp.experts.gate_up_packed, mlp.experts.gate_up_scales),
                        (mlp.experts.down_packed, mlp.experts.down_scales),
                    )
                )
                gate, up = (gate_up @ x[token]).chunk(2)
                expected[token] += share * (down @ (torch.nn.functional.silu(gate) * up))
    torch.testing.assert_close(mlp(x), expected, rtol=1e-4, atol=1e-4)
    mlp_of_floats = made().target.layers[1].mlp
    assert isinstance(mlp_of_floats, MoE)
    mlp_of_floats.experts.dequantize(torch.float32)
    torch.testing.assert_close(mlp_of_floats(x), expected, rtol=1e-4, atol=1e-4)
