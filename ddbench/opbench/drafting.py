"""The draft without a model, the draft's top-k, the tree builder, both together, and the compiled tree.

`draft_topk_tree_build` is what the round pays between the drafter's logits and a tree on the device: our pair of
kernels, torch's, and the heap on the host with its copies out and back.
Letters: B batch rows, L draft horizon, V vocabulary, K candidates a position, N node slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ddbench.kernels.draft_topk import draft_topk
from ddbench.kernels.prompt_lookup import prompt_lookup
from ddbench.kernels.tree_build import HeapSearch, tree_build_levelwise
from ddbench.kernels.tree_compile import tree_compile
from ddbench.opbench.records import Target
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place, Shape, Tensors, plain
from ddbench.opbench.trees import HORIZON, random_parents
from ddbench.opbench.triton_calls import launch, launcher, triton_kernel, why_not_triton
from ddbench.ops import OPS

TopK = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
Build = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]

# ------------------------------------------------------------------------------------------------------- prompt lookup


def build_text(place: Place, seed: int, *, batch: int, horizon: int, vocab: int, context: int) -> Inputs:
    """Texts [B, S] in which what stands in the middle stands at the end again: a match of 3, and of L to follow it."""
    tokens = place.integers(place.generator(seed), vocab, batch, context + horizon + 1)
    tokens[:, context - 2 : context + 1] = tokens[:, context // 2 - 2 : context // 2 + 1]
    lengths = torch.full((batch,), context, device=place.device)
    sizes = {"horizon": horizon, "vocab": vocab, "context_bound": context}
    return {"tokens": tokens, "lengths": lengths, **sizes}


def _text_shape(name: str, batch: int, vocab: int, context: int) -> Shape:
    about = f"V = {vocab}, {HORIZON} rows, {context} tokens, batch {batch}"
    dims = {"batch": batch, "horizon": HORIZON, "vocab": vocab, "context": context}
    return Shape(name, about, "quick" if vocab < 10_000 else "default", dims)


# ---------------------------------------------------------------------------------------------------------------- top-k


def build_logits(place: Place, seed: int, *, batch: int, horizon: int, vocab: int, k: int) -> Inputs:
    """Logits [B, L, V] with the spread of a drafter that is fairly sure."""
    logits = place.randn(place.generator(seed), batch, horizon, vocab, scale=3.0)
    return {"logits": logits, "k": k}


def _torch_topk(inputs: Inputs) -> Call:
    """torch's own: which of equal logits it takes is left open, so only the log-probabilities can be checked."""
    logits, k = inputs["logits"], inputs["k"]

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        values, token_ids = logits.topk(k, dim=-1)
        return values.float() - logits.float().logsumexp(dim=-1, keepdim=True), token_ids

    return call


def _topk_results(inputs: Inputs, result: Any) -> Tensors:
    return {"log_probs": result[0], "token_ids": result[1]}


# ---------------------------------------------------------------------------------------------------------------- trees


def build_candidates(place: Place, seed: int, *, batch: int, horizon: int, vocab: int, k: int) -> Inputs:
    """What the top-k of such logits hands to the builder."""
    log_probs, token_ids = draft_topk(**build_logits(place, seed, batch=batch, horizon=horizon, vocab=vocab, k=k))
    return {"log_probs": log_probs, "token_ids": token_ids, "node_budget": k}


def _tree_results(inputs: Inputs, result: Any) -> Tensors:
    return dict(zip(("tokens", "parents", "depths", "scores", "num_nodes"), result, strict=True))


