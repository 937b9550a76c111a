"""Where weights come from: a shipped pair, a fetched model, a checkpoint folder, or seeded random values for a named
shape.

A folder is one of the lab's own (`lab_format.py`), with a drafter beside the target, or in a published format
(`checkpoints/`), whose drafter is a folder of its own. Loading is strict either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from ddbench.errors import UserError, did_you_mean
from ddbench.models.checkpoints import published
from ddbench.models.checkpoints.digests import files_digest
from ddbench.models.checkpoints.fetchable import FETCHABLE, fetched_folder, require_fetched
from ddbench.models.drafter import Drafter
from ddbench.models.lab_format import check_pair, load_strict, read_shapes
from ddbench.models.moe import RoutedExperts
from ddbench.models.random_weights import has_planted_successor, random_pair, randomize
from ddbench.models.shapes import (
    DRAFTERS,
    TARGETS,
    DrafterShape,
    RopeShape,
    TargetShape,
    drafter_shape,
    target_shape,
)
from ddbench.models.target import Target
from ddbench.spec import UNUSED, EngineSpec

ModuleT = TypeVar("ModuleT", bound=nn.Module)

LARGE = 10**9  # parameters of a target from which random weights are made on the GPU that they are for

ABSENT = "none"  # name and digest of a drafter that is not there
DRAFTERLESS = (UNUSED, "prompt_lookup")  # drafts that run without a drafter

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


@dataclass(frozen=True, slots=True)
class PairShapes:
    """What a spec's target and drafter look like, and where their weights are; nothing is loaded for it."""

    target: TargetShape
    drafter: DrafterShape | None
    folder: Path | None = None  # None: random weights
    drafter_folder: Path | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the target goes tensor by tensor to its device: the host never holds it."""
        return self.folder is not None and published.is_published(self.folder)


def load_models(spec: EngineSpec) -> Models:
    """The models an engine spec names, on its device and in its dtype."""
    dtype = torch.float32 if spec.dtype == "float32" else torch.bfloat16
    shapes = pair_shapes(spec)
    if shapes.folder is None:
        models = random_models(spec.target, seed=spec.seed, dtype=dtype, device=spec.device)
    else:
        if shapes.drafter is None and spec.draft not in DRAFTERLESS:
            raise UserError(
                f"target '{spec.target}' comes with no DFlash drafter, which draft '{spec.draft}' needs: name one with "
                "--drafter FOLDER, or take the arms ar and prompt_lookup"
            )
        models = _load_pair(shapes, shapes.folder, dtype, torch.device(spec.device))
    if spec.experts == "dequantized":
        dequantize_experts(models.target, dtype)
    return models


def pair_shapes(spec: EngineSpec) -> PairShapes:
    """The shapes that a spec's target and drafter have, held against each other."""
    folder = checkpoint_folder(spec.target)
    if folder is None:
        if spec.drafter is not None:
            raise UserError(
                f"drafter '{spec.drafter}': target '{spec.target}' has random weights, no drafter fits them"
            )
        return PairShapes(TARGETS[spec.target], DRAFTERS.get(spec.target))
    is_published = published.is_published(folder)
    target, own = (published.published_target(folder).shape, None) if is_published else read_shapes(folder)
    drafter_folder = Path(spec.drafter) if spec.drafter is not None else shipped_drafter(spec.target, folder)
    if drafter_folder is None:
        return PairShapes(target, None, folder)
    if published.is_published(drafter_folder):
        drafter = published.published_drafter(drafter_folder, target, folder)
    else:
        drafter = own if own is not None and drafter_folder == folder else read_shapes(drafter_folder)[1]
    check_pair(target, drafter, where=str(drafter_folder))
    return PairShapes(target, drafter, folder, drafter_folder)


def check_files(spec: EngineSpec) -> None:
    """Every tensor of a spec's checkpoint against its configuration; of published targets only headers are read."""
    shapes = pair_shapes(spec)
    if not shapes.is_streamed or shapes.folder is None:
        load_models(spec.model_copy(update={"device": "cpu", "experts": "packed"}))
        return
    published.target_layout(shapes.folder, published.published_target(shapes.folder))
    _load_drafter(shapes, torch.float32, torch.device("cpu"))


def shipped_drafter(target: str, folder: Path) -> Path | None:
    """The drafter that a target comes with: in its own folder, or, of one that is fetched, in this package."""
    if not published.is_published(folder):
        return folder
    shipped = PRETRAINED / f"{target}-dflash"
    return shipped if target in FETCHABLE and (shipped / "config.json").is_file() else None


def checkpoint_folder(target: str) -> Path | None:
    """The folder of a shipped pair, a fetched model or a path; None for a named shape without weights; else a
    UserError.
    """
    if target in FETCHABLE:
        return require_fetched(target)
    if "/" not in target and target in _shipped_pairs():
        return PRETRAINED / target
    if Path(target).is_dir():
        return Path(target)
    if target in TARGETS:
        return None
    known = (*target_names(), *FETCHABLE)
    raise UserError(f"target '{target}' is neither a known name nor a folder: {did_you_mean(target, known)}")


