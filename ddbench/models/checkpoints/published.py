"""Published folders as the rest of the lab sees them: is it one, what shape has it, load it onto a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ddbench.errors import CheckpointError
from ddbench.models.checkpoints.digests import files_digest
from ddbench.models.checkpoints.drafter_config import is_drafter, read_drafter
from ddbench.models.checkpoints.files import CONFIG, INDEX, Stored, read_headers, read_json, weight_files
from ddbench.models.checkpoints.int8_rows import without_scales
from ddbench.models.checkpoints.pieces import Piece, drafter_pieces, is_extra, is_table, target_pieces
from ddbench.models.checkpoints.stream import fill, match
from ddbench.models.checkpoints.target_config import PublishedTarget, read_target
from ddbench.models.drafter import Drafter
from ddbench.models.shape_kinds import DrafterShape, TargetShape
from ddbench.models.target import Target

# What other trainers call a drafter's tensors.
ALIASES = {"midlayer.": "layers.0.", "encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}


@dataclass(frozen=True, slots=True)
class Layout:
    """A folder's tensors, matched with what its configuration asks for."""

    by_file: Mapping[Path, list[Piece]]
    names: Mapping[str, str]  # of a piece, as it is in the file
    stored: Mapping[str, Stored]  # of the pieces only


def is_published(folder: Path) -> bool:
    """Whether a folder is in a published format, by its config.json; one that cannot be read is an error."""
    path = folder / CONFIG
    if not path.is_file():
        return False
    data = read_json(path)
    return "target" not in data and ("architectures" in data or "model_type" in data)


def published_target(folder: Path) -> PublishedTarget:
    """The shape of a published target; a drafter in its place is refused by name."""
    if is_drafter(read_json(folder / CONFIG)):
        raise CheckpointError(f"{folder}: is a DFlash drafter, not a target: name it with --drafter")
    return read_target(folder)


def published_drafter(folder: Path, target: TargetShape, target_folder: Path | None) -> DrafterShape:
    """The shape of a published drafter for this target; a target in its place is refused by name."""
    if not is_drafter(read_json(folder / CONFIG)):
        raise CheckpointError(f"{folder}: is no DFlash drafter: its config.json has no dflash_config")
    return read_drafter(folder, target, () if target_folder is None else (target_folder,))


def target_layout(folder: Path, target: PublishedTarget) -> Layout:
    """Every tensor of a target's folder, accounted for; nothing is read but headers."""
    stored: dict[str, Stored] = {}
    names: dict[str, str] = {}
    for name, one in read_headers(folder).items():
        plain = name.removeprefix(target.prefix)
        if not name.startswith(target.left_out or ("\0",)):
            stored[plain], names[plain] = one, name
    by_file = match(folder, stored, target_pieces(target), lambda name: is_table(name) or is_extra(name, target))
    return _layout(by_file, names, stored)


def drafter_layout(folder: Path, shape: DrafterShape) -> Layout:
    """Every tensor of a drafter's folder: aliases and the prefix `model.` resolved, anything left over is an error."""
    stored: dict[str, Stored] = {}
    names: dict[str, str] = {}
    for name, one in read_headers(folder).items():
        plain = _plain_name(name)
        if plain in stored:
            raise CheckpointError(f"{one.file}: tensors '{names[plain]}' and '{name}' are both '{plain}'")
        stored[plain], names[plain] = one, name
    stored = without_scales(folder, stored)
    _check_fc(folder, shape, stored)
    return _layout(match(folder, stored, drafter_pieces(shape), is_table), names, stored)


def load_target(folder: Path, capture_ids: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Target:
    """A published target on its device, ready to run."""
    published = published_target(folder)
    layout = target_layout(folder, published)
    with torch.device("meta"):
        model = Target(published.shape, capture_ids)
    fill(model, layout.by_file, layout.names, dtype, device)
    return model


def load_drafter(
    folder: Path, shape: DrafterShape, num_positions: int, dtype: torch.dtype, device: torch.device
) -> Drafter:
    """A published drafter on its device, ready to run."""
    layout = drafter_layout(folder, shape)
    with torch.device("meta"):
        model = Drafter(shape, num_positions)
    fill(model, layout.by_file, layout.names, dtype, device)
    return model


def digest(folder: Path, others: Sequence[Path] = ()) -> str:
    """The content of a published folder: configuration, index, weights, and `others`."""
    extra = [path for path in (folder / "generation_config.json", folder / INDEX) if path.is_file()]
    return files_digest([folder / CONFIG, *extra, *others, *weight_files(folder)])


def _layout(by_file: Mapping[Path, list[Piece]], names: Mapping[str, str], stored: Mapping[str, Stored]) -> Layout:
    kept = {piece.source: stored[piece.source] for pieces in by_file.values() for piece in pieces}
    return Layout(by_file, names, kept)


def _plain_name(name: str) -> str:
    plain = name.removeprefix("model.")
    for alias, ours in ALIASES.items():
        if plain.startswith(alias):
            return ours + plain.removeprefix(alias)
    return plain


def _check_fc(folder: Path, shape: DrafterShape, stored: Mapping[str, Any]) -> None:
    """The commonest mismatch, said in its own words: as many features as the configuration lists."""
    fc = stored.get("fc.weight")
    features = len(shape.target_layer_ids)
    expected = features * shape.target_hidden
    if fc is not None and len(fc.shape) == 2 and fc.shape[1] != expected:
        raise CheckpointError(
            f"{folder}: tensor 'fc.weight' takes {fc.shape[1]} features, target_layer_ids names {features} layers of "
            f"{shape.target_hidden}: {expected}"
        )
