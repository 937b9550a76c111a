"""`ddbench check`: is what would be measured correct here, on this machine and these library versions?

Four suites: every implementation of every op against its specification; every variant of every part, greedy, against
plain decoding; the law of sampled output against the target's, with a wrong rule that has to be caught; what an oracle
accepts against the pair that its profile was recorded from. Nothing is timed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddbench.engine.distribution_check import DistributionCheck, MinRatioSampler, check_distribution
from ddbench.engine.engine import Engine
from ddbench.engine.parts import PARTS, absence, supports
from ddbench.engine.profiles import SHIPPED, read_blocks
from ddbench.engine.types import Request
from ddbench.harness.parity import Outputs, autoregressive_outputs, compare, next_token_logits, outputs_of
from ddbench.harness.replay import TOLERANCE, replayed_lengths
from ddbench.models.weights import Models, checkpoint_folder, load_models
from ddbench.ops import OPS, SIZES, check_op, why_not
from ddbench.spec import ARMS, Device, EngineSpec
from ddbench.units import listed

PARITY_TARGETS = ("tiny-gqa", "tiny-mla-moe", "nano-k2")
NEEDS_WEIGHTS = ("nano-k2",)  # checked with its trained weights or not at all
CONCURRENCIES = (1, 4)
PROMPT_LENGTHS = (3, 17, 8, 1, 12)  # unequal, and one more than the largest concurrency: rows are handed over
NEW_TOKENS = 20
NODE_BUDGET = 10
ORACLE_QUALITY = (0.8,) * 63  # some accepted, some rejected, at any block size


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    suite: str
    subject: str
    status: Literal["ok", "failed", "skipped"]
    detail: str = ""


def run_checks(only: str | None, device: Device) -> Iterator[Row]:
    """All suites or one of them, row by row as they finish."""
    for name, suite in SUITES.items():
        if only in (None, name):
            yield from suite(device)


# --------------------------------------------------------------------------------------------------------------- ops


def check_ops(device: Device) -> Iterator[Row]:
    """Every implementation on every kind of input."""
    for op in OPS.values():
        for implementation in op.implementations:
            reason = why_not(op, implementation, device)
            if reason is not None:
                yield Row("ops", f"{op.name} {implementation}", "skipped", reason)
                continue
            checks = [check_op(op, implementation, size, device=device) for size in SIZES]
            wrong = [f"{check.size}: {check.detail}" for check in checks if not check.ok]
            worst = max(check.error for check in checks)
            detail = "; ".join(wrong) or f"{len(checks)} inputs, largest relative error {worst:.1e}"
            yield Row("ops", f"{op.name} {implementation}", "failed" if wrong else "ok", detail)


# ------------------------------------------------------------------------------------------------------------ parity


def check_parity(device: Device, targets: Sequence[str] = PARITY_TARGETS) -> Iterator[Row]:
    """Every arm and every variant in FP32 against plain decoding, alone and batched, prompts of unequal length.

    On a GPU they run Triton kernels, the arms plain torch ones as well, and what is expected comes from the latter.
    An engine sets the kernels of its models for good: each is built when those before it have done their work.
    """
    for subject, reason in out_of_reach(device).items():
        yield Row("parity", subject, "skipped", reason)
    for target in targets:
        if target in NEEDS_WEIGHTS and checkpoint_folder(target) is None:
            yield Row("parity", target, "skipped", "its trained weights are not in this installation")
            continue
        plain = EngineSpec(target=target, device=device, node_budget=NODE_BUDGET, oracle_quality=ORACLE_QUALITY)
        models = load_models(plain)
        requests = _requests(models)
        expected = autoregressive_outputs(plain, models, requests)
        for subject, spec in checked_specs(plain, models).items():
            yield _parity_row(f"{target} {subject}", spec, models, requests, expected)


def out_of_reach(device: Device) -> dict[str, str]:
    """What a device cannot run, and why: `attention=tree_triton`, `kernels=triton`."""
    choices = [(field, name) for field, table in PARTS.items() for name in table] + [("kernels", "triton")]
    specs = {f"{field}={name}": EngineSpec.model_validate({"device": device, field: name}) for field, name in choices}
    return {subject: reason for subject, spec in specs.items() if (reason := absence(spec)) is not None}


def checked_specs(plain: EngineSpec, models: Models) -> dict[str, EngineSpec]:
    """What is checked on the plain spec's device."""
    if plain.device == "cpu":
        return dict(variants(plain, models))
    found = dict(variants(plain.model_copy(update={"kernels": "triton"}), models))
    graphs = {"kernels": "triton", "attention": "tree_triton", "executor": "round_graph"}
    for arm, pins in ARMS.items():
        found[f"{arm} kernels=torch"] = plain.model_copy(update=pins)
        found[f"{arm} in one graph"] = plain.model_copy(update={"tree_build": "device", **graphs, **pins})
    return found


