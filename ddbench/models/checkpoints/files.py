"""The files of a published folder: JSON read with care, and which tensor lies in which safetensors file.

Only headers are read here; `stream.py` reads the tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ddbench.errors import CheckpointError, shown

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file's header describes it."""

    file: Path
    dtype: str  # as safetensors spells it: BF16, F32, I32
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a table, got {shown(data)}")
    return data


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder, one or those of its index."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file() and index.is_file():
        raise CheckpointError(f"{folder}: holds both {WEIGHTS} and {INDEX}: remove the one that does not belong there")
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise CheckpointError(f"{folder}: holds neither {WEIGHTS} nor {INDEX}")
    return tuple(folder / name for name in sorted(set(_weight_map(index).values())))


def read_headers(folder: Path) -> dict[str, Stored]:
    """Every tensor of a folder by name; an index must agree with its files, tensor by tensor."""
    found: dict[str, Stored] = {}
    for file in weight_files(folder):
        for name, stored in _header(file).items():
            if name in found:
                raise CheckpointError(f"{file}: tensor '{name}' is in {found[name].file.name} as well")
            found[name] = stored
    index = folder / INDEX
    if index.is_file():
        _check_index(index, found)
    return found


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file mapped into memory; what is wrong with it ends in one line."""
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except FileNotFoundError as error:
        raise CheckpointError(f"{file}: missing") from error
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: a header beyond any memory
        raise CheckpointError(f"{file}: damaged: {error}") from error


def _header(file: Path) -> dict[str, Stored]:
    with opened(file) as handle:
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 - a method, no mapping
        return {name: Stored(file, one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}


def _weight_map(index: Path) -> Mapping[str, str]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{index}: weight_map: expected a table of tensor and file names, got {shown(table)}")
    for name, file in table.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index}: weight_map: '{name}' is in {shown(file)}, no safetensors file beside it")
    return table


def _check_index(index: Path, found: Mapping[str, Stored]) -> None:
    listed = _weight_map(index)
    for name in sorted(listed.keys() ^ found.keys()):
        if name in listed:
            raise CheckpointError(f"{index}: tensor '{name}' is not in {listed[name]}")
        raise CheckpointError(f"{found[name].file}: tensor '{name}' is not in {index.name}")
    for name, file in listed.items():
        if found[name].file.name != file:
            raise CheckpointError(f"{index}: tensor '{name}' is in {found[name].file.name}, not in {file}")
