"""Training of a DFlash drafter on its target's own continuations.

Random anchors in every row, one packed pass over all their blocks under a block mask; the loss leaves out slot 0 and
weighs position k by exp(-(k-1)/gamma) (DFlash, arXiv 2602.06036). Embedding and head are the target's, frozen.
Letters: B rows, T tokens per row, A anchors per row, P block positions, L = P - 1 drafted, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from ddbench.models.drafter import Drafter
from ddbench.models.random_weights import randomize
from ddbench.models.target import Target
from ddbench.train.continuations import Continuations
from ddbench.train.folded import folded_attention
from ddbench.train.loop import Budget, Report, TrainingRun, make_optimizer, run_steps, shape_key

GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}  # by block size, as published
GROUP = 16  # anchors whose blocks attend in one call
REPLAYED_ROWS = 256  # held-out continuations of an evaluation while training


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """Everything that decides the trained weights besides the data."""

    batch_rows: int = 96
    anchors_per_row: int = 32
    peak_rate: float = 2e-3
    warmup_steps: int = 200
    weight_decay: float = 0.05
    steps: int = 20000
    minutes: float | None = None
    seed: int = 0


def gamma_of(block: int) -> float:
    """How slowly the weights of a block's positions fall; half the block size where none is published."""
    return GAMMA.get(block, block / 2)


def initialize(drafter: Drafter, seed: int) -> None:
    """Unit norms, small residual branches; a small final norm so that the first logits are nearly flat."""
    randomize(drafter, seed)
    for name, parameter in drafter.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.fill_(1.0)
        elif name.endswith(("o_proj.weight", "down.weight")):
            parameter.data.mul_((2 * drafter.shape.num_layers) ** -0.5)
    drafter.norm.weight.data.fill_(0.3)


def block_mask(anchors: torch.Tensor, num_context: int, block: int, window: int | None, causal: bool) -> torch.Tensor:
    """Which keys each block slot sees: context strictly before its anchor, then its own block.

    anchors [B, A] -> bool [B, 1, A*P, T + A*P].
    """
    num_anchors = anchors.shape[1]
    offsets = torch.arange(block, device=anchors.device)
    positions = (anchors[:, :, None] + offsets).flatten(1)  # [B, A*P]
    context = torch.arange(num_context, device=anchors.device)
    sees_context = context < anchors.repeat_interleave(block, dim=1)[:, :, None]  # [B, A*P, T]
    if window is not None:
        sees_context = sees_context & (positions[:, :, None] - context < window)
    owner = torch.arange(num_anchors, device=anchors.device).repeat_interleave(block)
    slot = offsets.repeat(num_anchors)
    sees_block = owner[:, None] == owner
    if causal:
        sees_block = sees_block & (slot <= slot[:, None])
    sees_block = sees_block.expand(len(anchors), -1, -1)
    return torch.cat((sees_context, sees_block), dim=2)[:, None]


def block_hidden(
    drafter: Drafter, target: Target, features: torch.Tensor, ids: torch.Tensor, anchors: torch.Tensor, block: int
) -> torch.Tensor:
    """What the target's head turns into draft logits, of every block in one pass.

    features [B, T, K*M], ids [B, T], anchors [B, A] -> [B, A, P-1, D]. Blocks attend in groups: a block sees the
    context and itself, so that one call for all of them would be spent mostly on keys that nobody sees.
    """
    shape, (rows, num_anchors) = drafter.shape, anchors.shape
    groups = num_anchors // _group_size(num_anchors)
    context = drafter.context(features)  # [B, T, D]
    block_ids = torch.full((rows, num_anchors, block), shape.mask_token_id, device=ids.device)
    block_ids[:, :, 0] = ids.gather(1, anchors)
    x = target.embed(block_ids.flatten(1))  # [B, A*P, D]
    context_rows = drafter.rotary.rows(torch.arange(ids.shape[1], device=ids.device)[None])
    block_rows = drafter.rotary.rows((anchors[:, :, None] + torch.arange(block, device=ids.device)).flatten(1))
    masks: dict[tuple[int | None, bool], torch.Tensor] = {}
    for i, layer in enumerate(drafter.layers):
        rule = (shape.window(i), shape.causal_in_block(i))
        if rule not in masks:
            masks[rule] = block_mask(anchors.reshape(rows * groups, -1), ids.shape[1], block, *rule)
        h = layer.input_norm(x)
        attention = layer.attention
        pairs = zip(attention.key_value(context, context_rows), attention.key_value(h, block_rows), strict=True)
        k, v = (_grouped(*pair, groups) for pair in pairs)  # [B*groups, T + R, G, hd]
        q = attention.query(h, block_rows).reshape(rows * groups, -1, shape.num_heads, shape.head_dim)
        out = folded_attention(q.to(v.dtype), k.to(v.dtype), v, masks[rule], attention.scale)
        x = x + attention.o_proj(out.reshape(rows, num_anchors * block, -1))
        x = x + layer.mlp(layer.post_norm(x))
    return drafter.norm(x).unflatten(1, (num_anchors, block))[:, :, 1:]


def _group_size(num_anchors: int) -> int:
    """Anchors that attend in one call: the most up to GROUP that divide them."""
    return next(size for size in range(min(GROUP, num_anchors), 0, -1) if num_anchors % size == 0)


