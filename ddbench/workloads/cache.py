"""Where converted sets are kept, and how they are read again: whole, by their digest, or not at all.

A file's name holds its digest, so that versions of ddbench which convert differently do not overwrite each other's.
Messages name the set and never the folder: they go into run folders too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ddbench import wheels
from ddbench.errors import SchemaError, UserError
from ddbench.files import replacing
from ddbench.spec import first_message
from ddbench.workloads.sets import Item, PromptSet

State = Literal["installed", "damaged", "not fetched"]


def cache_folder() -> Path:
    """Of the user. What it holds is checked against pinned digests at every reading."""
    return wheels.cache_folder("workloads")


@dataclass(frozen=True, slots=True)
class Cache:
    """The converted sets in one folder."""

    folder: Path

    def place(self, wanted: PromptSet) -> Path:
        return self.folder / f"{wanted.name}-{wanted.digest[:12]}.jsonl"

    def state(self, wanted: PromptSet) -> State:
        data = self._bytes(wanted)
        if data is None:
            return "not fetched"
        return "installed" if hashlib.sha256(data).hexdigest() == wanted.digest else "damaged"

    def read(self, wanted: PromptSet) -> tuple[Item, ...]:
        """The items in the order of the set. What is not there, or is not it, is a UserError that says what to do."""
        data, again = self._bytes(wanted), f"ddbench workloads fetch {wanted.name}"
        if data is None:
            raise UserError(f"prompt set '{wanted.name}' is not fetched yet: {again}")
        if hashlib.sha256(data).hexdigest() != wanted.digest:
            raise UserError(f"prompt set '{wanted.name}': its file in the cache is damaged: {again}")
        return parse_items(data, wanted.name)

    def write(self, wanted: PromptSet, data: bytes) -> Path:
        """Put a converted set in its place in one step."""
        assert hashlib.sha256(data).hexdigest() == wanted.digest
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.place(wanted)
        with replacing(place, is_shared=True) as partial:
            partial.write_bytes(data)
        return place

    def _bytes(self, wanted: PromptSet) -> bytes | None:
        try:
            return self.place(wanted).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


def parse_items(data: bytes, name: str) -> tuple[Item, ...]:
    """The items of a converted set."""
    try:
        lines = data.decode("utf-8").split("\n")
        return tuple(Item.model_validate(json.loads(line)) for line in lines if line)
    except ValidationError as error:
        raise SchemaError(f"prompt set '{name}': {first_message(error)}") from error
