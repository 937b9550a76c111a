"""From a WorkloadSpec to requests: seeded choice of prompts, token ids, lengths; warm-up prompts apart from the rest.

Stands between the plan and the engine, inside the case's process. `held-out` takes the prompts that come with the
target's checkpoint, the kinds in turn; `random` draws token ids, for targets that have no text of their own.
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
from ddbench.models.shapes import TargetShape
from ddbench.spec import WorkloadSpec, first_message

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


class _PromptLine(BaseModel):
    """What is read of a line of prompts.jsonl."""

    id: str
    kind: str
    text: str


def build_workload(spec: WorkloadSpec, shape: TargetShape, folder: Path | None, num_warmup: int) -> Workload:
    """`spec.num_requests` measured requests and `num_warmup` others; the same for every arm of a comparison."""
    wanted = spec.num_requests + num_warmup
    if spec.prompt_tokens is not None and spec.prompts != "random":
        raise UserError(f"prompt_tokens is for random prompts, prompts is {shown(spec.prompts)}: --set prompts=random")
    if spec.prompts == "random":
        prompts = _random_prompts(spec, shape, wanted)
    elif spec.prompts == "held-out":
        prompts = _held_out_prompts(spec, shape, folder)
    else:
        raise UserError(f"prompts: unknown source {shown(spec.prompts)}: {did_you_mean(spec.prompts, SOURCES)}")
    if len(prompts) < wanted:
        raise UserError(
            f"the workload needs {wanted} prompts ({spec.num_requests} measured, {num_warmup} to warm up), "
            f"the target has {len(prompts)} held-out ones of the wanted kinds: "
            "lower num_requests or num_warmup_requests"
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
    return Workload(measured=requests[: spec.num_requests], warmup=requests[spec.num_requests :])


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
    lines = list(_read_lines(folder / "prompts.jsonl"))
    kinds = tuple(dict.fromkeys(line.kind for line in lines))
    for kind in spec.kinds:
        if kind not in kinds:
            raise UserError(f"kinds: no prompts of kind {shown(kind)}: {did_you_mean(kind, kinds)}")
    by_kind = [[line for line in lines if line.kind == kind] for kind in dict.fromkeys(spec.kinds or kinds)]
    for group in by_kind:
        random.Random(f"prompts/{spec.prompt_seed}/{group[0].kind}").shuffle(group)
    mixed = [line for line in chain.from_iterable(zip_longest(*by_kind)) if line is not None]
    return _encode(mixed, folder / "tokenizer.json")


def _read_lines(path: Path) -> Iterator[_PromptLine]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CheckpointError(f"{path}: cannot be read ({reason}); expected one JSON object per line") from error
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


def _encode(lines: Sequence[_PromptLine], path: Path) -> list[Prompt]:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise CheckpointError(f"{path}: missing; the text prompts beside it cannot be read without it")
    with _Damage(path):
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True  # a special token spelled out in a prompt is plain text
    encoded = tokenizer.encode_batch([line.text for line in lines])
    return [Prompt(line.id, line.kind, tuple(encoding.ids)) for line, encoding in zip(lines, encoded, strict=True)]
