"""Made prompts: many, different, the same for the same seed, and none that shares text with what is held out."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ddbench.errors import UserError
from ddbench.train import prompt_words as words
from ddbench.train.chat_prompts import (
    SHARES,
    functions_of,
    make_prompts,
    passages_of,
    read_chat_prompts,
    write_chat_prompts,
)
from ddbench.train.corpus import Document
from ddbench.train.math_prompts import TEMPLATES, math_message
from ddbench.train.overlap import NUM_WORDS, without_overlap

SOURCE = '''
class Shelf:
    def find_book(self, title, year):
        """Return the first book with this title. None where the shelf has no such book.

        Years are not compared when they are missing.
        """
        for book in self.books:
            if book.title == title:
                return book
        return None

    def _hidden(self):
        """Not a task for anybody, it is private to this class."""
        return 1
'''
PASSAGE = "The harbour lay quiet that morning. " * 8


def documents() -> list[Document]:
    rows = [("code", SOURCE), ("docs", PASSAGE), ("prose", PASSAGE.replace("harbour", "meadow"))]
    return [
        Document.model_validate({"text": text, "source": "toy", "kind": kind, "licence": "MIT", "path": f"{kind}.txt"})
        for kind, text in rows
    ]


def test_prompts_are_many_different_and_follow_the_seed():
    prompts = make_prompts(documents(), 300, 5)
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    counts = Counter(prompt.kind for prompt in prompts)
    for kind in ("math", "chat", "code", "prose"):
        assert counts[kind] == round(SHARES[kind] * 300)
    assert make_prompts(documents(), 300, 5) == prompts
    assert make_prompts(documents(), 300, 6) != prompts
    assert not any("{" in p.text and "}" in p.text and "boxed" not in p.text and p.kind != "code" for p in prompts)


def test_functions_are_taken_with_their_docstring_and_private_ones_are_not():
    found = functions_of(SOURCE)
    assert len(found) == 1
    head, sentence, whole = found[0]
    assert head.startswith('def find_book(title, year):\n    """Return the first book')
    assert sentence == "`find_book(title, year)`: Return the first book with this title"
    assert whole.startswith("def find_book(self")
    assert "\n    for book" in whole
    assert functions_of("def broken(:") == []
    assert passages_of(f"Short.\n\n{PASSAGE}") == [PASSAGE.strip()]


def test_every_template_can_be_filled():
    rng = random.Random(0)
    texts = {math_message(rng) for _ in range(400)}
    assert len(texts) > 380
    assert all("{" not in text for text in texts)
    assert len(TEMPLATES) == len(set(TEMPLATES)) > 30
    assert all("\n" not in entry for entry in (*words.TASKS, *words.TOPICS, *words.ASKS, *words.STORIES))


def test_a_planted_item_is_found_however_it_is_dressed():
    """Case, punctuation and what stands around it do not hide eight words in a row; seven are no overlap."""
    item = "Olga packs nine crates of plums, then sells four crates at the fair."
    texts = [
        "Olga sells plums at the fair.",
        "Solve this:\nOLGA packs nine crates of plums -- then sells four crates, at last!",
        "Olga packs nine crates of plums, then",
        "A quite different question about four crates at the fair and nothing else",
    ]
    assert without_overlap(texts, [item]) == [0, 2, 3]
    assert NUM_WORDS == 8
    # Short items count whole.
    assert without_overlap(["Name ten cities", "Name ten rivers"], ["Name ten cities!"]) == [1]


def test_a_file_of_prompts_is_read_back_or_refused(tmp_path: Path):
    prompts, path = make_prompts(documents(), 40, 1), tmp_path / "deep" / "prompts.jsonl.xz"
    write_chat_prompts(path, prompts)
    assert read_chat_prompts(path) == prompts
    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match="no prompts file"):
        read_chat_prompts(path)
