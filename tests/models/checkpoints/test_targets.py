"""Published targets: what was written is what is loaded, and whatever does not fit ends in one line that names it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.models.checkpoints import published
from ddbench.models.checkpoints.digests import files_digest
from ddbench.models.kernel_set import TORCH, plain_ops
from ddbench.models.random_weights import randomize
from ddbench.models.routing import grouped_route
from ddbench.models.shapes import TARGETS, MoEShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import load_models, pair_shapes
from ddbench.spec import ARMS, EngineSpec


def changed(name: str, **changes: Any) -> TargetShape:
    return TargetShape(**{**TARGETS[name].model_dump(), "stop_token_ids": (3,), **changes})


def with_moe(**changes: Any) -> TargetShape:
    moe = TARGETS["tiny-mla-moe"].moe
    assert moe is not None
    return changed("tiny-mla-moe", moe={**moe.model_dump(), **changes})


NO_QK_NORM = {**TARGETS["tiny-gqa"].attention.model_dump(), "qk_norm": False}
SHAPES = {
    "qwen3": changed("tiny-gqa"),
    "llama": changed("tiny-gqa", attention=NO_QK_NORM, rope={"theta": 5e5, "rotary_dim": 16}),
    "llama tied": changed("tiny-gqa", attention=NO_QK_NORM, tie_embeddings=True),
    "kimi int4": changed("tiny-mla-moe"),
    "deepseek floats": with_moe(weight_format="float"),
    "deepseek groups": with_moe(weight_format="float", num_groups=4, top_groups=2, top_k=3),
    "deepseek two shared": with_moe(weight_format="float", num_shared=2),
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def targets() -> dict[str, Target]:
    """Random ones, of values that bf16 holds."""
    found = {}
    for name, shape in SHAPES.items():
        target = Target(shape)
        randomize(target, 11)
        for tensor in (*target.parameters(), *target.buffers()):
            if tensor.dtype == torch.float32 and tensor.dim() > 1 and "cos" not in name:
                tensor.data.copy_(tensor.data.bfloat16().float())
        found[name] = target.requires_grad_(False)
    return found


@pytest.fixture
def write(targets, formats, tmp_path) -> Callable[..., Path]:
    """`write(name, num_files)`: a sound folder, to be spoilt."""

    def written(name: str = "qwen3", num_files: int = 1) -> Path:
        target = targets[name]
        config, tensors = formats.target_config(target.shape), formats.target_tensors(target)
        return formats.write(tmp_path / "model", config, tensors, num_files)

    return written


def load(folder: Path, **changes: Any) -> Target:
    return load_models(EngineSpec(**{"target": str(folder), "experts": "packed", **ARMS["ar"], **changes})).target


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; `...` removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("num_files", [1, 3])
@pytest.mark.parametrize("name", SHAPES)
def test_what_was_written_is_what_is_loaded(targets, write, name, num_files):
    folder = write(name, num_files)
    target = load(folder)
    assert target.shape == SHAPES[name].model_copy(update={"name": "model"})
    expected = targets[name].state_dict()
    loaded = target.state_dict()
    assert loaded.keys() == expected.keys()
    for key, tensor in expected.items():
        wanted = tensor.bfloat16().float() if tensor.dtype == torch.float32 and "bias" not in key else tensor
        assert torch.equal(loaded[key], wanted), key
        assert loaded[key].dtype == tensor.dtype
    assert (target.lm_head.weight is target.embedding.weight) == SHAPES[name].tie_embeddings


@pytest.mark.parametrize("name", ["qwen3", "kimi int4", "deepseek two shared"])
def test_a_loaded_target_computes_what_its_formulas_say(write, oracle, make_ids, session, name):
    """H02, H07: logits and features against the equations alone, as of every other target."""
    target = load(write(name))
    target.capture_ids = (0, 2)
    ids = make_ids(12)
    logits, features = session(target, 1, 20).feed(ids[None])
    expected, expected_features = oracle.target(target, ids.tolist())
    torch.testing.assert_close(logits[0].double(), expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(features[0].double(), expected_features, atol=2e-4, rtol=1e-4)


def test_experts_come_from_the_best_groups_only():
    """By hand: groups are judged by their two best experts, experts elsewhere are never chosen, ties go down."""
    shape = MoEShape(num_experts=6, top_k=2, expert_width=8, num_groups=3, top_groups=1, routed_scaling=2.0)
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.5, 0.2, 0.3], [0.5, 0.5, 0.5, 0.5, 0.1, 0.1]])
    ids, weights = grouped_route(scores.logit(), torch.eye(6), torch.zeros(6), shape)
    assert ids.tolist() == [[2, 3], [0, 1]]  # 0.9 + 0.1 < 0.6 + 0.5, although 0.9 is the best expert of all
    torch.testing.assert_close(weights, torch.tensor([[1.2 / 1.1, 1.0 / 1.1], [1.0, 1.0]]))
    bias = torch.tensor([0.0, 0.2, 0, 0, 0, 0])
    ids, weights = grouped_route(scores.logit(), torch.eye(6), bias, shape)
    assert ids[0].tolist() == [0, 1]  # the bias takes part in the choice, and not in the weights
    torch.testing.assert_close(weights[0], torch.tensor([1.8, 0.2]))


def test_grouped_routing_is_plain_torch_and_says_so(targets):
    other = replace(TORCH, name="another set")
    assert plain_ops(targets["deepseek groups"], other) == ("moe_route",)
    assert plain_ops(targets["deepseek groups"], TORCH) == ()
    assert plain_ops(targets["deepseek floats"], other) == plain_ops(targets["qwen3"], other) == ()


def test_grouped_choices_are_those_of_plain_loops():
    shape = MoEShape(num_experts=12, top_k=3, expert_width=8, num_groups=4, top_groups=2, routed_scaling=1.5)
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(20, 5, generator=generator), torch.randn(12, 5, generator=generator)
    bias = 0.3 * torch.randn(12, generator=generator)
    ids, weights = grouped_route(x, gate, bias, shape)
    for row in range(20):
        scores = [1 / (1 + math.exp(-float(x[row] @ gate[e]))) for e in range(12)]
        choice = [scores[e] + float(bias[e]) for e in range(12)]
        worth = {g: sum(sorted(choice[3 * g : 3 * g + 3])[-2:]) for g in range(4)}
        open_groups = sorted(worth, key=lambda g: -worth[g])[:2]
        best = sorted((e for e in range(12) if e // 3 in open_groups), key=lambda e: -choice[e])[:3]
        assert ids[row].tolist() == best
        total = sum(scores[e] for e in best)
        assert weights[row].tolist() == pytest.approx([1.5 * scores[e] / total for e in best], rel=1e-5)


def test_a_negative_choice_inside_the_groups_beats_every_expert_outside():
    """Closed groups count as minus infinity, not as zero: a bias may push all open experts below zero."""
    shape = MoEShape(num_experts=4, top_k=2, expert_width=8, num_groups=2, top_groups=1)
    scores, bias = torch.tensor([[0.5, 0.4, 0.1, 0.1]]), torch.full((4,), -1.0)
    ids, _ = grouped_route(scores.logit(), torch.eye(4), bias, shape)
    assert ids.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen3", {"architectures": ["MambaForCausalLM"]}, ("architectures", "'MambaForCausalLM' cannot be served")),
        ("qwen3", {"architectures": ["Qwen3ForCausalML"]}, ("did you mean 'Qwen3ForCausalLM'",)),
        ("qwen3", {"architectures": ...}, ("architectures", "expected one name")),
        ("qwen3", {"model_type": "llama"}, ("model_type: is 'llama'", "goes with qwen3")),
        ("qwen3", {"hidden_size": ...}, ("hidden_size: is not set", "a whole number")),
        ("qwen3", {"hidden_size": "48"}, ("hidden_size: expected a whole number, got '48'",)),
        ("qwen3", {"hidden_size": True}, ("hidden_size: expected a whole number, got True",)),
        ("qwen3", {"num_hidden_layers": 0}, ("num_hidden_layers: is 0, expected 1 to 1024",)),
        ("qwen3", {"rope_theta": ...}, ("rope_theta: is set neither here nor in rope_parameters",)),
        (
            "qwen3",
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
            ("rope_theta: is 1000000.0, but rope_theta says 10000.0 elsewhere",),
        ),
        ("qwen3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("rope_scaling.rope_type: 'dynamic'",)),
        (
            "qwen3",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            ("original_max_position_embeddings: is not set",),
        ),
        ("qwen3", {"partial_rotary_factor": 0.5}, ("partial_rotary_factor: is 0.5",)),
        ("qwen3", {"attention_bias": True}, ("attention_bias: is True, only False",)),
        ("qwen3", {"hidden_act": "gelu"}, ("hidden_act: is 'gelu', only 'silu'",)),
        ("qwen3", {"use_sliding_window": True}, ("use_sliding_window: is True",)),
        ("qwen3", {"layer_types": ["full_attention"]}, ("layer_types: has 1 entries for 3 layers",)),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, ("layer_types", "only full_attention")),
        ("qwen3", {"final_logit_softcapping": 30.0}, ("final_logit_softcapping: is 30.0: an unknown field",)),
        ("qwen3", {"rms_norm_epps": 1e-6}, ("rms_norm_epps", "unknown field")),
        ("qwen3", {"quantization_config": {"quant_method": "fp8"}}, ("'fp8'", "floats only")),
        ("qwen3", {"eos_token_id": [96]}, ("stop_token_ids [96]", "ends at 95")),
        ("qwen3", {"num_key_value_heads": 3}, ("num_heads is 4", "multiple of num_kv_heads, 3")),
        ("llama", {"mlp_bias": True}, ("mlp_bias: is True",)),
        ("kimi int4", {"scoring_func": "softmax"}, ("scoring_func: is 'softmax', only 'sigmoid'",)),
        ("kimi int4", {"topk_method": "greedy"}, ("topk_method: is 'greedy'",)),
        ("kimi int4", {"norm_topk_prob": False}, ("norm_topk_prob: is False",)),
        ("kimi int4", {"moe_layer_freq": 2}, ("moe_layer_freq: is 2, only 1",)),
        ("kimi int4", {"n_group": 3}, ("1 of 3 groups of 8 experts",)),
        ("kimi int4", {"n_group": 8}, ("top_k is 2, 1 groups hold 1 experts",)),
        ("kimi int4", {"num_experts_per_tok": 9}, ("top_k is 9, there are 8 experts",)),
        ("kimi int4", {"n_shared_experts": None}, ("n_shared_experts: is not set",)),
        ("kimi int4", {"routed_scaling_factor": ...}, ("routed_scaling_factor: is not set",)),
        (
            "kimi int4",
            {"qk_rope_head_dim": 14},
            ("q_b_proj.weight' has shape [128, 32], config.json asks for [120, 32]",),
        ),
        ("kimi int4", {"quantization_config": {"quant_method": "fp8"}}, ("quant_method: 'fp8' cannot be served",)),
        ("kimi int4", {"quantization_config": "int4"}, ("quantization_config: expected a table, got 'int4'",)),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_honoured_is_named(write, complaint, name, changes, words):
    folder = write(name)
    edit(folder, **changes)
    line = complaint(lambda: load(folder))
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "int-quantized", "format: is 'int-quantized'"),
        (("kv_cache_scheme",), {"num_bits": 8}, "kv_cache_scheme"),
        (("config_groups", "group_0", "weights", "num_bits"), 8, "weights.num_bits: is 8, only 4"),
        (("config_groups", "group_0", "weights", "symmetric"), False, "weights.symmetric: is False"),
        (("config_groups", "group_0", "weights", "strategy"), "channel", "weights.strategy: is 'channel'"),
        (("config_groups", "group_0", "weights", "actorder"), "group", "weights.actorder: is 'group'"),
        (("config_groups", "group_0", "weights", "group_size"), None, "weights.group_size: is not set"),
        (("config_groups", "group_0", "weights", "group_size"), 48, "not a multiple"),
        (("config_groups", "group_0", "input_activations"), {"num_bits": 8}, "input_activations: is set"),
        (("config_groups", "group_0", "weights", "zero"), 1, "weights.zero: is 1: an unknown field"),
        (("config_groups", "group_1"), {}, "config_groups: expected one group"),
    ],
    ids=str,
)
def test_a_quantisation_that_cannot_be_honoured_is_named(write, complaint, path, value, words):
    folder = write("kimi int4")
    config = json.loads((folder / "config.json").read_text())
    table = config["quantization_config"]
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    edit(folder, **config)
    assert words in complaint(lambda: load(folder))


def test_missing_unused_misshaped_and_mistyped_tensors_are_named(write, complaint):
    """H18."""
    folder = write()
    sound = (folder / "model.safetensors").read_bytes()
    name = "model.layers.1.self_attn.q_proj.weight"
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
        (lambda t: t.pop(name), f"misses tensor '{name}' (1 such)"),
        (lambda t: t.update({f"{name}_scale": torch.ones(1)}), f"unused tensor '{name}_scale' (1 such)"),
        (lambda t: t.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(64)}), "unused tensor"),
        (lambda t: t.update({name: torch.ones(64, 47)}), f"'{name}' has shape [64, 47], config.json asks for [64, 48]"),
        (lambda t: t.update({name: torch.ones(64, 48).half()}), f"'{name}' is F16, expected BF16 or F32"),
        (lambda t: t.update({name: torch.ones(64, 48).to(torch.float8_e4m3fn)}), f"'{name}' is F8_E4M3"),
        (lambda t: t.update({name: torch.ones(64, 48).int()}), f"'{name}' is I32"),
        (lambda t: t.update({name: torch.full((64, 48), torch.nan)}), f"'{name}' has non-finite values"),
        (lambda t: t.update({name: torch.full((64, 48), 3e38) * 10}), f"'{name}' has non-finite values"),
    ]
    for change, words in cases:
        (folder / "model.safetensors").write_bytes(sound)
        edit_tensors(folder, change)
        assert words in complaint(lambda: load(folder))


def test_large_values_are_no_reason_to_complain(write):
    """Their sum overflows, they do not."""
    folder = write()
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.full((48,), 3e38)}))
    assert load(folder).norm.weight.isfinite().all()


def test_rotary_tables_are_read_over_and_a_second_head_is_not(write, complaint):
    folder = write("llama tied")
    edit_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    load(folder)
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": torch.ones(96, 48)}))
    assert "unused tensor 'lm_head.weight'" in complaint(lambda: load(folder))


def test_layers_of_multi_token_prediction_are_left_where_the_file_announces_them(write, complaint):
    folder = write("deepseek floats")
    edit_tensors(folder, lambda t: t.update({"model.layers.3.eh_proj.weight": torch.ones(2)}))
    assert "unused tensor 'model.layers.3.eh_proj.weight'" in complaint(lambda: load(folder))
    edit(folder, num_nextn_predict_layers=1)
    load(folder)
    edit_tensors(folder, lambda t: t.update({"model.layers.4.eh_proj.weight": torch.ones(2)}))
    assert "unused tensor 'model.layers.4.eh_proj.weight'" in complaint(lambda: load(folder))


def test_the_text_part_of_a_model_of_text_and_images_is_loaded(write, complaint):
    """Kimi-K2.5 and later: the language model lies below `text_config` and `language_model.`."""
    folder = write("kimi int4")
    expected = load(folder).state_dict()
    inner = json.loads((folder / "config.json").read_text())
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": inner}
    (folder / "config.json").write_text(json.dumps(outer | {"vision_config": {"patch_size": 14}, "ignore_index": -100}))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    others = {"vision_tower.patch_embed.proj.weight": torch.ones(3), "mm_projector.proj.0.bias": torch.ones(3)}
    wrapped = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(wrapped | others, folder / "model.safetensors")
    loaded = load(folder).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    safetensors.torch.save_file(wrapped | {"audio_tower.weight": torch.ones(3)}, folder / "model.safetensors")
    assert "unused tensor 'audio_tower.weight'" in complaint(lambda: load(folder))
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": {**inner, "scoring_func": "softmax"}}))
    assert "text_config.scoring_func: is 'softmax'" in complaint(lambda: load(folder))
    (folder / "config.json").write_text(json.dumps({**outer, "text_config": None}))
    assert "text_config: is not set" in complaint(lambda: load(folder))


def test_packed_experts_say_their_shape_and_are_held_to_it(write, complaint):
    folder = write("kimi int4")
    name = "model.layers.1.mlp.experts.5.up_proj.weight"
    sound = (folder / "model.safetensors").read_bytes()
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
        (lambda t: t.update({f"{name}_shape": torch.tensor([32, 72])}), f"'{name}_shape' says [32, 72], config.json"),
        (lambda t: t.update({f"{name}_packed": t[f"{name}_packed"].float()}), f"'{name}_packed' is F32, expected I32"),
        (lambda t: t.update({f"{name}_scale": t[f"{name}_scale"].float()}), f"'{name}_scale' is F32, expected BF16"),
        (lambda t: t.update({f"{name}_scale": t[f"{name}_scale"][:, :1].contiguous()}), "has shape [32, 1]"),
        (lambda t: t.update({f"{name}_zero_point": torch.zeros(4)}), f"unused tensor '{name}_zero_point'"),
        (lambda t: t.update({f"{name}_g_idx": torch.zeros(4)}), f"unused tensor '{name}_g_idx'"),
    ]
    for change, words in cases:
        (folder / "model.safetensors").write_bytes(sound)
        edit_tensors(folder, change)
        assert words in complaint(lambda: load(folder))


def test_an_index_must_agree_with_its_files(write, complaint):
    folder = write("qwen3", 2)
    path = folder / "model.safetensors.index.json"
    sound = path.read_text()
    table = json.loads(sound)["weight_map"]
    first, second = sorted(set(table.values()))
    here = next(name for name, file in table.items() if file == first)
    cases: list[tuple[object, str]] = [
        ({**table, "ghost": first}, f"tensor 'ghost' is not in {first}"),
        ({**table, here: second}, f"tensor '{here}' is in {first}, not in {second}"),
        ({name: file for name, file in table.items() if name != here}, f"tensor '{here}' is not in"),
        ({**table, here: "../model.safetensors"}, "no safetensors file beside it"),
        ({**table, here: "other.safetensors"}, "other.safetensors: missing"),
        ({}, "weight_map: expected a table"),
        (["x"], "weight_map: expected a table"),
    ]
    for weight_map, words in cases:
        path.write_text(json.dumps({"weight_map": weight_map}))
        assert words in complaint(lambda: load(folder))
    path.write_text(sound)
    shutil.copy(folder / first, folder / "model.safetensors")
    assert "holds both model.safetensors and model.safetensors.index.json" in complaint(lambda: load(folder))


def test_missing_files_are_named(write, complaint):
    folder = write()
    (folder / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor model.safetensors.index.json" in complaint(lambda: load(folder))


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [(3, None, (3,)), ([3, 4], None, (3, 4)), (3, [5, 6], (5, 6)), (None, 7, (7,)), (None, None, ())],
)
def test_an_answer_ends_where_the_files_say(write, own, generation, expected):
    """The generation's own list is the wider one in published folders."""
    folder = write()
    edit(folder, eos_token_id=own)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation, "temperature": 0.6}))
    assert published.published_target(folder).shape.stop_token_ids == expected


