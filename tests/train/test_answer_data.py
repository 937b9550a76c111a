"""Batches of answers: where anchors lie, what is wanted of a block, which answers are never trained on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ddbench.errors import UserError
from ddbench.train.answer_data import AnswerRows, block_targets, draw_anchors, split_heldout
from ddbench.train.answers import Answers


def made(lengths: list[int], prompts: list[int]) -> Answers:
    size = np.array(lengths, dtype=np.int32)
    tokens = np.concatenate([1000 * i + np.arange(n) for i, n in enumerate(lengths)]).astype(np.uint16)
    return Answers(tokens, size, np.array(prompts, np.int32), np.arange(len(size), dtype=np.int32), size % 2 == 0)


def test_anchors_are_all_answer_tokens_that_another_follows():
    anchors = draw_anchors(torch.tensor([3, 8]), torch.tensor([9, 10]), 500, torch.Generator().manual_seed(0))
    assert sorted(set(anchors[0].tolist())) == [3, 4, 5, 6, 7]
    assert set(anchors[1].tolist()) == {8}
    assert bool((anchors[:, 1:] >= anchors[:, :-1]).all())


def test_what_lies_beyond_an_answer_counts_nothing():
    ids = torch.arange(12).view(1, 12)
    wanted, weights = block_targets(ids, torch.tensor([10]), torch.tensor([[4, 8]]), 5, 4.0)
    assert wanted[0, 0].tolist() == [5, 6, 7, 8]
    assert int(wanted[0, 1, 0]) == 9
    assert weights[0, 0].tolist() == pytest.approx([np.exp(-k / 4) for k in range(4)])
    assert weights[0, 1].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_rows_of_a_batch_are_whole_answers_with_zeros_behind():
    rows = AnswerRows(made([7, 4, 12], [3, 2, 3]), "cpu", widths=(8, 16))
    generators = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    seen = set()
    for _ in range(20):
        batch = rows.draw(64, 0.5, 4, 4.0, *generators)
        width = batch.ids.shape[1]
        assert batch.ids.shape[0] == 64 // width
        assert batch.anchors.shape[1] == width // 2
        for ids, length in zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True):
            first = ids[0]
            assert ids == [first + i if i < length else 0 for i in range(width)]
            seen.add((first, length, width))
    assert seen == {(0, 7, 8), (1000, 4, 8), (2000, 12, 16)}


def test_batches_follow_their_seeds():
    rows = AnswerRows(made([7, 6, 12], [3, 2, 3]), "cpu", widths=(8, 16))

    def stream(seed: int) -> list[list[int]]:
        generators = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        return [rows.draw(64, 0.5, 4, 4.0, *generators).anchors.flatten().tolist() for _ in range(4)]

    assert stream(1) == stream(1) != stream(2)


def test_no_answer_to_a_held_out_prompt_is_trained_on():
    answers = made([6, 8, 10, 7, 9, 8, 6, 12], [2] * 8)
    twice = Answers.joined([answers, answers])
    train, heldout = split_heldout(twice, every=3)
    assert set(train.places.tolist()) == {1, 2, 4, 5, 7}
    assert heldout.places.tolist() == [0, 6, 0, 6]  # the greedy ones of 0, 3, 6
    assert heldout.is_greedy.all()


def test_answers_that_nothing_can_be_drafted_in_are_refused():
    with pytest.raises(UserError, match="long enough"):
        AnswerRows(made([5, 6], [4, 6]), "cpu", widths=(8,))
    with pytest.raises(UserError, match="rows hold 8"):
        AnswerRows(made([9], [4]), "cpu", widths=(8,))
