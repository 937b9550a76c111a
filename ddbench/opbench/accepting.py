"""Acceptance and commit: the greedy posterior, the walk down the tree, the cut, the accepted rows' move, a round's end.

Letters: B batch rows, N node slots, L draft horizon, V vocabulary, Y layers, S cache rows, W elements of a row.
"""

from __future__ import annotations

from typing import Any

import torch

from ddbench.kernels.accept_walk import accept_walk, truncate
from ddbench.kernels.advance import advance
from ddbench.kernels.commit_kv import commit_kv
from ddbench.opbench.drafting import build_tree
from ddbench.opbench.records import Target
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place, Shape, Tensors, Tier, plain
from ddbench.opbench.trees import HORIZON
from ddbench.opbench.triton_calls import launch, launcher, triton_kernel
from ddbench.ops import OPS

QUICK_LAUNCH = (Target(metric="time_us", limit=10.0), Target(metric="launches", limit=1))
CONTEXT = 512  # committed rows of the first request; another set of inputs moves rows further on
ROWS, SLOTS = 1152, 24  # of a cache; of them those that one set of inputs moves between
COMMIT_SETS = (ROWS - CONTEXT) // SLOTS

# ----------------------------------------------------------------------------------------------------------------- walk


def build_walk(place: Place, seed: int, *, batch: int, nodes: int, vocab: int) -> Inputs:
    """Full trees, and posteriors that follow the first child of a node three times in four."""
    tree = build_tree(place, seed, batch=batch, nodes=nodes, vocab=vocab)
    tokens, parents = tree["tokens"].cpu(), tree["parents"].cpu()
    tokens[:, 1:] = torch.arange(nodes)  # siblings differ
    posterior = torch.full_like(tokens, vocab - 1)
    agrees = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < 0.75
    for i in range(nodes, 0, -1):
        parent = parents[:, i : i + 1]
        here = posterior.gather(1, parent)
        posterior.scatter_(1, parent, torch.where(agrees[:, i : i + 1], tokens[:, i : i + 1], here))
    moved = {"tokens": tokens, "parents": parents, "posterior": posterior}
    return {name: value.to(place.device) for name, value in moved.items()} | {
        "num_nodes": tree["num_nodes"],
        "horizon": HORIZON,
    }


def build_cut(place: Place, seed: int, **dims: int) -> Inputs:
    """The walk's inputs, two stop ids and what a request may still emit."""
    batch = dims["batch"]
    stop_ids = torch.tensor([dims["vocab"] - 2, -1], device=place.device).repeat(batch, 1)
    return build_walk(place, seed, **dims) | {
        "stop_ids": stop_ids,
        "remaining": torch.full((batch,), 100, device=place.device),
    }


def _walk_and_cut(inputs: Inputs) -> Any:
    walked = {name: value for name, value in inputs.items() if name not in ("stop_ids", "remaining")}
    path, num_accepted, emitted, num_emitted = accept_walk(**walked)
    return path, num_accepted, emitted, *truncate(emitted, num_emitted, inputs["stop_ids"], inputs["remaining"])


def _cut_cost(inputs: Inputs) -> dict[str, int]:
    walked = {name: value for name, value in inputs.items() if name not in ("stop_ids", "remaining")}
    own = OPS["accept_walk"].cost(**walked)
    batch = inputs["tokens"].shape[0]
    return own | {"bytes": own["bytes"] + 8 * inputs["stop_ids"].numel() + 8 * batch + batch}


def build_target_logits(place: Place, seed: int, *, batch: int, nodes: int, vocab: int) -> Inputs:
    """The target's logits at every node, [B, N, V]."""
    return {"logits": place.randn(place.generator(seed), batch, nodes + 1, vocab, scale=3.0)}


def _argmax_cost(inputs: Inputs) -> dict[str, int]:
    logits = inputs["logits"]
    written = 8 * logits.shape[0] * logits.shape[1]
    return {"bytes": logits.numel() * logits.element_size() + written, "flops": logits.numel()}


# --------------------------------------------------------------------------------------------------------------- commit