def test_the_digest_follows_the_content(write, targets, formats, tmp_path):
    folder = write()
    before = published.digest(folder)
    assert before == published.digest(folder)
    edit_tensors(folder, lambda t: t["model.norm.weight"].add_(1))
    after = published.digest(folder)
    edit(folder, rope_theta=2e4)
    assert len({before, after, published.digest(folder)}) == 3


def test_large_files_are_sampled_and_the_digest_says_so(tmp_path):
    file = tmp_path / "big"
    file.write_bytes(bytes(range(256)) * 40)
    whole, sampled = files_digest([file]), files_digest([file], whole=100)
    assert sampled.startswith("sampled-")
    assert not whole.startswith("sampled-")
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert files_digest([file], whole=100) != sampled


def test_a_target_in_bf16_is_rounded_once(write, targets):
    folder = write("deepseek floats")
    target = published.load_target(folder, (), torch.bfloat16, CPU)
    assert target.layers[1].mlp.bias.dtype == torch.float32  # type: ignore[union-attr]
    assert target.rotary.cos.dtype == torch.float32
    assert torch.equal(target.norm.weight, targets["deepseek floats"].norm.weight.bfloat16())


def test_only_arms_that_need_no_drafter_run_without_one(write, complaint):
    folder = write()
    spec = EngineSpec(target=str(folder), **ARMS["prompt_lookup"])
    models = load_models(spec)
    assert pair_shapes(spec).drafter is None
    assert (models.facts.drafter, models.facts.drafter_digest, models.facts.num_drafter_parameters) == (
        "none",
        "none",
        0,
    )
    requests = [Request(0, (5, 6, 7, 5, 6), 12, ())]
    plain = Engine(EngineSpec(target=str(folder), **ARMS["ar"]), models).run(requests, 1)
    assert Engine(spec, models).run(requests, 1)[0].tokens == plain[0].tokens
    assert "comes with no DFlash drafter" in complaint(lambda: load_models(EngineSpec(target=str(folder))))
