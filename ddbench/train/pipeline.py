"""The training commands' bodies: load data, train, store the pair, write the card."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ddbench.errors import UserError, did_you_mean
from ddbench.files import replacing
from ddbench.models.drafter import Drafter
from ddbench.models.lab_format import load_strict, read_shapes, save_pair, shapes_from
from ddbench.models.shapes import TARGETS, DrafterShape, TargetShape, drafter_shape, target_shape
from ddbench.models.target import Target
from ddbench.models.weights import count_parameters, dequantize_experts
from ddbench.train.answer_pipeline import run_answer_drafter
from ddbench.train.card import read_card, software, update_card
from ddbench.train.continuations import Continuations, generate
from ddbench.train.corpus import Document, build_corpus, corpus_documents
from ddbench.train.device import require_training_device
from ddbench.train.drafter import DrafterRecipe, initialize, train_drafter
from ddbench.train.loop import REPORT_SECONDS, Report, time_left, with_options
from ddbench.train.target import TargetRecipe, bits_per_byte, train_target
from ddbench.train.tokenizer import balanced_sample, load_tokenizer, select_prompts, train_tokenizer, write_prompts
from ddbench.train.tokens import TokenStream, Windows, load_tokens
from ddbench.wheels import sha256_of

SAMPLE_BYTES = 7_000_000  # of each kind of text, to train a tokenizer on
SPARE_PROMPTS = 96  # candidates of each kind beyond those wanted: some share text with the corpus
HELDOUT_ROWS = 256  # greedy continuations that the drafter is judged on while it trains


def run_target(*, corpus: Path, heldout: Path, out: Path, work: Path | None, shape: str, tokenizer: Path, device: str,
               command: str, echo: Report, **options: Any) -> None:  # fmt: skip
    """Train the target and store it with its card."""
    require_training_device(device)
    torch.manual_seed(options["seed"])
    work = work or out / "work"
    recipe = with_options(TargetRecipe(), options)
    target, drafter = shapes_for(shape)
    _require_vocabulary(tokenizer, target)
    echo("tokenising the corpus")
    train_stream = load_tokens(corpus, tokenizer, work, echo)
    heldout_stream = load_tokens(heldout, tokenizer, work, echo)
    echo(f"{len(train_stream.tokens):,} training tokens, {len(heldout_stream.tokens):,} held out")
    began = time.monotonic()
    model, curve = train_target(target, drafter, train_stream, heldout_stream, recipe, work / "target", device, echo)
    save_pair(out, model, None, drafter)
    if (out / "drafter.safetensors").is_file():
        echo(f"{out / 'drafter.safetensors'} was trained for another target: train it anew")
    _copy_text_files(tokenizer, out)
    stored = load_float_target(out, device)
    final = {
        kind: bits_per_byte(stored, heldout_stream.only(kind), recipe.window)
        for kind in sorted(set(heldout_stream.kinds))
    }
    echo("stored model, held-out bits per byte: " + "  ".join(f"{kind} {value:.3f}" for kind, value in final.items()))
    facts = {
        **_run_facts(recipe, command, curve, device, began),
        "corpus": _stream_facts(train_stream),
        "heldout": _stream_facts(heldout_stream),
        "parameters": count_parameters(model),
        "heldout_bits_per_byte": final,
    }
    echo(f"card: {update_card(out, 'target', facts)}")


def run_drafter(*, corpus: Path, heldout: Path, out: Path, work: Path | None, init: Path | None, rows: int, total: int,
                greedy_share: float, max_repetition: float, device: str, command: str, echo: Report,
                **options: Any) -> None:  # fmt: skip
    """Generate continuations of the stored target, train the drafter, store it with its card."""
    require_training_device(device)
    torch.manual_seed(options["seed"])
    work = work or out / "work"
    recipe = with_options(DrafterRecipe(), options)
    shape = read_shapes(out)[1]
    tokenizer = out / "tokenizer.json"
    train_stream = load_tokens(corpus, tokenizer, work, echo)
    heldout_stream = load_tokens(heldout, tokenizer, work, echo)
    target = load_float_target(out, device)
    began = time.monotonic()

    def continued(stream: TokenStream, count: int, share: float, seed: int, batch_rows: int) -> Continuations:
        windows = Windows(stream, device, seed)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return generate(
                target, windows, count, total, min(batch_rows, count), share, echo, shape.block_size, max_repetition
            )

    made_by = (rows, total, greedy_share, max_repetition, options["seed"])
    key = (sha256_of(out / "target.safetensors"), train_stream.digest, *made_by)
    train_rows = _kept(work, key, lambda: continued(train_stream, rows, greedy_share, options["seed"] + 1, 4096))
    seconds_generating = time.monotonic() - began
    heldout_rows = continued(heldout_stream, HELDOUT_ROWS, 1.0, 7, HELDOUT_ROWS)
    echo(f"{len(train_rows.tokens):,} training rows of {total} tokens")
    start = Drafter(shape, target.shape.max_context)
    origin = "random" if init is None else load_strict(start, init / "drafter.safetensors")
    if init is None:
        initialize(start, recipe.seed)
    drafter, curve = train_drafter(
        target, start, train_rows, heldout_rows, recipe, work / "drafter", device, echo, origin
    )
    stored = Target(read_shapes(out)[0], drafter.shape.target_layer_ids)
    load_strict(stored, out / "target.safetensors")
    save_pair(out, stored, drafter)
    data = {"rows": len(train_rows.tokens), "tokens_per_row": total, "loops_dropped": train_rows.num_dropped}
    data |= {"greedy_rows": train_rows.num_greedy, "seconds_generating": round(seconds_generating)}
    facts = {
        **_run_facts(recipe, command, curve, device, began),
        "data": {**data, "sha256": train_rows.digest},
        "initial_weights": origin,
        "initial_training": None if init is None else read_card(init).get("drafter"),
        "corpus": _stream_facts(train_stream),
        "parameters": count_parameters(drafter),
    }
    echo(f"card: {update_card(out, 'drafter', facts)}")


ONLY_FOR_ANSWERS = (
    *("layers", "block", "tokens_per_step", "anchor_share", "int8_share"),
    *("stop_after_minutes", "compiled", "heldout_every"),
)  # fmt: skip
ONLY_FOR_CORPUS = ("corpus", "heldout", "rows", "total", "greedy_share", "max_repetition", "batch_rows")


def run_any_drafter(*, answers: Path | None, given: dict[str, str], **options: Any) -> None:
    """Train on a chat model's answers where they are given, else on continuations of a corpus.

    `given` has the spelling of every option that was set: one that would be passed over is an error.
    """
    way, others = ("--answers", ONLY_FOR_CORPUS) if answers is not None else ("--corpus", ONLY_FOR_ANSWERS)
    for name in given:
        if name in others:
            raise UserError(f"{given[name]} does not go with {way}: leave one of the two out")
    options = {name: value for name, value in options.items() if name not in others}
    if answers is not None:
        run_answer_drafter(answers=answers, **options)
    elif options["corpus"] is None or options["heldout"] is None:
        raise UserError("a drafter is trained on --answers FOLDER, or on --corpus FILE with --heldout FILE")
    else:
        run_drafter(**options)


def run_tokenizer(*, corpus: Path, heldout: Path, out: Path, vocab: int, per_kind: int, echo: Report) -> None:
    """Train the tokenizer of a pair and cut the held-out prompts that its drafter will be judged on."""
    documents, held = corpus_documents(corpus), corpus_documents(heldout)
    sample = balanced_sample(documents, SAMPLE_BYTES)
    echo(f"training a tokenizer of {vocab} tokens on {len(sample)} of {len(documents)} documents")
    tokenizer = train_tokenizer(sample, vocab, out / "tokenizer.json")
    echo(f"tokenizer: {out / 'tokenizer.json'}")
    prompts = select_prompts(tokenizer, held, _told(documents, echo), per_kind, SPARE_PROMPTS)
    write_prompts(out / "prompts.jsonl", prompts)
    echo(f"prompts: {out / 'prompts.jsonl'}, {per_kind} of each kind")


def run_corpus(out: Path, roots: tuple[str, ...], echo: Report) -> None:
    """Collect the corpus from named folders."""
    folders: dict[str, Path] = {}
    for root in roots:
        name, separator, folder = root.partition("=")
        if not separator or not Path(folder).is_dir():
            raise UserError(f"--root {root!r}: expected NAME=FOLDER with an existing folder")
        folders[name] = Path(folder)
    build_corpus(out, folders)
    echo(f"corpus written to {out}")


def shapes_for(shape: str) -> tuple[TargetShape, DrafterShape]:
    """Target and drafter of a named shape, or of a JSON file laid out like a checkpoint's config.json."""
    if shape in TARGETS:
        return target_shape(shape), drafter_shape(shape)
    if Path(shape).is_file():
        return shapes_from(Path(shape))
    raise UserError(f"shape '{shape}' is neither a known name nor a JSON file: {did_you_mean(shape, TARGETS)}")


