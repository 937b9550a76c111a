"""Checkpoints load strictly, and every hazard of loading ends in one line that says got and expected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ddbench.errors import CheckpointError, UserError
from ddbench.models.lab_format import load_strict, read_shapes, save_pair
from ddbench.models.random_weights import randomize
from ddbench.models.shapes import DRAFTERS, TARGETS, DrafterShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import (
    PRETRAINED,
    checkpoint_folder,
    count_parameters,
    dequantize_experts,
    load_models,
    random_models,
    target_names,
)
from ddbench.spec import EngineSpec

NAME = "tiny-mla-moe"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = random_models(NAME)
    folder = tmp_path_factory.mktemp("stored") / "pair"
    save_pair(folder, models.target, models.drafter)
    return folder


@pytest.fixture
def pair(stored: Path, tmp_path: Path) -> Path:
    """A sound checkpoint folder, to be spoilt."""
    return Path(shutil.copytree(stored, tmp_path / "pair"))


def load(folder: Path, **changes: Any) -> Any:
    return load_models(EngineSpec(target=str(folder), **{"experts": "packed", **changes}))


def complaint(action: Callable[[], object]) -> str:
    """The one line that the user gets."""
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(folder: Path, part: str, **changes: Any) -> None:
    """Change keys of the config; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config[part] = {k: v for k, v in {**config[part], **changes}.items() if v is not None}
    path.write_text(json.dumps(config))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)


def test_what_was_saved_is_what_is_loaded(pair: Path):
    """Floats are stored in bf16, INT4 words and scales as they are."""
    original, again = random_models(NAME), load(pair)
    assert again.facts.has_trained_weights
    assert again.folder == pair
    for before, after in ((original.target, again.target), (original.drafter, again.drafter)):
        state = after.state_dict()
        assert state.keys() == before.state_dict().keys()
        for name, tensor in before.state_dict().items():
            expected = tensor.to(torch.bfloat16).float() if tensor.dtype == torch.float32 else tensor
            assert torch.equal(state[name], expected), name


def test_saving_again_gives_the_same_bytes(pair: Path, tmp_path: Path):
    models = load(pair)
    save_pair(tmp_path / "again", models.target, models.drafter)
    for name in ("config.json", "target.safetensors", "drafter.safetensors"):
        assert (pair / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == sorted(p.name for p in pair.iterdir())


def test_a_target_is_saved_without_touching_the_drafter(pair: Path):
    models, before = load(pair), (pair / "drafter.safetensors").read_bytes()
    shape = models.drafter.shape.model_copy(update={"block_size": 4})
    save_pair(pair, models.target, None, shape)
    assert (pair / "drafter.safetensors").read_bytes() == before
    assert read_shapes(pair)[1].block_size == 4


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path):
    target = Target(TargetShape(**{**TARGETS["tiny-gqa"].model_dump(), "tie_embeddings": True}), (0, 1))
    randomize(target, 3)
    target.to(torch.bfloat16)
    save_pair(tmp_path, target, None)
    again = Target(target.shape, (0, 1))
    load_strict(again, tmp_path / "target.safetensors")
    assert again.lm_head.weight is again.embedding.weight
    assert torch.equal(again.embedding.weight, target.embedding.weight.float())


