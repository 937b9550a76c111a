"""`ddbench train profile`: what a trained pair drafts on its held-out prompts, as a file that oracle drafts replay.

The target answers; then the drafter is asked at every position of the answers, later ones first, so that the rows a
block leaves in the draft cache are never those that another one reads. Nothing here is timed.
Letters: R answers, T anchor positions, L drafted positions, V vocabulary, K ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from ddbench.engine.engine import Engine
from ddbench.engine.parts import SpeculativeParts
from ddbench.engine.profiles import NUM_RANKS, ProfileCard, RecordedBlocks, read_blocks, summarize_blocks, write_blocks
from ddbench.engine.types import Request
from ddbench.errors import UserError
from ddbench.harness.workload import build_workload
from ddbench.models.weights import Models, checkpoint_folder, load_models
from ddbench.spec import ARMS, PROFILE_SUFFIX, Device, EngineSpec, WorkloadSpec
from ddbench.train.card import software
from ddbench.train.device import require_device
from ddbench.train.evaluate import arm_specs, count_prompts
from ddbench.train.loop import Report
from ddbench.wheels import sha256_of

SET_PROMPTS = 64  # of a prompt set, where no number is given

Truth = Mapping[int, Sequence[int]]


def run_profile(
    *,
    pair: str,
    drafter: str | None,
    prompts: str,
    out: Path,
    num_prompts: int | None,
    max_new_tokens: int,
    concurrency: int,
    device: Device,
    command: str,
    echo: Report,
) -> None:
    """Record, write, replay with an oracle in place of the drafter, and show both acceptance lengths."""
    require_device(device)
    if out.suffix != PROFILE_SUFFIX:
        raise UserError(f"--out {out}: expected a {PROFILE_SUFFIX} file")
    base = EngineSpec(target=pair, drafter=drafter, device=device)
    models = load_models(base)
    folder = checkpoint_folder(pair)
    if folder is None or models.facts.num_drafter_parameters == 0:
        raise UserError(f"pair '{pair}' has no trained drafter; pass a shipped pair or a pair folder")
    is_own = prompts == "held-out"
    number = num_prompts or (count_prompts(folder / "prompts.jsonl") if is_own else SET_PROMPTS)
    asked = WorkloadSpec(prompts=prompts, num_requests=number, max_new_tokens=max_new_tokens)
    workload = build_workload(asked, models.target.shape, folder, 0)
    truth = answers(base, models, workload.measured, concurrency)
    requests = [request for request in workload.measured if num_places(request, truth)]
    lengths = torch.tensor([num_places(request, truth) for request in requests])
    if not requests:
        raise UserError("every answer ended with its first token: nothing was drafted; raise --max-new-tokens")
    echo(f"answers: {len(requests)}, tokens of their rounds: {int(lengths.sum())}")
    ranks, log_probs = record_blocks(base, models, requests, truth, concurrency)
    echo(f"blocks: {ranks.shape[0] * ranks.shape[1]} of {ranks.shape[2]} drafted positions")
    measured = _lengths(base, models, requests, concurrency, echo)
    card = ProfileCard(
        command=command,
        recorded_at=datetime.now(UTC).date().isoformat(),
        pair=models.facts.target,
        target_digest=models.facts.target_digest,
        drafter_digest=models.facts.drafter_digest,
        block_size=models.drafter.shape.block_size,
        dtype=base.dtype,
        prompts=prompts,
        prompts_digest=sha256_of(folder / "prompts.jsonl") if workload.card is None else workload.card.set_digest,
        num_prompts=len(requests),
        kinds=dict(sorted(Counter(request.kind for request in requests).items())),
        max_new_tokens=max_new_tokens,
        num_tokens=int(lengths.sum()),
        software=software(device),
        acceptance_lengths={arm: round(length, 4) for arm, length in measured.items()},
    )
    write_blocks(out, summarize_blocks(lengths, ranks, log_probs, card))
    blocks = read_blocks(str(out))
    echo(f"{out}: {out.stat().st_size / 1000:.0f} kB, {blocks.digest}\n\n{by_depth(blocks)}\n")
    oracle = base.model_copy(update={"draft": "oracle", "oracle_profile": str(out)})
    replayed = _lengths(oracle, models, requests, concurrency, echo, truth)
    echo(f"\n{table(measured, replayed)}")


def num_places(request: Request, truth: Truth) -> int:
    """Anchor positions of an answer: its tokens up to the stop, less the last, after which nothing is drafted."""
    said = truth[request.request_id][: request.max_new_tokens]
    return next((place for place, token in enumerate(said) if token in request.stop_token_ids), len(said) - 1)


def answers(base: EngineSpec, models: Models, requests: Sequence[Request], concurrency: int) -> dict[int, list[int]]:
    """What the target says to each request, and what a block at the last position looks ahead at, stop or not."""
    horizon = models.drafter.shape.block_size - 1
    longer = [replace(r, max_new_tokens=r.max_new_tokens + horizon, stop_token_ids=()) for r in requests]
    engine = Engine(base.model_copy(update=ARMS["ar"]), models)
    return {done.request_id: list(done.tokens) for done in engine.run(longer, concurrency)}


@torch.inference_mode()
def record_blocks(
    base: EngineSpec, models: Models, requests: Sequence[Request], truth: Truth, concurrency: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> ranks of the true tokens [R, T, L] int64 and the best log-probabilities [R, T, L, K] float32."""
    engine = Engine(base.model_copy(update=ARMS["chain"]), models)
    parts = [
        _record_some(engine, requests[first : first + concurrency], truth)
        for first in range(0, len(requests), concurrency)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _record_some(engine: Engine, requests: Sequence[Request], truth: Truth) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of requests that fit in one batch."""
    parts = engine.parts
    assert isinstance(parts, SpeculativeParts)
    horizon, most = engine.setting.facts.block_size - 1, requests[0].max_new_tokens - 1
    said = torch.tensor([truth[request.request_id] for request in requests], device=engine.setting.device)
    texts = [replace(r, prompt=(*r.prompt, *truth[r.request_id][:most])) for r in requests]
    batch = engine.new_batch(texts, len(texts))
    for row, request in enumerate(texts):
        batch.admit(row, engine.prefill(batch, row, request))
    engine.materialize_prompts(batch)
    batch.update_bound()
    begin = torch.tensor([len(request.prompt) for request in requests], device=said.device)
    ranks, best = [], []
    for place in reversed(range(most)):
        batch.lengths.copy_(begin + place)
        batch.anchors.copy_(said[:, place])
        given = parts.draft(batch).log_softmax(-1)  # [R, L, V]
        true = given.gather(2, said[:, place + 1 : place + 1 + horizon, None])  # [R, L, 1]
        ranks.append((given > true).sum(2).cpu())
        best.append(given.topk(min(NUM_RANKS, given.shape[2] - 1), dim=2).values.cpu())
    return torch.stack(ranks[::-1], dim=1), torch.stack(best[::-1], dim=1)


def _lengths(
    base: EngineSpec,
    models: Models,
    requests: Sequence[Request],
    concurrency: int,
    echo: Report,
    truth: Truth | None = None,  # for an oracle
) -> dict[str, float]:
    """Tokens per round by arm, all requests pooled; the first token, which the prefill gives, belongs to no round."""
    lengths = {}
    for arm, spec in arm_specs(base).items():
        if spec.draft != base.draft:  # an arm without a drafter, of which a profile says nothing
            continue
        finished = Engine(spec, models, continuations=truth).run(requests, concurrency)
        lengths[arm] = sum(len(done.tokens) - 1 for done in finished) / sum(done.num_rounds for done in finished)
        echo(f"{'pair' if truth is None else 'oracle'}, {arm}: {lengths[arm]:.4f} tokens per round")
    return lengths


def by_depth(blocks: RecordedBlocks) -> str:
    """Per drafted position, whatever came before it: how sure the drafter was, and which rank held the truth."""
    spans = {"rank 1": (0, 1), "2": (1, 2), "3-8": (2, 8), "9-32": (8, 32), "beyond": (32, 256)}
    lines = [f"{'position':<10}{'confidence':>12}" + "".join(f"{title:>10}" for title in spans)]
    is_place = torch.arange(blocks.ranks.shape[1]) < blocks.lengths[:, None]  # [R, T]
    for depth, law in enumerate(blocks.probabilities):
        ranks, levels = (values[:, :, depth][is_place].long() for values in (blocks.ranks, blocks.levels))
        shares = [float(((ranks >= low) & (ranks < high)).float().mean()) for low, high in spans.values()]
        confidence = float(law[levels, 0].mean())
        lines.append(f"{depth + 1:<10}{confidence:>12.3f}" + "".join(f"{share:>10.3f}" for share in shares))
    return "\n".join(lines)


def table(measured: Mapping[str, float], replayed: Mapping[str, float]) -> str:
    """Acceptance lengths of the pair and of its oracle, arm by arm."""
    lines = [f"{'acceptance length':<20}{'pair':>9}{'oracle':>9}{'off by':>9}"]
    for arm, length in measured.items():
        lines.append(f"{arm:<20}{length:>9.4f}{replayed[arm]:>9.4f}{replayed[arm] / length - 1:>+9.1%}")
    return "\n".join(lines)
