"""The byte-level BPE tokenizer of `nano-k2`, and the held-out prompts that are cut and checked in its tokens.

It stands between the corpus and the trainers: `corpus.py` -> tokenizer.json -> model and drafter training, and
prompts.jsonl -> harness. Digits are split one by one, a line break and its indentation form one token, and every text
survives a round trip.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ddbench.errors import UserError
from ddbench.train.corpus import Document, Kind

END, MASK, PAD = "<|end|>", "<|mask|>", "<|pad|>"
SPECIAL_TOKENS = (END, MASK, PAD)  # ids 0, 1, 2
WINDOW = 24  # tokens in a row that a prompt may share with nothing else
LEAST_TOKENS, MOST_TOKENS = 24, 160
VISITS = 8  # excerpts that one held-out document may give, at most
KINDS: tuple[Kind, ...] = ("code", "prose", "docs")
PROMPT_STARTS = {
    "code": re.compile(r"(?m)^(?=(?:    )?(?:def |class |async def |@\w|import |from |if |for |with |\w+ = ))"),
    "docs": re.compile(r"(?<=\n\n)(?=[A-Z#.*`-])"),
    "prose": re.compile(r"(?<=\n\n)(?=\S)|(?<=[.!?] )(?=[A-Z])"),
}
PROMPT_ENDS = {
    "code": re.compile(r"(?<=\S)(?=\n)"),
    "docs": re.compile(r"(?<=\S)(?=\n)"),
    "prose": re.compile(r"(?<=[.!?;])(?=\s)"),
}


class Prompt(BaseModel):
    """One held-out prompt as it stands in prompts.jsonl."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: Kind
    source: str
    licence: str
    text: str


def balanced_sample(documents: Iterable[Document], bytes_per_kind: int) -> list[str]:
    """Texts of about `bytes_per_kind` bytes of each kind, chosen by the hash of the text, in the order of the hash."""
    room = Counter(dict.fromkeys(KINDS, bytes_per_kind))
    chosen: list[str] = []
    for document in sorted(documents, key=lambda d: d.digest):
        if room[document.kind] > 0:
            room[document.kind] -= len(document.text.encode())
            chosen.append(document.text)
    return chosen


def train_tokenizer(texts: Iterable[str], vocab_size: int, path: Path) -> Tokenizer:
    """Train a byte-level BPE of exactly `vocab_size` tokens, special ones included, and write it to `path`."""
    floor = len(SPECIAL_TOKENS) + 256
    if vocab_size < floor:
        raise UserError(f"vocab_size {vocab_size}; expected at least {floor}: all bytes and the special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise UserError(f"{tokenizer.get_vocab_size()} tokens found, expected {vocab_size}; give more text to train on")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return load_tokenizer(path)


def load_tokenizer(path: Path) -> Tokenizer:
    """Read tokenizer.json so that a special token spelled out in a text is plain text: only we place special ids."""
    try:
        is_tokenizer = "model" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as a tokenizer: {error}") from error
    if not is_tokenizer:
        raise UserError(f"{path}: not a tokenizer.json: it has no 'model'")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def windows(ids: Sequence[int]) -> set[tuple[int, ...]]:
    """All runs of WINDOW tokens."""
    return {tuple(ids[i : i + WINDOW]) for i in range(len(ids) - WINDOW + 1)}


def _candidates(tokenizer: Tokenizer, document: Document, target: int) -> Iterator[str]:
    """Excerpts of a document of about `target` tokens that start and end where a reader would."""
    text = document.text
    ends = [m.start() for m in PROMPT_ENDS[document.kind].finditer(text)]
    for start in PROMPT_STARTS[document.kind].finditer(text):
        span = [end for end in ends if start.start() < end < start.start() + 8 * MOST_TOKENS]
        lengths = ((len(tokenizer.encode(text[start.start() : end]).ids), end) for end in span)
        fitting = [(abs(n - target), end) for n, end in lengths if LEAST_TOKENS <= n <= MOST_TOKENS]
        if fitting and min(fitting)[0] <= 8:
            yield text[start.start() : min(fitting)[1]]


def cut_prompts(tokenizer: Tokenizer, heldout: Sequence[Document], per_kind: int, spare: int) -> list[Prompt]:
    """Up to `per_kind + spare` prompts of each kind out of held-out documents: sources take turns, lengths spread."""
    prompts: list[Prompt] = []
    for kind in KINDS:
        found = 0
        for visit, document in _turns([d for d in heldout if d.kind == kind]):
            if found == per_kind + spare:
                break
            target = LEAST_TOKENS + 8 + (found * 37) % (MOST_TOKENS - LEAST_TOKENS - 16)
            excerpts = list(_candidates(tokenizer, document, target))
            if excerpts:
                text = excerpts[(int(document.digest[:8], 16) + visit * len(excerpts) // VISITS) % len(excerpts)]
                row = {"id": f"{kind}-{found:02d}", "kind": kind, "source": document.source, "text": text}
                prompts.append(Prompt.model_validate({**row, "licence": document.licence}))
                found += 1
    return prompts


def _turns(documents: Sequence[Document]) -> Iterator[tuple[int, Document]]:
    """(visit, document), each document VISITS times, so that every source is drawn from once before any twice."""
    turns: Counter[str] = Counter()
    ranked: list[tuple[int, int, Document]] = []
    for visit in range(VISITS):
        for document in sorted(documents, key=lambda d: d.digest):
            ranked.append((turns[document.source], visit, document))
            turns[document.source] += 1
    yield from ((visit, document) for _, visit, document in sorted(ranked, key=lambda row: row[0]))


def clashing(tokenizer: Tokenizer, prompts: Sequence[Prompt], training: Iterable[str]) -> set[str]:
    """Ids of prompts that share WINDOW tokens in a row with a training text or with an earlier prompt."""
    owners: dict[tuple[int, ...], set[str]] = {}
    clashes: set[str] = set()
    for prompt in prompts:
        own = windows(tokenizer.encode(prompt.text).ids)
        if own & owners.keys():
            clashes.add(prompt.id)
        for window in own:
            owners.setdefault(window, set()).add(prompt.id)
    heads = {window[:4] for window in owners}
    for text in training:
        ids = tokenizer.encode(text).ids
        starts = [i for i, head in enumerate(zip(ids, ids[1:], ids[2:], ids[3:], strict=False)) if head in heads]
        for i in starts:
            clashes |= owners.get(tuple(ids[i : i + WINDOW]), set())
    return clashes


def select_prompts(
    tokenizer: Tokenizer, heldout: Sequence[Document], training: Iterable[str], per_kind: int, spare: int
) -> list[Prompt]:
    """`per_kind` prompts of each kind that clash with nothing; ids are renumbered. Reads the training texts once."""
    candidates = cut_prompts(tokenizer, heldout, per_kind, spare)
    clashes = clashing(tokenizer, candidates, training)
    chosen: list[Prompt] = []
    for kind in KINDS:
        free = [p for p in candidates if p.kind == kind and p.id not in clashes][:per_kind]
        if len(free) < per_kind:
            raise UserError(f"{len(free)} free prompts of kind {kind!r}, expected {per_kind}; hold more documents out")
        chosen += [p.model_copy(update={"id": f"{kind}-{i:02d}"}) for i, p in enumerate(free)]
    return chosen


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts.jsonl."""
    lines = (json.dumps(p.model_dump(), ensure_ascii=False) + "\n" for p in prompts)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
