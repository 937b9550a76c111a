"""What a case's result says besides its rows: models, floors, paths, warnings, memory, time.

Functions of what a case observed; called once, after its passes.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from ddbench.engine.profiles import profile_digest
from ddbench.engine.stages import ROUND_STAGES
from ddbench.engine.types import CaseFacts
from ddbench.errors import DdbenchError
from ddbench.harness.costs import stage_costs
from ddbench.harness.observe import PassRows, count, typical_round
from ddbench.models.weights import DRAFTERLESS, Models
from ddbench.records import (
    BUSY_HOST,
    Acceptance,
    ExpertUse,
    ModelCard,
    NotMeasured,
    PassSummary,
    PromptCard,
    StageCost,
)
from ddbench.spec import PART_FIELDS, UNUSED, Case, EngineSpec

REPETITIVE = 0.5  # share of repeated 4-grams from which an output counts as degenerate
SETTLED = 0.05  # a warm-up run that gains less on the one before it ends the warm-up
COLD = 0.15  # the clean pass took so much longer than the attributed one: it paid for first uses
FEW_ROUNDS = 20  # too few to say that a draft never helps


@dataclass(frozen=True, slots=True)
class Observed:
    """One pass: its summary, its rows, and the tokens of every request."""

    summary: PassSummary
    rows: PassRows
    outputs: dict[int, tuple[int, ...]]


def model_card(spec: EngineSpec, models: Models) -> ModelCard:
    """Which weights ran, and what an acceptance length of theirs is worth."""
    facts, has_drafter = models.facts, spec.draft not in DRAFTERLESS
    shape = models.drafter.shape
    return ModelCard(
        target=facts.target,
        target_digest=facts.target_digest,
        drafter=facts.drafter if has_drafter else UNUSED,
        drafter_digest=facts.drafter_digest if has_drafter else UNUSED,
        block_size=None if spec.draft == UNUSED else CaseFacts(spec, models.target.shape, shape).block_size,
        trained_block_size=shape.block_size if has_drafter else None,
        acceptance=_acceptance(spec, facts.has_trained_weights),
        num_target_parameters=facts.num_target_parameters,
        num_drafter_parameters=facts.num_drafter_parameters if has_drafter else 0,
    )


def _acceptance(spec: EngineSpec, has_trained_weights: bool) -> Acceptance:
    special: dict[str, Acceptance] = {UNUSED: "none", "oracle": "replayed", "random": "random_drafter"}
    return special.get(spec.draft, "measured" if has_trained_weights else "random_weights")


def case_costs(
    case: Case, models: Models, observed: Sequence[Observed], expert_use: ExpertUse | NotMeasured
) -> tuple[StageCost, ...]:
    """Floors of the stages that were seen, for the typical round of the clean pass."""
    spec, clean = case.engine, observed[0].rows
    if not clean.rounds:
        return ()
    drafter = models.drafter.shape
    block = 0 if spec.draft in DRAFTERLESS else (spec.block_size or drafter.block_size)
    sampled = {sample.stage for one in observed for sample in one.rows.stages}
    return stage_costs(
        models.target.shape,
        drafter,
        typical_round(clean, block),
        element_bytes=models.target.embedding.weight.element_size(),
        is_packed=spec.experts == "packed",
        stages=sampled or {stage.value for stage in ROUND_STAGES},
        expert_use=expert_use,
    )


def path_used(spec: EngineSpec, observed: Sequence[Observed]) -> dict[str, str]:
    """What ran. A part that took another path than the one asked for must not go by the other's name."""
    reported: Mapping[str, str] = {part: name for one in observed for part, name in one.rows.paths.items()}
    for part, name in reported.items():
        asked = getattr(spec, part) if part in PART_FIELDS else name
        if name != asked:
            raise DdbenchError(f"{part}: '{asked}' was asked for, '{name}' ran: not measured under its name")
    return {part: getattr(spec, part) for part in PART_FIELDS} | dict(reported)


def has_settled(warmup_ns: Sequence[int]) -> bool:
    """The last warm-up run took about as long as the one before it, or longer."""
    return len(warmup_ns) > 1 and warmup_ns[-1] > (1 - SETTLED) * warmup_ns[-2]