def _grouped(context: torch.Tensor, own: torch.Tensor, groups: int) -> torch.Tensor:
    """Keys (or values) of the context [B, T, G, hd] and of the blocks [B, A*P, G, hd], one set for each group."""
    own = own.unflatten(1, (groups, -1))  # [B, groups, R, G, hd]
    shared = context[:, None].expand(-1, groups, -1, -1, -1)
    return torch.cat((shared.to(own.dtype), own), dim=2).flatten(0, 1)


def block_logits(
    drafter: Drafter, target: Target, features: torch.Tensor, ids: torch.Tensor, anchors: torch.Tensor, block: int
) -> torch.Tensor:
    """Draft logits of every block: features [B,T,K*M], ids [B,T], anchors [B,A] -> [B, A, P-1, V]."""
    return target.head(block_hidden(drafter, target, features, ids, anchors, block))


def draft_loss(logits: torch.Tensor, ids: torch.Tensor, anchors: torch.Tensor, gamma: float) -> torch.Tensor:
    """Weighted mean cross-entropy of logits [B, A, L, V] against the tokens that follow the anchors."""
    horizon = logits.shape[2]
    offsets = torch.arange(1, horizon + 1, device=ids.device)
    wanted = ids.gather(1, (anchors[:, :, None] + offsets).flatten(1))  # [B, A*L]
    losses = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view(-1, horizon)
    weights = torch.exp(-(offsets - 1) / gamma)
    return (losses * weights).mean(dim=0).sum() / weights.sum()


def sample_anchors(
    prompt_lengths: torch.Tensor, total: int, block: int, count: int, generator: torch.Generator
) -> torch.Tensor:
    """`count` anchors per row, uniform over the answer positions whose whole block lies in the row. -> [B, count]."""
    room = (total - block + 1 - prompt_lengths)[:, None]
    uniform = torch.rand(len(prompt_lengths), count, generator=generator, device=prompt_lengths.device)
    return (prompt_lengths[:, None] + (uniform * room).long()).clamp(max=total - block)


def replay(drafter: Drafter, target: Target, data: Continuations, block: int, device: str) -> dict[str, float]:
    """Chain acceptance on recorded greedy answers: the same tokens a live greedy verify would accept.

    Every answer position is drafted from once; rounds are then replayed by jumping from anchor to anchor.
    """
    rounds = emitted = 0
    horizon = block - 1
    with torch.inference_mode():
        for rows in torch.arange(min(REPLAYED_ROWS, len(data.tokens))).split(16):
            ids = data.tokens[rows].long().to(device)
            first = int(data.prompt_lengths[rows].min())
            assert bool((data.prompt_lengths[rows] == first).all()), "replay needs rows of one prompt length"
            positions = torch.arange(first, ids.shape[1] - horizon, device=device)
            anchors = positions.expand(len(ids), -1)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                features = target.full(ids)[1]
                logits = block_logits(drafter, target, features, ids, anchors, block)
            wanted = ids[:, positions[:, None] + torch.arange(1, block, device=device)]  # [B, A, L]
            hits = (logits.argmax(dim=-1) == wanted).long().cumprod(dim=-1).sum(dim=-1).tolist()  # [B, A]
            for row in hits:
                at = 0
                while at < len(row):
                    rounds, at = rounds + 1, at + row[at] + 1
                emitted += at
    return {"chain_tau": emitted / rounds}


def train_drafter(
    target: Target,
    drafter: Drafter,
    train: Continuations,
    heldout: Continuations,
    recipe: DrafterRecipe,
    folder: Path,
    device: str,
    report: Report,
    origin: str = "random",
) -> tuple[Drafter, list[dict[str, float]]]:
    """Train `drafter` (or resume in `folder`) against a frozen float target on `device`; -> drafter, curve.

    `origin` names its initial weights: a checkpoint of other ones is not resumed.
    """
    shape = drafter.shape
    drafter.to(device)
    tokens, lengths = train.tokens.to(device), train.prompt_lengths.to(device)
    generator = torch.Generator(device=device).manual_seed(recipe.seed)
    identity = {"shape": shape_key(shape), **asdict(recipe), "data": train.digest, "origin": origin}
    optimizer = make_optimizer(drafter, recipe.peak_rate, recipe.weight_decay)
    run = TrainingRun(drafter, optimizer, {"rows": generator}, folder, identity)
    if run.resume():
        report(f"resumed at step {run.step}")
    block, gamma = shape.block_size, gamma_of(shape.block_size)

    def step(_: float) -> torch.Tensor:
        rows = torch.randint(len(tokens), (recipe.batch_rows,), generator=generator, device=device)
        ids = tokens[rows].long()
        anchors = sample_anchors(lengths[rows], ids.shape[1], block, recipe.anchors_per_row, generator)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            with torch.no_grad():
                features = target.full(ids)[1]
            return draft_loss(block_logits(drafter, target, features, ids, anchors, block), ids, anchors, gamma)

    def evaluate() -> dict[str, float]:
        return replay(drafter, target, heldout, block, device)

    budget = Budget(recipe.steps, recipe.minutes)
    run_steps(run, budget, step, evaluate, report, peak=recipe.peak_rate, warmup_steps=recipe.warmup_steps)
    return drafter.cpu().requires_grad_(False).eval(), run.curve
