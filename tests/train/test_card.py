"""The training card: parts are added one by one, and nothing in it names a place on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ddbench.errors import UserError
from ddbench.train.card import command_line, software, update_card


def test_parts_are_added_and_replaced_one_by_one(tmp_path: Path):
    update_card(tmp_path, "target", {"steps": 3})
    update_card(tmp_path, "drafter", {"steps": 4})
    path = update_card(tmp_path, "target", {"steps": 5})
    assert json.loads(path.read_text()) == {"target": {"steps": 5}, "drafter": {"steps": 4}}


def test_a_damaged_card_is_named_and_left_alone(tmp_path: Path):
    path = tmp_path / "training-card.json"
    path.write_text("{")
    with pytest.raises(UserError, match=r"training-card\.json: damaged"):
        update_card(tmp_path, "target", {})
    assert path.read_text() == "{"


def test_the_command_is_told_without_folders_and_defaults(tmp_path: Path):
    told: list[str] = []

    @click.command()
    @click.option("--corpus", type=click.Path(path_type=Path))
    @click.option("--shape", default="nano-k2")
    @click.option("--steps", type=int, default=3)
    @click.option("--save", is_flag=True)
    @click.pass_context
    def evaluate(context: click.Context, **_: object) -> None:
        told.append(command_line(context))

    runner = CliRunner()
    runner.invoke(evaluate, ["--corpus", str(tmp_path / "a file.xz"), "--save"])
    runner.invoke(evaluate, ["--shape", str(tmp_path / "shape.json"), "--steps", "7"])
    assert told == [
        "ddbench train evaluate --corpus 'a file.xz' --save",
        "ddbench train evaluate --shape shape.json --steps 7",
    ]


def test_software_names_versions_and_the_device():
    assert software("cpu").keys() == {"python", "torch", "device"}
    assert software("cpu")["device"] == "CPU"
