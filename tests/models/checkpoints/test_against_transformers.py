"""Published folders written by transformers, loaded by us: logits, captured features and greedy text are its own.

Skipped where transformers is not installed; it is a witness here and nowhere needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.models.weights import load_models
from ddbench.spec import ARMS, EngineSpec

transformers = pytest.importorskip("transformers", reason="the witness of these tests: pip install transformers")

VOCAB, LENGTH = 96, 40
COMMON: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
MLA: dict[str, Any] = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", HEADS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "llama tied, 3.1 scaling": ("Llama", HEADS | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama yarn": ("Llama", HEADS | {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", HEADS | {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3 yarn, temperature given": (
        "Qwen3",
        HEADS | {"head_dim": 20, "tie_word_embeddings": True, "rope_parameters": {**YARN, "attention_factor": 1.3}},
    ),
    "deepseek": ("DeepseekV3", MLA),
    "deepseek groups": ("DeepseekV3", MLA | {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}),
    "deepseek halves, one query matrix": ("DeepseekV3", MLA | {"rope_interleave": False, "q_lora_rank": None}),
    "deepseek one mscale": ("DeepseekV3", MLA | {"rope_parameters": {**YARN, "mscale_all_dim": 0.7, "mscale": 0.9}}),
    "deepseek no scaling, two shared": (
        "DeepseekV3",
        MLA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "n_shared_experts": 2},
    ),
}


def randomized(model: Any) -> Any:
    """Weights that make every part of the arithmetic count."""
    generator = torch.Generator().manual_seed(5)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values = torch.randn(tensor.shape, generator=generator)
        if "inv_freq" in name:
            continue
        if "norm" in name:
            tensor.data.copy_(1 + 0.2 * values)
        elif "correction_bias" in name:
            tensor.data.copy_(0.2 * values)
        else:
            tensor.data.copy_(values * (1.0 if "embed" in name else tensor.shape[-1] ** -0.5))
    return model.float().eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """`written(name)`: transformers' model and the folder that it wrote, in several files where it is of experts."""
    made: dict[str, tuple[Any, Path]] = {}

    def write(name: str) -> tuple[Any, Path]:
        if name not in made:
            kind, values = MODELS[name]
            config = getattr(transformers, f"{kind}Config")(**(COMMON | values | {"eos_token_id": 3}))
            config._attn_implementation = "eager"
            model = randomized(getattr(transformers, f"{kind}ForCausalLM")(config))
            folder = tmp_path_factory.mktemp("written") / "model"
            model.save_pretrained(folder, max_shard_size="60KB" if kind == "DeepseekV3" else "5GB")
            made[name] = (model, folder)
        return made[name]

    return write


def spec_of(folder: Path) -> EngineSpec:
    return EngineSpec(target=str(folder), **ARMS["ar"])


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_features_are_its_own(written, session, name):
    """H02, H07, H08, H10: every layer's residual stream, its last one before the final norm, and the logits."""
    theirs, folder = written(name)
    models = load_models(spec_of(folder))
    target = models.target
    target.capture_ids = tuple(range(target.shape.num_layers))
    ids = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    streams: dict[int, torch.Tensor] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _m, _a, out, i=i: streams.update({i: out[0] if isinstance(out, tuple) else out})
        )
        for i, layer in enumerate(theirs.model.layers)
    ]
    with torch.inference_mode():
        expected = theirs(ids).logits
    for hook in hooks:
        hook.remove()
    ours = session(target, 2, LENGTH + 4)
    first, first_features = ours.feed(ids[:, :13])  # the cache holds what they compute at once
    rest, rest_features = ours.feed(ids[:, 13:])
    torch.testing.assert_close(torch.cat((first, rest), dim=1), expected, atol=2e-4, rtol=1e-4)
    features = torch.cat((first_features, rest_features), dim=1)
    wanted = torch.cat([streams[i] for i in range(target.shape.num_layers)], dim=-1)
    torch.testing.assert_close(features, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_its_own(written, name):
    theirs, folder = written(name)
    models = load_models(spec_of(folder))
    prompt = torch.randint(VOCAB, (1, 17), generator=torch.Generator().manual_seed(2))
    done = Engine(spec_of(folder), models).run([Request(0, tuple(prompt[0].tolist()), 24, (3,))], 1)
    with torch.inference_mode():
        text = theirs.generate(prompt, do_sample=False, max_new_tokens=24, eos_token_id=3, pad_token_id=0)
    assert list(done[0].tokens) == text[0, 17:].tolist()
    assert len(done[0].tokens) > 1


def test_interleaved_rotary_pairs_taken_for_halves_are_noticed(written, session):
    """A positive control: without the permutation of the rows the logits are others."""
    theirs, folder = written("deepseek")
    config = folder / "config.json"
    before = config.read_text()
    config.write_text(before.replace('"rope_interleave": true', '"rope_interleave": false'))
    try:
        target = load_models(spec_of(folder)).target
    finally:
        config.write_text(before)
    ids = torch.randint(VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    logits, _ = session(target, 1, LENGTH + 4).feed(ids)
    with torch.inference_mode():
        assert (logits - theirs(ids).logits).abs().max() > 0.05


def test_a_default_theta_is_noticed(written, session):
    """H10: 1e4 in place of the 1e5 that the file says."""
    theirs, folder = written("llama")
    target = load_models(spec_of(folder)).target
    shape = target.shape.model_copy(update={"rope": target.shape.rope.model_copy(update={"theta": 1e4})})
    target.rotary = type(target.rotary)(shape.rope, shape.max_context)
    ids = torch.randint(VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    logits, _ = session(target, 1, LENGTH + 4).feed(ids)
    with torch.inference_mode():
        assert (logits - theirs(ids).logits).abs().max() > 0.05