def test_shipped_pairs_are_known_by_name():
    assert "nano-k2" in target_names()
    assert checkpoint_folder("nano-k2") == PRETRAINED / "nano-k2"
    assert checkpoint_folder(NAME) is None
    assert read_shapes(PRETRAINED / "nano-k2") == (TARGETS["nano-k2"], DRAFTERS["nano-k2"])


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        # H03: no formula guess
        ("drafter", {"target_layer_ids": None}, ("drafter.target_layer_ids: missing",)),
        # H04: no wrap, no clamp
        ("drafter", {"target_layer_ids": [0, -1]}, ("target_layer_ids [0, -1]", "0..2")),
        ("drafter", {"target_layer_ids": [0, 3]}, ("target_layer_ids [0, 3]", "0..2")),
        ("drafter", {"target_layer_ids": []}, ("target_layer_ids []",)),
        # H16: a mask id without an embedding row
        ("drafter", {"mask_token_id": 96}, ("mask_token_id 96", "the target has 96")),
        ("drafter", {"mask_token_id": -1}, ("mask_token_id -1",)),
        ("drafter", {"num_target_layers": 4}, ("num_target_layers is 4", "the target has 3")),
        ("drafter", {"target_hidden": 32}, ("target_hidden is 32", "the target has 64")),
        ("drafter", {"hidden": 32}, ("drafter.hidden", "is 32", "the target has 64")),
        ("drafter", {"block_size": 1}, ("drafter.block_size", "at least 2", "got 1")),
        ("drafter", {"num_heads": 3}, ("num_heads is 3", "multiple of num_kv_heads, 2")),
        ("drafter", {"layer_types": ["full_attention"]}, ("layer_types has 1 entries for 3 layers",)),
        ("drafter", {"sliding_window": None}, ("sliding_window is not set",)),
        ("drafter", {"rope": {"theta": 1e4, "rotary_dim": 18}}, ("rotary_dim is 18", "16 dims")),  # H11
        ("drafter", {"rope": {"theta": 1e4, "rotary_dim": 7}}, ("drafter.rope.rotary_dim", "multiple of 2")),
        ("drafter", {"rope": {"rotary_dim": 8}}, ("drafter.rope.theta: missing",)),  # H10
        ("drafter", {"maskk_token_id": 3}, ("maskk_token_id: unknown key", "did you mean 'mask_token_id'")),
        ("target", {"hiden": 3}, ("target.hiden: unknown key", "did you mean 'hidden'")),
        ("target", {"num_layers": "many"}, ("target.num_layers", "got 'many'")),
        ("target", {"attention": {"kind": "mha"}}, ("target.attention", "'gqa', 'mla'")),
        ("target", {"stop_token_ids": [96]}, ("stop_token_ids [96]", "ends at 95")),
        ("target", {"rope": {"theta": 1e4, "rotary_dim": 8}}, ("rotary_dim is 8", "qk_rope_dim, 16")),
    ],
)
def test_a_faulty_config_is_named(pair: Path, part: str, changes: dict[str, Any], words: tuple[str, ...]):
    edit(pair, part, **changes)
    line = complaint(lambda: read_shapes(pair))
    assert "config.json" in line
    for word in words:
        assert word in line


@pytest.mark.parametrize("mask", [7, 5])
def test_an_ordinary_or_a_stop_token_may_be_the_mask(pair: Path, mask: int):
    """H16: published drafters do that."""
    edit(pair, "target", stop_token_ids=[5])
    edit(pair, "drafter", mask_token_id=mask)
    assert load(pair).drafter.shape.mask_token_id == mask


def test_int4_groups_must_divide_the_widths(pair: Path):
    moe = {**TARGETS[NAME].moe.model_dump(), "expert_width": 40}  # type: ignore[union-attr]
    edit(pair, "target", moe=moe)
    assert "moe.expert_width is 40: not a multiple of the int4 group, 32" in complaint(lambda: read_shapes(pair))


@pytest.mark.parametrize(
    ("text", "word"),
    [("{", "cannot be read as JSON"), ("[]", "expected a table, got []"), ('{"target": 1}', "'target'")],
)
def test_a_config_that_is_no_config(pair: Path, text: str, word: str):
    (pair / "config.json").write_text(text)
    assert word in complaint(lambda: read_shapes(pair))


@pytest.mark.parametrize("which", ["target", "drafter"])
def test_missing_unused_and_misshaped_tensors_are_named(pair: Path, which: str):
    """H18."""
    path = pair / f"{which}.safetensors"
    sound = path.read_bytes()
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
        (lambda t: t.pop("norm.weight"), "misses tensor 'norm.weight' (1 such)"),
        (lambda t: t.update({"model.norm.weight": torch.ones(64)}), "unused tensor 'model.norm.weight' (1 such)"),
        (lambda t: t.update({"norm.weight": torch.ones(65)}), "'norm.weight' has shape [65], expected [64]"),
        (lambda t: t.update({"norm.weight": torch.full((64,), torch.inf)}), "'norm.weight' has non-finite values"),
        (lambda t: t.update({"norm.weight": torch.ones(64).half()}), "'norm.weight' is float16"),  # H15
        (lambda t: t.update({"norm.weight": torch.ones(64).int()}), "is torch.int32, expected torch.float32"),
    ]
    for change, words in cases:
        path.write_bytes(sound)
        edit_tensors(path, change)
        line = complaint(lambda: load(pair))
        assert path.name in line
        assert words in line


def test_packed_words_of_another_type_are_refused(pair: Path):
    name = "layers.1.mlp.experts.down_packed"
    edit_tensors(pair / "target.safetensors", lambda t: t.update({name: t[name].float()}))
    assert f"'{name}' is torch.float32, expected torch.int32" in complaint(lambda: load(pair))


