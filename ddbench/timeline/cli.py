"""`ddbench timeline`: the command itself; its body is `command.py`, imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ddbench.commands import Folder


@click.command("timeline", short_help="What host and device did, round by round, in a capture.")
@click.argument("run", type=Folder())
@click.option("--case", "cases", metavar="C", multiple=True, help="Its number, label or id; twice: two side by side.")
@click.option("--tool", type=click.Choice(["nsys", "torch"]), help="Whose capture  [default: nsys where there is one]")
@click.option(
    "--format", "formats", default="console", show_default=True, help="Of console, html, json; comma-separated."
)
@click.option("--out", type=Folder(), help="Folder for the files  [default: RUN/timeline]")
def timeline_command(run: Path, cases: tuple[str, ...], tool: Any, formats: str, out: Path | None) -> None:
    """Show a captured window of a case: stages, idle time of the device and its causes, launches, copies and syncs.

    Captures are made with `ddbench sweep --capture nsys`. Without --case: the only case that has one, or a list of
    them. html is one file with a strip to zoom; json opens in Perfetto (ui.perfetto.dev) and chrome://tracing.

    \b
    Examples:
      ddbench timeline runs/RUN
      ddbench timeline runs/RUN --case 2
      ddbench timeline runs/RUN --case "ddtree tree_build=heap c=1" --case "ddtree c=1" --format console,html
    """
    from rich.console import Console

    from ddbench.timeline.command import show_timeline

    words = tuple(word.strip() for word in formats.split(",") if word.strip())
    show_timeline(Console(), run, cases, tool, words, out)
