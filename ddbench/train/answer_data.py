"""Batches of answers for the training of a drafter: rows of like length, random anchors, what each drafted position
should be and how much it counts.

Letters: R answers, B rows of a batch, T their width, A anchors per row, P block positions, L = P - 1 drafted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ddbench.errors import UserError
from ddbench.train.answers import Answers

WIDTHS = (256, 384, 512, 768, 1024)  # tokens of a row; an answer goes to the first that holds it


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """Right-padded rows; padding is never context of an anchor, and never wanted."""

    ids: torch.Tensor  # [B, T] int64
    lengths: torch.Tensor  # [B] int64
    anchors: torch.Tensor  # [B, A] int64, ascending
    wanted: torch.Tensor  # [B, A, L] int64
    weights: torch.Tensor  # [B, A, L] fp32, 0 beyond the end


class AnswerRows:
    """All answers on the training device, by width."""

    def __init__(self, answers: Answers, device: str, widths: tuple[int, ...]) -> None:
        longest = int(answers.lengths.max(initial=0))
        if longest > widths[-1]:
            raise UserError(f"an answer of {longest} tokens, prompt included; rows hold {widths[-1]} at most")
        self.tokens = torch.from_numpy(answers.tokens.astype(np.int32)).to(device)
        self.starts = torch.from_numpy(answers.starts).to(device)
        self.lengths = torch.from_numpy(answers.lengths.astype(np.int64)).to(device)
        self.prompt_lengths = torch.from_numpy(answers.prompt_lengths.astype(np.int64)).to(device)
        place = np.searchsorted(widths, answers.lengths)
        fits = answers.lengths - answers.prompt_lengths >= 2  # an anchor and a token to be drafted
        self.members = {
            width: torch.from_numpy(np.flatnonzero((place == index) & fits)).to(device)
            for index, width in enumerate(widths)
        }
        self.members = {width: rows for width, rows in self.members.items() if len(rows)}
        if not self.members:
            raise UserError("no answer is long enough to be drafted: make more with `ddbench train answers`")
        tokens = [float(self.lengths[rows].sum()) for rows in self.members.values()]
        self.shares = torch.tensor(tokens) / sum(tokens)

    def draw(
        self, num_tokens: int, anchor_share: float, block: int, gamma: float,
        widths: torch.Generator, rows: torch.Generator,
    ) -> AnswerBatch:  # fmt: skip
        """About `num_tokens` tokens in rows of one width, the width drawn by its share of all tokens."""
        width = list(self.members)[int(torch.multinomial(self.shares, 1, generator=widths))]
        members = self.members[width]
        count = max(1, num_tokens // width)
        chosen = members[torch.randint(len(members), (count,), generator=rows, device=members.device)]
        ids = self.row_ids(chosen, width)
        lengths, prompt_lengths = self.lengths[chosen], self.prompt_lengths[chosen]
        anchors = draw_anchors(prompt_lengths, lengths, max(1, round(anchor_share * width)), rows)
        return AnswerBatch(ids, lengths, anchors, *block_targets(ids, lengths, anchors, block, gamma))

    def row_ids(self, chosen: torch.Tensor, width: int) -> torch.Tensor:
        """[B, width] int64, padded with zeros."""
        offsets = torch.arange(width, device=chosen.device)
        places = (self.starts[chosen, None] + offsets).clamp(max=len(self.tokens) - 1)
        return torch.where(offsets < self.lengths[chosen, None], self.tokens[places].long(), 0)


def draw_anchors(
    prompt_lengths: torch.Tensor, lengths: torch.Tensor, count: int, generator: torch.Generator
) -> torch.Tensor:
    """`count` anchors per row, uniform over the answer positions that another follows; ascending. -> [B, count]."""
    room = (lengths - 1 - prompt_lengths)[:, None]
    uniform = torch.rand(len(lengths), count, generator=generator, device=lengths.device)
    offsets = torch.minimum((uniform * room).long(), room - 1)
    return (prompt_lengths[:, None] + offsets).sort(dim=1).values


def block_targets(
    ids: torch.Tensor, lengths: torch.Tensor, anchors: torch.Tensor, block: int, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each drafted position should be, and its weight `exp(-(k-1)/gamma)`; 0 beyond the end. -> two [B, A, L]."""
    offsets = torch.arange(1, block, device=ids.device)
    places = anchors[:, :, None] + offsets  # [B, A, L]
    wanted = ids.gather(1, places.flatten(1).clamp(max=ids.shape[1] - 1)).view_as(places)
    weights = torch.exp(-(offsets - 1) / gamma)
    return wanted, torch.where(places < lengths[:, None, None], weights, 0.0)


def split_heldout(answers: Answers, every: int) -> tuple[Answers, Answers]:
    """(to train on, greedy ones of the prompts kept apart: those whose place is a multiple of `every`).

    No answer to such a prompt is trained on.
    """
    is_apart = answers.places % every == 0
    return answers.only(~is_apart), answers.only(is_apart & answers.is_greedy)