def warnings_of(
    case: Case,
    card: ModelCard,
    observed: Sequence[Observed],
    warmup_ns: Sequence[int] = (),
    prompts: PromptCard | None = None,
) -> tuple[str, ...]:
    """What a reader of the numbers has to know."""
    clean, counters = observed[0], count(observed[0].rows)
    never_helped = counters["num_rounds"] >= FEW_ROUNDS and not counters["tokens_accepted"]
    texts = {
        "the passes of this case emitted different tokens": any(one.outputs != clean.outputs for one in observed),
        "no drafted token was ever accepted: the draft does nothing": card.acceptance == "measured" and never_helped,
        "random weights: the acceptance length means nothing": card.acceptance == "random_weights",
        f"acceptance is replayed: {replayed_from(case.engine)}": card.acceptance == "replayed",
        "prompts are random token ids: acceptance and expert use are not those of real text": (
            case.workload.prompts == "random"
        ),
        "stop tokens were ignored": case.workload.ignore_stop,
        "more than half of the output repeats itself: acceptance is flattered": (
            counters["tokens_repeated"] > REPETITIVE * counters["tokens_emitted"]
        ),
    }
    applying = [text for text, applies in texts.items() if applies]
    return (
        *applying,
        *_plain_ops(clean.rows.paths),
        *_prompt_warnings(card, prompts),
        *_warmth_warnings(observed, warmup_ns),
        *_load_warnings(observed),
    )


def replayed_from(spec: EngineSpec) -> str:
    """Whose acceptance an oracle draft replays."""
    if spec.oracle_quality:
        return "the oracle_quality asked for"
    digest = profile_digest(spec)
    return f"the recorded profile '{Path(spec.oracle_profile).name}'" + (f" ({digest})" if digest else "")


def _plain_ops(paths: Mapping[str, str]) -> Iterator[str]:
    """Ops that did not run as the set of kernels that the case is called by."""
    for part, path in sorted(paths.items()):
        if part.startswith("kernels."):
            op = part.removeprefix("kernels.")
            yield f"{op} ran in plain {path}: kernels '{paths['kernels']}' have nothing for what this case needs"


def _prompt_warnings(card: ModelCard, prompts: PromptCard | None) -> list[str]:
    """What standard prompts are to this target."""
    if prompts is None:
        return []
    texts = []
    name, target = prompts.name, card.target
    if prompts.is_foreign:
        texts.append(f"prompts of {name} are foreign text to {target}, which has its own kind and no chat template")
    elif prompts.framing == "plain":
        texts.append(f"prompts of {name} are plain text that {target} goes on with: it has no chat template")
    if prompts.turns == "first":
        texts.append(f"of {name} only the first turn is asked")
    if prompts.split != "test":
        texts.append(f"prompts of {name} for choosing settings are among these: report on the test split")
    return texts


def _warmth_warnings(observed: Sequence[Observed], warmup_ns: Sequence[int]) -> list[str]:
    """A pass with stage timers costs more than one without: where it was faster, the clean one was not warm."""
    texts = []
    if warmup_ns and not has_settled(warmup_ns):
        texts.append(f"the warm-up was still getting faster after {len(warmup_ns)} runs")
    clean, timed = observed[0].summary, observed[-1].summary
    if timed.pass_name == "attributed" and timed.wall_ns < (1 - COLD) * clean.wall_ns:
        gain = 1 - timed.wall_ns / clean.wall_ns
        texts.append(
            f"the pass with stage timers took {gain:.0%} less than the clean one, which was not warm: "
            "raise num_rehearsals or num_clean_passes"
        )
    return texts


def _load_warnings(observed: Sequence[Observed]) -> list[str]:
    texts = []
    for one in observed:
        load = one.summary.load
        shares = [share for share in (load.host_load_before, load.host_load_after) if isinstance(share, float)]
        if shares and max(shares) > BUSY_HOST:
            name = one.summary.pass_name
            texts.append(f"other processes kept {max(shares):.0%} of the CPUs busy around the {name} pass")
    return texts


def peak_memory_bytes(spec: EngineSpec) -> int:
    """Highest use by this process: of device memory on a GPU, of resident memory on the CPU."""
    if spec.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def process_seconds() -> float:
    """Age of this process."""
    return round(time.time() - psutil.Process().create_time(), 3)
