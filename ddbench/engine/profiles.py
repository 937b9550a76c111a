"""Recorded acceptance, which oracle drafts replay: two kinds of profile, by the name in `EngineSpec.oracle_profile`.

Counts say per depth how often the first choice was right, and nothing about the other ranks. Blocks hold what a trained
pair drafted at every position of real answers: per drafted position the rank of the true token and a level of
confidence (the probability that the drafter gave to its first choice), and per depth and level the mean probabilities
by rank. Difficulty keeps its rhythm along an answer and across a block, which is what trees live by: on nano-k2 the
same ranks drawn at random positions lengthen the chain by 20 %, drawn apart for each depth they shorten it by 6 %.
Letters: R recorded answers, hardest first, T anchor positions of the longest, L drafted positions, C levels, K ranks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import safetensors
import safetensors.torch
import torch
from pydantic import Field

from ddbench.errors import SchemaError, UserError
from ddbench.files import replacing
from ddbench.models.weights import PRETRAINED
from ddbench.spec import EngineSpec, Record, from_json
from ddbench.wheels import sha256_of

# The d-th number counts the rounds whose first d drafted tokens were all right. From the chain arm of the shipped pair
# (drafter 0d3c708d63ffef63, target 09e77632fffbe62a; greedy, fp32, block 8) over its 96 held-out prompts, 64 tokens
# each, all rounds, tokens past a stop included; by kind of prompt the 32 prompts of that kind. `nano-k2` is the
# evaluation's `accepted_histogram` in the pair's training card, summed up from the end. Real for that pair only: what
# another pair would reach is another number.
COUNTS = {
    "nano-k2": (1897, 1471, 1094, 758, 486, 293, 166, 87),
    "nano-k2-code": (609, 473, 360, 259, 171, 119, 68, 28),
    "nano-k2-docs": (695, 521, 368, 253, 141, 61, 23, 7),
    "nano-k2-prose": (593, 477, 366, 246, 174, 113, 75, 52),
}
SHIPPED = {
    "nano-k2-blocks": PRETRAINED / "nano-k2" / "acceptance.safetensors",
    "smollm2-humaneval": PRETRAINED / "smollm2-135m-dflash" / "acceptance.safetensors",
}

DIGESTS = {"nano-k2-blocks": "660567ec8ac2e1c7", "smollm2-humaneval": "31093a5841eacf34"}  # of the shipped files

NUM_RANKS = 32  # K: a true token beyond them was missed; 64 instead lengthen no tree of 64 nodes by more than 0.3 %
NUM_LEVELS = 32  # C: 8, 16 and 64 give lengths within 0.5 % of these
TENSORS = ("lengths", "ranks", "levels", "probabilities")
_LEFT_OVER = 1e-3  # what float32 may make of a sum of probabilities


class ProfileCard(Record):
    """What a file of blocks was recorded from, and the pair's own acceptance lengths, measured in the engine."""

    format: Literal["ddbench-acceptance-blocks-1"] = "ddbench-acceptance-blocks-1"
    command: str
    recorded_at: str
    pair: str
    target_digest: str
    drafter_digest: str
    block_size: int = Field(ge=2)
    sampling: Literal["greedy"] = "greedy"
    dtype: str
    prompts: str  # "held-out", or the name of a set
    prompts_digest: str
    num_prompts: int = Field(ge=1)
    kinds: dict[str, int]
    max_new_tokens: int = Field(ge=2)
    num_tokens: int = Field(ge=1)  # that rounds emitted: of all answers, their first token not counted
    software: dict[str, str]
    acceptance_lengths: dict[str, float]  # by arm: "chain", "ddtree 32"


@dataclass(frozen=True, slots=True)
class RecordedBlocks:
    """A profile of the second kind."""

    card: ProfileCard
    lengths: torch.Tensor  # [R] int64, anchor positions of each answer: 1..T
    ranks: torch.Tensor  # [R, T, L] uint8, of the true token; K: not among those kept
    levels: torch.Tensor  # [R, T, L] uint8
    probabilities: torch.Tensor  # [L, C, K] float32 by depth, level and rank, best first
    digest: str = ""  # of the file


def recorded_quality(profile: str, horizon: int) -> tuple[float, ...]:
    """Per drafted position, how often its first choice was right where all before were: of a profile of counts.

    Positions beyond those recorded take the last recorded value.
    """
    quality = [right / reached for reached, right in pairwise(COUNTS[profile])]
    return tuple(quality[min(depth, len(quality) - 1)] for depth in range(horizon))


