"""Where weights come from: a shipped pair, a checkpoint folder, or seeded random values for a named shape.

A checkpoint folder holds `config.json` ({"target": TargetShape, "drafter": DrafterShape}), `target.safetensors`,
`drafter.safetensors` and, where there are any, `tokenizer.json` and `prompts.jsonl`. Loading is strict: a missing,
unused or mis-shaped tensor is an error that names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from torch import nn

from ddbench.errors import CheckpointError, UserError, did_you_mean
from ddbench.kernels import int4
from ddbench.models.drafter import Drafter
from ddbench.models.moe import RoutedExperts
from ddbench.models.random_weights import has_planted_successor, random_pair
from ddbench.models.shapes import DRAFTERS, TARGETS, DrafterShape, TargetShape
from ddbench.models.target import Target
from ddbench.spec import EngineSpec

ModuleT = TypeVar("ModuleT", bound=nn.Module)
ShapeT = TypeVar("ShapeT", bound=BaseModel)

LARGE = 10**9  # parameters of a target from which random weights are made on the GPU that they are for

PRETRAINED = Path(__file__).resolve().parent / "pretrained"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a report must say about the weights."""

    target: str
    target_digest: str
    drafter: str
    drafter_digest: str
    has_trained_weights: bool
    num_target_parameters: int
    num_drafter_parameters: int


@dataclass(frozen=True, slots=True)
class Models:
    """A target and its drafter, ready to run."""

    target: Target
    drafter: Drafter
    facts: ModelFacts
    folder: Path | None  # of a checkpoint: tokenizer.json and prompts.jsonl are there


def load_models(spec: EngineSpec) -> Models:
    """The models an engine spec names, on its device and in its dtype."""
    dtype = torch.float32 if spec.dtype == "float32" else torch.bfloat16
    folder = checkpoint_folder(spec.target)
    if folder is None and spec.drafter is not None:
        raise UserError(f"drafter '{spec.drafter}': target '{spec.target}' has random weights, no drafter fits them")
    if folder is None:
        models = random_models(spec.target, seed=spec.seed, dtype=dtype, device=spec.device)
    else:
        drafter_folder = folder if spec.drafter is None else Path(spec.drafter)
        models = _load_pair(folder, drafter_folder, dtype, torch.device(spec.device))
    if spec.experts == "dequantized":
        dequantize_experts(models.target, dtype)
    return models


def checkpoint_folder(target: str) -> Path | None:
    """The folder of a shipped pair or of a path; None for a named shape without weights; else a UserError."""
    shipped = PRETRAINED / target
    if "/" not in target and (shipped / "config.json").is_file():
        return shipped
    if Path(target).is_dir():
        return Path(target)
    if target in TARGETS:
        return None
    raise UserError(f"target '{target}' is neither a known name nor a folder: {did_you_mean(target, target_names())}")


def target_names() -> tuple[str, ...]:
    """Named shapes and shipped pairs."""
    return tuple(sorted({*TARGETS, *(folder.parent.name for folder in PRETRAINED.glob("*/config.json"))}))


def dequantize_experts(module: nn.Module, dtype: torch.dtype) -> None:
    """Unpack every INT4 expert stack for good."""
    for child in module.modules():
        if isinstance(child, RoutedExperts) and child.is_packed:
            child.dequantize(dtype)


def count_parameters(module: nn.Module) -> int:
    """Weights as the model has them: an INT4 word counts as eight, scales and rotary tables do not count."""
    total = sum(p.numel() for p in module.parameters())
    for name, buffer in module.named_buffers():
        total += buffer.numel() * 8 if name.endswith("_packed") else 0
    return total


# ------------------------------------------------------------------------------------------------- seeded random


