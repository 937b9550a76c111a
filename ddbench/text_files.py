"""Small text files of ours: read with a reason where that fails, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ddbench.errors import SchemaError, UserError


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


def write_atomically(path: Path, text: str, errors: str = "strict") -> None:
    """A reader sees the old file or the whole new one."""
    partial = path.with_name(f".partial-{path.name}")
    partial.write_bytes(text.encode("utf-8", errors))
    os.replace(partial, path)


def write_out(path: Path, text: str, what: str = "folder") -> Path:
    """Likewise, where --out says; what cannot be written is a UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): choose another {what} with --out") from error
    return path