def build_commit(place: Place, seed: int, *, layers: int, batch: int, width: int, caches: int, accepted: int) -> Inputs:
    """Caches [Y, B, S, W]; every request accepts `accepted` nodes, none of which stands where it must."""
    generator = place.generator(seed)
    path = torch.full((batch, HORIZON + 1), -1)
    path[:, 0] = 0
    path[:, 1 : accepted + 1] = torch.arange(2, 2 + accepted) * 2
    return {
        "caches": [place.randn(generator, layers, batch, ROWS, width) for _ in range(caches)],
        "lengths": torch.full((batch,), CONTEXT, device=place.device),
        "path": path.to(place.device),
        "num_accepted": torch.full((batch,), accepted, device=place.device),
    }


def _other_rows(inputs: Inputs, index: int) -> Inputs:
    """The same caches, other rows."""
    assert index < COMMIT_SETS, f"set {index}: the caches have rows for {COMMIT_SETS}"
    return inputs | {"lengths": torch.full_like(inputs["lengths"], CONTEXT + index * SLOTS)}


def _triton_commit(inputs: Inputs) -> Call:
    run = launcher("commit_kv")
    arguments = tuple(inputs[name] for name in ("caches", "lengths", "path", "num_accepted"))
    return lambda: run(*arguments)


def _moved(inputs: Inputs, result: Any) -> Tensors:
    return {f"caches[{i}]": cache for i, cache in enumerate(inputs["caches"])}


# ------------------------------------------------------------------------------------------------------- end of a round


def build_advance(place: Place, seed: int, *, batch: int, nodes: int, vocab: int) -> Inputs:
    """A round in which every request emits nothing, or its lengths would grow from call to call and leave the context.

    What is read, computed and written is the same as for any other count.
    """
    generator, width = place.generator(seed), HORIZON + 1
    none = torch.zeros(batch, dtype=torch.int64, device=place.device)
    return {
        "path": place.integers(generator, nodes, batch, width),
        "num_accepted": none,
        "num_emitted": none.clone(),
        "emitted": place.integers(generator, vocab, batch, width),
        "finished": place.integers(generator, 2, batch) == 1,
        "num_nodes": torch.full((batch,), nodes, device=place.device),
        "scores": -8 * torch.rand(batch, nodes + 1, generator=generator, device=place.device),
        "tokens": place.integers(generator, vocab, batch, ROWS),
        "lengths": torch.full((batch,), CONTEXT, device=place.device),
        "remaining": torch.full((batch,), 100, device=place.device),
        "anchors": place.integers(generator, vocab, batch),
    }


def _advance_arguments(inputs: Inputs) -> Inputs:
    own = {name: value for name, value in inputs.items() if name not in ("num_nodes", "scores")}
    return own | {"tree": (inputs["num_nodes"], inputs["scores"])}


def _triton_advance(inputs: Inputs) -> Call:
    run, arguments = launcher("advance"), _advance_arguments(inputs)
    return lambda: run(**arguments)


def _torch_advance(inputs: Inputs) -> Call:
    arguments = _advance_arguments(inputs)
    return lambda: advance(**arguments)


def _advanced(inputs: Inputs, result: Any) -> Tensors:
    """Ids and counts of the report, which must be equal, apart from its only sum."""
    report, positions = result
    changed = {name: inputs[name] for name in ("tokens", "lengths", "remaining", "anchors")}
    return {"report": report[:, :-1].long(), "expected": report[:, -1], "positions": positions, **changed}


# ---------------------------------------------------------------------------------------------------------------- table


_Points = tuple[tuple[str, Tier, int, int, int], ...]  # name, tier, batch, nodes, vocabulary
WALKS: _Points = (
    ("n64-b1", "default", 1, 64, 163840),
    ("n64-b16", "default", 16, 64, 163840),
    ("nano-k2-n16-b1", "quick", 1, 16, 4096),
)
ROUND_ENDS: _Points = (
    ("kimi-k2.6-n64-b1", "default", 1, 64, 163840),
    ("kimi-k2.6-n64-b16", "default", 16, 64, 163840),
    ("nano-k2-n16-b1", "quick", 1, 16, 4096),
    ("nano-k2-n16-b16", "quick", 16, 16, 4096),
)


