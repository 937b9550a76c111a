"""What names weights by their content: a SHA-256 over the files of a folder that decide what it computes.

Files of more than `WHOLE` bytes together are sampled, and the digest says so: a terabyte would be read for an hour, and
a checkpoint that changes does not change in one spot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ddbench.errors import CheckpointError
from ddbench.wheels import sha256_of

WHOLE = 8 * 2**30
PIECE = 2**20  # bytes that are read of a large file at a time
STRIDE = 64 * 2**20  # and how far apart
LENGTH = 16  # characters of a digest


def files_digest(files: Sequence[Path], whole: int = WHOLE) -> str:
    """`1f2e...`, 16 characters; `sampled-1f2e...` where not every byte was read."""
    try:
        is_sampled = sum(file.stat().st_size for file in files) > whole
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            digest.update(_sampled(file) if is_sampled else bytes.fromhex(sha256_of(file)))
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return ("sampled-" if is_sampled else "") + digest.hexdigest()[:LENGTH]


def _sampled(file: Path) -> bytes:
    """The head, with a header of any usual size, a piece of every stride, and the end."""
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as opened:
        digest.update(opened.read(16 * PIECE))
        for start in (*range(STRIDE, size, STRIDE), max(0, size - PIECE)):
            opened.seek(start)
            digest.update(opened.read(PIECE))
    return digest.digest()
