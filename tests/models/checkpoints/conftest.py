"""Published folders of our own random models, written down from the formats' descriptions and not with the product's
tables: the other direction of what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from ddbench.errors import UserError
from ddbench.models.drafter import Drafter
from ddbench.models.shapes import GQAShape, MLAShape, TargetShape
from ddbench.models.target import Target

QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "global_compression_ratio": None,
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
                "dynamic": False,
                "actorder": None,
                "block_structure": None,
                "observer": "minmax",
                "observer_kwargs": {},
            },
        }
    },
}


def target_config(shape: TargetShape) -> dict[str, Any]:
    """config.json of a target."""
    rope: dict[str, Any] = {"rope_theta": shape.rope.theta}
    if shape.rope.yarn is not None:
        yarn = shape.rope.yarn
        rope["rope_scaling"] = {
            "type": "yarn",
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_context,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
            "mscale": yarn.mscale,
            "mscale_all_dim": yarn.mscale_all_dim,
        }
    common = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense_width,
        "num_hidden_layers": shape.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "max_position_embeddings": shape.max_context,
        "tie_word_embeddings": shape.tie_embeddings,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": list(shape.stop_token_ids) or None,
        **rope,
    }
    attention = shape.attention
    if isinstance(attention, GQAShape):
        name, kind = ("Qwen3ForCausalLM", "qwen3") if attention.qk_norm else ("LlamaForCausalLM", "llama")
        heads = {
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
        }
        return {"architectures": [name], "model_type": kind, **common, **heads}
    return common | _latent_config(shape, attention)


def _latent_config(shape: TargetShape, attention: MLAShape) -> dict[str, Any]:
    moe = shape.moe
    assert moe is not None
    packed = {"quantization_config": QUANTIZATION} if moe.weight_format == "int4" else {}
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_heads,
        "q_lora_rank": attention.q_lora_rank,
        "kv_lora_rank": attention.kv_lora_rank,
        "qk_nope_head_dim": attention.qk_nope_dim,
        "qk_rope_head_dim": attention.qk_rope_dim,
        "v_head_dim": attention.v_head_dim,
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_width,
        "n_shared_experts": moe.num_shared,
        "routed_scaling_factor": moe.routed_scaling,
        "n_group": moe.num_groups,
        "topk_group": moe.top_groups,
        "first_k_dense_replace": shape.num_dense_layers,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
        **packed,
    }


def target_tensors(target: Target) -> dict[str, Tensor]:
    """Every tensor of a target by its published name, bf16."""
    shape, ours = target.shape, target.state_dict()
    found = {"model.embed_tokens.weight": ours["embedding.weight"], "model.norm.weight": ours["norm.weight"]}
    if not shape.tie_embeddings:
        found["lm_head.weight"] = ours["lm_head.weight"]
    for i, layer in enumerate(target.layers):
        name = f"model.layers.{i}"
        found[f"{name}.input_layernorm.weight"] = layer.input_norm.weight
        found[f"{name}.post_attention_layernorm.weight"] = layer.post_norm.weight
        theirs = {"q_a_norm": "q_a_layernorm", "kv_a_norm": "kv_a_layernorm", "kv_a_proj": "kv_a_proj_with_mqa"}
        for part, tensor in layer.attention.state_dict().items():
            module = part.removesuffix(".weight")
            found[f"{name}.self_attn.{theirs.get(module, module)}.weight"] = _pairs(module, tensor, shape)
        mlp: Any = layer.mlp
        if not shape.is_moe_layer(i):
            found |= _mlp(f"{name}.mlp", mlp)
            continue
        found |= _mlp(f"{name}.mlp.shared_experts", mlp.shared)
        found |= {f"{name}.mlp.gate.weight": mlp.gate, f"{name}.mlp.gate.e_score_correction_bias": mlp.bias}
        found |= _experts(f"{name}.mlp.experts", mlp.experts)
    return stored(found)


def stored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As a file takes them: bf16 and contiguous, integers as they are, a selection bias as it is."""
    return {
        name: (one.detach().bfloat16() if one.is_floating_point() and "bias" not in name else one.detach()).clone()
        for name, one in tensors.items()
    }