def load_float_target(folder: Path, device: str) -> Target:
    """The stored target with its experts unpacked, as training and generation want it."""
    shape, drafter = read_shapes(folder)
    model = Target(shape, drafter.target_layer_ids)
    load_strict(model, folder / "target.safetensors")
    dequantize_experts(model, torch.float32)
    return model.to(device).requires_grad_(False).eval()


def _told(documents: list[Document], echo: Report) -> Iterator[str]:
    """The documents' texts, with a word now and then on how far the reader has come."""
    began = reported = time.monotonic()
    for number, document in enumerate(documents):
        yield document.text
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            left = time_left((number + 1) / len(documents), reported - began)
            echo(f"prompts compared with {number + 1}/{len(documents)} training documents, {left}")


def _copy_text_files(tokenizer: Path, out: Path) -> None:
    """The tokenizer, and the prompts that lie beside it, belong to the pair."""
    for source, name in ((tokenizer, "tokenizer.json"), (tokenizer.parent / "prompts.jsonl", "prompts.jsonl")):
        if source.is_file() and source.resolve() != (out / name).resolve():
            shutil.copyfile(source, out / name)


def _require_vocabulary(path: Path, shape: TargetShape) -> None:
    size = load_tokenizer(path).get_vocab_size()
    if size > shape.vocab:
        raise UserError(f"{path}: {size} tokens, the shape '{shape.name}' has {shape.vocab}; pass another of the two")


def _run_facts(
    recipe: TargetRecipe | DrafterRecipe, command: str, curve: list[dict[str, float]], device: str, began: float
) -> dict[str, Any]:
    """What both cards say of the run."""
    return {
        "recipe": dataclasses.asdict(recipe),
        "command": command,
        "curve": curve,
        "software": software(device),
        "seconds": round(time.monotonic() - began),
    }


def _stream_facts(stream: TokenStream) -> dict[str, Any]:
    return {"sha256": stream.digest, "tokens": len(stream.tokens), "bytes": stream.num_bytes}


def _kept(work: Path, key: tuple[Any, ...], make: Callable[[], Continuations]) -> Continuations:
    """Continuations generated once, then read back when a killed training of the same data resumes."""
    path = work / f"continuations-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.pt"
    if path.is_file():
        return Continuations(**torch.load(path, weights_only=True))
    data = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        torch.save(dataclasses.asdict(data), partial)
    return data
