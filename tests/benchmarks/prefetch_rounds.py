"""What asking for weights ahead does to whole rounds of SmolLM2-135M: medians on the device, by tokens of a round.

    PYTHONPATH=. python tests/benchmarks/prefetch_rounds.py [NODES@CONCURRENCY ...]

Needs a GPU that is asked (`kernels/prefetch_triton.py`) and `ddbench models fetch smollm2-135m`. Every size is recorded
and run with nothing asked for, with the drafter's weights alone, the target's alone, and both, for however many tokens:
a branch in a round's graph may cost what has no part in it. Microseconds: the round from its clean pass, draft and
verify from events inside the graph.
"""

import sys
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.engine.engine import Engine
from ddbench.engine.stages import Stage
from ddbench.harness.capture import CleanProbe, StageProbe
from ddbench.harness.workload import build_workload
from ddbench.models.prefetch import Prefetch
from ddbench.models.weights import Models, load_models
from ddbench.spec import ARMS, EngineSpec, WorkloadSpec

SIZES = ("16@1", "64@1", "128@1", "8@16", "15@16", "256@1", "512@1", "32@16", "64@16")
VARIANTS = {"nothing": (False, False), "drafter": (True, False), "target": (False, True), "both": (True, True)}
DRIVEN = {"executor": "round_graph", "tree_build": "device", "attention": "tree_triton", "prefill": "graph"}


def spec_of(nodes: int) -> EngineSpec:
    given = {**ARMS["ddtree"], **DRIVEN, "kernels": "triton", "dtype": "bfloat16", "device": "cuda"}
    return EngineSpec(**{"target": "smollm2-135m", **given, "node_budget": nodes})


def allowed(prefetch: Prefetch, is_allowed: bool) -> Callable[..., bool]:
    """Asks where a forward of one token would, or nowhere: the limit of tokens is what is in question."""
    usual = type(prefetch).is_wanted
    return lambda num_tokens, **options: is_allowed and usual(prefetch, 1, **options)


def measured(models: Models, nodes: int, concurrency: int, asks: tuple[bool, bool]) -> list[float]:
    """Median microseconds of a round, of its draft and of its verify."""
    workload = WorkloadSpec(
        prompts="random", prompt_tokens=200, num_requests=2 * concurrency, max_new_tokens=40, concurrency=concurrency
    )
    requests = build_workload(workload, models.target.shape, models.folder, 0).measured
    engine = Engine(spec_of(nodes), models)
    for model, is_allowed in zip((models.drafter, models.target), asks, strict=True):
        model.prefetch.is_wanted = allowed(model.prefetch, is_allowed)  # type: ignore[method-assign]
    engine.reserve(requests, concurrency, times_stages=True)
    for _ in range(2):
        clean, timed = CleanProbe(), StageProbe("cuda")
        engine.run(requests, concurrency, clean)
        engine.run(requests, concurrency, timed)
    full = {step for step, (_, size) in enumerate(timed.round_starts) if size == concurrency}
    samples = [one for one in timed.stage_samples() if one.step != OUTSIDE_ROUNDS and one.step in full]
    stages = [[one.duration_ns for one in samples if one.stage == stage] for stage in (Stage.DRAFT, Stage.VERIFY)]
    whole = [out.replayed_ns for _, out in clean.commits if out.replayed_ns and len(out.request_ids) == concurrency]
    engine.release()
    return [median(values) / 1000 for values in (whole, *stages)]


@torch.inference_mode()
def main(sizes: tuple[str, ...]) -> None:
    table = Table("nodes", "concurrency", "tokens", "us", *VARIANTS)
    models = load_models(spec_of(8))
    for nodes, concurrency in (map(int, size.split("@")) for size in sizes):
        found = [measured(models, nodes, concurrency, asks) for asks in VARIANTS.values()]
        for name, values in zip(("round", "draft", "verify"), zip(*found, strict=True), strict=True):
            size = (str(nodes), str(concurrency), str((nodes + 1) * concurrency)) if name == "round" else ("", "", "")
            table.add_row(*size, name, *(f"{value:.0f}" for value in values))
    Console().print(table)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or SIZES)