def _pairs(module: str, w: Tensor, shape: TargetShape) -> Tensor:
    """DeepSeek's rotary rows, from halves (0, 1, ..., r/2, ...) to pairs (0, r/2, 1, r/2 + 1, ...)."""
    attention = shape.attention
    if not isinstance(attention, MLAShape) or module not in ("q_proj", "q_b_proj", "kv_a_proj"):
        return w
    half, size = attention.qk_rope_dim // 2, attention.qk_nope_dim + attention.qk_rope_dim
    width = attention.kv_lora_rank + 2 * half if module == "kv_a_proj" else size
    w = w.clone()
    for start in range(width - 2 * half, len(w), width):
        rows = w[start : start + 2 * half].clone()
        w[start : start + 2 * half : 2], w[start + 1 : start + 2 * half : 2] = rows[:half], rows[half:]
    return w


def _mlp(name: str, mlp: Any) -> dict[str, Tensor]:
    gate, up = mlp.gate_up.weight.chunk(2)
    return {
        f"{name}.gate_proj.weight": gate,
        f"{name}.up_proj.weight": up,
        f"{name}.down_proj.weight": mlp.down.weight,
    }


def _experts(name: str, experts: Any) -> dict[str, Tensor]:
    width = experts.shape.expert_width
    found: dict[str, Tensor] = {}
    for e in range(experts.shape.num_experts):
        for suffix, rename in (("_packed", "_packed"), ("_scales", "_scale")) if experts.is_packed else (("", ""),):
            gate_up, down = getattr(experts, f"gate_up{suffix}")[e], getattr(experts, f"down{suffix}")[e]
            found[f"{name}.{e}.gate_proj.weight{rename}"] = gate_up[:width]
            found[f"{name}.{e}.up_proj.weight{rename}"] = gate_up[width:]
            found[f"{name}.{e}.down_proj.weight{rename}"] = down
        if experts.is_packed:
            for part in ("gate", "up", "down"):
                rows, words = found[f"{name}.{e}.{part}_proj.weight_packed"].shape
                found[f"{name}.{e}.{part}_proj.weight_shape"] = torch.tensor([rows, words * 8])
    return found


def drafter_config(drafter: Drafter, vocab: int) -> dict[str, Any]:
    """config.json of a drafter, as z-lab lays it out."""
    shape = drafter.shape
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": shape.norm_eps,
        "vocab_size": vocab,
        "rope_theta": shape.rope.theta,
        "rope_scaling": None,
        "partial_rotary_factor": shape.rope.rotary_dim / shape.head_dim,
        "layer_types": list(shape.layer_types) or ["full_attention"] * shape.num_layers,
        "use_sliding_window": "sliding_attention" in shape.layer_types,
        "sliding_window": shape.sliding_window,
        "max_window_layers": shape.num_layers,
        "block_size": shape.block_size,
        "num_target_layers": shape.num_target_layers,
        "tie_word_embeddings": False,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
    }


def drafter_tensors(drafter: Drafter) -> dict[str, Tensor]:
    """Every tensor of a drafter by its published name, bf16."""
    found = {
        "fc.weight": drafter.fc.weight,
        "hidden_norm.weight": drafter.hidden_norm.weight,
        "norm.weight": drafter.norm.weight,
    }
    for i, layer in enumerate(drafter.layers):
        name = f"layers.{i}"
        found[f"{name}.input_layernorm.weight"] = layer.input_norm.weight
        found[f"{name}.post_attention_layernorm.weight"] = layer.post_norm.weight
        for part, tensor in layer.attention.state_dict().items():
            found[f"{name}.self_attn.{part}"] = tensor
        found |= _mlp(f"{name}.mlp", layer.mlp)
    return stored(found)


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], num_files: int = 1) -> Path:
    """A published folder, its tensors in one file or in several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if num_files == 1:
        safetensors.torch.save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map = {}
    for number in range(num_files):
        file = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        part = names[number::num_files]
        safetensors.torch.save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


class Formats:
    """The functions above, for tests."""

    target_config = staticmethod(target_config)
    target_tensors = staticmethod(target_tensors)
    drafter_config = staticmethod(drafter_config)
    drafter_tensors = staticmethod(drafter_tensors)
    write = staticmethod(write_folder)


@pytest.fixture(scope="session")
def formats() -> type[Formats]:
    return Formats


@pytest.fixture(scope="session")
def complaint() -> Callable[[Callable[[], object]], str]:
    """`complaint(action)`: the one line that the user gets."""

    def caught(action: Callable[[], object]) -> str:
        with pytest.raises(UserError) as error:
            action()
        assert "\n" not in str(error.value)
        return str(error.value)

    return caught
