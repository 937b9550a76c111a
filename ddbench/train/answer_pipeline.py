"""Bodies of the commands that train a drafter for a published chat target: prompts, answers, drafter."""

from __future__ import annotations

import dataclasses
import random
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ddbench.errors import UserError
from ddbench.models.attention import TreeTriton
from ddbench.models.checkpoints import published
from ddbench.models.checkpoints.drafter_store import save_drafter
from ddbench.models.drafter import Drafter
from ddbench.models.inputs import VerifyAttention
from ddbench.models.kernel_set import TORCH, kernel_set, use_kernels
from ddbench.models.shapes import DrafterShape, GQAShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import checkpoint_folder, count_parameters
from ddbench.train.answer_data import split_heldout
from ddbench.train.answer_training import AnswerRecipe, cost_of_int8, train_on_answers
from ddbench.train.answers import (
    MOST_TOKEN_IDS,
    Answers,
    agree_on,
    load_answers,
    pack,
    read_manifest,
    shard_path,
)
from ddbench.train.card import software, update_card
from ddbench.train.chat import apart_from_sets, encode_prompts
from ddbench.train.chat_prompts import make_prompts, read_chat_prompts, write_chat_prompts
from ddbench.train.corpus import SKIPPED_FOLDERS, Document, corpus_documents
from ddbench.train.decode import LOOP_PERIOD, LOOP_TAIL, Decoder, Jobs
from ddbench.train.device import require_training_device
from ddbench.train.drafter import initialize
from ddbench.train.folded import FoldedMask
from ddbench.train.int8 import round_to_int8
from ddbench.train.loop import Report, TrainingRun, with_options
from ddbench.train.tokens import save_arrays
from ddbench.wheels import sha256_of

NUM_FEATURES = 5  # captured layers of a drafter made here, as of the published ones
TEMPERATURES = (0.6, 1.0)  # of sampled answers, uniform


def run_prompts(*, corpus: Path | None, out: Path, count: int, seed: int, echo: Report) -> None:
    """Make user prompts, without those that share text with a prompt set."""
    documents = list(_stdlib()) if corpus is None else corpus_documents(corpus)
    echo(f"{len(documents)} documents")
    made = make_prompts(documents, count, seed)
    prompts = apart_from_sets(made)
    write_chat_prompts(out, prompts)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(p.kind for p in prompts).items()))
    echo(f"{len(made) - len(prompts)} of {len(made)} prompts share text with a prompt set and were left out")
    echo(f"{out}: {len(prompts)} prompts ({kinds}), {out.stat().st_size / 1e6:.1f} MB, sha256 {sha256_of(out)[:16]}")


