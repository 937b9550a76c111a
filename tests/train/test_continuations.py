"""The target's continuations: greedy rows are its own greedy output, sampled ones follow its distribution."""

from __future__ import annotations

import pytest
import torch

from ddbench.errors import UserError
from ddbench.models.target import Target
from ddbench.models.weights import dequantize_experts, random_models
from ddbench.reference.generate import decode
from ddbench.train.continuations import PROMPT_LENGTHS, continue_prompts, generate, repetition, use_wide_experts
from ddbench.train.tokens import Windows


@pytest.fixture(scope="module", params=["tiny-gqa", "tiny-mla-moe"])
def target(request: pytest.FixtureRequest) -> Target:
    target = random_models(request.param).target
    dequantize_experts(target, torch.float32)
    return target


@pytest.fixture(scope="module")
def toy_target(toy_shapes) -> Target:
    from ddbench.train.target import float_shape, initialize

    shape, drafter = toy_shapes
    target = Target(float_shape(shape), drafter.target_layer_ids)
    initialize(target, 0)
    return target.requires_grad_(False).eval()


def prompts(rows: int, length: int) -> torch.Tensor:
    return torch.randint(96, (rows, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("is_wide", [False, True])
@torch.inference_mode()
def test_greedy_rows_are_plain_greedy_decoding_whoever_samples_beside_them(target: Target, is_wide: bool):
    if is_wide:
        use_wide_experts(target)
    given = prompts(4, 6)
    temperature = torch.tensor([0.0, 1.0, 0.0, 0.7])
    tokens = continue_prompts(target, given, 16, temperature, torch.Generator().manual_seed(1))
    assert torch.equal(tokens[:, :6], given)
    for row in (0, 2):
        expected = decode(lambda ids: target.head(target.full(torch.tensor([ids]))[0][0]), given[row].tolist(), 10)
        assert tokens[row, 6:].tolist() == expected


@torch.inference_mode()
def test_sampled_rows_follow_the_targets_distribution(target: Target):
    """The Gumbel trick, at two temperatures: frequencies of the next token against the softmax."""
    rows = 4000
    given = prompts(1, 5).expand(rows, -1)
    logits = target.head(target.full(given[:1])[0][0, -1])
    for heat in (1.0, 0.6):
        out = continue_prompts(target, given, 6, torch.full((rows,), heat), torch.Generator().manual_seed(2))
        share = torch.bincount(out[:, 5], minlength=96) / rows
        expected = (logits / heat).softmax(dim=-1)
        error = (expected * (1 - expected) / rows).sqrt()
        assert bool(((share - expected).abs() < 5 * error + 1e-3).all())


@torch.inference_mode()
def test_sampling_repeats_with_its_seed(target: Target):
    def once(seed: int) -> torch.Tensor:
        return continue_prompts(target, prompts(3, 4), 12, torch.ones(3), torch.Generator().manual_seed(seed))

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))


def brute_repetition(row: list[int], prompt_length: int, gram: int) -> float:
    """Of the answer's positions whose last `gram` tokens lie in the row, the share that occurred earlier."""
    positions = [end for end in range(prompt_length, len(row)) if end >= gram - 1]
    hits = 0
    for end in positions:
        last = row[end - gram + 1 : end + 1]
        hits += any(row[start : start + gram] == last for start in range(end - gram + 1))
    return hits / len(positions)


@pytest.mark.parametrize("gram", [1, 3, 8])
def test_repetition_is_counted_as_by_hand(gram: int):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(4, (12, 40), generator=generator)
    rows[0] = 7  # one token for ever
    rows[1] = torch.arange(40)  # nothing twice
    rows[2, 20:] = rows[2, :20]  # the answer repeats the prompt
    lengths = torch.tensor([5, 5, 20, 2, 9, 12, 30, 39, 8, 7, 6, 1])
    expected = [brute_repetition(row.tolist(), int(n), gram) for row, n in zip(rows, lengths, strict=True)]
    assert repetition(rows, lengths, gram).tolist() == pytest.approx(expected)


def test_rows_take_their_prompts_from_the_corpus(toy_target: Target, toy_stream):
    lines: list[str] = []
    rows = generate(toy_target, Windows(toy_stream, "cpu", 1), 40, 90, 10, 0.5, lines.append)
    assert rows.tokens.shape == (40, 90)
    assert sorted(set(rows.prompt_lengths.tolist())) == [n for n in PROMPT_LENGTHS if n + 16 <= 90]
    text = toy_stream.tokens.astype("int64")
    starts = {tuple(text[i : i + 24].tolist()) for i in range(len(text) - 24)}
    assert all(tuple(row[:24].tolist()) in starts for row in rows.tokens)
    assert 8 <= rows.num_greedy <= 32
    assert rows.num_dropped == 0
    assert "40/40 rows" in lines[-1]
    assert all("left" in line for line in lines[:-1])
    assert "done" in lines[-1]


def test_continuations_repeat_with_their_seed(toy_target: Target, toy_stream):
    def once(seed: int) -> str:
        return generate(toy_target, Windows(toy_stream, "cpu", seed), 8, 44, 8, 0.5, print).digest

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_loops_are_left_out_where_that_is_asked_for(toy_target: Target, toy_stream):
    def rows(limit: float):
        windows = Windows(toy_stream, "cpu", 1)
        return generate(toy_target, windows, 24, 120, 24, 1.0, print, max_repetition=limit)

    everything, some = rows(1.0), rows(0.5)
    assert everything.num_dropped == 0
    looping = repetition(everything.tokens, everything.prompt_lengths) > 0.5
    assert some.num_dropped == int(looping.sum()) > 0
    assert torch.equal(some.tokens, everything.tokens[~looping])


def test_rows_too_short_for_an_answer_are_refused(toy_target: Target, toy_stream):
    windows = Windows(toy_stream, "cpu", 1)
    with pytest.raises(UserError, match="rows of 39 tokens: expected at least 40, 16 of them for the answer"):
        generate(toy_target, windows, 4, 39, 4, 1.0, print)
    assert len(generate(toy_target, windows, 4, 40, 4, 1.0, print).tokens) == 4


def test_nothing_but_loops_is_refused(toy_target: Target, toy_stream):
    with pytest.raises(UserError, match="all 4 continuations are loops"):
        generate(toy_target, Windows(toy_stream, "cpu", 1), 4, 200, 4, 1.0, print, max_repetition=0.0)