def random_models(target: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Models:
    """Seeded random weights for a named shape (timing and correctness; its acceptance means nothing).

    Small ones are the same on every device. Large ones for a GPU are made there (`random_models_on`): other values.
    """
    if target not in TARGETS:
        raise UserError(f"unknown target '{target}': {did_you_mean(target, TARGETS)}")
    if target not in DRAFTERS:
        raise UserError(f"target '{target}' has no drafter shape: {did_you_mean(target, DRAFTERS)}")
    target_shape, drafter_shape = TARGETS[target], DRAFTERS[target]
    if is_made_on_device(target_shape, device):
        return random_models_on(torch.device(device), target_shape, drafter_shape, seed=seed, dtype=dtype)
    model = Target(target_shape, drafter_shape.target_layer_ids)
    drafter = Drafter(drafter_shape, target_shape.max_context)
    for module, offset in ((model, 0), (drafter, 1)):
        randomize(module, seed * 2 + offset)
    digest = f"random-seed-{seed}"
    facts = ModelFacts(
        target, digest, drafter_shape.name, digest, False, count_parameters(model), count_parameters(drafter)
    )
    return Models(_ready(model, dtype, device), _ready(drafter, dtype, device), facts, None)


def is_made_on_device(shape: TargetShape, device: str) -> bool:
    """Whether random weights of a shape never exist on the host."""
    if torch.device(device).type == "cpu":
        return False
    with torch.device("meta"):
        return count_parameters(Target(shape)) > LARGE


def random_models_on(
    device: torch.device, target: TargetShape, drafter: DrafterShape, *, seed: int = 0, dtype: torch.dtype
) -> Models:
    """Seeded random weights for any pair of shapes, made on `device` in seconds, with a planted successor.

    The digest says what they are: `random-seed-0-cuda-successor`.
    """
    model, drafter_model = random_pair(target, drafter, seed=seed, dtype=dtype, device=device)
    digest = f"random-seed-{seed}-{device.type}"
    facts = ModelFacts(
        target.name,
        f"{digest}-successor" if has_planted_successor(target) else digest,
        drafter.name,
        digest,
        False,
        count_parameters(model),
        count_parameters(drafter_model),
    )
    return Models(model, drafter_model, facts, None)


def _ready(module: ModuleT, dtype: torch.dtype, device: str | torch.device) -> ModuleT:
    return module.to(device=device, dtype=dtype).requires_grad_(False).eval()


def randomize(module: nn.Module, seed: int) -> None:
    """Fill weights in place, each from its own name and the seed: variance 1/fan-in, norms near one."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight"):
            tensor.data.copy_(1 + 0.1 * values)
        elif name.endswith(".bias"):
            tensor.data.copy_(0.01 * values)
        elif tensor.is_floating_point() and not name.endswith(("_scales", "cos", "sin")):
            tensor.data.copy_(values * (1.0 if "embedding" in name else tensor.shape[-1] ** -0.5))
    for name, child in module.named_modules():
        if isinstance(child, RoutedExperts) and child.is_packed:
            _randomize_packed(child, seed * 1_000_003 + zlib.crc32(name.encode()))


def _randomize_packed(experts: RoutedExperts, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name in ("gate_up", "down"):
        packed, scales = getattr(experts, f"{name}_packed"), getattr(experts, f"{name}_scales")
        columns = packed.shape[-1] * 8
        weights = torch.randn(*packed.shape[:-1], columns, generator=generator) * columns**-0.5
        words, new_scales = int4.quantize(weights, experts.shape.group_size)
        packed.copy_(words)
        scales.copy_(new_scales)


# --------------------------------------------------------------------------------------------------- checkpoints


def read_shapes(folder: Path) -> tuple[TargetShape, DrafterShape]:
    """Both shapes from a checkpoint folder's config.json, checked against each other."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: no config.json there; expected a checkpoint folder")
    return shapes_from(path)


def shapes_from(path: Path) -> tuple[TargetShape, DrafterShape]:
    """Both shapes from a JSON file {"target": TargetShape, "drafter": DrafterShape}, checked against each other."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    target, drafter = _shape(TargetShape, data, "target", path), _shape(DrafterShape, data, "drafter", path)
    check_pair(target, drafter, where=str(path))
    return target, drafter


def _shape(kind: type[ShapeT], data: Any, part: str, path: Path) -> ShapeT:
    if not isinstance(data, dict) or not isinstance(data.get(part), dict):
        raise CheckpointError(f"{path}: has no '{part}' table; expected {{'target': ..., 'drafter': ...}}")
    try:
        return kind(**data[part])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(piece) for piece in (part, *first["loc"]))
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            hint = did_you_mean(str(first["loc"][0]), kind.model_fields)
            raise CheckpointError(f"{path}: {where}: unknown key; {hint}") from error
        got = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r}"
        raise CheckpointError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}{got}") from error


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


def _load_pair(folder: Path, drafter_folder: Path, dtype: torch.dtype, device: torch.device) -> Models:
    target_shape, own_drafter = read_shapes(folder)
    drafter_shape = own_drafter if drafter_folder == folder else read_shapes(drafter_folder)[1]
    check_pair(target_shape, drafter_shape, where=str(drafter_folder))
    target = Target(target_shape, drafter_shape.target_layer_ids)
    drafter = Drafter(drafter_shape, target_shape.max_context)
    target_digest = load_strict(target, folder / "target.safetensors")
    drafter_digest = load_strict(drafter, drafter_folder / "drafter.safetensors")
    facts = ModelFacts(
        target_shape.name,
        target_digest,
        drafter_shape.name,
        drafter_digest,
        True,
        count_parameters(target),
        count_parameters(drafter),
    )
    return Models(_ready(target, dtype, device), _ready(drafter, dtype, device), facts, folder)


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
    partial = path.with_suffix(".partial")
    safetensors.torch.save_file(stored, partial)
    os.replace(partial, path)
