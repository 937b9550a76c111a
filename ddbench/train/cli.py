"""`ddbench train`: how the shipped weights are made. The group is mounted by `ddbench/cli.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def train() -> None:
    """Train a target, then a DFlash drafter on its continuations."""


def _shared(command: Any) -> Any:
    options = (
        click.option("--corpus", type=FILE, required=True, help="Training documents, corpus-train.jsonl.xz."),
        click.option("--heldout", type=FILE, required=True, help="Held-out documents, corpus-heldout.jsonl.xz."),
        click.option("--out", type=FOLDER, required=True, help="Pair folder: weights, config, card."),
        click.option("--work", type=FOLDER, help="Checkpoints and caches [OUT/work]; a killed run resumes from there."),
        click.option("--steps", type=click.IntRange(1), help="Steps at most."),
        click.option("--minutes", type=float, help="Minutes at most; the schedule ends on time."),
        click.option("--batch-rows", type=click.IntRange(1), help="Rows per step."),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


@train.command("target")
@click.option("--shape", default="nano-k2", show_default=True, help="A named target shape (`ddbench list`).")
@click.option("--tokenizer", type=FILE, required=True)
@click.option("--window", type=click.IntRange(8), help="Tokens per row.")
@_shared
def target_command(**options: Any) -> None:
    """Train a target language model from scratch.

    Example: ddbench train target --corpus corpus-train.jsonl.xz --heldout corpus-heldout.jsonl.xz
    --tokenizer tokenizer.json --out pair --minutes 7
    """
    from ddbench.train.pipeline import run_target

    run_target(echo=click.echo, **options)


@train.command("drafter")
@click.option("--rows", type=click.IntRange(1), default=80000, show_default=True, help="Continuations to generate.")
@click.option(
    "--total", type=click.IntRange(32), default=320, show_default=True, help="Tokens per row, prompt included."
)
@click.option("--greedy-share", type=click.FloatRange(0, 1), default=0.6, show_default=True)
@_shared
def drafter_command(**options: Any) -> None:
    """Generate the target's continuations and train its DFlash drafter on them.

    Example: ddbench train drafter --corpus corpus-train.jsonl.xz --heldout corpus-heldout.jsonl.xz --out pair
    --minutes 6
    """
    from ddbench.train.pipeline import run_drafter

    run_drafter(echo=click.echo, **options)


@train.command("corpus")
@click.option("--out", type=FOLDER, required=True, help="Where the corpus files go.")
@click.option("--root", "roots", multiple=True, metavar="NAME=FOLDER", help="Folder of a source; repeatable.")
def corpus_command(out: Path, roots: tuple[str, ...]) -> None:
    """Collect the text corpus from installed packages and given folders.

    Example: ddbench train corpus --out corpus --root python-docs=/usr/share/doc/python3.11/html
    """
    from ddbench.train.pipeline import run_corpus

    run_corpus(out, roots, echo=click.echo)
