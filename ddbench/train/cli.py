"""`ddbench train`: how the shipped weights are made. The group is mounted by `ddbench/cli.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
DEVICE = click.Choice(["cpu", "cuda"])


@click.group()
def train() -> None:
    """Train a target, then a DFlash drafter on its continuations; evaluate the pair.

    \b
    Example, in this order:
      ddbench train corpus --out corpus
      ddbench train tokenizer --corpus corpus/corpus-train.jsonl.xz --heldout corpus/corpus-heldout.jsonl.xz \\
        --out pair
      ddbench train target --corpus corpus/corpus-train.jsonl.xz --heldout corpus/corpus-heldout.jsonl.xz \\
        --tokenizer pair/tokenizer.json --out pair --minutes 7
      ddbench train drafter --corpus corpus/corpus-train.jsonl.xz --heldout corpus/corpus-heldout.jsonl.xz \\
        --out pair --minutes 7
      ddbench train evaluate --pair pair --save
    """


CORPUS = click.option("--corpus", type=FILE, required=True, help="Training documents, corpus-train.jsonl.xz.")
HELDOUT = click.option("--heldout", type=FILE, required=True, help="Held-out documents, corpus-heldout.jsonl.xz.")


def _shared(command: Any) -> Any:
    options = (
        CORPUS,
        HELDOUT,
        click.option("--out", type=FOLDER, required=True, help="Pair folder: weights, config, card."),
        click.option("--work", type=FOLDER, help="Checkpoints and caches [OUT/work]; a killed run resumes from there."),
        click.option("--steps", type=click.IntRange(1), help="Steps at most."),
        click.option(
            "--minutes", type=click.FloatRange(0, min_open=True), help="Minutes at most; the schedule ends on time."
        ),
        click.option("--batch-rows", type=click.IntRange(1), help="Rows per step."),
        click.option("--peak-rate", type=float, help="Learning rate at the end of the warm-up."),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--device", type=DEVICE, default="cuda", show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


@train.command("tokenizer")
@CORPUS
@HELDOUT
@click.option("--out", type=FOLDER, required=True, help="Pair folder: tokenizer.json, prompts.jsonl.")
@click.option(
    "--vocab", type=click.IntRange(259), default=4096, show_default=True, help="Tokens, special ones included."
)
@click.option(
    "--per-kind", type=click.IntRange(1), default=32, show_default=True, help="Held-out prompts of each kind."
)
def tokenizer_command(**options: Any) -> None:
    """Train a byte-level BPE tokenizer and cut the held-out prompts, none of which shares text with the corpus.

    \b
    Example:
      ddbench train tokenizer --corpus corpus-train.jsonl.xz --heldout corpus-heldout.jsonl.xz --out pair
    """
    from ddbench.train.pipeline import run_tokenizer

    run_tokenizer(echo=click.echo, **options)


@train.command("target")
@click.option(
    "--shape",
    default="nano-k2",
    show_default=True,
    help='A named shape (`ddbench list`), or a JSON file {"target": ..., "drafter": ...} like a pair\'s config.json.',
)
@click.option(
    "--tokenizer", type=FILE, required=True, help="tokenizer.json; it and a prompts.jsonl beside it become the pair's."
)
@click.option("--window", type=click.IntRange(8), help="Tokens per row.")
@_shared
@click.pass_context
def target_command(context: click.Context, **options: Any) -> None:
    """Train a target language model from scratch.

    \b
    Examples:
      ddbench train target --corpus corpus-train.jsonl.xz --heldout corpus-heldout.jsonl.xz \\
        --tokenizer tokenizer.json --out pair --minutes 7
      ddbench train target --shape my-shape.json --device cpu --steps 20 ...
    """
    from ddbench.train.card import command_line
    from ddbench.train.pipeline import run_target

    run_target(echo=click.echo, command=command_line(context), **options)


@train.command("drafter")
@click.option("--rows", type=click.IntRange(1), default=65536, show_default=True, help="Continuations to generate.")
@click.option(
    "--total", type=click.IntRange(32), default=192, show_default=True, help="Tokens per row, prompt included."
)
@click.option("--greedy-share", type=click.FloatRange(0, 1), default=0.6, show_default=True)
@click.option(
    "--max-repetition",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Leave out answers of which a larger share repeats itself; 1 keeps the loops.",
)
@click.option("--init", type=FOLDER, help="Start from the drafter of this pair instead of from scratch.")
@_shared
@click.pass_context
def drafter_command(context: click.Context, **options: Any) -> None:
    """Generate the target's continuations and train its DFlash drafter on them.

    \b
    Example:
      ddbench train drafter --corpus corpus-train.jsonl.xz --heldout corpus-heldout.jsonl.xz \\
        --out pair --minutes 7
    """
    from ddbench.train.card import command_line
    from ddbench.train.pipeline import run_drafter

    run_drafter(echo=click.echo, command=command_line(context), **options)


@train.command("evaluate")
@click.option("--pair", default="nano-k2", show_default=True, help="A shipped pair, or a pair folder.")
@click.option("--prompts", "num_prompts", type=click.IntRange(1, 10_000), help="Held-out prompts [all of them].")
@click.option("--max-new-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Requests in flight.")
@click.option("--device", type=DEVICE, default="cpu", show_default=True)
@click.option("--save", is_flag=True, help="Write the result into the pair's training-card.json.")
@click.pass_context
def evaluate_command(context: click.Context, **options: Any) -> None:
    """Acceptance lengths of a trained pair: greedy, FP32, on its held-out prompts, every arm against plain decoding.

    \b
    Examples:
      ddbench train evaluate
      ddbench train evaluate --pair pair --prompts 24 --max-new-tokens 32
    """
    from ddbench.train.card import command_line
    from ddbench.train.evaluate import run_evaluate

    run_evaluate(echo=click.echo, command=command_line(context), **options)


@train.command("corpus")
@click.option("--out", type=FOLDER, required=True, help="Where the corpus files go.")
@click.option("--root", "roots", multiple=True, metavar="NAME=FOLDER", help="Folder of a source; repeatable.")
def corpus_command(out: Path, roots: tuple[str, ...]) -> None:
    """Collect the text corpus from installed packages and given folders.

    \b
    Example:
      ddbench train corpus --out corpus --root python-docs=/usr/share/doc/python3.11/html
    """
    from ddbench.train.pipeline import run_corpus

    run_corpus(out, roots, echo=click.echo)
