"""The training card of a shipped model: what was trained, on what, by which command, with which curve."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
from click.core import ParameterSource

from ddbench.errors import UserError


def software(device: str) -> dict[str, str]:
    """Versions and device that a rerun would need to match; `device` is 'cpu' or 'cuda'."""
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"python": platform.python_version(), "torch": torch.__version__, "device": name}


def command_line(context: click.Context) -> str:
    """The running command as a reader would repeat it: file names without this machine's folders."""
    words = ["ddbench", "train", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            words += [parameter.opts[0]] if value is True else [parameter.opts[0], Path(str(value)).name]
    return shlex.join(words)


def given_options(context: click.Context) -> dict[str, str]:
    """What the command line sets, by parameter: the option as it is spelled."""
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    }


def read_card(folder: Path) -> dict[str, Any]:
    """The folder's card; empty where there is none."""
    path = folder / "training-card.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def update_card(folder: Path, part: str, facts: Mapping[str, Any]) -> Path:
    """Put `facts` under `part` ('target', 'drafter', 'evaluation') in the folder's training-card.json."""
    path = folder / "training-card.json"
    try:
        card = read_card(folder)
    except ValueError as error:
        raise UserError(f"{path}: damaged, not JSON: {error}; mend or delete it") from error
    card[part] = dict(facts)
    path.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path
