"""The help of `ddbench train`: its examples can be run as they stand."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from ddbench.cli import main
from ddbench.train.cli import train

CONTINUED = "\\\n"


@pytest.mark.parametrize("name", ["", *train.commands])
def test_examples_have_every_option_that_is_required(name: str):
    output = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["train", *name.split(), "--help"]).output
    lines = [line.strip() for line in output.replace(CONTINUED, " ").splitlines()]
    examples = [shlex.split(line) for line in lines if line.startswith("ddbench train ")]
    assert examples
    for words in examples:
        options = [one for one in train.commands[words[2]].params if isinstance(one, click.Option)]
        spelled = {spelling for option in options for spelling in option.opts}
        unknown = {word for word in words if word.startswith("--")} - spelled
        missing = [option.opts[0] for option in options if option.required and not {*option.opts} & {*words}]
        assert not unknown, shlex.join(words)
        assert not missing or "..." in words, shlex.join(words)
