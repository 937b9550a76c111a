"""What is recorded of a pair's drafts, kept in a file, and refused where it is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ddbench.engine.profiles import (
    COUNTS,
    DIGESTS,
    NUM_LEVELS,
    NUM_RANKS,
    SHIPPED,
    ProfileCard,
    RecordedBlocks,
    profile_digest,
    read_blocks,
    recorded_quality,
    summarize_blocks,
    walk,
    write_blocks,
)
from ddbench.errors import SchemaError
from ddbench.models.checkpoints.published import digest
from ddbench.models.weights import PRETRAINED, load_models
from ddbench.spec import ORACLE_PROFILES, EngineSpec
from ddbench.train.card import read_card

CARD = ProfileCard(
    command="by hand", recorded_at="2026-01-01", pair="x", target_digest="t", drafter_digest="d", block_size=4,
    dtype="float32", prompts="held-out", prompts_digest="p", num_prompts=3, kinds={"code": 3}, max_new_tokens=31,
    num_tokens=75, software={}, acceptance_lengths={"chain": 2.0},
)  # fmt: skip
LENGTHS = torch.tensor([30, 25, 20])


def drafted(num_ranks: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks [3, 30, 3] and log-probabilities of calibrated drafts over 50 tokens, each answer harder than the last."""
    generator = torch.Generator().manual_seed(0)
    sharpness = torch.tensor([60.0, 25.0, 4.0])[:, None, None, None]
    log_probs = (sharpness * torch.rand(3, 30, 3, 50, generator=generator)).log_softmax(-1)
    log_probs = log_probs.sort(dim=-1, descending=True).values
    ranks = log_probs.exp().flatten(0, 2).multinomial(1, generator=generator).view(3, 30, 3)
    return ranks, log_probs[..., :num_ranks]


@pytest.fixture
def blocks() -> RecordedBlocks:
    return summarize_blocks(LENGTHS, *drafted(), CARD)


# ------------------------------------------------------------------------------------------------------------- counts


def test_the_recorded_counts_are_those_of_the_training_card() -> None:
    """Recomputed from the histogram of accepted tokens: first choice right at depth d, given that all before were."""
    card = json.loads((PRETRAINED / "nano-k2" / "training-card.json").read_text(encoding="utf-8"))
    histogram = card["evaluation"]["arms"]["chain"]["accepted_histogram"]
    reached = [sum(histogram[depth:]) for depth in range(8)]
    expected = [reached[depth + 1] / reached[depth] for depth in range(7)]
    assert list(recorded_quality("nano-k2", 7)) == pytest.approx(expected)
    mean_accepted = sum(math.prod(expected[:depth]) for depth in range(1, 8))
    assert 1 + mean_accepted == pytest.approx(card["evaluation"]["arms"]["chain"]["tau_uncut"], abs=1e-3)
    assert card["evaluation"]["drafter_sha256"] == load_models(EngineSpec(target="nano-k2")).facts.drafter_digest


def test_counts_of_kinds_are_parts_of_the_whole() -> None:
    kinds = [COUNTS[f"nano-k2-{kind}"] for kind in ("code", "docs", "prose")]
    assert tuple(map(sum, zip(*kinds, strict=True))) == COUNTS["nano-k2"]


def test_counts_shorter_than_the_block_go_on_with_their_last_value() -> None:
    recorded = recorded_quality("nano-k2-docs", 7)
    assert recorded_quality("nano-k2-docs", 10) == (*recorded, *recorded[-1:] * 3)
    assert recorded_quality("nano-k2-docs", 2) == recorded[:2]


# ------------------------------------------------------------------------------------------------------------- blocks


def test_names_that_can_be_asked_for_are_those_there_are() -> None:
    assert sorted(ORACLE_PROFILES) == sorted((*COUNTS, *SHIPPED))


def test_the_shipped_profile_is_that_of_the_shipped_pair() -> None:
    """Digests of the weights, and the acceptance lengths that the training card has from an evaluation of its own."""
    name = "nano-k2-blocks"
    card = read_blocks(name).card
    facts = load_models(EngineSpec(target=card.pair)).facts
    assert (card.target_digest, card.drafter_digest) == (facts.target_digest, facts.drafter_digest)
    trained = json.loads((SHIPPED[name].parent / "training-card.json").read_text(encoding="utf-8"))["evaluation"]
    assert trained["prompts"]["sha256"] == card.prompts_digest
    assert card.acceptance_lengths == {arm: trained["arms"][arm]["tau"] for arm in card.acceptance_lengths}
    assert SHIPPED[name].stat().st_size < 200_000


def test_the_profile_of_smollm2_is_of_the_shipped_drafter_and_of_the_target_that_it_was_trained_for() -> None:
    """The target's weights are fetched and not here: its digest is the one that training wrote down."""
    place = SHIPPED["smollm2-humaneval"]
    card, trained = read_blocks("smollm2-humaneval").card, read_card(place.parent)["drafter"]
    assert (card.pair, card.prompts) == ("smollm2-135m", "humaneval")
    assert (card.drafter_digest, card.target_digest) == (digest(place.parent), trained["data"]["target_digest"])
    assert 3.0 < card.acceptance_lengths["chain"] < card.acceptance_lengths["ddtree 64"]
    assert place.stat().st_size < 200_000


def test_answers_stand_hardest_first_with_their_own_ranks(blocks: RecordedBlocks) -> None:
    ranks, _ = drafted()
    assert blocks.lengths.tolist() == [20, 25, 30], "the third draws from the flattest distribution"
    for answer, recorded in zip((2, 1, 0), blocks.ranks, strict=True):
        assert torch.equal(recorded.long(), ranks[answer].clamp(max=NUM_RANKS))
    assert int(blocks.ranks.max()) == NUM_RANKS, "true tokens beyond the ranks that are kept are misses"


