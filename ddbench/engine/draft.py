"""[part] What to propose: draft logits for the positions after the anchor, from a drafter, the text, or an oracle.

Every draft answers `draft(batch) -> logits [B, L, V] float32`; row j is about the token at position s + 1 + j, with s
the anchor's position; -inf marks tokens that are no candidates.
Letters: B batch rows, P block positions, L = P - 1 draft horizon, V vocabulary, S context length, R requests,
T output positions, K candidates per position.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F

from ddbench.engine.batch import Batch
from ddbench.engine.types import CaseFacts, Part, Request, Setting
from ddbench.errors import UserError

_NO_CANDIDATE = -torch.inf

# Recorded acceptance by EngineSpec.oracle_profile: the d-th number counts the rounds whose first d drafted tokens were
# all right. From the chain arm of the shipped pair (drafter 0d3c708d63ffef63, target 09e77632fffbe62a; greedy, fp32,
# block 8) over its 96 held-out prompts, 64 tokens each, all rounds, tokens past a stop included; by kind of prompt the
# 32 prompts of that kind. `nano-k2` is the evaluation's `accepted_histogram` in the pair's training card, summed up
# from the end. Real for that pair only: what another pair would reach is another number.
ORACLE_PROFILES = {
    "nano-k2": (1897, 1471, 1094, 758, 486, 293, 166, 87),
    "nano-k2-code": (609, 473, 360, 259, 171, 119, 68, 28),
    "nano-k2-docs": (695, 521, 368, 253, 141, 61, 23, 7),
    "nano-k2-prose": (593, 477, 366, 246, 174, 113, 75, 52),
}


def recorded_quality(profile: str, horizon: int) -> tuple[float, ...]:
    """Per drafted position, how often its first choice was right where all before were.

    Positions beyond those recorded take the last recorded value.
    """
    counts = ORACLE_PROFILES[profile]
    quality = [right / reached for reached, right in pairwise(counts)]
    return tuple(quality[min(depth, len(quality) - 1)] for depth in range(horizon))


class DFlashDraft(Part):
    """The DFlash drafter on a full block [anchor, MASK x L], whatever is left to generate."""

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        drafter = facts.drafter
        if drafter is None:
            return f"target '{facts.target.name}' has no DFlash drafter"
        if facts.block_size > drafter.block_size:
            return (
                f"block_size {facts.block_size} is larger than the block the drafter was trained with "
                f"({drafter.block_size}); smaller ones are allowed"
            )
        if not 0 <= drafter.mask_token_id < facts.target.vocab:
            return f"mask_token_id {drafter.mask_token_id} has no embedding row (vocabulary {facts.target.vocab})"
        return None

    def __init__(self, setting: Setting) -> None:
        self._target = setting.models.target
        self._drafter = setting.models.drafter
        self._mask_token_id = self._drafter.shape.mask_token_id
        self._horizon = setting.facts.block_size - 1

    def __call__(self, batch: Batch) -> torch.Tensor:
        blocks = F.pad(batch.anchors[:, None], (0, self._horizon), value=self._mask_token_id)  # [B, P]
        return self._drafter(blocks, batch.lengths, *batch.caches.draft, batch.context_bound, self._target)


class RandomDraft(DFlashDraft):
    """The drafter's work in full, then seeded noise in place of its logits: what drafting costs when it never helps."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._seed = setting.facts.spec.seed
        self._generator = setting.generator()
        self.generators = (self._generator,)
        self.begin(())

    def begin(self, requests: Sequence[Request]) -> None:
        self._generator.manual_seed(self._seed)

    def __call__(self, batch: Batch) -> torch.Tensor:
        return super().__call__(batch).normal_(generator=self._generator)