def test_damaged_and_missing_files_are_named(pair: Path, tmp_path: Path):
    path = pair / "drafter.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "drafter.safetensors: damaged" in complaint(lambda: load(pair))
    path.write_bytes(b"")
    assert "drafter.safetensors: damaged" in complaint(lambda: load(pair))
    path.unlink()
    assert "drafter.safetensors: missing" in complaint(lambda: load(pair))
    (tmp_path / "empty").mkdir()
    assert "no config.json there" in complaint(lambda: load(tmp_path / "empty"))
    nowhere = complaint(lambda: load(tmp_path / "nowhere"))
    assert "neither a known name nor a folder" in nowhere
    assert "did you mean 'tiny-gqa'" in complaint(lambda: load(Path("tiny-gqu")))


def test_a_drafter_of_another_target_is_refused(pair: Path, tmp_path: Path):
    other = random_models("tiny-gqa")
    save_pair(tmp_path / "other", other.target, other.drafter)
    line = complaint(lambda: load(pair, drafter=str(tmp_path / "other")))
    assert "drafter.target_hidden is 48, the target has 64" in line
    assert "no config.json there" in complaint(lambda: load(pair, drafter=str(tmp_path / "nowhere")))
    assert "no drafter fits" in complaint(lambda: load_models(EngineSpec(target=NAME, drafter=str(pair))))


def test_a_second_drafter_of_the_same_target_is_taken(pair: Path, tmp_path: Path):
    models = load(pair)
    randomize(models.drafter, 9)
    save_pair(tmp_path / "second", models.target, models.drafter)
    taken = load(pair, drafter=str(tmp_path / "second"))
    assert taken.facts.drafter_digest != models.facts.drafter_digest
    assert taken.facts.target_digest == models.facts.target_digest


def test_errors_of_checkpoints_are_usage_errors():
    assert issubclass(CheckpointError, UserError)
    assert CheckpointError.exit_code == 2


# ------------------------------------------------------------------------------------------------------ random weights


def test_random_weights_depend_on_seed_and_name_only():
    one, same, other = random_models(NAME), random_models(NAME), random_models(NAME, seed=1)
    for module, again, different in zip(
        (one.target, one.drafter), (same.target, same.drafter), (other.target, other.drafter), strict=True
    ):
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name])
            assert not torch.equal(tensor, different.state_dict()[name]), name
    first, second = (one.target.layers[i].attention.o_proj.weight for i in (0, 1))
    assert not torch.equal(first, second)


def test_random_weights_of_a_layer_do_not_depend_on_the_layers_around_it():
    """Name-wise seeds: a deeper model of the same name has the same first layers."""
    shallow = Target(TARGETS["tiny-gqa"])
    deep = Target(TARGETS["tiny-gqa"].model_copy(update={"num_layers": 5}))
    for model in (shallow, deep):
        randomize(model, 4)
    state = deep.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in shallow.state_dict().items())


def test_random_weights_keep_activations_at_their_size(make_ids):
    for name in ("tiny-gqa", NAME):
        models = random_models(name)
        hidden, features, _ = load_float(models.target).full(make_ids(32)[None])
        assert 0.5 < float(hidden.std()) < 2
        assert float(features.std()) < 10


def load_float(target: Target) -> Target:
    dequantize_experts(target, torch.float32)
    return target


def test_random_models_of_an_unknown_shape_are_refused():
    assert "unknown target 'tiny'" in complaint(lambda: random_models("tiny"))
    assert "has no DFlash drafter" in complaint(lambda: random_models("llama-3.1-8b"))


def test_parameters_are_counted_by_what_they_stand_for():
    """An INT4 word counts as eight weights; scales, selection bias and rotary tables do not count."""
    models = random_models(NAME)
    packed = count_parameters(models.target)
    assert packed == count_parameters(load_float(models.target))
    shape = TARGETS[NAME]
    assert shape.moe is not None
    experts = 2 * shape.moe.num_experts * 3 * shape.hidden * shape.moe.expert_width
    assert packed > experts
    assert count_parameters(models.drafter) == sum(p.numel() for p in models.drafter.parameters())


def test_shapes_survive_json():
    for kind, table in ((TargetShape, TARGETS), (DrafterShape, DRAFTERS)):
        for shape in table.values():
            assert kind.model_validate_json(shape.model_dump_json()) == shape  # type: ignore[attr-defined]
