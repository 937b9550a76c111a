"""Does an oracle accept as much as the pair whose profile it replays? Drafts, trees and walks, without any model.

What an oracle drafts depends on request and position alone, so every position is drafted once and rounds are then laid
through the answers. Acceptance in the engine is the same: the truth is what the target says.
Letters: R answers, T anchor positions, L drafted positions, V vocabulary, K candidates, N tree node slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ddbench.engine.oracle import BlockCandidates, replayed_answers
from ddbench.engine.profiles import RecordedBlocks, walk
from ddbench.kernels.accept_walk import accept_walk
from ddbench.kernels.draft_topk import draft_topk
from ddbench.kernels.tree_build import tree_build_chain, tree_build_levelwise

TOLERANCE = 0.03  # of an acceptance length
_VOCAB, _SEED = 4096, 0


def budget_of(arm: str) -> int | None:
    """Nodes of a card's arm, as in "ddtree 32"; None: the chain."""
    return None if arm == "chain" else int(arm.removeprefix("ddtree "))


@torch.inference_mode()
def replayed_lengths(blocks: RecordedBlocks, vocab: int = _VOCAB) -> dict[str, float]:
    """Tokens per round of the oracle in every arm of the profile's card, over answers as long as the recorded ones."""
    budgets = {arm: budget_of(arm) for arm in blocks.card.acceptance_lengths}
    num_answers, num_places, horizon = blocks.ranks.shape
    random = torch.Generator().manual_seed(_SEED)
    said = torch.randint(vocab, (num_answers, num_places + 1 + horizon), generator=random)
    cpu = torch.device("cpu")
    oracle = BlockCandidates(dict(enumerate(said.tolist())), horizon, blocks, vocab, _SEED, cpu)
    logits, rows = torch.empty(num_answers, horizon, vocab), torch.arange(num_answers)
    accepted: dict[str, list[torch.Tensor]] = {arm: [] for arm in budgets}
    for place in range(num_places):
        oracle.write(logits, rows, torch.full_like(rows, place))
        log_probs, token_ids = draft_topk(logits, max(budget or 1 for budget in budgets.values()))
        ahead = said[:, place + 1 : place + 2 + horizon]  # [R, L + 1]
        for arm, budget in budgets.items():
            accepted[arm].append(_num_accepted(log_probs, token_ids, ahead, budget))
    lengths = [int(blocks.lengths[next(replayed_answers(blocks, row, _SEED))]) for row in range(num_answers)]
    return {arm: _mean_length(torch.stack(counts, dim=1), lengths) for arm, counts in accepted.items()}


def _num_accepted(
    log_probs: torch.Tensor, token_ids: torch.Tensor, ahead: torch.Tensor, budget: int | None
) -> torch.Tensor:
    """Drafted tokens [R] that the truth goes through."""
    if budget is None:
        tree = tree_build_chain(log_probs[..., :1], token_ids[..., :1])
    else:
        tree = tree_build_levelwise(log_probs[..., :budget], token_ids[..., :budget], budget)
    tokens, parents, depths, _, num_nodes = tree
    last = ahead.shape[1] - 1
    return accept_walk(tokens, parents, num_nodes, ahead.gather(1, depths.clamp(max=last)), last)[1]


def _mean_length(accepted: torch.Tensor, lengths: Sequence[int]) -> float:
    """Drafted tokens that would be accepted [R, T] -> tokens per round."""
    answers = zip(accepted.tolist(), lengths, strict=True)
    rounds = [emitted for answer, length in answers for emitted in walk(answer[:length])]
    return sum(rounds) / len(rounds)
