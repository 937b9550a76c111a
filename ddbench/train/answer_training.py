"""Training of a DFlash drafter on a published target's own answers (arXiv 2602.06036), the last part at INT8 weights.

A step: rows of answers, features from the frozen target, many blocks per row under a block mask, cross-entropy through
the frozen head weighted by position. Letters: B rows, T tokens, A anchors, P block positions, L = P - 1, D hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from ddbench.models.drafter import Drafter
from ddbench.models.target import Target
from ddbench.train.answer_data import WIDTHS, AnswerBatch, AnswerRows, block_targets
from ddbench.train.answers import Answers
from ddbench.train.drafter import GROUP, block_hidden, gamma_of
from ddbench.train.head_loss import head_loss
from ddbench.train.int8 import at_rounded_weights, round_to_int8
from ddbench.train.loop import Budget, Clock, Report, TrainingRun, make_optimizer, run_steps, shape_key

REPLAYED_ROWS = 192  # held-out answers of an evaluation while training
REPLAY_TOKENS = 16384  # drafted from in one forward of a replay

Features = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class AnswerRecipe:
    """Everything that decides the trained weights besides the data."""

    tokens_per_step: int = 32768  # of answers with their prompts
    anchor_share: float = 0.25  # anchors per token of a row: 65,536 block positions per step at block 8
    peak_rate: float = 1.2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.02
    steps: int = 40000
    minutes: float | None = None
    int8_share: float = 0.15  # of the schedule, its end: forward passes at rounded weights
    widths: tuple[int, ...] = WIDTHS  # of rows
    seed: int = 0


def batch_loss(
    drafter: Drafter, target: Target, features: torch.Tensor, batch: AnswerBatch, block: int
) -> torch.Tensor:
    """Mean cross-entropy of a batch's drafted positions, weighted; slot 0, the anchor's own, predicts nothing."""
    hidden = block_hidden(drafter, target, features, batch.ids, batch.anchors, block)  # [B, A, L, D]
    head = target.lm_head.weight
    weights = batch.weights.flatten()
    loss = head_loss(hidden.flatten(0, 2).to(head.dtype), head, batch.wanted.flatten(), weights)
    return loss / weights.sum()


def replay_answers(
    drafter: Drafter,
    target: Target,
    answers: Answers,
    block: int,
    device: str,
    max_rows: int = REPLAYED_ROWS,
    widths: tuple[int, ...] = WIDTHS,
) -> dict[str, float]:
    """Chain acceptance on recorded greedy answers: the tokens that a live greedy verify would accept.

    Every answer position is drafted from once; rounds jump from anchor to anchor, as far as the answer is recorded.
    """
    rows = AnswerRows(answers.only(np.arange(len(answers)) < max_rows), device, widths)  # of all lengths
    rounds = emitted = 0
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for width, members in rows.members.items():
            for chosen in members.split(max(1, REPLAY_TOKENS // width)):
                ids, lengths, first = rows.row_ids(chosen, width), rows.lengths[chosen], rows.prompt_lengths[chosen]
                hits = _hits(drafter, target, ids, lengths, first, block).tolist()
                for row, num in zip(hits, (lengths - first - 1).tolist(), strict=True):
                    at, emitted = 0, emitted + num
                    while at < num:
                        rounds, at = rounds + 1, at + row[at] + 1
    return {"chain_tau": emitted / rounds}


def _hits(
    drafter: Drafter, target: Target, ids: torch.Tensor, lengths: torch.Tensor, first: torch.Tensor, block: int
) -> torch.Tensor:
    """How many drafted tokens are the recorded ones, drafting from every answer position. -> [B, A]."""
    longest = int((lengths - first - 1).max())
    longest += -longest % GROUP
    anchors = torch.minimum(first[:, None] + torch.arange(longest, device=ids.device), lengths[:, None] - 2)
    features = target.full(ids)[1]
    wanted, weights = block_targets(ids, lengths, anchors, block, gamma=block)
    head = target.lm_head.weight
    parts = []
    for part in torch.arange(longest, device=ids.device).split(8 * GROUP):
        hidden = block_hidden(drafter, target, features, ids, anchors[:, part], block).to(head.dtype)
        guess = torch.cat([(rows @ head.T).argmax(dim=-1) for rows in hidden.flatten(0, 2).split(8192)])
        parts.append(guess.view(len(ids), -1, block - 1))
    right = (torch.cat(parts, dim=1) == wanted) & (weights > 0)
    return right.long().cumprod(dim=-1).sum(dim=-1)


def train_on_answers(
    target: Target,
    drafter: Drafter,
    train: Answers,
    heldout: Answers,
    recipe: AnswerRecipe,
    folder: Path,
    device: str,
    report: Report,
    origin: str = "random",
    stop_after: float | None = None,
    features_of: Features | None = None,
    snapshot: Callable[[TrainingRun], None] | None = None,
    clock: Clock = time.monotonic,
) -> tuple[TrainingRun, bool]:
    """Train `drafter` (or resume in `folder`) against a frozen target on `device`; -> (the run, whether it is over).

    `origin` names the initial weights: a checkpoint of other ones is not resumed. `stop_after`: seconds, after which
    it stops with a checkpoint though the schedule is not over. `features_of`: `target.full(ids)[1]`, compiled perhaps.
    `snapshot` is told of the run at every evaluation.
    """
    shape = drafter.shape
    block, gamma = shape.block_size, gamma_of(shape.block_size)
    drafter.to(device)
    rows = AnswerRows(train, device, recipe.widths)
    by_row = torch.Generator(device=device).manual_seed(recipe.seed)
    by_width = torch.Generator().manual_seed(recipe.seed)
    identity = {"shape": shape_key(shape), **asdict(recipe), "data": train.digest, "origin": origin}
    optimizer = make_optimizer(drafter, recipe.peak_rate, recipe.weight_decay)
    run = TrainingRun(drafter, optimizer, {"rows": by_row, "widths": by_width}, folder, identity)
    if run.resume():
        report(f"resumed at step {run.step}")
    features_of = features_of or (lambda ids: target.full(ids)[1])

    def step(fraction: float) -> torch.Tensor:
        batch = rows.draw(recipe.tokens_per_step, recipe.anchor_share, block, gamma, by_width, by_row)
        with torch.no_grad():
            features = features_of(batch.ids)
        is_rounded = fraction >= 1 - recipe.int8_share
        weights = at_rounded_weights(drafter) if is_rounded else nullcontext()
        with weights, torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return batch_loss(drafter, target, features, batch, block)

    def evaluate() -> dict[str, float]:
        if snapshot is not None:
            snapshot(run)
        return replay_answers(drafter, target, heldout, block, device, widths=recipe.widths)

    budget = Budget(recipe.steps, recipe.minutes)
    run_steps(
        run, budget, step, evaluate, report,
        peak=recipe.peak_rate, warmup_steps=recipe.warmup_steps, stop_after=stop_after, clock=clock,
    )  # fmt: skip
    return run, budget.fraction(run.step, run.seconds) >= 1.0


def cost_of_int8(drafter: Drafter, target: Target, heldout: Answers, device: str) -> dict[str, float]:
    """Held-out chain acceptance before and after rounding; the drafter is left rounded."""
    block = drafter.shape.block_size
    before = replay_answers(drafter, target, heldout, block, device, 4 * REPLAYED_ROWS)["chain_tau"]
    round_to_int8(drafter)
    after = replay_answers(drafter, target, heldout, block, device, 4 * REPLAYED_ROWS)["chain_tau"]
    return {"chain_tau_float": before, "chain_tau_int8": after}
