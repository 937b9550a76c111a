"""Repeats in processes of their own: what is asked of them, what is kept where one fails, and that all are folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ddbench.errors import DdbenchError, UserError
from ddbench.opbench.gate.baseline import ops_baseline_of_folders
from ddbench.opbench.gate.qualify import Repeats, RepeatsInterrupted, run_repeats

FAKE = """
import pathlib, sys
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--out") + 1])
number = int(folder.name.rpartition("-")[2])
print("row 1 of 1")
if number == FAILING:
    print("error: device 'cuda' is in use by process 7", file=sys.stderr)
    sys.exit(CODE)
source = pathlib.Path(SOURCE) / f"{number}.json"
(folder / "ops.json").write_text(source.read_text())
(folder / "words.txt").write_text(" ".join(words))
"""


def fake(tmp_path: Path, maker: Any, failing: int = 0, code: int = 0) -> tuple[str, ...]:
    """A command that hands out made-up records instead of measuring."""
    for number in range(1, 6):
        (tmp_path / f"{number}.json").write_text(maker.file(number).model_dump_json(), encoding="utf-8")
    text = FAKE.replace("FAILING", str(failing)).replace("CODE", str(code)).replace("SOURCE", repr(str(tmp_path)))
    (tmp_path / "fake.py").write_text(text, encoding="utf-8")
    return (sys.executable, str(tmp_path / "fake.py"))


def test_every_repeat_is_a_folder_of_which_a_baseline_is_made(tmp_path: Path, maker: Any) -> None:
    said: list[str] = []
    repeats = Repeats("swiglu", "cpu", 3)
    folders = run_repeats(repeats, tmp_path / "runs", tmp_path / "b.json", said.append, fake(tmp_path, maker))
    assert [folder.name for folder in folders] == ["repeat-1", "repeat-2", "repeat-3"]
    assert ops_baseline_of_folders(folders) == maker.baseline(range(1, 4))
    words = (folders[2] / "words.txt").read_text(encoding="utf-8")
    assert words == f"--ours --op swiglu --device cpu --format json --out {folders[2]}"
    assert (folders[0] / "bench-ops.txt").read_text(encoding="utf-8") == "row 1 of 1\n"
    assert [line.partition(":")[0] for line in said] == [f"repeat {number} of 3" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("code", "error", "exit_code"), [(4, DdbenchError, 4), (2, UserError, 2), (130, RepeatsInterrupted, 130)]
)
def test_where_one_fails_the_others_are_kept_and_the_way_on_is_told(
    tmp_path: Path, maker: Any, code: int, error: type[DdbenchError], exit_code: int
) -> None:
    command = fake(tmp_path, maker, failing=3, code=code)
    with pytest.raises(error) as caught:
        run_repeats(Repeats(None, None, 4), tmp_path / "runs", tmp_path / "b.json", lambda line: None, command)
    text = str(caught.value)
    assert caught.value.exit_code == exit_code
    assert "2 of 4 repeats are kept. Measure 2 more with: ddbench bench-ops --ours --out FOLDER" in text
    assert text.count("--from") == 3
    assert ("is in use by process 7" in text) == (code != 130)
    assert "\n" not in text


def test_too_few_repeats_are_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="a noise floor takes at least 3 repeats"):
        Repeats(None, None, 2)
