"""The lab's own checkpoint folders: strict in, and out.

A folder holds `config.json` ({"target": TargetShape, "drafter": DrafterShape}), `target.safetensors`,
`drafter.safetensors` and, where there are any, `tokenizer.json` and `prompts.jsonl`. A missing, unused or mis-shaped
tensor is an error that names it. Published formats are read in `checkpoints/`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from torch import nn

from ddbench.errors import CheckpointError, did_you_mean
from ddbench.files import replacing
from ddbench.models.checkpoints.files import read_json
from ddbench.models.drafter import Drafter
from ddbench.models.shapes import DRAFTERS, DrafterShape, TargetShape
from ddbench.models.target import Target
from ddbench.spec import first_message

ShapeT = TypeVar("ShapeT", bound=BaseModel)


def read_shapes(folder: Path) -> tuple[TargetShape, DrafterShape]:
    """Both shapes from a checkpoint folder's config.json, checked against each other."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: no config.json there; expected a checkpoint folder")
    return shapes_from(path)


def shapes_from(path: Path) -> tuple[TargetShape, DrafterShape]:
    """Both shapes from a JSON file {"target": TargetShape, "drafter": DrafterShape}, checked against each other."""
    data = read_json(path)
    target, drafter = _shape(TargetShape, data, "target", path), _shape(DrafterShape, data, "drafter", path)
    check_pair(target, drafter, where=str(path))
    return target, drafter


def _shape(kind: type[ShapeT], data: Mapping[str, Any], part: str, path: Path) -> ShapeT:
    if not isinstance(data.get(part), dict):
        raise CheckpointError(f"{path}: has no '{part}' table; expected {{'target': ..., 'drafter': ...}}")
    try:
        return kind(**data[part])
    except ValidationError as error:
        first, complaint = error.errors()[0], first_message(error)
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            complaint += f"; {did_you_mean(str(first['loc'][0]), kind.model_fields)}"
        raise CheckpointError(f"{path}: {part}{'.' if first['loc'] else ': '}{complaint}") from error


def check_pair(target: TargetShape, drafter: DrafterShape, where: str) -> None:
    """Whether a drafter was made for a target: sizes, layer count, a mask id that has an embedding row."""
    for what, got, expected in (
        ("drafter.target_hidden", drafter.target_hidden, target.hidden),
        ("drafter.num_target_layers", drafter.num_target_layers, target.num_layers),
        ("drafter.hidden (the target's embedding and head are shared)", drafter.hidden, target.hidden),
    ):
        if got != expected:
            raise CheckpointError(f"{where}: {what} is {got}, the target has {expected}")
    if not 0 <= drafter.mask_token_id < target.vocab:
        raise CheckpointError(
            f"{where}: mask_token_id {drafter.mask_token_id} has no embedding row; the target has {target.vocab}"
        )


def load_strict(module: nn.Module, path: Path) -> str:
    """Load a safetensors file into `module`, every tensor accounted for; returns the file's SHA-256 (first 16)."""
    try:
        data = path.read_bytes()
        stored = safetensors.torch.load(data)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    wanted = _state(module)
    for what, names in (("misses", wanted.keys() - stored.keys()), ("has an unused", stored.keys() - wanted.keys())):
        if names:
            raise CheckpointError(f"{path}: {what} tensor '{min(names)}' ({len(names)} such)")
    for name, tensor in stored.items():
        if reason := _reason_against(tensor, wanted[name]):
            raise CheckpointError(f"{path}: tensor '{name}' {reason}")
    module.load_state_dict(stored, strict=False)  # checked above; a tied tensor stands in the file once
    return hashlib.sha256(data).hexdigest()[:16]


def _state(module: nn.Module) -> Mapping[str, torch.Tensor]:
    """What a checkpoint holds: parameters and persistent buffers, a tied tensor under its first name only."""
    first_names: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        first_names.setdefault(id(tensor), name)
    return {name: state[name].detach() for name in first_names.values()}


def _reason_against(tensor: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """Why a stored tensor cannot take the place of `wanted`."""
    if tensor.shape != wanted.shape:
        return f"has shape {list(tensor.shape)}, expected {list(wanted.shape)}"
    if tensor.dtype == torch.float16:
        return "is float16, whose range DFlash drafters overflow; convert it to bfloat16"
    if tensor.is_floating_point() != wanted.is_floating_point():
        return f"is {tensor.dtype}, expected {wanted.dtype}"
    if tensor.is_floating_point() and not tensor.isfinite().all():
        return "has non-finite values"
    return None


def save_pair(folder: Path, target: Target, drafter: Drafter | None, drafter_shape: DrafterShape | None = None) -> None:
    """Write a checkpoint folder: bf16 floats, INT4 experts as they are.

    `drafter` None keeps an existing file; the config then names `drafter_shape`, or the one of the target's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if drafter is not None:
        drafter_shape = drafter.shape
        _save(drafter, folder / "drafter.safetensors")
    _save(target, folder / "target.safetensors")
    shape = drafter_shape or DRAFTERS[target.shape.name]
    config = {"target": target.shape.model_dump(), "drafter": shape.model_dump()}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _save(module: nn.Module, path: Path) -> None:
    stored = {
        name: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor).contiguous().cpu()
        for name, tensor in _state(module).items()
    }
    with replacing(path) as partial:
        safetensors.torch.save_file(stored, partial)
