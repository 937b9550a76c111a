"""DFlash drafters in z-lab's format: every field and alias met in the wild is honoured or refused by name, and a
drafter is held against its target.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.models.checkpoints.drafter_config import read_drafter
from ddbench.models.checkpoints.drafter_store import published_config, save_drafter
from ddbench.models.drafter import Drafter
from ddbench.models.lab_format import save_pair
from ddbench.models.shapes import DRAFTERS, TARGETS, DrafterShape
from ddbench.models.weights import Models, load_models, pair_shapes, random_models
from ddbench.spec import ARMS, EngineSpec

NAME = "tiny-mla-moe"  # 3 drafter layers and 2 features: H06
LAYERS = TARGETS[NAME].num_layers


@pytest.fixture(scope="module")
def pair() -> Models:
    return random_models(NAME)


@pytest.fixture
def target(pair, formats, tmp_path) -> Path:
    """A published target."""
    return formats.write(
        tmp_path / "target", formats.target_config(pair.target.shape), formats.target_tensors(pair.target)
    )


@pytest.fixture
def folder(pair, formats, tmp_path) -> Path:
    """A sound drafter, to be spoilt."""
    config = formats.drafter_config(pair.drafter, pair.target.shape.vocab)
    return formats.write(tmp_path / "drafter", config, formats.drafter_tensors(pair.drafter))


@pytest.fixture
def load(target, folder) -> Callable[[], Models]:
    return lambda: load_models(EngineSpec(target=str(target), drafter=str(folder), experts="packed"))


@pytest.fixture
def shape(target, folder) -> Callable[[], DrafterShape]:
    """The drafter's shape alone."""

    def read() -> DrafterShape:
        found = pair_shapes(EngineSpec(target=str(target), drafter=str(folder))).drafter
        assert found is not None
        return found

    return read