def test_a_level_holds_as_many_positions_as_any_and_its_mean_probabilities(blocks: RecordedBlocks) -> None:
    _, log_probs = drafted()
    given = log_probs.flip(0)[..., :NUM_RANKS].exp()  # in the order of the profile
    is_place = torch.arange(30) < blocks.lengths[:, None]
    for depth in range(3):
        levels, best = blocks.levels[:, :, depth][is_place].long(), given[:, :, depth][is_place]
        sizes = levels.bincount(minlength=NUM_LEVELS)
        assert int(sizes.max()) - int(sizes.min()) <= 1
        law = blocks.probabilities[depth]
        assert (law.diff(dim=0)[:, 0] >= 0).all(), "surer from level to level"
        for level in (0, 7, NUM_LEVELS - 1):
            assert law[level] == pytest.approx(best[levels == level].mean(0), abs=1e-6)


def test_a_vocabulary_smaller_than_the_ranks_kept_is_recorded_whole() -> None:
    ranks, log_probs = drafted(num_ranks=10)
    assert summarize_blocks(LENGTHS, ranks, log_probs, CARD).probabilities.shape == (3, NUM_LEVELS, 10)


def test_rounds_are_laid_end_to_end_and_the_last_is_cut() -> None:
    assert walk([2, 0, 0, 0, 1, 7, 7]) == [3, 1, 2, 1]
    assert walk([]) == []


def test_a_file_holds_what_was_written(blocks: RecordedBlocks, tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.safetensors"
    write_blocks(path, blocks)
    again = read_blocks(str(path))
    assert again.card == CARD
    for name in ("lengths", "ranks", "levels", "probabilities"):
        assert torch.equal(getattr(again, name), getattr(blocks, name))
    assert [file.name for file in path.parent.iterdir()] == ["x.safetensors"]
    spec = EngineSpec(draft="oracle", oracle_profile=str(path))
    assert profile_digest(spec) == again.digest != ""
    unread = [{"draft": "dflash"}, {"oracle_quality": (0.5,)}, {"oracle_profile": "nano-k2"}]
    assert {profile_digest(spec.model_copy(update=changes)) for changes in unread} == {""}


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("ranks", torch.full((3, 30, 3), 33, dtype=torch.uint8), "a rank above 32"),
        ("levels", torch.full((3, 30, 3), NUM_LEVELS, dtype=torch.uint8), "a level above 31"),
        ("levels", torch.zeros(3, 29, 3, dtype=torch.uint8), "are not those of the same answers"),
        ("ranks", torch.zeros(3, 30, 3, dtype=torch.int32), "types int64, int32, uint8, float32"),
        ("lengths", torch.tensor([20, 25, 31]), "lengths of answers outside 1..30"),
        ("lengths", torch.tensor([0, 25, 30]), "lengths of answers outside 1..30"),
        ("probabilities", torch.full((3, NUM_LEVELS, NUM_RANKS), torch.nan), "probabilities by rank that do not fall"),
        ("probabilities", torch.full((3, NUM_LEVELS, NUM_RANKS), 0.1), "or sum to more than 1"),
        ("probabilities", torch.linspace(0, 0.05, NUM_RANKS).expand(3, NUM_LEVELS, -1), "do not fall"),
        ("probabilities", torch.zeros(2, NUM_LEVELS, NUM_RANKS), "are not those of 3 drafted positions"),
        ("more", torch.zeros(1), "holds lengths, levels, more, probabilities, ranks; expected a file"),
    ],
)
def test_damaged_values_are_told(
    blocks: RecordedBlocks, tmp_path: Path, name: str, value: torch.Tensor, fault: str
) -> None:
    tensors = {key: getattr(blocks, key) for key in ("lengths", "ranks", "levels", "probabilities")}
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({**tensors, name: value.contiguous()}, path, metadata={"card": CARD.model_dump_json()})
    assert_complaint(path, fault)


def test_files_of_another_kind_are_told(blocks: RecordedBlocks, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_blocks(path, blocks)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:1000], b"", b"no safetensors at all"):
        path.write_bytes(damaged)
        assert_complaint(path, "damaged, not safetensors")
    write_blocks(path, RecordedBlocks(CARD.model_copy(update={"format": "2"}), *tensors_of(blocks)))
    assert_complaint(path, "damaged or from another version: format: expected 'ddbench-acceptance-blocks-1', got '2'")
    assert_complaint(PRETRAINED / "nano-k2" / "drafter.safetensors", "expected a file that `ddbench train profile`")
    assert_complaint(tmp_path / "absent.safetensors", "there is no such file")
    (tmp_path / "folder.safetensors").mkdir()
    assert_complaint(tmp_path / "folder.safetensors", "there is no such file")


def tensors_of(blocks: RecordedBlocks) -> tuple[torch.Tensor, ...]:
    return blocks.lengths, blocks.ranks, blocks.levels, blocks.probabilities


def assert_complaint(path: Path, fault: str) -> None:
    with pytest.raises(SchemaError) as caught:
        read_blocks(str(path))
    assert fault in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_file_in_a_shipped_ones_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name would stand for two profiles. Each name has a digest, and the files that are there have them."""
    assert {name: read_blocks(name).digest for name in SHIPPED} == DIGESTS
    monkeypatch.setitem(SHIPPED, "nano-k2-blocks", SHIPPED["smollm2-humaneval"])
    with pytest.raises(SchemaError, match=r"not the file that came with ddbench \(31093a5841eacf34\)"):
        read_blocks("nano-k2-blocks")
