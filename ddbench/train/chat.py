"""User messages in a chat target's tokens, and the texts of the prompt sets that training must not touch.

The one place of training that knows prompt sets and chat templates; framing is the workloads' own, so that training
asks in the words that an evaluation asks in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from ddbench.errors import UserError
from ddbench.train.chat_prompts import ChatPrompt
from ddbench.train.overlap import without_overlap
from ddbench.workloads.cache import Cache, cache_folder
from ddbench.workloads.framing import chat_template
from ddbench.workloads.sets import PROMPT_SETS


def heldout_texts() -> list[str]:
    """Every turn of every prompt set, the answers not being there; a set that is not fetched is a UserError."""
    cache = Cache(cache_folder())
    return [turn for wanted in PROMPT_SETS.values() for item in cache.read(wanted) for turn in item.turns]


def apart_from_sets(prompts: Sequence[ChatPrompt]) -> list[ChatPrompt]:
    """The prompts that share no run of words with any prompt set."""
    return [prompts[place] for place in without_overlap([prompt.text for prompt in prompts], heldout_texts())]


def encode_prompts(folder: Path, prompts: Sequence[ChatPrompt], most_tokens: int) -> tuple[list[list[int]], list[int]]:
    """-> (token ids of each prompt in the target's chat template, their places in `prompts`).

    Left out: messages that spell out a special token (one could end the user's turn), and those of more tokens.
    """
    template = chat_template(folder)
    if template is None:
        raise UserError(f"{folder}: has no chat template; answers are made by chat models only")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    places = [i for i, prompt in enumerate(prompts) if not any(token in prompt.text for token in special)]
    # One rendering serves all: a Jinja pass per prompt takes longer than the tokens do.
    mark = "\0message\0"
    before, found, after = template.render(mark).partition(mark)
    if not found:
        raise UserError(f"{folder}: the chat template changes what the user says; it cannot be used here")
    texts = [f"{before}{prompts[place].text.strip()}{after}" for place in places]
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    kept = [(ids, place) for ids, place in zip(encoded, places, strict=True) if len(ids) <= most_tokens]
    return [ids for ids, _ in kept], [place for _, place in kept]
