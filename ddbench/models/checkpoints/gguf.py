"""A reader of GGUF files: header, metadata, and tensors of the few types that are needed, dequantised to float32.

Every length is held against the file before it is believed, so that a damaged file ends in one line.
Letters: n values, 32 of them a block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ddbench.errors import CheckpointError, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
BLOCK = 32
MOST_DIMS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _f32(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f4")


def _q4_1(raw: np.ndarray) -> np.ndarray:
    """Blocks of 20 bytes: f16 scale, f16 minimum, 16 bytes of nibbles, the low ones first."""
    blocks = raw.reshape(-1, 20)
    scale, minimum = (blocks[:, at : at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))  # [n/32, 1]
    nibbles = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1)  # [n/32, 32]
    return (nibbles.astype(np.float32) * scale + minimum).reshape(-1)


def _q8_0(raw: np.ndarray) -> np.ndarray:
    """Blocks of 34 bytes: f16 scale, 32 signed bytes."""
    blocks = raw.reshape(-1, 34)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tensor's values are stored."""

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]  # bytes -> float32 values


ENCODINGS = {
    0: Encoding("F32", 1, 4, _f32),
    3: Encoding("Q4_1", BLOCK, 20, _q4_1),
    8: Encoding("Q8_0", BLOCK, 34, _q8_0),
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor: rows first, as torch has them."""

    shape: tuple[int, ...]
    encoding: Encoding
    offset: int  # in the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUF:
    """A file's metadata, and its tensors by name; `read` decodes one."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    data: np.ndarray  # [bytes of the file] uint8, mapped

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor as float32."""
        one = self.tensors[name]
        raw = np.ascontiguousarray(self.data[one.offset : one.offset + one.num_bytes])
        return one.encoding.decode(raw).reshape(one.shape).astype(np.float32, copy=False)


class _Cursor:
    """A position in the file; nothing is read beyond its end."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.data, self.at = path, data, 0

    def fault(self, complaint: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: damaged at byte {self.at}: {complaint}")

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self.data) - self.at:
            self.fault(f"{num_bytes} more bytes are announced, {len(self.data) - self.at} are left")
        taken = self.data[self.at : self.at + num_bytes].tobytes()
        self.at += num_bytes
        return taken

    def scalar(self, kind: str) -> Any:
        (value,) = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))
        return value

    def string(self) -> str:
        raw = self.take(self.scalar("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fault(f"a text that is no UTF-8: {error.reason}")

    def count(self, least_bytes: int) -> int:
        """A number of entries of at least so many bytes each."""
        number = self.scalar("Q")
        if number * least_bytes > len(self.data) - self.at:
            self.fault(f"{number} entries are announced, {len(self.data) - self.at} bytes are left")
        return int(number)

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            self.fault(f"a value of unknown type {kind}")
        inner = self.scalar("I")
        if inner == _STRING:
            return [self.string() for _ in range(self.count(8))]
        if inner not in _SCALARS:
            self.fault(f"an array of values of type {inner}")
        size = struct.calcsize(f"<{_SCALARS[inner]}")
        number = self.count(size)
        return list(struct.unpack(f"<{number}{_SCALARS[inner]}", self.take(number * size)))


def read_gguf(path: Path) -> GGUF:
    """Open a GGUF file; what is no GGUF, damaged or of an unknown type is a one-line error."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    cursor = _Cursor(path, data)
    if len(data) < len(MAGIC) or cursor.take(4) != MAGIC:
        raise CheckpointError(f"{path}: is no GGUF file")
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise CheckpointError(f"{path}: GGUF version {version}; known: {', '.join(map(str, VERSIONS))}")
    num_tensors, num_values = cursor.count(24), cursor.count(12)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        if key in metadata:
            cursor.fault(f"{shown(key)} stands there twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    tensors = _tensors(cursor, num_tensors, metadata.get("general.alignment", BLOCK))
    return GGUF(path, metadata, tensors, data)


def _tensors(cursor: _Cursor, number: int, alignment: object) -> dict[str, GGUFTensor]:
    if not isinstance(alignment, int) or alignment < 1:
        cursor.fault(f"general.alignment is {shown(alignment)}")
    found: dict[str, tuple[tuple[int, ...], Encoding, int]] = {}
    for _ in range(number):
        name, num_dims = cursor.string(), cursor.scalar("I")
        if num_dims > MOST_DIMS or name in found:
            cursor.fault(f"tensor {shown(name)} has {num_dims} dims, or stands there twice")
        shape = tuple(cursor.scalar("Q") for _ in range(num_dims))[::-1]
        kind, offset = cursor.scalar("I"), cursor.scalar("Q")
        if kind not in ENCODINGS:
            known = ", ".join(one.name for one in ENCODINGS.values())
            raise CheckpointError(f"{cursor.path}: tensor {shown(name)} is of type {kind}; known: {known}")
        found[name] = (shape, ENCODINGS[kind], offset)
    start = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, (shape, encoding, offset) in found.items():
        if not shape or shape[-1] % encoding.block_values:
            cursor.fault(f"tensor {shown(name)} has shape {list(shape)}: no rows of whole blocks")
        num_bytes = prod(shape) // encoding.block_values * encoding.block_bytes
        if start + offset + num_bytes > len(cursor.data):
            cursor.fault(f"tensor {shown(name)} ends at byte {start + offset + num_bytes} of {len(cursor.data)}")
        tensors[name] = GGUFTensor(shape, encoding, start + offset, num_bytes)
    return tensors
