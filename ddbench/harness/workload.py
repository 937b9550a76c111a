"""From a WorkloadSpec to requests: seeded choice of prompts, token ids, lengths; warm-up prompts apart from the rest.

Stands between the plan and the engine, inside the case's process. `held-out` takes the prompts that come with the
target's checkpoint, the kinds in turn; the name of a set (`ddbench workloads`) those of the set, in the target's own
chat template; `random` draws token ids, for targets that have no text of their own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ValidationError

from ddbench.engine.types import Request
from ddbench.errors import CheckpointError, UserError, did_you_mean, shown
from ddbench.files import why_unread
from ddbench.models.shapes import TargetShape
from ddbench.records import PromptCard
from ddbench.spec import WorkloadSpec, first_message
from ddbench.workloads import sets
from ddbench.workloads.cache import Cache, cache_folder
from ddbench.workloads.framing import Framing, framing_for

# Tokens of a random prompt without `prompt_tokens`, both ends included: unequal, so that batches are ragged.
RANDOM_LENGTHS = (8, 48)
SOURCES = ("held-out", "random")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in the target's tokens."""

    prompt_id: str
    kind: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of the timed passes, and others to warm up with."""

    measured: tuple[Request, ...]
    warmup: tuple[Request, ...]
    card: PromptCard | None = None  # of a standard set


class _PromptLine(BaseModel):
    """What is read of a line of prompts.jsonl."""

    id: str
    kind: str
    text: str


def build_workload(spec: WorkloadSpec, shape: TargetShape, folder: Path | None, num_warmup: int) -> Workload:
    """`spec.num_requests` measured requests and `num_warmup` others; the same for every arm of a comparison."""
    wanted = spec.num_requests + num_warmup
    check_source(spec)
    card = None
    if spec.prompts == "random":
        prompts = _random_prompts(spec, shape, wanted)
    elif spec.prompts == "held-out":
        prompts = _held_out_prompts(spec, shape, folder)
    else:
        prompts, card = _set_prompts(spec, shape, folder)
    if len(prompts) < wanted:
        whose = "the target" if card is None else f"the set '{card.name}'"
        which = "held-out ones of the wanted kinds" if card is None else f"of the wanted kinds and split '{card.split}'"
        raise UserError(
            f"the workload needs {wanted} prompts ({spec.num_requests} measured, {num_warmup} to warm up), "
            f"{whose} has {len(prompts)} {which}: lower num_requests or num_warmup_requests"
        )
    for prompt in prompts[:wanted]:
        if not prompt.tokens or not 0 <= min(prompt.tokens) <= max(prompt.tokens) < shape.vocab:
            fault = f"has tokens outside 0..{shape.vocab - 1}" if prompt.tokens else "is empty"
            raise CheckpointError(f"prompt {shown(prompt.prompt_id)} {fault}: it does not fit target '{shape.name}'")
    stops = () if spec.ignore_stop else shape.stop_token_ids
    requests = tuple(
        Request(
            request_id=index,
            prompt=prompt.tokens,
            max_new_tokens=spec.max_new_tokens,
            stop_token_ids=stops,
            prompt_id=prompt.prompt_id,
            kind=prompt.kind,
        )
        for index, prompt in enumerate(prompts[:wanted])
    )
    return Workload(measured=requests[: spec.num_requests], warmup=requests[spec.num_requests :], card=card)


def check_source(spec: WorkloadSpec) -> None:
    """Refuse prompts that exist nowhere or are not here, and fields that say nothing about these."""
    if spec.prompts not in (*SOURCES, *sets.PROMPT_SETS):
        known = did_you_mean(spec.prompts, (*SOURCES, *sets.PROMPT_SETS))
        raise UserError(f"prompts: unknown source {shown(spec.prompts)}: {known}")
    if spec.prompt_tokens is not None and spec.prompts != "random":
        raise UserError(f"prompt_tokens is for random prompts, prompts is {shown(spec.prompts)}: --set prompts=random")
    if spec.prompt_split != "test" and spec.prompts in SOURCES:
        raise UserError(f"prompt_split is for prompt sets, prompts is {shown(spec.prompts)}: name one with --workload")
    if spec.prompts not in SOURCES:
        Cache(cache_folder()).read(sets.find_set(spec.prompts))


def prompts_digest(spec: WorkloadSpec, folder: Path | None) -> str:
    """What a set and its framing add to the identity of a case; nothing for prompts that come with the target."""
    if spec.prompts in SOURCES:
        return ""
    wanted = sets.find_set(spec.prompts)
    return f"{wanted.digest} {framing_for(wanted, _with_tokenizer(spec, folder)).digest}"


def _random_prompts(spec: WorkloadSpec, shape: TargetShape, count: int) -> list[Prompt]:
    rng = random.Random(f"prompts/{spec.prompt_seed}")
    allowed = [token for token in range(shape.vocab) if token not in shape.stop_token_ids]
    low, high = RANDOM_LENGTHS if spec.prompt_tokens is None else (spec.prompt_tokens, spec.prompt_tokens)
    return [
        Prompt(f"random-{index:04d}", "random", tuple(rng.choices(allowed, k=rng.randint(low, high))))
        for index in range(count)
    ]


def _held_out_prompts(spec: WorkloadSpec, shape: TargetShape, folder: Path | None) -> list[Prompt]:
    """All prompts of the wanted kinds: shuffled within a kind, then one of each kind in turn."""
    if folder is None or not (folder / "prompts.jsonl").is_file():
        raise UserError(
            f"target '{shape.name}' comes with no prompts (it has random weights, or its folder lacks prompts.jsonl): "
            "use --set prompts=random"
        )
    return _encode(_mixed(spec, list(_read_lines(folder / "prompts.jsonl"))), folder / "tokenizer.json")


def _mixed(spec: WorkloadSpec, lines: Sequence[_PromptLine]) -> list[_PromptLine]:
    """The lines of the wanted kinds in the order of the seed, the kinds in turn."""
    kinds = tuple(dict.fromkeys(line.kind for line in lines))
    for kind in spec.kinds:
        if kind not in kinds:
            raise UserError(f"kinds: no prompts of kind {shown(kind)}: {did_you_mean(kind, kinds)}")
    by_kind = [[line for line in lines if line.kind == kind] for kind in dict.fromkeys(spec.kinds or kinds)]
    for group in by_kind:
        random.Random(f"prompts/{spec.prompt_seed}/{group[0].kind}").shuffle(group)
    return [line for line in chain.from_iterable(zip_longest(*by_kind)) if line is not None]


def _set_prompts(spec: WorkloadSpec, shape: TargetShape, folder: Path | None) -> tuple[list[Prompt], PromptCard]:
    """All prompts of the wanted split and kinds of a set, as this target is given them."""
    wanted, place = sets.find_set(spec.prompts), _with_tokenizer(spec, folder)
    framing, items = framing_for(wanted, place), Cache(cache_folder()).read(wanted)
    parts = sets.splits(items)
    chosen = [item for item in items if spec.prompt_split in ("all", parts[item.id])]
    lines = _mixed(spec, [_PromptLine(id=item.id, kind=item.category, text=item.turns[0]) for item in chosen])
    card = PromptCard(
        name=wanted.name,
        split=spec.prompt_split,
        num_prompts=len(lines),
        source=wanted.requirement,
        licence=wanted.licence,
        set_digest=wanted.digest,
        framing=framing.mode,
        framing_digest=framing.digest,
        turns="first" if any(len(item.turns) > 1 for item in items) else "only",
        is_foreign=framing.mode == "plain" and (place / "prompts.jsonl").is_file(),
    )
    return _encode(lines, place / "tokenizer.json", framing), card


def _with_tokenizer(spec: WorkloadSpec, folder: Path | None) -> Path:
    if folder is None:
        raise UserError(
            f"prompts {shown(spec.prompts)} are text, and a target with random weights has no tokenizer: "
            "use --set prompts=random, or a target with a tokenizer.json"
        )
    return folder


def _read_lines(path: Path) -> Iterator[_PromptLine]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({why_unread(error)}); expected one JSON object per line"
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            try:
                yield _PromptLine.model_validate_json(line)
            except ValidationError as error:
                raise CheckpointError(f"{path}: line {number}: {first_message(error)}") from error


class _Damage(AbstractContextManager[None]):
    """The tokenizers library raises a bare `Exception` for a file that it cannot use; nothing else is caught."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is Exception:
            raise CheckpointError(f"{self._path}: damaged: {value}") from value


def _encode(lines: Sequence[_PromptLine], path: Path, framing: Framing | None = None) -> list[Prompt]:
    """Prompts in tokens, whole: a tokenizer's own wish to cut or to pad is not heard.

    A special token that is spelled out in a prompt is plain text; in a chat it could end the user's turn, so that it
    is refused there.
    """
    from tokenizers import Tokenizer

    if not path.is_file():
        raise CheckpointError(f"{path}: missing; text prompts cannot be read without it")
    with _Damage(path):
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    is_chat = framing is not None and framing.mode == "chat"
    tokenizer.encode_special_tokens = not is_chat
    if is_chat:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        spelling = [line.id for line in lines if any(token in line.text for token in special)]
        if spelling:
            raise UserError(
                f"{len(spelling)} of {len(lines)} prompts spell out special tokens of the target, the first is "
                f"{shown(spelling[0])}: use other kinds or another set"
            )
    texts = [line.text if framing is None else framing.text(line.text) for line in lines]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=not is_chat)  # a template brings its own
    return [Prompt(line.id, line.kind, tuple(encoding.ids)) for line, encoding in zip(lines, encoded, strict=True)]
