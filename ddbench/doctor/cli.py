"""`ddbench doctor`: the command itself; its body is `command.py`, imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("doctor", short_help="What this machine lacks for sweeps, nsys and ncu, and how to get it.")
@click.option("--for", "purpose", type=click.Choice(["sweep", "nsys", "ncu"]), help="Only what concerns this.")
@click.option("--format", "form", type=click.Choice(["console", "json"]), default="console", show_default=True)
def doctor_command(purpose: Any, form: str) -> None:
    """Look at GPU, driver, libraries, clocks, disk and profilers, and capture a small self-test with nsys and ncu where
    they are: each line says ok, missing or failed, and how to cure it.

    Exit codes: 0 what is needed is there; 1 something is broken, or what is needed is missing: for a sweep, or for
    what --for names. A sweep needs no GPU; where there is one, it has to work.

    \b
    Examples:
      ddbench doctor
      ddbench doctor --for nsys
      ddbench doctor --format json
    """
    from rich.console import Console

    from ddbench.doctor.checks import examine
    from ddbench.doctor.command import show, show_json
    from ddbench.doctor.machine import Machine

    rows = examine(Machine(Path.cwd()), purpose)
    raise SystemExit((show_json if form == "json" else show)(Console(), rows, purpose))
