"""What a drafter is trained on: the target's own continuations of prompts cut from the training corpus.

Greedy and sampled answers in one batch, long loops left out. Letters: B rows, T tokens per row, V vocabulary.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import torch

from ddbench.errors import UserError
from ddbench.models.attention import DenseMask
from ddbench.models.inputs import VerifyInputs
from ddbench.models.moe import MoE
from ddbench.models.target import Target
from ddbench.train.loop import Report, time_left
from ddbench.train.tokens import Windows

PROMPT_LENGTHS = (24, 48, 80, 128)


@dataclass(frozen=True, slots=True)
class Continuations:
    """Rows of equal length: a prompt of `prompt_length` tokens, then the target's answer."""

    tokens: torch.Tensor  # [rows, T] int32, CPU
    prompt_lengths: torch.Tensor  # [rows] int64
    num_dropped: int  # rows left out as loops
    num_greedy: int

    @property
    def digest(self) -> str:
        """SHA-256 of tokens and prompt lengths."""
        digest = hashlib.sha256(self.tokens.numpy().tobytes())
        digest.update(self.prompt_lengths.numpy().tobytes())
        return digest.hexdigest()


def use_wide_experts(model: Target) -> None:
    """Run MoE layers as one wide MLP: no host sync per layer, faster at thousands of rows."""
    for child in model.modules():
        if isinstance(child, MoE):
            child.is_wide = True


def continue_prompts(
    model: Target, prompts: torch.Tensor, total: int, temperature: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Decode rows of equal prompt length to `total` tokens; temperature 0 is greedy. prompts [B, Lp] -> [B, total]."""
    rows, prompt_length = prompts.shape
    device = prompts.device
    is_mixed = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_mixed else model.embedding.weight.dtype
    attention = DenseMask()
    cache = [
        tuple(torch.zeros(rows, total, *row, device=device, dtype=dtype) for row in model.shape.attention.row_shapes)
        for _ in range(model.shape.num_layers)
    ]
    tokens = torch.zeros(rows, total, dtype=torch.int64, device=device)
    tokens[:, :prompt_length] = prompts
    zeros = torch.zeros(rows, dtype=torch.int64, device=device)
    done, new = 0, prompts
    while True:
        width = new.shape[1]
        positions = (done + torch.arange(width, device=device)).expand(rows, -1)
        inputs = VerifyInputs(new, positions, zeros + done, None, done, logit_rows=zeros + width - 1)
        logits = model(inputs, cache, attention).logits[:, 0].float()  # [B, V]
        done += width
        if done == total:
            return tokens
        noise = torch.empty_like(logits).exponential_(generator=generator).clamp_(min=1e-30).log_()  # Gumbel trick
        new = (logits - temperature[:, None] * noise).argmax(dim=-1, keepdim=True)
        tokens[:, done] = new[:, 0]


def repetition(tokens: torch.Tensor, prompt_lengths: torch.Tensor, gram: int = 8) -> torch.Tensor:
    """Share of each row's answer positions whose last `gram` tokens occurred before in the row. [rows, T] -> [rows]."""
    weights = torch.tensor([4099**i % (2**61 - 1) for i in range(gram)], device=tokens.device)
    keys = (tokens.long().unfold(1, gram, 1) * weights).sum(dim=-1)  # wraps; equal grams have equal keys
    ordered, order = keys.sort(dim=1, stable=True)
    seen = torch.zeros_like(keys, dtype=torch.bool)
    seen[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    repeated = torch.zeros_like(seen).scatter(1, order, seen)
    in_answer = torch.arange(keys.shape[1], device=keys.device) + gram > prompt_lengths[:, None]
    return (repeated & in_answer).sum(dim=1) / in_answer.sum(dim=1)


def generate(
    model: Target,
    windows: Windows,
    num_rows: int,
    total: int,
    batch_rows: int,
    greedy_share: float,
    report: Report,
    min_answer: int = 16,
    max_repetition: float = 1.0,
) -> Continuations:
    """`num_rows` rows (before loops are dropped), prompts of several lengths, in batches of one length each.

    A row is a loop, and left out, where more than `max_repetition` of its answer's 8-grams occurred before in the row.
    1 keeps all: a small target does loop, and its drafter has to follow it there too.
    Lengths that leave fewer than `min_answer` of the `total` tokens to the answer are left out.
    """
    lengths = [length for length in PROMPT_LENGTHS if length + min_answer <= total]
    if not lengths:
        least = PROMPT_LENGTHS[0] + min_answer
        raise UserError(f"rows of {total} tokens: expected at least {least}, {min_answer} of them for the answer")
    use_wide_experts(model)
    began = time.monotonic()
    batches: list[Continuations] = []
    made = 0
    with torch.inference_mode():
        while made < num_rows:
            prompts = windows.sample(batch_rows, lengths[len(batches) % len(lengths)])
            batches.append(_batch(model, prompts, total, greedy_share, max_repetition, windows.generator))
            made += batch_rows
            dropped = sum(batch.num_dropped for batch in batches)
            left = time_left(min(1.0, made / num_rows), time.monotonic() - began)
            report(f"continuations: {made}/{num_rows} rows, {dropped} loops dropped, {left}")
    rows = Continuations(
        torch.cat([batch.tokens for batch in batches]),
        torch.cat([batch.prompt_lengths for batch in batches]),
        sum(batch.num_dropped for batch in batches),
        sum(batch.num_greedy for batch in batches),
    )
    if not len(rows.tokens):
        raise UserError(f"all {made} continuations are loops: train the target longer, or raise --max-repetition")
    return rows


def _batch(
    model: Target,
    prompts: torch.Tensor,
    total: int,
    greedy_share: float,
    max_repetition: float,
    generator: torch.Generator,
) -> Continuations:
    """Continue prompts of one length, some greedily, the others at temperatures up to 1; loops are left out."""
    uniform = torch.rand(len(prompts), generator=generator, device=prompts.device)
    temperature = torch.where(uniform < greedy_share, 0.0, 0.5 + 0.5 * uniform)
    tokens = continue_prompts(model, prompts, total, temperature, generator)
    prompt_lengths = torch.full((len(prompts),), prompts.shape[1], device=tokens.device)
    keep = repetition(tokens, prompt_lengths) <= max_repetition
    return Continuations(
        tokens=tokens[keep].int().cpu(),
        prompt_lengths=prompt_lengths[keep].cpu(),
        num_dropped=int((~keep).sum()),
        num_greedy=int((keep & (temperature == 0)).sum()),
    )