def target_names() -> tuple[str, ...]:
    """Named shapes, shipped pairs, and what has been fetched."""
    fetched = (name for name in FETCHABLE if fetched_folder(name) is not None)
    return tuple(sorted({*TARGETS, *_shipped_pairs(), *fetched}))


def _shipped_pairs() -> tuple[str, ...]:
    folders = (file.parent for file in PRETRAINED.glob("*/config.json"))
    return tuple(folder.name for folder in folders if not published.is_published(folder))


def published_digest(spec: EngineSpec) -> str | None:
    """The weights of a pair by content, with the text files that go along; None where no part is in a published format.

    The lab's own folders are addressed by whole files, as they always were.
    """
    shapes = pair_shapes(spec)
    folders = [one for one in (shapes.folder, shapes.drafter_folder) if one is not None]
    if not any(published.is_published(one) for one in folders):
        return None
    return "+".join(_folder_digest(one) for one in folders)


def _folder_digest(folder: Path) -> str:
    texts = [folder / name for name in ("tokenizer.json", "prompts.jsonl") if (folder / name).is_file()]
    if published.is_published(folder):
        return published.digest(folder, texts)
    files = (folder / name for name in ("config.json", "target.safetensors", "drafter.safetensors"))
    return files_digest([*(file for file in files if file.is_file()), *texts])


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
    shape, own = target_shape(target), drafter_shape(target)
    if is_made_on_device(shape, device):
        return random_models_on(torch.device(device), shape, own, seed=seed, dtype=dtype)
    return random_models_of(shape, own, seed=seed, dtype=dtype, device=device)


def random_models_of(
    target: TargetShape,
    drafter: DrafterShape,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Models:
    """Seeded random weights for any pair of shapes, made on the host: the same on every device."""
    model, drafter_model = Target(target, drafter.target_layer_ids), Drafter(drafter, target.max_context)
    for module, offset in ((model, 0), (drafter_model, 1)):
        randomize(module, seed * 2 + offset)
    facts = _random_facts(model, drafter_model, f"random-seed-{seed}", f"random-seed-{seed}")
    return Models(_ready(model, dtype, device), _ready(drafter_model, dtype, device), facts, None)


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
    target_digest = f"{digest}-successor" if has_planted_successor(target) else digest
    return Models(model, drafter_model, _random_facts(model, drafter_model, target_digest, digest), None)


def _random_facts(target: Target, drafter: Drafter, target_digest: str, drafter_digest: str) -> ModelFacts:
    names, sizes = (target.shape.name, drafter.shape.name), (count_parameters(target), count_parameters(drafter))
    return ModelFacts(names[0], target_digest, names[1], drafter_digest, False, *sizes)


def _ready(module: ModuleT, dtype: torch.dtype, device: str | torch.device) -> ModuleT:
    return module.to(device=device, dtype=dtype).requires_grad_(False).eval()


# --------------------------------------------------------------------------------------------------- checkpoints


def _load_pair(shapes: PairShapes, folder: Path, dtype: torch.dtype, device: torch.device) -> Models:
    capture_ids = () if shapes.drafter is None else shapes.drafter.target_layer_ids
    if shapes.is_streamed:
        target = published.load_target(folder, capture_ids, dtype, device)
        target_digest = published.digest(folder)
    else:
        target = Target(shapes.target, capture_ids)
        target_digest = load_strict(target, folder / "target.safetensors")
        target = _ready(target, dtype, device)
    drafter, name, drafter_digest = _load_drafter(shapes, dtype, device)
    facts = ModelFacts(
        shapes.target.name,
        target_digest,
        name,
        drafter_digest,
        True,
        count_parameters(target),
        0 if shapes.drafter is None else count_parameters(drafter),
    )
    return Models(target, drafter, facts, folder)


def _load_drafter(shapes: PairShapes, dtype: torch.dtype, device: torch.device) -> tuple[Drafter, str, str]:
    """-> (drafter, its name, its digest); where there is none, a stand-in of no size that nothing runs."""
    num_positions = shapes.target.max_context
    if shapes.drafter is None or shapes.drafter_folder is None:
        return _ready(Drafter(stand_in(shapes.target), 0), dtype, device), ABSENT, ABSENT
    if published.is_published(shapes.drafter_folder):
        drafter = published.load_drafter(shapes.drafter_folder, shapes.drafter, num_positions, dtype, device)
        return drafter, shapes.drafter.name, published.digest(shapes.drafter_folder)
    drafter = Drafter(shapes.drafter, num_positions)
    digest = load_strict(drafter, shapes.drafter_folder / "drafter.safetensors")
    return _ready(drafter, dtype, device), shapes.drafter.name, digest


def stand_in(target: TargetShape) -> DrafterShape:
    """The shape of no drafter: one layer of the least width, so that `Models` is complete for arms that draft nothing
    with it.
    """
    return DrafterShape(
        name=ABSENT,
        num_layers=1,
        hidden=target.hidden,
        width=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        block_size=8,
        mask_token_id=0,
        target_layer_ids=(0,),
        num_target_layers=target.num_layers,
        target_hidden=target.hidden,
        rope=RopeShape(theta=1e4, rotary_dim=2),
    )
