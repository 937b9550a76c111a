"""Every command that the README shows is one: its name, its options and their values are known."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

import click
import pytest

from ddbench.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
LINES = [
    line.removeprefix(".venv/bin/ddbench ").removeprefix("ddbench ")
    for line in re.findall(r"^\s*(?:run: )?((?:\.venv/bin/)?ddbench .+)$", README, re.M)
]


def test_the_readme_shows_commands() -> None:
    assert len(LINES) > 35
    shown = {line.split()[0] for line in LINES}
    with click.Context(main) as context:
        assert shown | {"plan", "models"} >= set(main.list_commands(context)) - {"help"}


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_readme_is_understood(line: str) -> None:
    words = shlex.split(line, comments=True)
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group) and words[0] != "--help":
            found = command.get_command(context, words.pop(0))
            assert found is not None
            command = found
    with suppress(click.exceptions.Exit):  # of --help
        command.make_context("ddbench", words)
