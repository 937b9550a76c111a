"""Bulk decoding: whatever shares the batch, a job gets the answer that it would get alone."""

from __future__ import annotations

import copy

import pytest
import torch

from ddbench.models.attention import DenseMask
from ddbench.models.inputs import VerifyAttention
from ddbench.models.target import Target
from ddbench.models.weights import random_models
from ddbench.train.continuations import continue_prompts
from ddbench.train.decode import LOOP_PERIOD, LOOP_TAIL, Decoder, Jobs, is_looping
from ddbench.train.folded import FoldedMask

TOTAL = 24


@pytest.fixture(scope="module")
def target() -> Target:
    return random_models("tiny-gqa").target


def prompts(num: int = 7, shared: int = 3) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [[5] * shared + torch.randint(6, 90, (2 + i % 4,), generator=generator).tolist() for i in range(num)]


def decode(
    target: Target,
    jobs: Jobs,
    rows: int,
    stops: tuple[int, ...] = (),
    seed: int = 0,
    attention: VerifyAttention | None = None,
) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        decoder = Decoder(target, jobs, rows, TOTAL, attention or FoldedMask(), stops, generator)
    decoder.run(60.0, lambda _: None)
    return decoder


def answers(decoder: Decoder) -> list[list[int]]:
    return [
        row[:length].tolist() for row, length in zip(decoder.tokens[:-1], decoder.lengths[:-1].tolist(), strict=True)
    ]


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_greedy_answers_are_those_of_plain_decoding_however_many_share_the_batch(target: Target, rows: int):
    jobs = Jobs(prompts(), [0.0] * 7)
    found = answers(decode(target, jobs, rows))
    for prompt, row in zip(jobs.prompts, found, strict=True):
        with torch.inference_mode():
            alone = continue_prompts(target, torch.tensor([list(prompt)]), TOTAL, torch.zeros(1), torch.Generator())
        assert row == alone[0].tolist()


def test_an_answer_ends_with_its_stop_token_and_no_earlier(target: Target):
    free = answers(decode(target, Jobs(prompts(), [0.0] * 7), 3))
    stop = free[0][len(prompts()[0]) + 2]
    stopped = answers(decode(target, Jobs(prompts(), [0.0] * 7), 3, (stop,)))
    for prompt, whole, cut in zip(prompts(), free, stopped, strict=True):
        places = [i for i, token in enumerate(whole) if token == stop and i >= len(prompt)]
        assert cut == (whole[: places[0] + 1] if places else whole)


def test_prompts_without_a_common_beginning_are_served_alike(target: Target):
    jobs = Jobs([[7, 8], [9, 10, 11], [12]], [0.0] * 3)
    decoder = decode(target, jobs, 2)
    assert decoder.shared == 0
    for prompt, row in zip(jobs.prompts, answers(decoder), strict=True):
        with torch.inference_mode():
            alone = continue_prompts(target, torch.tensor([list(prompt)]), TOTAL, torch.zeros(1), torch.Generator())
        assert row == alone[0].tolist()


def test_sampled_answers_follow_the_seed(target: Target):
    jobs = Jobs(prompts(), [1.0] * 7)
    first, again, other = (answers(decode(target, jobs, 3, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_folded_attention_decodes_as_the_engines_does(target: Target):
    jobs = Jobs(prompts(), [0.0] * 7)
    assert answers(decode(target, jobs, 4)) == answers(decode(target, jobs, 4, attention=DenseMask()))


def test_time_that_is_up_leaves_whole_answers_only(target: Target):
    ticks = iter(range(10_000))
    with torch.inference_mode():
        decoder = Decoder(target, Jobs(prompts(40), [0.0] * 40), 2, TOTAL, FoldedMask(), (), torch.Generator())
    decoder.run(1.0, lambda _: None, clock=lambda: float(next(ticks)))
    lengths = decoder.lengths[:-1]
    assert 0 < int((lengths > 0).sum()) < 40
    assert set(lengths[lengths > 0].tolist()) == {TOTAL}


def test_a_step_asks_the_host_nothing(target: Target):
    """On tensors that have no values, where any look at one is an error: as it has to be to become one CUDA graph."""
    nowhere = torch.device("meta")
    with torch.inference_mode():
        decoder = Decoder(target, Jobs(prompts(), [0.5] * 7), 3, TOTAL, FoldedMask(), (4,), torch.Generator())
        places = {name: value.to(nowhere) for name, value in vars(decoder).items() if isinstance(value, torch.Tensor)}
        vars(decoder).update(places, generator=None, target=copy.deepcopy(target).to(nowhere))
        decoder.cache = [tuple(tensor.to(nowhere) for tensor in layer) for layer in decoder.cache]
        decoder.step()
    assert decoder.token.device == decoder.position.device == nowhere
    assert {"tokens", "lengths", "job", "next_job", "position", "token", "noise", "stops"} <= places.keys()


def loops_at(answer: list[int]) -> bool:
    """The rule written out."""
    return any(
        len(answer) >= LOOP_TAIL + period and answer[-LOOP_TAIL:] == answer[-LOOP_TAIL - period : -period]
        for period in range(1, LOOP_PERIOD + 1)
    )


@pytest.mark.parametrize("period", [1, 5, LOOP_PERIOD, LOOP_PERIOD + 1])
def test_a_loop_is_told_by_its_period_and_only_within_the_answer(period: int):
    generator = torch.Generator().manual_seed(period)
    text = torch.randint(500, (40,), generator=generator).tolist()
    text += (torch.randint(500, (period,), generator=generator).tolist() * 200)[: LOOP_TAIL + period + 1]
    width = LOOP_TAIL + LOOP_PERIOD
    for end in range(len(text) - 3, len(text) + 1):
        tail = ([0] * width + text[:end])[-width:]
        for own in (end, LOOP_TAIL + period - 1, LOOP_TAIL + period):
            found = bool(is_looping(torch.tensor([tail]), torch.tensor([own]))[0])
            assert found == loops_at(text[max(0, end - own) : end])


def test_an_answer_that_goes_in_circles_ends_there(target: Target):
    """And the row takes the next job: a looping model would otherwise fill the batch with what is thrown away."""
    jobs = Jobs(prompts(), [0.0] * 7)
    with torch.inference_mode():
        decoder = Decoder(target, jobs, 3, 250, FoldedMask(), (), torch.Generator())
    decoder.run(120.0, lambda _: None)
    lengths = decoder.lengths[:-1].tolist()
    assert min(lengths) < 250
    for prompt, row, length in zip(jobs.prompts, decoder.tokens[:-1].tolist(), lengths, strict=True):
        answer = row[len(prompt) : length]
        assert loops_at(answer) == (length < 250)
        assert not loops_at(answer[:-1])
