"""Recorded blocks replayed: which candidates stand where, and that nothing else than request and position decides."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine.oracle import BlockCandidates, replayed_answers
from ddbench.engine.profiles import ProfileCard, RecordedBlocks

CPU = torch.device("cpu")
VOCAB = 101  # R answers of unequal lengths, T = 12, L = 3, C = 4, K = 6
LENGTHS = (5, 12, 7, 9, 12)
CARD = ProfileCard(
    command="by hand", recorded_at="2026-01-01", pair="x", target_digest="t", drafter_digest="d", block_size=4,
    dtype="float32", prompts="held-out", prompts_digest="p", num_prompts=5, kinds={}, max_new_tokens=13,
    num_tokens=45, software={}, acceptance_lengths={},
)  # fmt: skip


@pytest.fixture
def blocks() -> RecordedBlocks:
    generator = torch.Generator().manual_seed(1)
    shape = (len(LENGTHS), 12, 3)
    ranks = torch.randint(7, shape, generator=generator, dtype=torch.uint8)
    levels = torch.randint(4, shape, generator=generator, dtype=torch.uint8)
    law = 0.8 * torch.rand(3, 4, 6, generator=generator).sort(dim=2, descending=True).values.softmax(dim=2)
    return RecordedBlocks(CARD, torch.tensor(LENGTHS), ranks, levels, law)


def said(request_id: int, length: int = 30) -> list[int]:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(request_id)).tolist()


def draw(
    blocks: RecordedBlocks, truth: dict[int, list[int]], request_id: int, *, horizon: int = 3, seed: int = 0,
    vocab: int = VOCAB,
) -> torch.Tensor:  # fmt: skip
    """Logits [T, L, V] of one request at all of its positions, one past its end included."""
    oracle = BlockCandidates(truth, horizon, blocks, vocab, seed, CPU)
    places = torch.arange(len(truth[request_id]) + 1)
    rows = torch.full_like(places, sorted(truth).index(request_id))
    return oracle.write(torch.full((len(places), horizon, vocab), torch.nan), rows, places)


def replayed(blocks: RecordedBlocks, request_id: int, seed: int, length: int) -> list[tuple[int, int]]:
    """The specification: (answer, place) by output position."""
    found: list[tuple[int, int]] = []
    for answer in replayed_answers(blocks, request_id, seed):
        found += [(answer, place) for place in range(LENGTHS[answer])]
        if len(found) >= length:
            return found
    raise AssertionError


def test_the_truth_stands_at_its_recorded_rank_with_the_recorded_confidence(blocks: RecordedBlocks) -> None:
    logits = draw(blocks, {4: said(4)}, 4)
    num_missed = 0
    for place, (answer, recorded) in enumerate(replayed(blocks, 4, 0, 40)[:27]):
        for depth in range(3):
            row, rank = logits[place, depth], int(blocks.ranks[answer, recorded, depth])
            law = blocks.probabilities[depth, int(blocks.levels[answer, recorded, depth])]
            best = row.exp().sort(descending=True)
            assert best.values[:6] == pytest.approx(law, rel=1e-5)
            assert best.values.sum() == pytest.approx(1.0, abs=1e-4)
            true = said(4)[place + 1 + depth]
            if rank < 6:
                assert int(best.indices[rank]) == true
            else:
                num_missed += 1
                assert float(row[true].exp()) == pytest.approx(0.2 / (VOCAB - 6), rel=1e-3)
    assert num_missed > 0


def test_logits_depend_on_seed_request_and_position_only(blocks: RecordedBlocks) -> None:
    """Whoever else is there, and however much longer another answer is."""
    alone = draw(blocks, {4: said(4)}, 4)[:26]  # later positions look past the end, where the truth is made up
    assert torch.equal(draw(blocks, {1: said(1, 70), 4: said(4), 8: said(8)}, 4)[:26], alone)
    assert not torch.equal(draw(blocks, {4: said(4)}, 4, seed=1)[:26], alone)
    assert not torch.equal(draw(blocks, {5: said(4)}, 5)[:26], alone)
    assert torch.isfinite(draw(blocks, {4: said(4)}, 4)).all(), "past the end, too"


def test_as_many_requests_as_answers_replay_each_once_and_a_few_are_a_fair_sample(blocks: RecordedBlocks) -> None:
    for seed in range(4):
        assert sorted(next(replayed_answers(blocks, request, seed)) for request in range(7, 12)) == [0, 1, 2, 3, 4]
    many = RecordedBlocks(CARD, torch.ones(96, dtype=torch.int64), blocks.ranks, blocks.levels, blocks.probabilities)
    for seed in range(8):
        places = sorted(next(replayed_answers(many, request, seed)) for request in range(8))
        gaps = [b - a for a, b in zip(places, [*places[1:], places[0] + 96], strict=True)]
        assert max(gaps) <= 24, "in the order of difficulty no stretch is left out"


@pytest.mark.parametrize("num_answers", [1, 2, 3, 4, 6, 30])
def test_any_number_of_answers_can_be_replayed(blocks: RecordedBlocks, num_answers: int) -> None:
    few = RecordedBlocks(
        CARD, torch.ones(num_answers, dtype=torch.int64), blocks.ranks, blocks.levels, blocks.probabilities
    )
    taken = [next(replayed_answers(few, request, 3)) for request in range(num_answers)]
    assert sorted(taken) == list(range(num_answers))


def test_a_longer_block_goes_on_with_the_last_depth_as_nearer_anchors_had_it(blocks: RecordedBlocks) -> None:
    logits, places = draw(blocks, {4: said(4)}, 4, horizon=5), replayed(blocks, 4, 0, 40)
    assert torch.equal(draw(blocks, {4: said(4)}, 4, horizon=2).exp().sort().values, logits[:, :2].exp().sort().values)
    for place in range(20):
        answer, recorded = places[place + 2]
        law = blocks.probabilities[2, int(blocks.levels[answer, recorded, 2])]
        assert logits[place, 4].exp().sort(descending=True).values[:6] == pytest.approx(law, rel=1e-5)
        rank = int(blocks.ranks[answer, recorded, 2])
        if rank < 6:
            assert int(logits[place, 4].argsort(descending=True)[rank]) == said(4)[place + 5]


@pytest.mark.parametrize("vocab", [2, 5, 6, 7, 12])
def test_a_small_vocabulary_keeps_the_ranks_it_has_room_for(blocks: RecordedBlocks, vocab: int) -> None:
    truth = [token % vocab for token in said(4)]
    logits = draw(blocks, {4: truth}, 4, vocab=vocab)
    ranks = min(6, vocab - 1)
    assert not logits.isnan().any()
    for place, (answer, recorded) in enumerate(replayed(blocks, 4, 0, 40)[:27]):
        rank, true = int(blocks.ranks[answer, recorded, 0]), truth[place + 1]
        order = logits[place, 0].argsort(descending=True, stable=True).tolist()
        assert order[rank] == true if rank < ranks else true in order[ranks:]


def test_candidates_of_neighbouring_positions_are_not_the_same_where_the_truth_counts_upwards(
    blocks: RecordedBlocks,
) -> None:
    """Random targets may say n, n + 1, n + 2: ids right beside the truth would be shared by all depths of a tree."""
    logits = draw(blocks, {4: list(range(30))}, 4, vocab=5003)
    chosen = [set(row.topk(6).indices.tolist()) for row in logits[3]]
    assert len(set.union(*chosen)) >= 16


def test_a_draft_only_gathers_so_that_a_graph_can_hold_it(blocks: RecordedBlocks) -> None:
    """No value is read by the host, and no shape depends on one: it runs on tensors that have none."""
    device = torch.device("meta")
    oracle = BlockCandidates({4: said(4)}, 3, blocks, VOCAB, 0, device)
    logits, row = torch.empty(2, 3, VOCAB, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    assert oracle.write(logits, row, row) is logits
    with pytest.raises(RuntimeError, match="meta"):
        row[0].item()  # what a host read would have done