def summarize_blocks(
    lengths: torch.Tensor, ranks: torch.Tensor, log_probs: torch.Tensor, card: ProfileCard
) -> RecordedBlocks:
    """Ranks of the true tokens [R, T, L] and the drafter's best log-probabilities [R, T, L, K], as they are kept.

    Positions past an answer's length count in no mean; what they hold is never read.
    """
    accepted = (ranks == 0).long().cumprod(2).sum(2)  # [R, T] by the chain
    paces = [length / len(walk(row[:length])) for row, length in zip(accepted.tolist(), lengths.tolist(), strict=True)]
    order = torch.tensor(paces).argsort(stable=True)  # hardest first, so that a few answers can be a fair sample
    lengths, given = lengths[order], log_probs[order][..., :NUM_RANKS].exp()
    ranks = ranks[order].clamp(max=given.shape[3])
    is_place = torch.arange(ranks.shape[1]) < lengths[:, None]  # [R, T]
    levels, laws = torch.zeros_like(ranks), []
    for depth in range(ranks.shape[2]):
        best = given[:, :, depth][is_place]  # [places, K]
        share = torch.arange(len(best)) * NUM_LEVELS // len(best)  # equally many in each level
        level = torch.empty_like(share).scatter_(0, best[:, 0].argsort(stable=True), share)
        levels[:, :, depth][is_place] = level
        sums = torch.zeros(NUM_LEVELS, best.shape[1]).index_add_(0, level, best)
        laws.append(sums / share.bincount(minlength=NUM_LEVELS).clamp(min=1)[:, None])
    means = torch.stack(laws).sort(dim=2, descending=True).values  # rounding may disturb ties
    return RecordedBlocks(card, lengths, ranks.to(torch.uint8), levels.to(torch.uint8), means)


def walk(accepted: list[int]) -> list[int]:
    """Tokens emitted by each round that starts where the one before ended, the last one cut at the end."""
    emitted, place = [], 0
    while place < len(accepted):
        emitted.append(min(accepted[place] + 1, len(accepted) - place))
        place += emitted[-1]
    return emitted


def write_blocks(path: Path, blocks: RecordedBlocks) -> None:
    """One file, replaced as a whole."""
    tensors = {name: getattr(blocks, name).contiguous() for name in TENSORS}
    data = safetensors.torch.save(tensors, metadata={"card": json.dumps(blocks.card.model_dump())})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_blocks(profile: str) -> RecordedBlocks:
    """A shipped profile or a file, every value looked at. A wrong or damaged one is a SchemaError on one line."""
    path = SHIPPED.get(profile, Path(profile))
    advice = "expected a file that `ddbench train profile` wrote"
    try:
        digest = sha256_of(path)[:16]
        with safetensors.safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("card")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise SchemaError(f"oracle_profile {path}: there is no such file; {advice}") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise SchemaError(f"oracle_profile {path}: damaged, not safetensors ({error}); {advice}") from error
    if digest != DIGESTS.get(profile, digest):
        raise SchemaError(f"oracle_profile {path}: not the file that came with ddbench ({digest}); install it again")
    if text is None or tensors.keys() != set(TENSORS):
        raise SchemaError(f"oracle_profile {path}: holds {', '.join(sorted(tensors)) or 'nothing'}; {advice}")
    card = from_json(ProfileCard, text, f"oracle_profile {path}")
    blocks = RecordedBlocks(card, **tensors, digest=digest)
    if (fault := _fault(blocks)) is not None:
        raise SchemaError(f"oracle_profile {path}: damaged: {fault}; {advice}")
    return blocks


def _fault(blocks: RecordedBlocks) -> str | None:
    """What is wrong with the values; None: nothing."""
    lengths, ranks, levels, given = blocks.lengths, blocks.ranks, blocks.levels, blocks.probabilities
    if ranks.ndim != 3 or ranks.shape != levels.shape or ranks.numel() == 0:
        return f"ranks {list(ranks.shape)} and levels {list(levels.shape)} are not those of the same answers"
    if given.ndim != 3 or len(given) != ranks.shape[2] or blocks.card.block_size != len(given) + 1:
        return f"probabilities {list(given.shape)} are not those of {ranks.shape[2]} drafted positions"
    types = [tensor.dtype for tensor in (lengths, ranks, levels, given)]
    if types != [torch.int64, torch.uint8, torch.uint8, torch.float32]:
        return f"types {', '.join(str(one).removeprefix('torch.') for one in types)}"
    if lengths.shape != ranks.shape[:1] or not 1 <= int(lengths.min()) <= int(lengths.max()) <= ranks.shape[1]:
        return f"lengths of answers outside 1..{ranks.shape[1]}"
    if int(ranks.max()) > given.shape[2] or int(levels.max()) >= given.shape[1]:
        return f"a rank above {given.shape[2]} or a level above {given.shape[1] - 1}"
    is_law = (given >= 0) & (given.sum(2, keepdim=True) <= 1 + _LEFT_OVER)  # false for NaN
    if not bool(is_law.all()) or not bool((given.diff(dim=2) <= 0).all()):
        return "probabilities by rank that do not fall, or sum to more than 1"
    return None


def profile_digest(engine: EngineSpec) -> str:
    """What a file of blocks adds to the identity of a case; counts belong to the code, and add nothing."""
    is_read = engine.draft == "oracle" and not engine.oracle_quality and engine.oracle_profile not in COUNTS
    return read_blocks(engine.oracle_profile).digest if is_read else ""