def _walk_shapes(targets: tuple[Target, ...] = (), points: _Points = WALKS) -> tuple[Shape, ...]:
    return tuple(
        Shape(
            name,
            f"{nodes} nodes + root, batch {batch}, V = {vocab}",
            tier,
            {"batch": batch, "nodes": nodes, "vocab": vocab},
            targets if batch == 16 else (),
        )
        for name, tier, batch, nodes, vocab in points
    )


def _commit_shape(name: str, words: str, tier: Tier, dims: dict[str, int], targets: tuple[Target, ...] = ()) -> Shape:
    about = f"{words}, batch {dims['batch']}, {dims['accepted']} rows of each request move"
    return Shape(name, about, tier, dims, targets)


K2_LATENT = {"layers": 61, "batch": 16, "width": 576, "caches": 1}
QWEN_KV = {"layers": 36, "batch": 16, "width": 1024, "caches": 2}
NANO_LATENT = {"layers": 6, "batch": 1, "width": 80, "caches": 1}

ACCEPTING = (
    BenchOp(
        name="greedy_posterior",
        build=build_target_logits,
        cost=_argmax_cost,
        oracle=lambda inputs: inputs["logits"].argmax(dim=-1),
        is_exact=True,
        implementations=(
            triton_kernel(launch("accept_walk", "greedy_posterior_triton")),
            Implementation("argmax", "torch", plain(lambda logits: logits.argmax(dim=-1))),
        ),
        shapes=_walk_shapes(),
    ),
    BenchOp(
        name="accept_walk",
        build=build_walk,
        cost=lambda inputs: OPS["accept_walk"].cost(**inputs),
        oracle=lambda inputs: accept_walk(**inputs),
        is_exact=True,
        implementations=(
            triton_kernel(launch("accept_walk")),
            Implementation("torch", "torch", plain(accept_walk)),
        ),
        shapes=_walk_shapes(QUICK_LAUNCH),
    ),
    BenchOp(
        name="accept_and_cut",
        build=build_cut,
        cost=_cut_cost,
        oracle=_walk_and_cut,
        is_exact=True,
        implementations=(
            triton_kernel(launch("accept_walk", "accept_and_cut_triton")),
            Implementation("torch", "torch", lambda inputs: lambda: _walk_and_cut(inputs)),
        ),
        shapes=_walk_shapes(QUICK_LAUNCH),
    ),
    BenchOp(
        name="commit_kv",
        build=build_commit,
        cost=lambda inputs: OPS["commit_kv"].cost(**inputs),
        oracle=lambda inputs: commit_kv(**inputs),
        results=_moved,
        another=_other_rows,
        is_exact=True,
        moves_inputs=True,
        is_shared=True,
        max_sets=COMMIT_SETS,
        implementations=(
            triton_kernel(_triton_commit),
            Implementation("torch", "torch", plain(commit_kv)),
        ),
        shapes=(
            _commit_shape("kimi-k2.6-b16-a7", "61 layers x 576", "default", {**K2_LATENT, "accepted": 7}, QUICK_LAUNCH),
            _commit_shape("kimi-k2.6-b16-a3", "61 layers x 576", "default", {**K2_LATENT, "accepted": 3}, QUICK_LAUNCH),
            _commit_shape("qwen3-8b-b16-a3", "36 layers, K and V x 1024", "full", {**QWEN_KV, "accepted": 3}),
            _commit_shape("nano-k2-b1-a3", "6 layers x 80", "quick", {**NANO_LATENT, "accepted": 3}),
        ),
    ),
    BenchOp(
        name="advance",
        build=build_advance,
        cost=lambda inputs: OPS["advance"].cost(**_advance_arguments(inputs)),
        oracle=lambda inputs: advance(**_advance_arguments(inputs)),
        results=_advanced,
        implementations=(
            triton_kernel(_triton_advance),
            Implementation("torch", "torch", _torch_advance),
        ),
        shapes=_walk_shapes(QUICK_LAUNCH, ROUND_ENDS),
    ),
)
