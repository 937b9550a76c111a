"""INT8 weights: what is stored is what is read back, and training at rounded weights leaves the others alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from ddbench.errors import CheckpointError
from ddbench.models.checkpoints import published
from ddbench.models.checkpoints.drafter_store import save_drafter
from ddbench.models.checkpoints.int8_rows import dequantize_rows, quantize_rows
from ddbench.models.drafter import Drafter
from ddbench.models.weights import Models, random_models
from ddbench.train.int8 import at_rounded_weights, round_to_int8


@pytest.fixture
def models() -> Models:
    return random_models("tiny-gqa")


def read(folder: Path, models: Models) -> Drafter:
    shape = published.published_drafter(folder, models.target.shape, None)
    return published.load_drafter(folder, shape, models.target.shape.max_context, torch.float32, torch.device("cpu"))


def test_a_row_keeps_its_largest_value_and_errs_by_half_a_step():
    weight = torch.randn(9, 33, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 9)[:, None]
    weight[4] = 0
    values, scales = quantize_rows(weight)
    back = dequantize_rows(values, scales)
    assert bool(((back - weight).abs() <= 0.5001 * scales).all())
    torch.testing.assert_close(back.abs().amax(dim=1), weight.abs().amax(dim=1))
    assert bool((back[4] == 0).all())


def test_rounding_twice_is_rounding_once(models: Models):
    round_to_int8(models.drafter)
    once = {name: tensor.clone() for name, tensor in models.drafter.state_dict().items()}
    round_to_int8(models.drafter)
    for name, tensor in models.drafter.state_dict().items():
        torch.testing.assert_close(tensor, once[name], rtol=1e-6, atol=0)


def test_a_stored_drafter_is_read_back_as_its_rounded_self(models: Models, tmp_path: Path):
    save_drafter(tmp_path, models.drafter, models.target.shape, int8=True)
    back = read(tmp_path, models).state_dict()
    round_to_int8(models.drafter)
    for name, tensor in models.drafter.state_dict().items():
        expected = tensor if tensor.ndim == 2 else tensor.to(torch.bfloat16).float()
        assert torch.equal(back[name], expected), name
    matrices = sum(p.numel() for p in models.drafter.parameters() if p.ndim == 2)
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert sum(t.numel() for t in stored.values() if t.dtype == torch.int8) == matrices


@pytest.mark.parametrize("fault", ["missing", "shape", "dtype"])
def test_a_matrix_without_its_scales_is_refused(models: Models, tmp_path: Path, fault: str):
    save_drafter(tmp_path, models.drafter, models.target.shape, int8=True)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    scales = tensors.pop("fc.weight_scale")
    if fault != "missing":
        tensors["fc.weight_scale"] = scales[:-1].contiguous() if fault == "shape" else scales.to(torch.bfloat16)
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"fc\.weight_scale"):
        read(tmp_path, models)


def test_gradients_pass_rounded_weights_and_reach_the_others(models: Models):
    drafter = models.drafter.requires_grad_(True)
    before = drafter.fc.weight.detach().clone()
    features = torch.randn(1, 3, before.shape[1], generator=torch.Generator().manual_seed(1))
    with at_rounded_weights(drafter):
        assert not torch.equal(drafter.fc.weight, before)
        rounded = drafter.context(features)
    rounded.sum().backward()
    assert torch.equal(drafter.fc.weight, before)
    assert drafter.fc.weight.grad is not None
    assert bool(drafter.fc.weight.grad.abs().sum() > 0)
    assert not torch.equal(rounded, drafter.context(features))
