"""What an oracle puts in place of a drafter's logits: candidates around the true continuation of every request.

Two sources, by profile: `QualityCandidates` (first choice right so often, the rest halves from rank to rank) and
`BlockCandidates` (the ranks and confidences of recorded answers). All draws depend on seed, request and position only,
so that rejected and repeated drafts see the same logits; everything is laid out before the first round, and a round
only gathers: no host synchronisation, fixed shapes, the same bits on every device.
Letters: B batch rows, R requests, T output positions, L draft horizon, K candidates per position, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import torch

from ddbench.engine.profiles import RecordedBlocks

NUM_CANDIDATES = 16  # of quality alone

_NO_CANDIDATE = -torch.inf
_PRIME = 1_000_003
_GOLDEN = 0.618  # of the circle: steps of it cover the circle evenly, however few they are

Continuations = Mapping[int, Sequence[int]]


class QualityCandidates:
    """At depth d the first choice has probability p, uniform around quality[d]; what is left halves from rank to rank.

    The true token's rank is drawn from that very distribution, so the draft is calibrated. Real drafts are not like
    that below the first rank: trees of many nodes come out too long (nano-k2, 64 nodes: by 18 %).
    """

    def __init__(
        self, continuations: Continuations, quality: tuple[float, ...], vocab: int, seed: int, device: torch.device
    ) -> None:
        ids, length = sorted(continuations), longest(continuations)
        rows = [
            _quality_rows(continuations[i], quality, length, min(NUM_CANDIDATES, vocab), vocab, _generator(seed, i))
            for i in ids
        ]
        self._token_ids = torch.stack([row[0] for row in rows]).to(device)  # [R, T, L, K] int64
        self._logits = torch.stack([row[1] for row in rows]).to(device)  # [R, T, L, K] float32

    def write(self, logits: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V], in place, of requests `row` [B] whose anchors stand at output positions `place` [B]."""
        return logits.fill_(_NO_CANDIDATE).scatter_(2, self._token_ids[row, place], self._logits[row, place])


