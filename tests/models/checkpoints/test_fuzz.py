"""Damaged files of every kind: each ends in the right answer or in one line, never in another exception."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddbench.errors import DdbenchError
from ddbench.models.checkpoints import published
from ddbench.models.checkpoints.gguf import read_gguf
from ddbench.models.weights import load_models, pair_shapes, random_models
from ddbench.spec import ARMS, EngineSpec

CASES = 60


def damaged(sound: bytes, rng: random.Random) -> bytes:
    """Cut off, overwritten in places, or garbage."""
    kind = rng.randrange(4)
    if kind == 0:
        return sound[: rng.randrange(len(sound))]
    if kind == 1:
        return rng.randbytes(rng.randrange(200))
    raw = bytearray(sound)
    reach = len(raw) if kind == 2 else min(len(raw), 400)  # headers are where it hurts
    for _ in range(rng.randint(1, 12)):
        raw[rng.randrange(reach)] = rng.randrange(256)
    return bytes(raw)


def one_line(action: Callable[[], Any]) -> bool:
    """Whether it failed, and then in one line."""
    text = None
    try:
        action()
    except DdbenchError as error:
        text = str(error)
    assert text is None or ("\n" not in text and len(text) < 2000)
    return text is not None


@pytest.fixture(scope="module")
def folders(formats, tmp_path_factory) -> tuple[Path, Path]:
    """A published target in two files, and its drafter."""
    pair, root = random_models("tiny-gqa"), tmp_path_factory.mktemp("fuzz")
    shape = pair.target.shape
    target = formats.write(root / "target", formats.target_config(shape), formats.target_tensors(pair.target), 2)
    config = formats.drafter_config(pair.drafter, shape.vocab)
    return target, formats.write(root / "drafter", config, formats.drafter_tensors(pair.drafter))


def spoilt(path: Path, seed: int) -> Iterator[None]:
    """The file, damaged in many ways, one after the other."""
    sound, rng = path.read_bytes(), random.Random(seed)
    try:
        for _ in range(CASES):
            path.write_bytes(damaged(sound, rng))
            yield
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"])
def test_a_damaged_target_ends_in_one_line(folders, name):
    target, _ = folders
    spec = EngineSpec(target=str(target), **ARMS["ar"])
    failures = sum(one_line(lambda: load_models(spec)) for _ in spoilt(target / name, 1))
    assert failures > CASES // 3


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_drafter_ends_in_one_line(folders, name):
    target, drafter = folders
    spec = EngineSpec(target=str(target), drafter=str(drafter))
    failures = sum(one_line(lambda: load_models(spec)) for _ in spoilt(drafter / name, 2))
    assert failures > CASES // 3


def test_a_damaged_gguf_ends_in_one_line(tmp_path):
    import struct

    name = struct.pack("<Q", 1)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + name + b"a" + struct.pack("<II", 4, 7)
    head += name + b"b" + struct.pack("<IIQ", 9, 8, 1) + name + b"x"
    head += name + b"t" + struct.pack("<IQQIQ", 2, 32, 2, 8, 0)
    path = tmp_path / "x.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(68))
    assert read_gguf(path).read("t").shape == (2, 32)

    def read_all() -> None:
        gguf = read_gguf(path)
        for one in gguf.tensors:
            gguf.read(one)

    failures = sum(one_line(read_all) for _ in spoilt(path, 3))
    assert failures > CASES // 3


VALUES = (None, True, False, -1, 0, 1, 2**70, 0.5, -0.0, 1e308, "x", "", [], [1], [[1]], {}, {"a": 1}, [None], ["x"])


@pytest.mark.parametrize("which", ["target", "drafter"])
def test_any_value_of_any_field_is_read_or_named(folders, which):
    """Types, signs and sizes that nobody expects; shapes only, so that a huge one is not built."""
    target, drafter = folders
    path = (target if which == "target" else drafter) / "config.json"
    sound = path.read_text()
    spec = EngineSpec(target=str(target), drafter=str(drafter))
    config, failures, tried = json.loads(sound), 0, 0
    try:
        for name in config:
            for value in VALUES:
                path.write_text(json.dumps({**config, name: value}))
                failures += one_line(lambda: pair_shapes(spec))
                tried += 1
        for name in config.get("dflash_config", {}):
            for value in VALUES:
                path.write_text(json.dumps({**config, "dflash_config": {**config["dflash_config"], name: value}}))
                failures += one_line(lambda: pair_shapes(spec))
                tried += 1
    finally:
        path.write_text(sound)
    assert failures > tried // 3


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"x"', "{", "", "[" * 100_000, '{"architectures": [1, 2]}', "\xff"]
)
def test_a_config_that_is_no_table_is_named(folders, text, complaint):
    target, _ = folders
    sound = (target / "config.json").read_bytes()
    try:
        (target / "config.json").write_bytes(text.encode("latin-1"))
        assert "config.json" in complaint(lambda: load_models(EngineSpec(target=str(target), **ARMS["ar"])))
    finally:
        (target / "config.json").write_bytes(sound)


def test_a_folder_without_a_config_is_no_checkpoint(tmp_path, complaint):
    assert not published.is_published(tmp_path)
    assert "no config.json there" in complaint(lambda: load_models(EngineSpec(target=str(tmp_path))))