def _heap(sizes: Sequence[int], node_budget: int, device: torch.device) -> Build:
    """The host's search for candidates of `sizes` [B, L, K], one packed copy each way, through buffers that stay."""
    batch, horizon, k = sizes
    search = HeapSearch(batch, horizon, k, node_budget, device)

    def build(log_probs: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        search.fetch(log_probs, token_ids)
        if device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        search.search()
        return search.send()

    return build


def _heap_alone(inputs: Inputs) -> Call:
    log_probs, token_ids = inputs["log_probs"], inputs["token_ids"]
    search = _heap(log_probs.shape, inputs["node_budget"], log_probs.device)
    return lambda: search(log_probs, token_ids)


def _pair(topk: Callable[[], TopK], build: Callable[[], Callable[..., Any]]) -> Callable[[Inputs], Call]:
    def prepare(inputs: Inputs) -> Call:
        logits, k = inputs["logits"], inputs["k"]
        first, second = topk(), build()
        return lambda: second(*first(logits, k), k)

    return prepare


def _with_heap(topk: Callable[[], TopK]) -> Callable[[Inputs], Call]:
    def prepare(inputs: Inputs) -> Call:
        logits, k = inputs["logits"], inputs["k"]
        sizes = (*logits.shape[:2], min(k, logits.shape[2]))
        first, search = topk(), _heap(sizes, k, logits.device)
        return lambda: search(*first(logits, k))

    return prepare


def _pair_results(inputs: Inputs, result: Any) -> Tensors:
    """Scores and sizes. Nodes may change places where two scores differ by the rounding of a log-probability."""
    return {"scores": result[3].clamp(min=-1e4), "num_nodes": result[4]}


def _pair_cost(inputs: Inputs) -> dict[str, int]:
    """Logits in, trees out; what passes between the two need not reach memory."""
    batch, _, vocab = inputs["logits"].shape
    slots = min(inputs["k"], vocab) + 1
    logits = inputs["logits"]
    moved = logits.numel() * logits.element_size() + batch * (slots * (3 * 8 + 4) + 8)
    return {"bytes": moved, "flops": 2 * logits.numel()}


PAIR_TRITON = (lambda: launcher("draft_topk")), (lambda: launcher("tree_build"))


# -------------------------------------------------------------------------------------------------------------- compile


def build_tree(place: Place, seed: int, *, batch: int, nodes: int, vocab: int) -> Inputs:
    """Full trees of `nodes` nodes and a root."""
    generator = place.generator(seed)
    parents, depths = random_parents(seed, batch, nodes + 1)
    return {
        "tokens": place.integers(generator, vocab, batch, nodes + 1),
        "parents": parents.to(place.device),
        "depths": depths.to(place.device),
        "num_nodes": torch.full((batch,), nodes, device=place.device),
        "anchors": place.integers(generator, vocab, batch),
        "lengths": place.integers(generator, 2048, batch),
    }


def _compiled(inputs: Inputs, result: Any) -> Tensors:
    """Ids, positions, and the mask in bytes whatever the implementation packs it into."""
    input_ids, positions, mask = result
    if mask.dtype != torch.bool:
        bits = mask.long()[..., None] >> torch.arange(32, device=mask.device) & 1  # [B, N, W, 32]
        mask = bits.flatten(2)[..., : input_ids.shape[1]].bool()
    return {"input_ids": input_ids, "positions": positions, "visible": mask}


def _topk_shape(name: str, about: str, batch: int, vocab: int, k: int, targets: tuple[Target, ...] = ()) -> Shape:
    words = f"V = {vocab}, {HORIZON} rows, budget {k}, batch {batch}{about}"
    dims = {"batch": batch, "horizon": HORIZON, "vocab": vocab, "k": k}
    return Shape(name, words, "quick" if vocab < 10_000 else "default", dims, targets)


def _topk_shapes(limits_us: dict[int, float]) -> tuple[Shape, ...]:
    """Kimi-K2.6's vocabulary at batch 1 and 16, nano-k2's at 1."""
    return (
        *(
            _topk_shape(f"kimi-k2.6-b{batch}", "", batch, 163840, 64, tuple(_at_most(limits_us, batch)))
            for batch in (1, 16)
        ),
        _topk_shape("nano-k2-b1", "", 1, 4096, 16),
    )


def _at_most(limits_us: dict[int, float], batch: int) -> list[Target]:
    return [Target(metric="time_us", limit=limits_us[batch])] if batch in limits_us else []


def _tree_shape(name: str, batch: int, nodes: int, vocab: int) -> Shape:
    tier = "quick" if vocab < 10_000 else "default"
    about = f"{nodes} nodes + root, batch {batch}"
    return Shape(name, about, tier, {"batch": batch, "nodes": nodes, "vocab": vocab})  # type: ignore[arg-type]


DRAFTING = (
    BenchOp(
        name="prompt_lookup",
        build=build_text,
        cost=lambda inputs: OPS["prompt_lookup"].cost(**inputs),
        oracle=lambda inputs: prompt_lookup(**inputs),
        is_exact=True,
        implementations=(
            triton_kernel(launch("prompt_lookup")),
            Implementation("torch", "torch", plain(prompt_lookup)),
        ),
        shapes=(
            _text_shape("kimi-k2.6-b1", 1, 163840, 2048),
            _text_shape("kimi-k2.6-b16", 16, 163840, 2048),
            _text_shape("smollm2-b1", 1, 49152, 512),
            _text_shape("smollm2-b16", 16, 49152, 512),
            _text_shape("nano-k2-b1", 1, 4096, 512),
            _text_shape("nano-k2-b16", 16, 4096, 512),
        ),
    ),
    BenchOp(
        name="draft_topk_tree_build",
        build=build_logits,
        cost=_pair_cost,
        oracle=lambda inputs: tree_build_levelwise(*draft_topk(**inputs), inputs["k"]),
        results=_pair_results,
        floor_error=1e-4,
        implementations=(
            triton_kernel(_pair(*PAIR_TRITON)),
            Implementation("levelwise", "torch", _pair(lambda: draft_topk, lambda: tree_build_levelwise)),
            Implementation("heap", "torch", _with_heap(lambda: draft_topk), has_host_sync=True),
            Implementation(
                "triton_heap",
                "torch",
                _with_heap(PAIR_TRITON[0]),
                has_host_sync=True,
                why_not=why_not_triton,
            ),
        ),
        shapes=_topk_shapes({1: 80.0, 16: 300.0}),
    ),
    BenchOp(
        name="draft_topk",
        build=build_logits,
        cost=lambda inputs: OPS["draft_topk"].cost(**inputs),
        oracle=lambda inputs: draft_topk(**inputs),
        results=_topk_results,
        floor_error=1e-5,
        implementations=(
            triton_kernel(launch("draft_topk")),
            Implementation("torch", "torch", plain(draft_topk)),
            Implementation("topk_logsumexp", "peer", _torch_topk, checked=("log_probs",)),
        ),
        shapes=_topk_shapes({}),
    ),
    BenchOp(
        name="tree_build",
        build=build_candidates,
        cost=lambda inputs: OPS["tree_build"].cost(**inputs),
        oracle=lambda inputs: tree_build_levelwise(**inputs),
        results=_tree_results,
        is_exact=True,
        implementations=(
            triton_kernel(launch("tree_build")),
            Implementation("levelwise", "torch", plain(tree_build_levelwise)),
            Implementation("heap", "torch", _heap_alone, has_host_sync=True),
        ),
        shapes=_topk_shapes({}),
    ),
    BenchOp(
        name="tree_compile",
        build=build_tree,
        cost=lambda inputs: OPS["tree_compile"].cost(**inputs),
        oracle=lambda inputs: tree_compile(**inputs),
        results=_compiled,
        is_exact=True,
        implementations=(
            triton_kernel(launch("tree_compile", "tree_compile_bits_triton"), name="triton_bits"),
            triton_kernel(launch("tree_compile")),
            Implementation("torch", "torch", plain(tree_compile, max_depth=HORIZON)),
        ),
        shapes=(
            _tree_shape("n64-b1", 1, 64, 163840),
            _tree_shape("n64-b16", 16, 64, 163840),
            _tree_shape("nano-k2-n16-b1", 1, 16, 4096),
        ),
    ),
)
