"""Answers as data: what counts as repetition, what is kept, files that survive a kill or say that they did not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from ddbench.errors import UserError
from ddbench.train.answers import (
    MANIFEST,
    Answers,
    agree_on,
    load_answers,
    pack,
    read_manifest,
    repeated_share,
    shard_path,
)
from ddbench.train.tokens import save_arrays


def brute_force(row: list[int], prompt: int, length: int) -> float:
    grams = [tuple(row[i : i + 4]) for i in range(prompt, length - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@pytest.mark.parametrize("vocab", [2, 3, 49152])
def test_repetition_is_counted_as_written_out(vocab: int):
    generator = torch.Generator().manual_seed(vocab)
    tokens = torch.randint(vocab, (12, 40), generator=generator)
    prompts = torch.randint(0, 20, (12,), generator=generator)
    lengths = prompts + torch.randint(0, 20, (12,), generator=generator)
    found = repeated_share(tokens, prompts, lengths).tolist()
    rows = zip(tokens.tolist(), prompts.tolist(), lengths.tolist(), strict=True)
    assert found == pytest.approx([brute_force(*row) for row in rows])


def test_packing_keeps_whole_answers_and_leaves_loops_out():
    tokens = torch.arange(40).view(2, 20).repeat(2, 1)
    tokens[1, 8:] = torch.tensor([3, 4] * 6)
    lengths = torch.tensor([18, 20, 0, 9])
    greedy = torch.tensor([True, True, False, False])
    answers, loops = pack(tokens, lengths, torch.tensor([4, 4, 4, 5]), torch.arange(4) + 70, greedy, 0.3)
    assert loops == 1
    assert answers.places.tolist() == [70, 73]
    assert answers.lengths.tolist() == [18, 9]
    assert answers.tokens.tolist() == [*range(18), *range(20, 29)]
    assert answers.is_greedy.tolist() == [True, False]
    assert answers.num_answer_tokens == 14 + 4


@pytest.fixture
def answers() -> Answers:
    lengths = np.array([5, 3, 4], dtype=np.int32)
    places, greedy = np.arange(3, dtype=np.int32), np.array([True, False, True])
    return Answers(np.arange(12, dtype=np.uint16), lengths, lengths - 2, places, greedy)


def test_shards_come_back_as_they_were(answers: Answers, tmp_path: Path):
    save_arrays(shard_path(tmp_path, 0), **answers.arrays)
    save_arrays(shard_path(tmp_path, 1), **answers.only(np.array([False, True, True])).arrays)
    back = load_answers(tmp_path)
    assert back.tokens.dtype == np.uint16
    assert back.tokens.tolist() == [*range(12), *range(5, 12)]
    assert back.starts.tolist() == [0, 5, 8, 12, 15]
    assert back.only(np.arange(5) < 3).digest == answers.digest


def test_no_shards_and_damaged_shards_are_named(answers: Answers, tmp_path: Path):
    with pytest.raises(UserError, match="holds no answers"):
        load_answers(tmp_path)
    path = shard_path(tmp_path, 0)
    save_arrays(path, **answers.arrays)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="damaged"):
        load_answers(tmp_path)


def test_columns_that_do_not_belong_together_are_damage(answers: Answers, tmp_path: Path):
    save_arrays(shard_path(tmp_path, 0), **dataclasses.replace(answers, tokens=answers.tokens[:-1]).arrays)
    with pytest.raises(UserError, match="damaged"):
        load_answers(tmp_path)
    save_arrays(shard_path(tmp_path, 0), **dataclasses.replace(answers, places=answers.places[:-1]).arrays)
    with pytest.raises(UserError, match="damaged"):
        load_answers(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"target": 5}'])
def test_a_manifest_that_names_no_target_is_named(tmp_path: Path, text: str):
    (tmp_path / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="make answers with `ddbench train answers`"):
        read_manifest(tmp_path)


def test_a_folder_of_answers_is_of_one_target_and_one_setting(tmp_path: Path):
    agree_on(tmp_path, {"target": "a", "total": 5})
    agree_on(tmp_path, {"target": "a", "total": 5})
    with pytest.raises(UserError, match="begun with total 5, now it is 6"):
        agree_on(tmp_path, {"target": "a", "total": 6})