def _quality_rows(
    tokens: Sequence[int],
    quality: tuple[float, ...],
    length: int,
    num_candidates: int,
    vocab: int,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates of one request: token ids and log-probabilities [T, L, K] by position of the anchor in the output.

    Wrong candidates are a run of ids from a random start, skipping the true one.
    """
    horizon = len(quality)
    uniform = torch.rand(3, length, horizon, generator=generator)
    truth = _truth(tokens, horizon, length, vocab, generator)
    center = torch.tensor(quality)
    top = center + (2 * uniform[0] - 1) * torch.minimum(center, 1 - center)  # [T, L] mean: quality
    halves = 0.5 ** torch.arange(num_candidates)
    halves[0] = 0.0
    probabilities = (1 - top)[..., None] * halves  # [T, L, K] ranks 1, 2, ...: 1/2, 1/4, ... of what the first left
    probabilities[..., 0] = top
    rank = (probabilities.cumsum(-1) < uniform[1][..., None]).sum(-1).clamp_(max=num_candidates - 1)  # [T, L]
    start = (uniform[2] * (vocab - 1)).long()[..., None]
    wrong = (start + torch.arange(num_candidates)) % (vocab - 1)  # distinct, in 0..V-2
    token_ids = (truth[..., None] + 1 + wrong) % vocab  # never the true one
    token_ids.scatter_(2, rank[..., None], truth[..., None])
    return token_ids, probabilities.log()


class BlockCandidates:
    """Recorded answers replayed: request and position say which recorded block stands here, with its ranks and levels.

    An answer longer than the recorded ones goes on with another. A true token that was beyond the recorded ranks is
    missed here too; the probability they leave is spread over all other tokens. Ids beside the true one are steps of
    a stride drawn for each drafted position: positions do not share candidates, as neighbouring ids would.
    """

    def __init__(
        self,
        continuations: Continuations,
        horizon: int,
        blocks: RecordedBlocks,
        vocab: int,
        seed: int,
        device: torch.device,
    ) -> None:
        # One id is left for a true token that is not among them.
        num_ranks = min(blocks.probabilities.shape[2], vocab - 1)
        coprime = torch.tensor([step for step in range(1, vocab) if math.gcd(step, vocab) == 1])
        ids, length = sorted(continuations), longest(continuations)
        plans = []
        for i in ids:
            ranks, levels = _recorded_rows(blocks, horizon, length, i, seed)  # [T, L] each
            generator = _generator(seed, i)
            uniform = torch.rand(length, horizon, generator=generator)
            stride = coprime[(uniform * len(coprime)).long()]
            truth = _truth(continuations[i], horizon, length, vocab, generator)
            first = (truth - ranks.clamp(max=num_ranks) * stride) % vocab  # so that the truth stands at its rank
            plans.append(torch.stack([first, stride, levels], dim=2))
        self._plan = torch.stack(plans).to(device)  # [R, T, L, 3] int64
        self._law = _law(blocks.probabilities[..., :num_ranks], vocab).flatten(0, 1).to(device)  # [L * C, K + 1]
        self._steps = torch.arange(num_ranks, device=device)  # [K]
        self._vocab = vocab

    def write(self, logits: torch.Tensor, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V], in place, of requests `row` [B] whose anchors stand at output positions `place` [B]."""
        first, stride, level = self._plan[row, place].unbind(2)  # [B, L]
        token_ids = (first[..., None] + stride[..., None] * self._steps) % self._vocab  # [B, L, K], distinct
        law = self._law[level]  # [B, L, K + 1]
        return logits.copy_(law[..., -1:].expand_as(logits)).scatter_(2, token_ids, law[..., :-1])


def replayed_answers(blocks: RecordedBlocks, request_id: int, seed: int) -> Iterator[int]:
    """Which recorded answers a request replays, one after the other.

    They are taken in golden steps through their order of difficulty: few requests are a fair sample, and as many as
    there are answers replay each of them once.
    """
    num_answers = len(blocks.lengths)
    steps = range(max(round(_GOLDEN * num_answers), 1), num_answers + 1)
    step = next(step for step in steps if math.gcd(step, num_answers) == 1 or step == num_answers)
    for turn in count():
        yield (request_id * step + random.Random(f"{seed}/{turn}").randrange(num_answers)) % num_answers


def _recorded_rows(
    blocks: RecordedBlocks, horizon: int, length: int, request_id: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks [T, L], and levels as rows of the law, of one request.

    Positions beyond the recorded block are those of its last depth, as an anchor nearer to them had them.
    """
    depth = blocks.ranks.shape[2]
    parts: list[torch.Tensor] = []  # [2, length of an answer] each: answer and place
    for answer in replayed_answers(blocks, request_id, seed):
        places = torch.arange(int(blocks.lengths[answer]))
        parts.append(torch.stack([torch.full_like(places, answer), places]))
        if sum(part.shape[1] for part in parts) >= length + horizon:
            break
    beyond = (torch.arange(horizon) - (depth - 1)).clamp(min=0)  # [L]
    answer_of, place_of = torch.cat(parts, dim=1)[:, torch.arange(length)[:, None] + beyond]  # [T, L] each
    recorded = torch.arange(horizon).clamp(max=depth - 1).expand_as(place_of)
    index = (answer_of, place_of, recorded)
    return blocks.ranks[index].long(), recorded * blocks.probabilities.shape[1] + blocks.levels[index].long()


def _law(probabilities: torch.Tensor, vocab: int) -> torch.Tensor:
    """Log-probabilities [L, C, K + 1]: of every rank, and of each token that is no candidate, always below the last."""
    num_ranks = probabilities.shape[2]
    left = (1 - probabilities.sum(2, keepdim=True)).clamp(min=0) / max(vocab - num_ranks, 1)
    return torch.cat([probabilities, torch.minimum(left, probabilities[..., -1:] / 2)], dim=2).log()


def longest(continuations: Continuations) -> int:
    """T: one position past the end of any; nothing is known there."""
    return max(len(tokens) for tokens in continuations.values()) + 1


def _truth(tokens: Sequence[int], horizon: int, length: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """[T, L] row t: the tokens after output position t; random ones past the end."""
    filler = torch.randint(vocab, (length + horizon,), generator=generator)
    truth = torch.cat([torch.tensor(list(tokens), dtype=torch.int64), filler])[: length + horizon]
    return truth.unfold(0, horizon, 1)[1 : length + 1]


def _generator(seed: int, request_id: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * _PRIME + request_id)
