"""What would make every case of a plan end in the same error is said before the first one starts.

Between the plan and the run folder: prompts, context length, concurrency, memory, the oracle's profile, and the
checkpoint's files, each looked at once per pair of models and workload. What only a running case can find stays that
case's own failure.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch
from torch import nn

from ddbench.engine.profiles import profile_digest
from ddbench.engine.types import CaseFacts, Request
from ddbench.errors import UserError, did_you_mean
from ddbench.harness.plan import Plan
from ddbench.harness.workload import build_workload, check_source
from ddbench.models.drafter import Drafter
from ddbench.models.shapes import DRAFTERS
from ddbench.models.target import Target
from ddbench.models.weights import PairShapes, check_files, is_made_on_device, pair_shapes
from ddbench.spec import Case, EngineSpec

GIB = 2**30


def check_requests(plan: Plan) -> None:
    """Raise the UserError of the first case that cannot run as it was asked for."""
    pairs: dict[tuple[str, ...], PairShapes] = {}
    prompts: dict[tuple[str, int, str], tuple[Request, ...]] = {}
    for spec in dict.fromkeys(case.workload for case in plan.cases):
        check_source(spec)  # before any weights are read
    for engine in dict.fromkeys(case.engine for case in plan.cases):
        profile_digest(engine)  # reads all of a recorded profile
    for case in plan.cases:
        key = _models_key(case.engine)
        if key not in pairs:
            pairs[key] = _checked_pair(case.engine)
        pair, num_warmup = pairs[key], case.capture.num_warmup_requests
        asked = (case.workload.digest(), num_warmup, case.engine.target)
        if asked not in prompts:
            workload = build_workload(case.workload, pair.target, pair.folder, num_warmup)
            prompts[asked] = (*workload.measured, *workload.warmup)
        _check_case(case, pair, prompts[asked])


def _models_key(engine: EngineSpec) -> tuple[str, ...]:
    """What decides which weights are read, and how much memory they take."""
    return (engine.target, engine.drafter or "", engine.dtype, engine.experts)


def _checked_pair(engine: EngineSpec) -> PairShapes:
    """The shapes, after the memory that they need and, of a checkpoint, after every tensor of it."""
    pair = pair_shapes(engine)
    if pair.folder is None and pair.drafter is None:
        raise UserError(
            f"target '{engine.target}' has no drafter shape, and random weights are made in pairs: "
            f"{did_you_mean(engine.target, DRAFTERS)}"
        )
    _check_memory(engine, pair)
    if pair.folder is not None:
        check_files(engine)
    return pair


def _check_memory(engine: EngineSpec, pair: PairShapes) -> None:
    """Weights are made or read in host memory, floats in four bytes each; large random ones, and those of published
    folders, on the device itself.
    """
    name = engine.target
    try:
        with torch.device("meta"):
            modules: tuple[nn.Module, ...] = (Target(pair.target),)
            if pair.drafter is not None:
                modules += (Drafter(pair.drafter, pair.target.max_context),)
    except RuntimeError as error:
        raise UserError(f"target '{name}': its shape is impossible: {str(error).splitlines()[0]}") from error
    is_direct = pair.is_streamed or (pair.folder is None and is_made_on_device(pair.target, engine.device))
    if is_direct and engine.device == "cuda":
        needed, there = device_bytes(modules, engine), torch.cuda.get_device_properties(0).total_memory
        where, advice = "GPU memory", "use experts=packed, dtype=bfloat16 or a smaller target"
    else:
        tensors = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
        needed = device_bytes(modules, engine) if is_direct else sum(tensor.nbytes for tensor in tensors)
        there = psutil.virtual_memory().total
        where, advice = "host memory", "use a smaller target"
    if needed > there:
        raise UserError(
            f"target '{name}': loading its weights takes {needed / GIB:.0f} GiB of {where}, "
            f"this machine has {there / GIB:.0f} GiB: {advice}"
        )


def device_bytes(modules: Sequence[nn.Module], engine: EngineSpec) -> int:
    """Memory of the weights as the engine holds them, no caches: an unpacked word of INT4 is eight floats."""
    size = 4 if engine.dtype == "float32" else 2
    total = 0
    for module in modules:
        total += sum(size * parameter.numel() for parameter in module.parameters())
        for name, buffer in module.named_buffers():
            is_unpacked = name.endswith("_packed") and engine.experts == "dequantized"
            total += 8 * size * buffer.numel() if is_unpacked else buffer.nbytes
    return total


def _check_case(case: Case, pair: PairShapes, requests: Sequence[Request]) -> None:
    facts = CaseFacts(case.engine, pair.target, pair.drafter)
    num_requests, concurrency = case.workload.num_requests, case.workload.concurrency
    if concurrency > num_requests:
        raise UserError(
            f"concurrency {concurrency} is never reached by {num_requests} requests: "
            f"lower it, or --set num_requests={concurrency}"
        )
    horizon = facts.block_size - 1
    if case.engine.draft == "oracle" and 0 < len(case.engine.oracle_quality) < horizon:
        raise UserError(
            f"oracle_quality: expected {horizon} values in 0..1, one per drafted position, "
            f"got {len(case.engine.oracle_quality)}: --set oracle_quality={'+'.join(['0.8'] * horizon)}, "
            "or leave it out for a recorded oracle_profile"
        )
    longest, room = max(len(request.prompt) for request in requests), pair.target.max_context
    beside = case.workload.max_new_tokens + facts.rows_in_flight
    rows = longest + beside
    if rows > room:
        num_long = sum(len(request.prompt) + beside > room for request in requests)
        raise UserError(
            f"{case.label}: {longest} prompt tokens + {case.workload.max_new_tokens} new + {facts.rows_in_flight} in "
            f"flight = {rows}, more than the context of '{pair.target.name}' ({room}), for "
            f"{num_long} of {len(requests)} prompts: lower max_new_tokens or node_budget, or take shorter prompts"
        )