def _stdlib() -> Iterator[Document]:
    """The running Python's own library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if any(SKIPPED_FOLDERS.fullmatch(part) or part == "site-packages" for part in name.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        yield Document(text=text, source="stdlib", kind="code", licence="PSF-2.0", path=name.as_posix())


# -------------------------------------------------------------------------------------------------------- answers


def run_answers(*, target: str, prompts: Path, out: Path, minutes: float, rows: int, total: int, shard: int,
                attention: str, max_repetition: float, seed: int, device: str, limit: int | None,
                echo: Report) -> None:  # fmt: skip
    """Let the target answer prompts, shard after shard, until time is up; shards that are there stay."""
    require_training_device(device)
    folder = _published(target)
    require_16_bit_tokens(published.published_target(folder).shape)
    messages = read_chat_prompts(prompts)[:limit]
    encoded, places = encode_prompts(folder, messages, total // 2)
    if not encoded:
        raise UserError(f"{prompts}: none of {len(messages)} prompts leaves half of {total} tokens free: raise --total")
    jobs = answer_jobs(len(encoded), seed)
    facts = {
        "target": target, "target_digest": published.digest(folder), "prompts_sha256": sha256_of(prompts),
        "num_prompts": len(encoded), "total": total, "shard": shard, "seed": seed, "temperatures": list(TEMPERATURES),
        "max_repetition": max_repetition, "loop_rule": [LOOP_TAIL, LOOP_PERIOD],
        "dtype": str(float_type(device)).removeprefix("torch."),
    }  # fmt: skip
    agree_on(out, facts)
    model = load_target(folder, (), device)
    attend = attention_named(attention)
    echo(f"{len(encoded)} of {len(messages)} prompts are short enough; {len(jobs)} answers wanted, {shard} to a shard")
    began, done = time.monotonic(), [0, 0, 0]
    for number in range(-(-len(jobs) // shard)):
        left = 60 * minutes - (time.monotonic() - began)
        if left <= 0:
            break
        if shard_path(out, number).is_file():
            echo(f"shard {number} is there")
            continue
        part = jobs[number * shard : (number + 1) * shard]
        answers, loops = _shard(
            model, attend, encoded, places, part, (rows, total, seed, number), left, max_repetition, echo
        )
        save_arrays(shard_path(out, number), **answers.arrays)
        done = [done[0] + len(answers), done[1] + answers.num_answer_tokens, done[2] + loops]
        echo(f"shard {number}: {len(answers)} answers, {answers.num_answer_tokens:,} tokens, {loops} loops left out")
    seconds = time.monotonic() - began
    echo(f"{done[0]} answers, {done[1]:,} answer tokens in {seconds:.0f} s, {done[1] / seconds:,.0f} per second")


def require_16_bit_tokens(shape: TargetShape) -> None:
    """Answers are kept in 16 bits a token."""
    if shape.vocab > MOST_TOKEN_IDS:
        raise UserError(
            f"target '{shape.name}' has {shape.vocab} token ids; answers are kept for {MOST_TOKEN_IDS} at most"
        )


def answer_jobs(num_prompts: int, seed: int) -> list[tuple[int, float]]:
    """(prompt, temperature): every prompt twice, once greedily and once sampled, the two far apart."""
    rng = random.Random(f"answers/{seed}")
    temperatures = [round(rng.uniform(*TEMPERATURES), 3) for _ in range(num_prompts)]
    first = [(place, temperatures[place] if rng.random() < 0.5 else 0.0) for place in range(num_prompts)]
    second = [(place, 0.0 if temperature else temperatures[place]) for place, temperature in first]
    rng.shuffle(first)
    rng.shuffle(second)
    return first + second


def _shard(model: Target, attend: VerifyAttention, encoded: list[list[int]], places: list[int],
           jobs: list[tuple[int, float]], setting: tuple[int, int, int, int], seconds: float, max_repetition: float,
           echo: Report) -> tuple[Answers, int]:  # fmt: skip
    rows, total, seed, number = setting
    device = model.embedding.weight.device
    generator = torch.Generator(device=device).manual_seed(seed * 100_003 + number)
    work = Jobs([encoded[place] for place, _ in jobs], [temperature for _, temperature in jobs])
    with torch.inference_mode():
        decoder = Decoder(model, work, rows, total, attend, model.shape.stop_token_ids, generator)
    decoder.run(seconds, echo)
    where = torch.tensor([places[place] for place, _ in jobs], device=device)
    greedy = torch.tensor([temperature == 0 for _, temperature in jobs], device=device)
    return pack(decoder.tokens[:-1], decoder.lengths[:-1], decoder.prompt_lengths[:-1], where, greedy, max_repetition)


def attention_named(name: str) -> VerifyAttention:
    """How bulk decoding attends."""
    return FoldedMask() if name == "folded" else TreeTriton()


# -------------------------------------------------------------------------------------------------------- drafter


def run_answer_drafter(*, answers: Path, out: Path, work: Path | None, init: Path | None, layers: int, block: int,
                       device: str, command: str, stop_after_minutes: float | None, compiled: bool,
                       heldout_every: int, echo: Report,
                       **options: Any) -> None:  # fmt: skip
    """Train a drafter on a folder of answers and store it in INT8, at every evaluation and at the end."""
    require_training_device(device)
    torch.manual_seed(options["seed"])
    began = time.monotonic()
    recipe = with_options(AnswerRecipe(), options)
    manifest, data = read_manifest(answers), load_answers(answers)
    folder = _published(str(manifest["target"]))
    if manifest.get("target_digest") != published.digest(folder):
        raise UserError(f"{answers}: answers of another target than {manifest['target']} as it is here")
    shape = drafter_for(published.published_target(folder).shape, layers, block)
    target = load_target(folder, shape.target_layer_ids, device)
    train, heldout = split_heldout(data, heldout_every)
    if not len(heldout):
        raise UserError(f"{answers}: no answer is held out; make more answers")
    echo(f"{len(train):,} answers to train on, {train.num_answer_tokens:,} tokens; {len(heldout)} greedy ones held out")
    drafter, origin = _start(shape, target.shape, init, recipe.seed)
    echo(f"drafter of {count_parameters(drafter):,} parameters, block {block}")
    data_facts = {**manifest, "answers": len(train), "answer_tokens": train.num_answer_tokens, "sha256": train.digest}
    data_facts |= {"heldout_every": heldout_every, "heldout": len(heldout)}
    facts: dict[str, Any] = {
        "recipe": dataclasses.asdict(recipe), "command": command, "software": software(device), "data": data_facts,
        "initial_weights": origin, "parameters": count_parameters(drafter), "target_layer_ids": shape.target_layer_ids,
    }  # fmt: skip

    def snapshot(run: TrainingRun) -> None:
        """What training has reached, rounded, as it would be shipped."""
        store_rounded(out, drafter, target.shape)
        update_card(out, "drafter", {**facts, "curve": run.curve, "seconds": round(time.monotonic() - began)})
        (out / "curve.md").write_text(curve_table(run.curve), encoding="utf-8")

    if compiled:
        use_kernels(target, TORCH)  # plain ops are what a compiler can see into
    features_of = torch.compile(lambda ids: target.full(ids)[1], dynamic=True) if compiled else None
    stop_after = None if stop_after_minutes is None else 60 * stop_after_minutes
    run, is_over = train_on_answers(
        target, drafter, train, heldout, recipe, work or out / "work", device, echo, origin, stop_after, features_of,
        snapshot,
    )  # fmt: skip
    snapshot(run)
    if is_over:
        cost = cost_of_int8(drafter, target, heldout, device)
        facts["heldout"] = {**cost, "answers": len(heldout)}
        echo("held out: " + "  ".join(f"{name} {value:.4f}" for name, value in cost.items()))
        snapshot(run)
    echo(f"drafter: {out}")


def store_rounded(out: Path, drafter: Drafter, target: TargetShape) -> None:
    """Write a rounded copy; the drafter itself keeps its values."""
    copy = Drafter(drafter.shape, target.max_context)
    copy.load_state_dict({name: tensor.detach().cpu() for name, tensor in drafter.state_dict().items()})
    round_to_int8(copy)
    save_drafter(out, copy, target, int8=True)


def curve_table(curve: list[dict[str, float]]) -> str:
    """The learning curve as a Markdown table."""
    if not curve:
        return ""
    names = list(curve[0])
    rows = [names, ["---"] * len(names), *([f"{row[name]:.4g}" for name in names] for row in curve)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def drafter_for(target: TargetShape, layers: int, block: int) -> DrafterShape:
    """A DFlash drafter of the target's own widths; features from evenly spaced layers, the mask an unused token."""
    attention = target.attention
    if not isinstance(attention, GQAShape):
        raise UserError(f"target '{target.name}': drafters are made for grouped-query targets only")
    count = min(NUM_FEATURES, target.num_layers - 1)
    span = max(target.num_layers - 4, 0)
    ids = dict.fromkeys(min(int(1.5 + i * span / max(count - 1, 1)), target.num_layers - 1) for i in range(count))
    return DrafterShape(
        name=f"{target.name}-dflash",
        num_layers=layers,
        hidden=target.hidden,
        width=target.dense_width,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        block_size=block,
        mask_token_id=min(16, target.vocab - 1),
        target_layer_ids=tuple(ids),
        num_target_layers=target.num_layers,
        target_hidden=target.hidden,
        rope=target.rope,
        norm_eps=target.norm_eps,
    )


def _start(shape: DrafterShape, target: TargetShape, init: Path | None, seed: int) -> tuple[Drafter, str]:
    """-> (the drafter that training starts from, what its weights are)."""
    if init is None:
        drafter = Drafter(shape, target.max_context)
        initialize(drafter, seed)
        return drafter, "random"
    drafter = published.load_drafter(init, shape, target.max_context, torch.float32, torch.device("cpu"))
    return drafter.requires_grad_(True), published.digest(init)


def load_target(folder: Path, capture_ids: tuple[int, ...], device: str) -> Target:
    """A published target, frozen, as bulk work wants it: bf16 and fused kernels on a GPU."""
    model = published.load_target(folder, capture_ids, float_type(device), torch.device(device))
    use_kernels(model, kernel_set("triton") if device == "cuda" else TORCH)
    return model


def float_type(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def _published(target: str) -> Path:
    folder = checkpoint_folder(target)
    if folder is None or not published.is_published(folder):
        raise UserError(f"target '{target}': expected a model in a published format, such as smollm2-135m")
    return folder
