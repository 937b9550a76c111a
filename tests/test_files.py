"""Files of ours are written whole or not at all, and reading one says why where it fails."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddbench.errors import UserError
from ddbench.files import PARTIAL, replacing, write_atomically, write_out
from ddbench.harness.environment import child_environment


def test_a_file_takes_its_place_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"old")
    with replacing(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert partial.parent == tmp_path, "a rename crosses no file system"
        assert partial.name.startswith(PARTIAL)
        assert partial.suffix == ".bin", "some writers go by it"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_block_that_is_left_early_leaves_the_old_file_and_nothing_else(tmp_path: Path, stop: BaseException) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"ne")
            raise stop

    with pytest.raises(type(stop)):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def _in_another_process(code: str, path: Path) -> int:
    lines = f"import os, signal, sys, pathlib; from ddbench import files; path = pathlib.Path(sys.argv[1])\n{code}"
    return subprocess.run([sys.executable, "-c", lines, str(path)], env=child_environment(), check=False).returncode


def test_a_kill_leaves_the_old_file_and_the_next_write_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    code = "with files.replacing(path) as partial: partial.write_bytes(b'ne'); os.kill(os.getpid(), signal.SIGKILL)"
    assert _in_another_process(code, path) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    write_atomically(path, "new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path], "what the kill left was taken"


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """Another process has a partial file of its own: the one that ends last wins, and neither fails."""
    path = tmp_path / "a"
    theirs = "with files.replacing(path, is_shared=True) as partial: partial.write_bytes(b'theirs')"
    with replacing(path, is_shared=True) as partial:
        partial.write_bytes(b"ours")
        assert _in_another_process(theirs, path) == 0
        assert path.read_bytes() == b"theirs"
    assert path.read_bytes() == b"ours"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot be written .*: choose another folder with --out"):
        write_out(tmp_path / "file" / "report.html", "text")
