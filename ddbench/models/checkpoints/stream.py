"""From a published folder's files to a module on its device: every tensor checked against what is expected by name,
shape and type before the first one is read, then copied one after the other. The host never holds more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from ddbench.errors import CheckpointError
from ddbench.models.checkpoints.files import Stored, opened
from ddbench.models.checkpoints.int8_rows import SCALE, dequantize_rows
from ddbench.models.checkpoints.pieces import Piece
from ddbench.models.drafter import Drafter
from ddbench.models.layers import RotaryTable
from ddbench.models.random_weights import allocate
from ddbench.models.target import Target

MANY = 1000  # missing tensors, after which nobody counts on


def match(
    folder: Path, stored: Mapping[str, Stored], pieces: Iterable[Piece], may_be_left: Callable[[str], bool]
) -> dict[Path, list[Piece]]:
    """The pieces by file; a missing, unused, mis-shaped or mis-typed tensor is an error that names it.

    `stored` goes by the names of the pieces. `may_be_left` tells which tensors nobody has to want.
    """
    wanted: dict[str, Piece] = {}
    missing: list[str] = []
    for piece in pieces:
        wanted[piece.source] = piece
        missing += [piece.source] * (piece.source not in stored)
        if len(missing) == MANY:  # of a configuration that is far off; there may be billions
            break
    if missing:
        number = f"{MANY} or more" if len(missing) == MANY else str(len(missing))
        raise CheckpointError(f"{folder}: misses tensor '{min(missing)}' ({number} such)")
    unused = [name for name in stored.keys() - wanted.keys() if not may_be_left(name)]
    if unused:
        raise CheckpointError(f"{folder}: has an unused tensor '{min(unused)}' ({len(unused)} such)")
    by_file: dict[Path, list[Piece]] = {}
    for name, piece in wanted.items():
        one = stored[name]
        if one.shape != piece.shape:
            raise CheckpointError(
                f"{one.file}: tensor '{name}' has shape {list(one.shape)}, config.json asks for {list(piece.shape)}"
            )
        if one.dtype not in piece.dtypes:
            hint = "; convert it to BF16, F16 overflows" if one.dtype == "F16" else ""
            raise CheckpointError(
                f"{one.file}: tensor '{name}' is {one.dtype}, expected {' or '.join(piece.dtypes)}{hint}"
            )
        by_file.setdefault(one.file, []).append(piece)
    return by_file


def fill(
    module: Target | Drafter,
    by_file: Mapping[Path, list[Piece]],
    names: Mapping[str, str],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Give a module on the meta device memory of `device`, and the values of the pieces.

    `names` has what a piece is called in its file, where that is another name.
    """
    num_positions = len(module.rotary.cos)
    allocate(module, dtype, device)
    module.rotary = RotaryTable(module.shape.rope, num_positions).to(device)  # the values themselves, from fp64
    ours = {name: tensor.data for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    for file, pieces in by_file.items():
        with opened(file) as handle:
            for piece in pieces:
                name = names.get(piece.source, piece.source)
                tensor = handle.get_tensor(name)
                if tensor.dtype == torch.int8:
                    tensor = dequantize_rows(tensor, handle.get_tensor(name + SCALE))
                _place(piece, tensor, ours, file)
    module.requires_grad_(False).eval()


def _place(piece: Piece, tensor: torch.Tensor, ours: Mapping[str, torch.Tensor], file: Path) -> None:
    if piece.place is None:
        if tuple(tensor.tolist()) != piece.states:
            raise CheckpointError(
                f"{file}: tensor '{piece.source}' says {tensor.tolist()}, config.json asks for {list(piece.states)}"
            )
        return
    part = piece.of(ours[piece.place])
    part.copy_(tensor if piece.turned is None else piece.turned(tensor))
    if part.is_floating_point() and not _is_finite(part):
        raise CheckpointError(f"{file}: tensor '{piece.source}' has non-finite values")


def _is_finite(tensor: torch.Tensor) -> bool:
    """A sum takes a quarter of the time of a look at every value, and cannot be finite where one of them is not."""
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())
