"""The training commands' bodies: load data, train, store the pair, write the card."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddbench.errors import UserError
from ddbench.models.shapes import drafter_shape, target_shape
from ddbench.models.target import Target
from ddbench.models.weights import count_parameters, dequantize_experts, load_strict, read_shapes, save_pair
from ddbench.train.card import software, update_card
from ddbench.train.continuations import Continuations, generate
from ddbench.train.corpus import build_corpus
from ddbench.train.drafter import DrafterRecipe, train_drafter
from ddbench.train.target import TargetRecipe, bits_per_byte, train_target
from ddbench.train.tokens import TokenStream, Windows, load_tokens

Echo = Callable[[str], Any]


def _require_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device here; training on a CPU takes days: pass --device cpu only for a rehearsal")


def _recipe(recipe: Any, options: dict[str, Any]) -> Any:
    """The default recipe with what the command line sets."""
    known = {field.name for field in dataclasses.fields(recipe)}
    return dataclasses.replace(recipe, **{k: v for k, v in options.items() if k in known and v is not None})


def _command() -> str:
    """The command line as a reader would repeat it: file names without this machine's folders."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return shlex.join(["ddbench", "train", *(word for word in words if word != "train")])


def _stream_facts(stream: TokenStream) -> dict[str, Any]:
    return {"sha256": stream.digest, "tokens": len(stream.tokens), "bytes": stream.num_bytes}


def run_target(*, corpus: Path, heldout: Path, out: Path, work: Path | None, shape: str, tokenizer: Path, device: str,
               echo: Echo, **options: Any) -> None:  # fmt: skip
    """Train the target and store it with its card."""
    _require_device(device)
    torch.manual_seed(options["seed"])
    work = work or out / "work"
    recipe = _recipe(TargetRecipe(), options)
    echo("tokenising the corpus")
    train_stream = load_tokens(corpus, tokenizer, work)
    heldout_stream = load_tokens(heldout, tokenizer, work)
    echo(f"{len(train_stream.tokens):,} training tokens, {len(heldout_stream.tokens):,} held out")
    began = time.monotonic()
    model, curve = train_target(
        target_shape(shape), drafter_shape(shape), train_stream, heldout_stream, recipe, work / "target", device, echo
    )
    save_pair(out, model, None)
    if tokenizer.resolve() != (out / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer, out / "tokenizer.json")
    stored = load_float_target(out, device)
    final = {
        kind: bits_per_byte(stored, heldout_stream.only(kind), recipe.window)
        for kind in sorted(set(heldout_stream.kinds))
    }
    echo("stored model, held-out bits per byte: " + "  ".join(f"{kind} {value:.3f}" for kind, value in final.items()))
    facts = {"recipe": dataclasses.asdict(recipe), "command": _command(), "curve": curve, "software": software()}
    facts |= {"corpus": _stream_facts(train_stream), "heldout": _stream_facts(heldout_stream)}
    facts |= {"parameters": count_parameters(model), "seconds": round(time.monotonic() - began)}
    update_card(out, "target", {**facts, "heldout_bits_per_byte": final})


def load_float_target(folder: Path, device: str) -> Target:
    """The stored target with its experts unpacked, as training and generation want it."""
    shape, drafter = read_shapes(folder)
    model = Target(shape, drafter.target_layer_ids)
    load_strict(model, folder / "target.safetensors")
    dequantize_experts(model, torch.float32)
    return model.to(device).requires_grad_(False).eval()


def run_drafter(*, corpus: Path, heldout: Path, out: Path, work: Path | None, rows: int, total: int,
                greedy_share: float, device: str, echo: Echo, **options: Any) -> None:  # fmt: skip
    """Generate continuations of the stored target, train the drafter, store it with its card."""
    _require_device(device)
    torch.manual_seed(options["seed"])
    work = work or out / "work"
    recipe = _recipe(DrafterRecipe(), options)
    tokenizer = out / "tokenizer.json"
    train_stream, heldout_stream = load_tokens(corpus, tokenizer, work), load_tokens(heldout, tokenizer, work)
    target = load_float_target(out, device)
    began = time.monotonic()
    train_rows = _continuations(
        work / f"continuations-{rows}-{total}.pt",
        lambda: _generate(target, train_stream, rows, total, greedy_share, device, options["seed"] + 1, echo),
    )
    seconds_generating = time.monotonic() - began
    heldout_rows = _generate(target, heldout_stream, 256, total, 1.0, device, 7, echo, batch_rows=256)
    echo(f"{len(train_rows.tokens):,} training rows of {total} tokens")
    drafter, curve = train_drafter(
        target, read_shapes(out)[1], train_rows, heldout_rows, recipe, work / "drafter", device, echo
    )
    stored = Target(read_shapes(out)[0], drafter.shape.target_layer_ids)
    load_strict(stored, out / "target.safetensors")
    save_pair(out, stored, drafter)
    facts = {"recipe": dataclasses.asdict(recipe), "command": _command(), "curve": curve, "software": software()}
    facts |= {"parameters": count_parameters(drafter), "seconds": round(time.monotonic() - began)}
    data = {"rows": len(train_rows.tokens), "tokens_per_row": total, "loops_dropped": train_rows.num_dropped}
    data |= {"greedy_rows": train_rows.num_greedy, "seconds_generating": round(seconds_generating)}
    update_card(out, "drafter", {**facts, "data": data, "corpus": _stream_facts(train_stream)})


def _generate(target: Target, stream: TokenStream, rows: int, total: int, greedy_share: float, device: str, seed: int,
              echo: Echo, batch_rows: int = 4096) -> Continuations:  # fmt: skip
    windows = Windows(stream, device, seed)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return generate(target, windows, rows, total, min(batch_rows, rows), greedy_share, echo)


def _continuations(path: Path, make: Callable[[], Continuations]) -> Continuations:
    """Generated once, then read back when a killed training resumes."""
    if path.is_file():
        return Continuations(**torch.load(path, weights_only=True))
    data = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dataclasses.asdict(data), path)
    return data


def run_corpus(out: Path, roots: tuple[str, ...], echo: Echo) -> None:
    """Collect the corpus from named folders."""
    folders: dict[str, Path] = {}
    for root in roots:
        name, separator, folder = root.partition("=")
        if not separator or not Path(folder).is_dir():
            raise UserError(f"--root {root!r}: expected NAME=FOLDER with an existing folder")
        folders[name] = Path(folder)
    build_corpus(out, folders)
    echo(f"corpus written to {out}")
