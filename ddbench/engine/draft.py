"""[part] What to propose: draft logits for the positions after the anchor, from a drafter, the text, or an oracle.

Every draft answers `draft(batch) -> logits [B, L, V]` of any float dtype; row j is about the token at position
s + 1 + j, with s the anchor's position; -inf marks tokens that are no candidates.
Letters: B batch rows, P block positions, L = P - 1 draft horizon, V vocabulary, S context length, R requests,
T output positions, K candidates per position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ddbench.engine import oracle, profiles
from ddbench.engine.batch import Batch
from ddbench.engine.types import CaseFacts, Drawing, Part, Request, Setting
from ddbench.errors import UserError

_NO_CANDIDATE = -torch.inf


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
        self._masks = torch.full((1, self._horizon), self._mask_token_id, device=setting.device)

    def __call__(self, batch: Batch) -> torch.Tensor:
        masks = self._masks.expand(len(batch.anchors), -1)
        blocks = torch.cat((batch.anchors[:, None], masks), dim=1)  # [B, P]; padding is two launches, this one
        return self._drafter(blocks, batch.lengths, *batch.caches.draft, batch.context_bound, self._target)


class RandomDraft(Drawing, DFlashDraft):
    """The drafter's work in full, then seeded noise in place of its logits: what drafting costs when it never helps."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        return super().__call__(batch).float().normal_(generator=self._generator)


class OracleDraft(DFlashDraft):
    """The drafter's work in full, then logits around the true continuation (numbers from it are `replayed`).

    How good they are says `oracle_quality` or, without it, the recorded `oracle_profile` (see `engine/oracle.py`).
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if not setting.continuations:
            raise UserError("draft 'oracle' needs the true continuation of every request: none were given")
        spec, vocab, horizon = setting.facts.spec, setting.facts.target.vocab, self._horizon
        truth, device = setting.continuations, setting.device
        self._candidates: oracle.QualityCandidates | oracle.BlockCandidates
        if not spec.oracle_quality and spec.oracle_profile not in profiles.COUNTS:
            blocks = profiles.read_blocks(spec.oracle_profile)
            self._candidates = oracle.BlockCandidates(truth, horizon, blocks, vocab, spec.seed, device)
        else:
            quality = spec.oracle_quality or profiles.recorded_quality(spec.oracle_profile, horizon)
            if len(quality) < horizon:
                raise UserError(f"oracle_quality {quality}: give {horizon} values in 0..1, one per drafted position")
            self._candidates = oracle.QualityCandidates(truth, quality[:horizon], vocab, spec.seed, device)
        self._known = frozenset(truth)
        self._request_ids = torch.tensor(sorted(truth), device=device)  # [R]
        self._last_place = oracle.longest(truth) - 1

    def begin(self, requests: Sequence[Request]) -> None:
        unknown = {request.request_id for request in requests}.difference(self._known)
        if unknown:
            raise UserError(f"draft 'oracle' was given no continuation of request {min(unknown)}")

    def __call__(self, batch: Batch) -> torch.Tensor:
        logits = super().__call__(batch).float()
        row = torch.searchsorted(self._request_ids, batch.request_ids)  # [B]
        place = (batch.lengths - batch.prompt_lengths).clamp_(max=self._last_place)
        return self._candidates.write(logits, row, place)


class PromptLookupDraft(Part):
    """No model: what followed the latest tokens where they last occurred in the request's own prompt and output.

    A proposal is a sure thing (logit 0); where nothing matches or the known text ends there is no candidate.
    """

    def __init__(self, setting: Setting) -> None:
        self._horizon = setting.facts.block_size - 1
        self._vocab = setting.facts.target.vocab
        self._lookup = setting.kernels.prompt_lookup

    def __call__(self, batch: Batch) -> torch.Tensor:
        return self._lookup(batch.tokens, batch.lengths, self._horizon, self._vocab, batch.context_bound)


DRAFTS = {
    "dflash": DFlashDraft,
    "prompt_lookup": PromptLookupDraft,
    "oracle": OracleDraft,
    "random": RandomDraft,
}
