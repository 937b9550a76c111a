"""The target's own answers as a drafter's training data: one array of 16-bit tokens, shard files, what is left out.

`decode.py` makes them, `answer_data.py` draws batches of them. Letters: R answers, T tokens at most of each, prompt
included.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddbench.errors import UserError

GRAM = 4  # tokens: as many ids as fill a word of 64 bits
MOST_TOKEN_IDS = 0xC000 + 1  # ids below are stored; of such the top 16 bits of a packed 4-gram are never all ones
MANIFEST = "answers.json"


@dataclass(frozen=True, slots=True)
class Answers:
    """Prompts with their answers, one after the other in `tokens`."""

    tokens: np.ndarray  # [sum of lengths] uint16
    lengths: np.ndarray  # [R] int32, prompt included
    prompt_lengths: np.ndarray  # [R] int32
    places: np.ndarray  # [R] int32, of the prompt in its file
    is_greedy: np.ndarray  # [R] bool

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_answer_tokens(self) -> int:
        return int((self.lengths - self.prompt_lengths).sum())

    @property
    def starts(self) -> np.ndarray:
        """[R] int64, where each begins."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """By the names that they have in a shard."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def digest(self) -> str:
        """SHA-256 of everything."""
        return hashlib.sha256(b"".join(column.tobytes() for column in self.arrays.values())).hexdigest()

    def check(self) -> None:
        """ValueError where the columns do not belong together."""
        _, *columns = self.arrays.values()
        if {column.shape for column in columns} != {(len(self),)} or self.tokens.shape != (int(self.lengths.sum()),):
            raise ValueError("columns of different lengths")

    def only(self, chosen: np.ndarray) -> Answers:
        """Those where `chosen` [R] bool."""
        tokens, *columns = self.arrays.values()
        return Answers(tokens[np.repeat(chosen, self.lengths)], *(column[chosen] for column in columns))

    @staticmethod
    def joined(parts: Sequence[Answers]) -> Answers:
        """All of them, in order."""
        return Answers(*map(np.concatenate, zip(*(part.arrays.values() for part in parts), strict=True)))


def repeated_share(tokens: torch.Tensor, prompt_lengths: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Share of each answer's 4-grams that repeat an earlier one of the same answer. tokens [R, T] -> [R] float32.

    The prompt does not count. Exact: four ids of 16 bits make one word.
    """
    grams = tokens.long().unfold(1, GRAM, 1)  # [R, T - GRAM + 1, GRAM]
    keys = sum((grams[..., i] << (16 * i) for i in range(GRAM)), torch.zeros_like(grams[..., 0]))
    column = torch.arange(keys.shape[1], device=keys.device)
    is_own = (column >= prompt_lengths[:, None]) & (column + GRAM <= lengths[:, None])
    keys = torch.where(is_own, keys, -1 - column)  # each another one, and none that four ids make
    ordered = keys.sort(dim=1).values
    num_repeats = (ordered[:, 1:] == ordered[:, :-1]).sum(dim=1)
    return num_repeats / is_own.sum(dim=1).clamp(min=1)


def pack(tokens: torch.Tensor, lengths: torch.Tensor, prompt_lengths: torch.Tensor, places: torch.Tensor,
         is_greedy: torch.Tensor, max_repetition: float) -> tuple[Answers, int]:  # fmt: skip
    """Finished rows [R, T] without those that loop -> (answers, how many were left out). Length 0: unfinished."""
    finished = lengths > 0
    loops = finished & (repeated_share(tokens, prompt_lengths, lengths) > max_repetition)
    keep = finished & ~loops
    rows, lengths = tokens[keep], lengths[keep]
    flat = rows[torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]]
    columns = (lengths, prompt_lengths[keep], places[keep])
    sizes, prompts, where = (column.cpu().numpy().astype(np.int32) for column in columns)
    flat_ids, greedy = flat.cpu().numpy().astype(np.uint16), is_greedy[keep].cpu().numpy()
    return Answers(flat_ids, sizes, prompts, where, greedy), int(loops.sum())


# ---------------------------------------------------------------------------------------------------------- files


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"answers-{number:04d}.npz"


def load_answers(folder: Path) -> Answers:
    """All shards of a folder; none, or a damaged one, is a UserError."""
    paths = sorted(folder.glob("answers-*.npz"))
    if not paths:
        raise UserError(f"{folder}: holds no answers; make some with `ddbench train answers`")
    parts = []
    for path in paths:
        try:
            with np.load(path) as data:
                part = Answers(**dict(data.items()))
            part.check()
            parts.append(part)
        except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: damaged ({type(error).__name__}); delete it and make it again") from error
    return Answers.joined(parts)


def agree_on(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write what the shards of a folder have in common, or check that it is still the same."""
    path = folder / MANIFEST
    if path.is_file():
        then = read_manifest(folder)
        for name, now in facts.items():
            if then.get(name) != now:
                raise UserError(f"{path}: was begun with {name} {then.get(name)}, now it is {now}; take another --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(facts), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the shards of a folder have in common."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; make answers with `ddbench train answers`") from error
    if not isinstance(found, dict) or not isinstance(found.get("target"), str):
        raise UserError(f"{path}: names no target; make answers with `ddbench train answers`")
    return found