def edit(folder: Path, own: dict[str, Any] | None = None, **changes: Any) -> None:
    """Change fields of config.json and of its dflash_config; `...` removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    config["dflash_config"] = {**config.get("dflash_config", {}), **(own or {})}
    for table in (config["dflash_config"], config):
        for name in [name for name, value in table.items() if value is ...]:
            del table[name]
    path.write_text(json.dumps(config))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def renamed(names: Callable[[str], str]) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[names(name)] = tensors.pop(name)

    return change


def assert_same(loaded: Drafter, written: Drafter) -> None:
    state = loaded.state_dict()
    assert state.keys() == written.state_dict().keys()
    for name, tensor in written.state_dict().items():
        assert torch.equal(state[name], tensor.bfloat16().float()), name


def test_what_was_written_is_what_is_loaded(pair, load, folder):
    """H06: two features, three layers; `fc` goes by the features."""
    models = load()
    expected = pair.drafter.shape.model_copy(update={"name": "drafter"})
    assert models.drafter.shape == expected
    assert_same(models.drafter, pair.drafter)
    assert models.drafter.fc.weight.shape == (64, 2 * 64)
    assert models.target.capture_ids == (0, 2)
    assert models.facts.drafter == "drafter"
    assert models.facts.has_trained_weights


def test_a_loaded_drafter_drafts_what_its_formulas_say(load, oracle, make_ids):
    """H10, H11, H12: theta, partial rotation and windows reach the drafts."""
    models = load()
    ids = make_ids(20)
    _, features = oracle.target(models.target, ids.tolist())
    expected = oracle.draft(models.drafter, models.target, ids.tolist(), features[:-1], 6)
    shape = models.drafter.shape
    k_cache = torch.zeros(shape.num_layers, 1, 40, shape.num_kv_heads, shape.head_dim)
    v_cache = torch.zeros_like(k_cache)
    context = models.drafter.context(features[None, :-1].float())
    rows = models.drafter.rotary.rows(torch.arange(19)[None])
    for i, layer in enumerate(models.drafter.layers):
        k_cache[i, :, :19], v_cache[i, :, :19] = layer.attention.key_value(context, rows)
    block = torch.tensor([[int(ids[-1]), *[shape.mask_token_id] * 5]])
    logits = models.drafter(block, torch.tensor([19]), k_cache, v_cache, 19, models.target)
    torch.testing.assert_close(logits[0].double(), expected, atol=2e-3, rtol=2e-3)


def test_a_published_pair_runs_and_loses_nothing(load, target):
    """The output is that of the target alone, whatever is drafted."""
    models = load()
    requests = [Request(0, (5, 6, 7), 16, ()), Request(1, (9, 1), 12, ())]
    plain = EngineSpec(target=str(target), experts="packed", **ARMS["ar"])
    expected = [one.tokens for one in Engine(plain, load_models(plain)).run(requests, 2)]
    for arm in ("chain", "ddtree"):
        spec = EngineSpec(**{"target": str(target), "experts": "packed", "node_budget": 8, **ARMS[arm]})
        assert [one.tokens for one in Engine(spec, models).run(requests, 2)] == expected


@pytest.mark.parametrize(
    ("own", "changes", "field", "expected"),
    [
        ({"block_size": 6}, {"block_size": ...}, "block_size", 6),  # H09
        ({"block_size": 6}, {"block_size": 6}, "block_size", 6),
        ({"mask_token_id": ...}, {"mask_token_id": 9}, "mask_token_id", 9),
        ({"target_layer_ids": ...}, {"target_layer_ids": [0, 2]}, "target_layer_ids", (0, 2)),
        ({}, {"num_target_layers": ...}, "num_target_layers", LAYERS),
        ({"num_target_layers": LAYERS}, {"num_target_layers": ...}, "num_target_layers", LAYERS),
        ({"causal": False}, {}, "is_causal", False),
        ({"is_causal": True}, {}, "is_causal", True),
        ({}, {"is_causal": False}, "is_causal", False),
        ({}, {}, "is_causal", None),  # H12: the rule of older files
        ({}, {"target_hidden_size": 64}, "target_hidden", 64),
        ({}, {"num_key_value_heads": ..., "num_attention_heads": 2, "head_dim": 16}, "num_kv_heads", 2),
        ({}, {"head_dim": None}, "head_dim", 16),
        ({"use_swa": True, "swa_window_size": 5, "causal": False}, {"layer_types": ...}, "sliding_window", 5),
        ({"use_swa": True, "swa_window_size": 5}, {"layer_types": ...}, "layer_types", ("sliding_attention",) * 3),
        ({}, {"layer_types": ..., "use_sliding_window": False}, "sliding_window", None),
        ({}, {"draft_vocab_size": 96}, "hidden", 64),
        ({}, {"logit_scale": 1.0, "is_neox_style": True, "tie_word_embeddings": True}, "hidden", 64),
        ({"projector_type": "dflash", "use_aux_hidden_state": True}, {}, "hidden", 64),
    ],
    ids=str,
)
def test_a_field_is_read_wherever_it_stands(folder, shape, own, changes, field, expected):
    edit(folder, own, **changes)
    assert getattr(shape(), field) == expected


def test_rope_is_read_from_either_place(folder, shape):
    """H10: newer files keep theta in rope_parameters, and with it the share that rotates."""
    rope = {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.5}
    edit(folder, rope_theta=..., rope_scaling=..., partial_rotary_factor=..., rope_parameters=rope)
    assert (shape().rope.theta, shape().rope.rotary_dim) == (3e4, 8)  # H11
    yarn = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
    edit(folder, rope_theta=5e4, rope_parameters=..., rope_scaling=yarn)
    assert shape().rope.yarn is not None
    assert shape().rope.yarn.factor == 64.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("own", "changes", "words"),
    [
        # H03: no formula guess
        ({"target_layer_ids": ...}, {}, ("dflash_config.target_layer_ids: is not set", "cannot be guessed")),
        # H04: no wrap, no clamp
        ({"target_layer_ids": [0, -1]}, {}, ("target_layer_ids [0, -1]", "0..2")),
        ({"target_layer_ids": [0, 3]}, {}, ("target_layer_ids [0, 3]", "0..2")),
        ({"target_layer_ids": [0, 1.5]}, {}, ("target_layer_ids: expected a list of whole numbers",)),
        ({}, {"target_layer_ids": [0, 1]}, ("target_layer_ids: is [0, 2], but target_layer_ids says [0, 1]",)),
        # H09: a conflict of the two places
        ({"block_size": 8}, {}, ("block_size: is 8, but block_size says 6 elsewhere in the file",)),
        ({}, {"block_size": ...}, ("block_size: is set neither here nor in dflash_config",)),
        ({}, {"block_size": 1}, ("block_size: is 1, expected 2 to 256",)),
        ({"mask_token_id": ...}, {}, ("mask_token_id: is not set, nor is mask_token",)),
        ({"mask_token_id": ..., "mask_token": "<|MASK|>"}, {}, ("'<|MASK|>' is in no tokenizer.json",)),
        # H16: a mask id without an embedding row
        ({"mask_token_id": 96}, {}, ("mask_token_id 96 has no embedding row; the target has 96",)),
        ({"mask_token_id": -1}, {}, ("mask_token_id -1",)),
        ({}, {"num_target_layers": 36}, ("num_target_layers: is 36, target 'target' has 3",)),
        ({}, {"vocab_size": 97}, ("vocab_size is 97, target 'target' has 96 tokens",)),
        ({}, {"draft_vocab_size": 32}, ("draft_vocab_size is 32", "reduced vocabulary")),
        ({}, {"target_hidden_size": 48}, ("48", "64")),
        ({}, {"hidden_size": 48}, ("48", "64")),
        ({}, {"rope_theta": ...}, ("rope_theta: is set neither",)),
        ({}, {"partial_rotary_factor": 1.5}, ("partial_rotary_factor: is 1.5, expected a share",)),
        ({}, {"is_neox_style": False}, ("is_neox_style: is False, only True",)),
        ({}, {"attention_bias": True}, ("attention_bias: is True",)),
        ({}, {"hidden_act": "gelu"}, ("hidden_act: is 'gelu'",)),
        ({"causal": True}, {"is_causal": False}, ("causal: is True, but is_causal says False elsewhere",)),
        ({}, {"layer_types": ["full_attention"] * 2}, ("layer_types has 2 entries for 3 layers",)),
        ({}, {"layer_types": ["linear_attention"] * 3}, ("layer_types", "known: full_attention, sliding_attention")),
        ({}, {"sliding_window": None}, ("sliding_window is not set",)),
        ({}, {"use_sliding_window": False}, ("names sliding_attention, but use_sliding_window is false",)),
        ({}, {"layer_types": ...}, ("layer_types: is not set", "cannot be guessed")),
        ({"use_swa": True}, {}, ("layer_types", "use_swa makes every layer a sliding one")),
        ({}, {"attention_sink_bias": True}, ("attention_sink_bias: is True", "cannot be served")),
        ({}, {"attention_value_scale": 0.7}, ("attention_value_scale: is 0.7",)),
        ({}, {"final_logit_softcapping": 30.0}, ("final_logit_softcapping: is 30.0", "has None")),
        ({}, {"logit_scale": 0.5}, ("logit_scale: is 0.5", "has 1.0")),
        ({"output_multiplier": 2.0}, {}, ("output_multiplier: is 2.0",)),
        # other families
        ({"conv_kernel_size": 2}, {}, ("conv_kernel_size: is 2", "DFlash2")),
        ({"selector_rank": 16, "selector_top_k": 16}, {}, ("DFlash2",)),
        ({"projector_type": "domino"}, {}, ("projector_type: is 'domino'", "another family")),
        ({"gru_hidden_dim": 64}, {}, ("Domino",)),
        ({"shift_label": True}, {}, ("Domino",)),
        ({"sample_from_anchor": True}, {}, ("sample_from_anchor: is True",)),
        ({}, {"architectures": ["DFlash2DraftModel"]}, ("'DFlash2DraftModel'", "only DFlashDraftModel")),
        ({"something": 1}, {}, ("dflash_config.something: is 1: an unknown field",)),
        ({}, {"something": 1}, ("something: is 1: an unknown field",)),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_honoured_is_named(folder, shape, complaint, own, changes, words):
    edit(folder, own, **changes)
    line = complaint(shape)
    assert "drafter" in line
    for word in words:
        assert word in line


@pytest.mark.parametrize("mask", [7, 5])
def test_an_ordinary_or_a_stop_token_may_be_the_mask(folder, target, shape, mask):
    """H16: published drafters do that."""
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "eos_token_id": 5}))
    edit(folder, {"mask_token_id": mask})
    assert shape().mask_token_id == mask


@pytest.mark.parametrize("where", ["target", "drafter"])
def test_a_mask_token_given_as_a_text_is_looked_up(folder, target, shape, where):
    edit(folder, {"mask_token_id": ..., "mask_token": "<|MASK|>"})
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 41, "content": "<|MASK|>"}]}
    ((target if where == "target" else folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert shape().mask_token_id == 41


ALIASES: dict[str, Callable[[str], str]] = {
    "model prefix": lambda name: f"model.{name}",
    "midlayer": lambda name: name.replace("layers.0.", "midlayer."),
    "encoder": lambda name: name.replace("fc.", "encoder.fc.").replace("hidden_norm.", "encoder.output_norm_enc."),
    "all": lambda name: f"model.{name}".replace("layers.0.", "midlayer.").replace("model.fc.", "model.encoder.fc."),
}


@pytest.mark.parametrize("names", ALIASES.values(), ids=ALIASES)
def test_aliases_of_tensors_are_known(folder, load, pair, names):
    """H18."""
    edit_tensors(folder, renamed(names))
    assert_same(load().drafter, pair.drafter)


def test_missing_unused_and_misshaped_tensors_are_named(folder, load, complaint):
    """H15, H18: a head of its own, biases and what else is left over; F16 overflows."""
    sound = (folder / "model.safetensors").read_bytes()
    name = "layers.2.mlp.up_proj.weight"
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
        (lambda t: t.pop(name), f"misses tensor '{name}' (1 such)"),
        (lambda t: t.update({"lm_head.weight": torch.ones(96, 64)}), "unused tensor 'lm_head.weight'"),
        (lambda t: t.update({"model.embed_tokens.weight": torch.ones(96, 64)}), "unused tensor 'embed_tokens.weight'"),
        (lambda t: t.update({"layers.0.self_attn.q_proj.bias": torch.ones(64)}), "unused tensor"),
        (lambda t: t.update({"model.norm.weight": torch.ones(64)}), "are both 'norm.weight'"),
        (lambda t: t.update({name: torch.ones(1, 2)}), f"'{name}' has shape [1, 2], config.json asks for [64, 64]"),
        (lambda t: t.update({name: t[name].half()}), f"'{name}' is F16, expected BF16 or F32; convert it to BF16, F16"),
        (lambda t: t.update({name: t[name] * torch.inf}), f"'{name}' has non-finite values"),
        (
            lambda t: t.update({"fc.weight": torch.ones(64, 192)}),
            "takes 192 features, target_layer_ids names 2 layers of",
        ),
        (lambda t: t.update({"fc.weight": torch.ones(128)}), "'fc.weight' has shape [128]"),
        (lambda t: t.update({"fc.bias": torch.ones(64)}), "unused tensor 'fc.bias'"),
    ]
    for change, words in cases:
        (folder / "model.safetensors").write_bytes(sound)
        edit_tensors(folder, change)
        assert words in complaint(load)


def test_rotary_tables_are_read_over(folder, load, pair):
    edit_tensors(folder, lambda t: t.update({"rotary_emb.inv_freq": torch.ones(8)}))
    assert_same(load().drafter, pair.drafter)


def test_a_drafter_is_no_target_and_a_target_no_drafter(folder, target, complaint):
    line = complaint(lambda: load_models(EngineSpec(target=str(folder))))
    assert "is a DFlash drafter, not a target" in line
    line = complaint(lambda: load_models(EngineSpec(target=str(target), drafter=str(target))))
    assert "is no DFlash drafter" in line


def test_both_formats_go_with_both(pair, folder, target, tmp_path):
    """A target of the lab's own folders takes a published drafter, and the other way round."""
    save_pair(tmp_path / "own", pair.target, pair.drafter)
    for first, second in ((tmp_path / "own", folder), (target, tmp_path / "own")):
        models = load_models(EngineSpec(target=str(first), drafter=str(second), experts="packed"))
        assert_same(models.drafter, pair.drafter)
        assert models.target.capture_ids == pair.drafter.shape.target_layer_ids


