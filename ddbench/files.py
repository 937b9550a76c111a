"""Files of ours: written whole or not at all; small ones of text are read with a reason where that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddbench.errors import SchemaError, UserError

PARTIAL = ".partial-"  # so begins the name of what is not finished


def why_unread(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file cannot be read, for a message."""
    return str(error.strerror) if isinstance(error, OSError) else "not UTF-8 text"


def read_text(path: Path, cure: str = "", absent: str = "") -> str:
    """A file's text. A SchemaError says why there is none, a file that is not there in words of its own, and ends in
    the cure."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = absent if isinstance(error, FileNotFoundError) else ""
        raise SchemaError((words or f"{path}: cannot be read ({why_unread(error)})") + cure) from error


@contextmanager
def replacing(path: Path, *, is_shared: bool = False) -> Iterator[Path]:
    """Where to write what becomes the file `path` in one step at the end of the block.

    A reader, or whoever is left after a kill, has the old file or the whole new one. A block that fails leaves nothing
    behind, and what a kill leaves the next write takes; unless several processes may write it at once (`is_shared`),
    each to a place of its own.
    """
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}" if is_shared else f"{PARTIAL}{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, text: str, errors: str = "strict") -> None:
    """A small text as a whole file."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode("utf-8", errors))


def write_out(path: Path, text: str, what: str = "folder") -> Path:
    """Likewise, where --out says; what cannot be written is a UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): choose another {what} with --out") from error
    return path