def variants(base: EngineSpec, models: Models) -> Mapping[str, EngineSpec]:
    """Every arm, and every variant in the first arm that it can serve in; stochastic sampling has its own suite.

    Variants that the base's device cannot run are left out.
    """
    found = {arm: base.model_copy(update=pins) for arm, pins in ARMS.items()}
    for field, table in PARTS.items():
        for name in table:
            if absence(base.model_copy(update={field: name})) is not None:
                continue
            candidates = [base.model_copy(update={**ARMS[arm], field: name}) for arm in ("ddtree", *ARMS)]
            served = [spec for spec in candidates if not _reason_against(spec, models)]
            assert served, f"{field}={name} serves in no arm"
            if (field, name) != ("sampling", "stochastic") and served[0] not in found.values():
                found[f"{field}={name}"] = served[0]
    return found


def _reason_against(spec: EngineSpec, models: Models) -> str | None:
    return supports(spec, models.target.shape, models.drafter.shape)


def _requests(models: Models) -> list[Request]:
    rng = random.Random(0)
    vocab = models.target.shape.vocab
    return [
        Request(index, tuple(rng.randrange(vocab) for _ in range(length)), NEW_TOKENS, prompt_id=f"random-{index}")
        for index, length in enumerate(PROMPT_LENGTHS)
    ]


def _parity_row(subject: str, spec: EngineSpec, models: Models, requests: list[Request], expected: Outputs) -> Row:
    truth = {index: list(tokens) for index, tokens in expected.items()} if spec.draft == "oracle" else None
    engine = Engine(spec, models, continuations=truth)
    logits = next_token_logits(spec, models)
    for concurrency in CONCURRENCIES:
        got = outputs_of(engine, requests, concurrency)
        verdict = compare(spec, requests, expected, got, logits, "")
        if verdict.status != "identical":
            first = verdict.divergences[0]
            where = f"concurrency {concurrency}, {first.prompt_id}, token {first.position}"
            return Row("parity", subject, "failed", f"{where}: expected {first.expected}, got {first.got}")
    detail = f"{len(requests)} prompts x {NEW_TOKENS} tokens, concurrency {listed(CONCURRENCIES)}"
    return Row("parity", subject, "ok", detail)


# ------------------------------------------------------------------------------------------------------ distribution


def check_sampling(device: Device) -> Iterator[Row]:
    """Sampled output follows the target's law; a popular wrong acceptance rule must be found out. Runs on the CPU."""
    for arm in ("chain", "ddtree"):
        check = check_distribution(arm)
        is_ok = check.is_consistent and check.acceptance_length > 1
        yield Row("distribution", f"{arm} sampled", "ok" if is_ok else "failed", _describe(check))
    control = check_distribution("ddtree", sampler=MinRatioSampler)
    detail = f"{_describe(control)}: " + ("not noticed" if control.is_consistent else "noticed, as it must be")
    yield Row("distribution", "wrong rule min(1, p/q)", "failed" if control.is_consistent else "ok", detail)


def _describe(check: DistributionCheck) -> str:
    return f"z {check.z:.1f} over {check.num_draws} draws, total variation {check.total_variation:.3f}"


# ------------------------------------------------------------------------------------------------------------ replay


def check_replay(device: Device) -> Iterator[Row]:
    """Acceptance lengths of every shipped profile of blocks against those of its pair. Runs on the CPU."""
    for name, path in SHIPPED.items():
        if not path.is_file():
            yield Row("replay", name, "skipped", "its file is not in this installation")
            continue
        blocks = read_blocks(name)
        for arm, replayed in replayed_lengths(blocks).items():
            measured = blocks.card.acceptance_lengths[arm]
            off = replayed / measured - 1
            detail = f"acceptance length {replayed:.3f}, of the pair {measured:.3f}: {off:+.1%}"
            yield Row("replay", f"{name} {arm}", "ok" if abs(off) <= TOLERANCE else "failed", detail)


SUITES: dict[str, Callable[[Device], Iterator[Row]]] = {
    "ops": check_ops,
    "parity": check_parity,
    "distribution": check_sampling,
    "replay": check_replay,
}
