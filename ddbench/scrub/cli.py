"""`ddbench scrub`: the command itself; its body is `folder.py`, imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from ddbench.commands import Folder


@click.command("scrub", short_help="Copy a run without what names a machine, a user or a folder.")
@click.argument("run", type=Folder())
@click.option("--out", type=Folder(), help="The copy  [default: beside RUN, named after the run, -scrubbed]")
@click.option("--also", metavar="TEXT", multiple=True, help="A name that must go as well.")
@click.option("--drop-traces", is_flag=True, help="Leave out files that cannot be scrubbed, in place of refusing.")
def scrub_command(run: Path, out: Path | None, also: tuple[str, ...], drop_traces: bool) -> None:
    """Copy a run to be given away: numbers stay, and text made of ddbench's own words. Paths, names, environment
    variables, logs and every other text become `removed-N`. SQLite exports of nsys are copied table by table.
    Captures stay, but for the tools' own reports, which hold the environment: --drop-traces leaves them out.

    Token ids of the outputs and names of kernels stay. Reports are left out: make them again from the copy.

    \b
    Examples:
      ddbench scrub runs/RUN
      ddbench scrub runs/RUN --out for-others --also my-project --drop-traces
    """
    from rich.console import Console

    from ddbench.scrub.folder import scrub

    done = scrub(run, out, also, drop_traces)
    console = Console(highlight=False, soft_wrap=True)
    for field, number in done.num_pieces.items():
        console.print(f"removed: {number} in {field}", markup=False)
    for what in done.left_out:
        console.print(f"left out: {what}", markup=False)
    console.print(f"scrubbed: {done.path}", markup=False)