def test_a_drafter_saved_here_is_read_here(pair, target, tmp_path):
    save_drafter(tmp_path / "saved", pair.drafter, pair.target.shape)
    models = load_models(EngineSpec(target=str(target), drafter=str(tmp_path / "saved"), experts="packed"))
    assert models.drafter.shape == pair.drafter.shape.model_copy(update={"name": "saved"})
    assert_same(models.drafter, pair.drafter)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 64}
ROPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "partial": {"rotary_dim": 8},
    "llama3": {"llama3": LLAMA3},
    "yarn": {"yarn": {"factor": 4.0, "original_context": 128, "mscale": 1.0, "mscale_all_dim": 0.0}},
    "yarn, mild": {"yarn": {"factor": 4.0, "original_context": 128, "mscale": 0.5, "mscale_all_dim": 0.0}},
}


@pytest.mark.parametrize("changes", ROPES.values(), ids=ROPES)
def test_every_rotary_embedding_survives_being_saved(tmp_path, changes):
    """The temperature of YaRN too, which the file gives as a factor of cos and sin."""
    given = DRAFTERS[NAME].model_dump()
    shape = DrafterShape(**{**given, "name": tmp_path.name, "rope": {**given["rope"], **changes}})
    (tmp_path / "config.json").write_text(json.dumps(published_config(shape, TARGETS[NAME])))
    read = read_drafter(tmp_path, TARGETS[NAME])
    if shape.rope.yarn is not None and read.rope.yarn is not None:
        assert read.rope.yarn.mscale == pytest.approx(shape.rope.yarn.mscale)
        yarn = read.rope.yarn.model_copy(update={"mscale": shape.rope.yarn.mscale})
        read = read.model_copy(update={"rope": read.rope.model_copy(update={"yarn": yarn})})
    assert read == shape


def test_a_temperature_that_the_format_cannot_say_is_refused(complaint):
    shape = DRAFTERS["kimi-k2.6"]
    assert "mscale_all_dim 1.0 cannot be said" in complaint(lambda: published_config(shape, TARGETS["kimi-k2.6"]))


def test_every_named_drafter_survives_being_saved(tmp_path):
    for name, shape in DRAFTERS.items():
        if shape.rope.yarn is not None:
            continue
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(published_config(shape, TARGETS[name])))
        types = shape.layer_types or ("full_attention",) * shape.num_layers
        assert read_drafter(folder, TARGETS[name]) == shape.model_copy(update={"name": name, "layer_types": types})
