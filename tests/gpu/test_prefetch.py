"""Weights asked for ahead on a GPU: no bit of a result changes, and a recorded graph holds the branch and its join."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ddbench.models.attention import TreeTriton
from ddbench.models.drafter import Drafter
from ddbench.models.inputs import VerifyInputs
from ddbench.models.kernel_set import KernelSet, triton_set, use_kernels
from ddbench.models.prefetch import num_bytes
from ddbench.models.random_weights import random_pair
from ddbench.models.shapes import DRAFTERS, TARGETS, DrafterShape, TargetShape
from ddbench.models.target import Target

pytestmark = pytest.mark.gpu

LENGTHS, ROWS = (40, 3), 64
Forward = Callable[[], tuple[torch.Tensor, ...]]


def small_layers() -> tuple[TargetShape, DrafterShape]:
    """Layers as SmolLM2-135M's, as many; a head that is large enough to be cuBLAS's either way."""
    tiny, drafter = TARGETS["tiny-gqa"], DRAFTERS["tiny-gqa"]
    attention = tiny.attention.model_copy(update={"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "qk_norm": False})
    rope = tiny.rope.model_copy(update={"rotary_dim": 64})
    widths = {"num_layers": 30, "hidden": 576, "vocab": 49152, "dense_width": 1536, "tie_embeddings": True}
    heads = {"num_layers": 3, "hidden": 576, "width": 1536, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64}
    target = tiny.model_copy(update={**widths, "attention": attention, "rope": rope})
    return target, drafter.model_copy(update={**heads, "rope": rope, "target_hidden": 576, "num_target_layers": 30})


class Counted:
    """The Triton kernels, and how many layers were asked for."""

    def __init__(self) -> None:
        self.number = 0
        ours = triton_set()

        def prefetch(tensors: list[torch.Tensor]) -> None:
            self.number += 1
            ours.prefetch(tensors)

        self.kernels: KernelSet = replace(ours, prefetch=prefetch)


@pytest.fixture(scope="module")
def pair() -> tuple[Target, Drafter, Counted]:
    counted = Counted()
    models = random_pair(*small_layers(), seed=0, dtype=torch.bfloat16, device=torch.device("cuda"))
    for model in models:
        use_kernels(model, counted.kernels)
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sizes = [num_bytes(layer) for layer in models[0].layers]
    if not (4 * max(sizes) <= cache_bytes < sum(sizes)):
        pytest.skip(f"layers of {max(sizes)} bytes are not asked for with an L2 of {cache_bytes}")
    return *models, counted


def verify(target: Target, num_new: int) -> Forward:
    generator = torch.Generator("cuda").manual_seed(1)
    lengths = torch.tensor(LENGTHS, device="cuda")
    shape = (len(LENGTHS), max(LENGTHS) + ROWS + num_new)
    cache = [
        tuple(
            torch.randn(*shape, *row, generator=generator, device="cuda", dtype=torch.bfloat16)
            for row in target.shape.attention.row_shapes
        )
        for _ in target.layers
    ]
    ids = torch.randint(target.shape.vocab, (len(LENGTHS), num_new), generator=generator, device="cuda")
    positions = lengths[:, None] + torch.arange(num_new, device="cuda")
    inputs = VerifyInputs(ids, positions, lengths, None, max(LENGTHS))

    def run() -> tuple[torch.Tensor, ...]:
        out = target(inputs, cache, TreeTriton())
        return out.logits, out.features

    return run


def draft(target: Target, drafter: Drafter) -> Forward:
    shape = drafter.shape
    generator = torch.Generator("cuda").manual_seed(2)
    size = (2, shape.num_layers, len(LENGTHS), max(LENGTHS) + ROWS, shape.num_kv_heads, shape.head_dim)
    caches = torch.randn(*size, generator=generator, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(target.shape.vocab, (len(LENGTHS), shape.block_size), generator=generator, device="cuda")
    lengths = torch.tensor(LENGTHS, device="cuda")
    return lambda: (drafter(ids, lengths, caches[0], caches[1], max(LENGTHS), target),)


def captured(run: Forward) -> tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@torch.inference_mode()
@pytest.mark.parametrize(("of", "num_asked"), [("verify of 33", 29), ("verify of 1", 29), ("draft", 2)])
def test_nothing_changes_at_once_or_in_a_graph(pair, of: str, num_asked: int) -> None:
    """Bit for bit, replayed as often as one likes; a forward of L layers asks L - 1 times."""
    target, drafter, counted = pair
    run = draft(target, drafter) if of == "draft" else verify(target, int(of.split()[-1]))
    results = []
    for is_asked in (True, False):
        for model in (target, drafter):
            use_kernels(model, counted.kernels)
            if not is_asked:
                model.prefetch.use(counted.kernels, None)
        before = counted.number
        at_once = [one.clone() for one in run()]
        assert counted.number - before == num_asked * is_asked
        graph, replayed = captured(run)
        for _ in range(3):
            for one in replayed:
                one.fill_(torch.nan)
            graph.replay()
        results.append((*at_once, *(one.clone() for one in replayed)))
    for mine, other in zip(*results, strict=True):
        assert bool(other.isfinite().all())
        assert torch.equal(mine, other)


@torch.inference_mode()
def test_a_long_forward_asks_for_nothing(pair) -> None:
    target, _, counted = pair
    use_kernels(target, counted.kernels)
    before = counted.number
    verify(target, 300)()
    assert counted.number == before