class OracleDraft(DFlashDraft):
    """The drafter's work in full, then logits around the true continuation (numbers from it are `replayed`).

    Quality is `oracle_quality` or, without it, the recorded `oracle_profile`.
    At depth d the draft's first choice has probability p, uniform around quality[d]; the remaining mass halves from
    rank to rank. The true token's rank is drawn from that very distribution, so the draft is calibrated. All draws
    depend on seed, request and position only: rejected and repeated drafts see the same logits.
    """

    NUM_CANDIDATES = 16

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        vocab = setting.facts.target.vocab
        continuations = setting.continuations
        if not continuations:
            raise UserError("draft 'oracle' needs the true continuation of every request: none were given")
        quality = setting.oracle_quality or recorded_quality(setting.facts.spec.oracle_profile, self._horizon)
        if len(quality) < self._horizon or not all(0.0 <= q <= 1.0 for q in quality):
            raise UserError(f"oracle_quality {quality}: give {self._horizon} values in 0..1, one per drafted position")
        ids = sorted(continuations)
        length = max(len(continuations[i]) for i in ids) + 1  # one position past the end: nothing is known there
        rows = [
            _oracle_rows(
                continuations[i], quality[: self._horizon], length, min(self.NUM_CANDIDATES, vocab), vocab,
                torch.Generator().manual_seed(setting.facts.spec.seed * 1_000_003 + i),
            )
            for i in ids
        ]  # fmt: skip
        self._known = frozenset(ids)
        self._request_ids = torch.tensor(ids, device=setting.device)  # [R]
        self._token_ids = torch.stack([row[0] for row in rows]).to(setting.device)  # [R, T, L, K] int64
        self._logits = torch.stack([row[1] for row in rows]).to(setting.device)  # [R, T, L, K] float32

    def begin(self, requests: Sequence[Request]) -> None:
        unknown = {request.request_id for request in requests}.difference(self._known)
        if unknown:
            raise UserError(f"draft 'oracle' was given no continuation of request {min(unknown)}")

    def __call__(self, batch: Batch) -> torch.Tensor:
        logits = super().__call__(batch)
        row = torch.searchsorted(self._request_ids, batch.request_ids)  # [B]
        place = (batch.lengths - batch.prompt_lengths).clamp_(max=self._logits.shape[1] - 1)
        return logits.fill_(_NO_CANDIDATE).scatter_(2, self._token_ids[row, place], self._logits[row, place])


def _oracle_rows(
    tokens: Sequence[int],
    quality: tuple[float, ...],
    length: int,
    num_candidates: int,
    vocab: int,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates of one request: token ids and log-probabilities [T, L, K] by position of the anchor in the output.

    Wrong candidates are a run of ids from a random start, skipping the true one. Past the end of the continuation the
    "true" token is random.
    """
    horizon = len(quality)
    uniform = torch.rand(3, length, horizon, generator=generator)
    filler = torch.randint(vocab, (length + horizon,), generator=generator)
    truth = torch.cat([torch.tensor(list(tokens), dtype=torch.int64), filler])[: length + horizon]
    truth = truth.unfold(0, horizon, 1)[1 : length + 1]  # [T, L] row t: the tokens after output position t
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


class PromptLookupDraft(Part):
    """No model: what followed the latest tokens where they last occurred in the request's own prompt and output.

    The longest of a 3-, 2- or 1-gram match counts, the most recent occurrence of that length first. A proposal is a
    sure thing (logit 0); where nothing matches or the known text ends there is no candidate.
    """

    def __init__(self, setting: Setting) -> None:
        self._horizon = setting.facts.block_size - 1
        self._vocab = setting.facts.target.vocab
        self._ahead = torch.arange(1, self._horizon + 1, device=setting.device)  # [L]
        self._latest = torch.tensor((2, 1, 0), device=setting.device)  # shifts into `known`: last, before, earliest

    def __call__(self, batch: Batch) -> torch.Tensor:
        lengths = batch.lengths[:, None]  # [B, 1] = s
        known = F.pad(batch.tokens[:, : batch.context_bound + 1], (2, 0), value=-1)  # [B, 2 + s_max + 1]
        place = torch.arange(known.shape[1] - 2, device=known.device)  # where an earlier n-gram could end
        last, before, earliest = known.gather(1, lengths + self._latest).unbind(1)
        one = (known[:, 2:] == last[:, None]) & (place < lengths)
        two = one & (known[:, 1:-1] == before[:, None])
        three = two & (known[:, :-2] == earliest[:, None])
        score = (one.long() + two.long() + three.long()) * len(place) + place  # longer first, then later
        best, end = score.where(one, -1).max(dim=1, keepdim=True)  # [B, 1]
        source = end + self._ahead  # [B, L]
        proposal = batch.tokens.gather(1, source).clamp_(min=0)  # beyond the anchor anything may stand
        logit = torch.where((best >= 0) & (source <= lengths), 0.0, _NO_CANDIDATE)  # [B, L]
        logits = logit.new_full((*proposal.shape, self._vocab), _NO_CANDIDATE)
        return logits.scatter_(2, proposal[..., None], logit[..., None])


DRAFTS = {
    "dflash": DFlashDraft,
    "prompt_lookup": PromptLookupDraft,
    "oracle": OracleDraft,
    "random": RandomDraft,
}
