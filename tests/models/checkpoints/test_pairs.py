"""Published targets and drafters wherever a target is named: plans, the look before a sweep, content addresses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.errors import UserError
from ddbench.harness.preflight import check_requests
from ddbench.harness.request import planned
from ddbench.harness.sweep import models_digest
from ddbench.models import weights
from ddbench.models.checkpoints import published
from ddbench.models.weights import Models, check_files, random_models
from ddbench.spec import ARMS, EngineSpec


@pytest.fixture(scope="module")
def pair() -> Models:
    return random_models("tiny-gqa")


@pytest.fixture
def folders(pair, formats, tmp_path) -> tuple[Path, Path]:
    """A published target and its drafter."""
    shape = pair.target.shape
    target = formats.write(tmp_path / "target", formats.target_config(shape), formats.target_tensors(pair.target))
    config = formats.drafter_config(pair.drafter, shape.vocab)
    return target, formats.write(tmp_path / "drafter", config, formats.drafter_tensors(pair.drafter))


def call(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_published_pair_is_planned_by_its_folders(folders):
    target, drafter = folders
    words = ("plan", "smoke", "--target", target, "--set", "prompts=random", "--device", "cpu")
    with_drafter = call(*words, "--drafter", drafter)
    assert with_drafter.exit_code == 0, with_drafter.output
    assert "0 skipped" in with_drafter.output
    without = call(*words, "--arms", "ar,prompt_lookup,chain")
    assert without.exit_code == 0, without.output
    assert "2 cases, 1 skipped" in without.output
    assert "has no DFlash drafter" in without.output


def test_a_published_pair_is_looked_at_before_a_sweep(folders, complaint):
    """Faults of a file end the request, not every case of it."""
    target, drafter = folders

    def look() -> None:
        options = {"sets": ("prompts=random", "num_requests=2"), "arms": "chain", "device": "cpu"}
        pair = {"target": str(target), "drafter": str(drafter)}
        check_requests(planned("smoke", **options, **pair, concurrency=None, blocks=None, seed=None))

    look()
    file = drafter / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "drafter/model.safetensors: damaged" in complaint(look)


def test_the_look_reads_headers_of_a_target_and_no_weights(folders, monkeypatch):
    """What does not fit the host is still looked at there."""
    target, drafter = folders

    def never(*_: object) -> None:
        raise AssertionError("a target was loaded")

    monkeypatch.setattr(published, "load_target", never)
    check_files(EngineSpec(target=str(target), drafter=str(drafter), device="cuda"))
    with pytest.raises(AssertionError, match="a target was loaded"):
        weights.load_models(EngineSpec(target=str(target), drafter=str(drafter)))


@pytest.mark.parametrize("which", ["target weights", "target config", "drafter weights", "tokenizer", "prompts"])
def test_a_case_is_addressed_by_all_that_it_reads(folders, which):
    target, drafter = folders
    spec = EngineSpec(target=str(target), drafter=str(drafter))
    before = models_digest(spec)
    assert before == models_digest(spec)
    path = {
        "target weights": target / "model.safetensors",
        "target config": target / "config.json",
        "drafter weights": drafter / "model.safetensors",
        "tokenizer": target / "tokenizer.json",
        "prompts": target / "prompts.jsonl",
    }[which]
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b" ")
    assert models_digest(spec) != before


def test_a_shipped_drafter_goes_with_its_fetched_target(folders, tmp_path, monkeypatch, pair):
    """Its folder is the drafter alone: no target of that name is known."""
    target, drafter = folders
    shutil.copytree(drafter, tmp_path / "pretrained" / "smollm2-135m-dflash")
    monkeypatch.setattr(weights, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.setattr(weights, "require_fetched", lambda name: target)
    models = weights.load_models(EngineSpec(target="smollm2-135m"))
    assert models.facts.drafter == "smollm2-135m-dflash"
    assert models.drafter.shape.target_layer_ids == pair.drafter.shape.target_layer_ids
    assert "smollm2-135m-dflash" not in weights.target_names()
    with pytest.raises(UserError, match="neither a known name nor a folder"):
        weights.checkpoint_folder("smollm2-135m-dflash")


def test_a_plain_arm_is_addressed_by_its_target_alone(folders):
    target, _ = folders
    plain = EngineSpec(target=str(target), **ARMS["ar"])
    assert models_digest(plain) == models_digest(plain.model_copy(update={"seed": 5}))
    assert models_digest(EngineSpec(experts="packed")) == models_digest(EngineSpec())  # the shipped pair's, as before


def test_a_target_is_streamed_one_tensor_at_a_time(folders, monkeypatch):
    """The host holds no second copy: what is given memory is the model itself, once."""
    target, _ = folders
    made: list[int] = []
    empty = torch.empty

    def counted(*sizes: object, **options: object) -> torch.Tensor:
        tensor = empty(*sizes, **options)  # type: ignore[call-overload]
        if tensor.device.type != "meta":
            made.append(tensor.numel())
        return tensor

    monkeypatch.setattr(torch, "empty", counted)
    model = published.load_target(target, (), torch.float32, torch.device("cpu"))
    assert sum(made) <= sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
