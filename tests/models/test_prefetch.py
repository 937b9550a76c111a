"""Weights asked for ahead: which models', for how many tokens, in which order, and joined before the head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from ddbench.models.drafter import Drafter
from ddbench.models.kernel_set import TORCH, use_kernels
from ddbench.models.prefetch import FEW_TOKENS, Branch, are_small, num_bytes, weights
from ddbench.models.random_weights import randomize
from ddbench.models.shapes import DRAFTERS, TARGETS, DrafterShape, TargetShape
from ddbench.models.target import Target
from ddbench.models.weights import random_models

CACHE_BYTES = 50 * 2**20  # of an H200's L2


def smollm2() -> tuple[TargetShape, DrafterShape]:
    """Of SmolLM2-135M and its drafter."""
    tiny, drafter = TARGETS["tiny-gqa"], DRAFTERS["tiny-gqa"]
    attention = tiny.attention.model_copy(update={"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "qk_norm": False})
    widths = {"num_layers": 30, "hidden": 576, "vocab": 49152, "dense_width": 1536, "tie_embeddings": True}
    heads = {"num_layers": 3, "hidden": 576, "width": 1536, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64}
    rope = tiny.rope.model_copy(update={"rotary_dim": 64})
    target = tiny.model_copy(update={**widths, "attention": attention, "rope": rope})
    return target, drafter.model_copy(update={**heads, "rope": rope, "target_hidden": 576, "num_target_layers": 30})


def shapes(name: str) -> tuple[TargetShape, DrafterShape]:
    return smollm2() if name == "smollm2" else (TARGETS[name], DRAFTERS[name])


def without_memory(name: str) -> tuple[Target, Drafter]:
    """Both models in bf16, their weights nowhere."""
    target, drafter = shapes(name)
    with torch.device("meta"):
        return Target(target).bfloat16(), Drafter(drafter, 64).bfloat16()


@dataclass
class Stream:
    """What a stream is told goes to a log."""

    name: str
    log: list[str]

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@dataclass
class Device:
    """A device of a log's: streams, the ops of interest, and whose weights they read."""

    log: list[str] = field(default_factory=list)
    layers: dict[int, str] = field(default_factory=dict)  # address of a weight -> its layer
    within: str = "main"

    def __post_init__(self) -> None:
        self.main, self.side = Stream("main", self.log), Stream("side", self.log)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.within = stream.name
        yield
        self.within = "main"

    def prefetch(self, tensors: list[torch.Tensor]) -> None:
        (name,) = {self.layers[one.data_ptr()] for one in tensors}
        self.log.append(f"{self.within} asks for {name}")

    def qk_rows(self, *args: object) -> torch.Tensor:
        self.log.append("layer")
        return TORCH.qk_rows(*args)

    def give(self, model: Target | Drafter) -> None:
        """A model this device's kernels."""
        use_kernels(model, replace(TORCH, name="logged", prefetch=self.prefetch, qk_rows=self.qk_rows))
        self.layers |= {one.data_ptr(): str(i) for i, layer in enumerate(model.layers) for one in weights(layer)}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: device.main)
    monkeypatch.setattr(torch.cuda, "stream", device.on)
    return device


@pytest.fixture
def heads(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[nn.Parameter]:
    """Weights whose products go to the log."""
    found: list[nn.Parameter] = []
    product = torch.nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if any(weight is head for head in found):
            device.log.append("head")
        return product(x, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    return found


def asks(number: int) -> list[str]:
    """Of a forward of so many layers: each forks at its start and asks for the next, then all is joined."""
    steps = []
    for i in range(number - 1):
        steps += ["side waits for main", f"side asks for {i + 1}", "layer"]
    return [*steps, "layer", "main waits for side", "head"]


def quiet(number: int) -> list[str]:
    return ["layer"] * number + ["head"]


# -------------------------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize(
    ("name", "target_is_small", "drafter_is_small", "outgrows"),
    [
        ("smollm2", True, True, True),
        ("nano-k2", False, True, False),
        ("k2.6-ep8-rank-l8", False, False, True),
        ("qwen3-8b", False, False, True),
        ("tiny-gqa", True, True, False),
    ],
)
def test_small_layers_of_models_that_the_cache_cannot_hold(
    device, name, target_is_small, drafter_is_small, outgrows
) -> None:
    """Experts are not known ahead: no part of nano-k2. Of the pair, the drafter is asked for if the target outgrows."""
    target, drafter = without_memory(name)
    assert are_small(target.layers, CACHE_BYTES) is target_is_small
    assert are_small(drafter.layers, CACHE_BYTES) is drafter_is_small
    target.prefetch.decide(device.side, CACHE_BYTES)
    drafter.prefetch.decide(device.side, CACHE_BYTES)
    assert target.prefetch.is_wanted(33) is (target_is_small and outgrows)
    assert drafter.prefetch.is_wanted(8, behind=target.prefetch) is (drafter_is_small and outgrows)


def test_a_layer_is_small_where_the_cache_holds_four(device) -> None:
    target, _ = without_memory("smollm2")
    (size,) = {num_bytes(layer) for layer in target.layers}
    assert size == 2 * (576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536 + 2 * 576) == 7_080_192
    assert are_small(target.layers, 4 * size)
    assert not are_small(target.layers, 4 * size - 1)
    for cache_bytes, wanted in ((30 * size - 1, True), (30 * size, False)):
        target.prefetch.decide(device.side, cache_bytes)
        assert target.prefetch.is_wanted(33) is wanted


def test_few_tokens_only(device) -> None:
    target, drafter = without_memory("smollm2")
    for model in (target, drafter):
        model.prefetch.decide(device.side, CACHE_BYTES)
    for number, wanted in ((1, True), (FEW_TOKENS, True), (FEW_TOKENS + 1, False)):
        assert target.prefetch.is_wanted(number) is wanted
        assert drafter.prefetch.is_wanted(number, behind=target.prefetch) is wanted
    assert not drafter.prefetch.is_wanted(8), "alone it would stay in the cache"


@pytest.mark.parametrize(("cache_bytes", "wanted"), [(5_000_000, True), (8_000_000, False)])
def test_experts_count_for_what_puts_a_drafter_out_of_the_cache(device, cache_bytes, wanted) -> None:
    """Of 7 MB, half are experts. They are not asked for, and so no layer of their target is."""
    target, drafter = without_memory("nano-k2")
    for model in (target, drafter):
        model.prefetch.decide(device.side, cache_bytes)
    assert not target.prefetch.is_wanted(8)
    assert drafter.prefetch.is_wanted(8, behind=target.prefetch) is wanted


def test_nothing_is_asked_for_on_a_cpu_and_nothing_more_once_a_set_is_taken_back(device) -> None:
    target, _ = without_memory("smollm2")
    assert not target.prefetch.is_wanted(8)
    for kernels in (TORCH, replace(TORCH, name="another")):
        target.prefetch.decide(device.side, CACHE_BYTES)
        assert target.prefetch.is_wanted(8)
        target.prefetch.use(kernels, None)
        assert not target.prefetch.is_wanted(8)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla-moe"])
def test_a_layers_weights_are_all_of_its_products_once(name) -> None:
    """In the order in which they are read; joined projections as the matrix that they are parts of."""
    models = random_models(name)
    for model in (models.target, models.drafter):
        use_kernels(model, replace(TORCH, name="another"))  # joins
        layer = model.layers[0]
        found = weights(layer)
        products = [one.weight for one in layer.modules() if isinstance(one, nn.Linear)]
        assert sum(one.numel() for one in found) == sum(one.numel() for one in products)
        begins = {one.data_ptr(): one.data_ptr() + one.nbytes for one in found}
        assert all(any(a <= one.data_ptr() < b for a, b in begins.items()) for one in products)
        assert found[0].is_set_to(layer.attention.projections.weights[0])
        assert found[-1] is layer.mlp.down.weight
        assert len(found) < len(products)


# --------------------------------------------------------------------------------------------------------------- order


def small_pair() -> tuple[Target, Drafter]:
    """A target of enough small layers to outgrow a cache that holds four, and a drafter of fewer."""
    shape = TARGETS["tiny-gqa"].model_copy(update={"num_layers": 6, "max_context": 2 * FEW_TOKENS})
    target = Target(shape, DRAFTERS["tiny-gqa"].target_layer_ids)
    drafter = Drafter(DRAFTERS["tiny-gqa"], shape.max_context)
    randomize(target, 1)
    randomize(drafter, 2)
    return target.eval(), drafter.eval()


def draft(target: Target, drafter: Drafter) -> torch.Tensor:
    shape = drafter.shape
    cache = torch.zeros(2, shape.num_layers, 1, 32, shape.num_kv_heads, shape.head_dim)
    block = torch.tensor([[3, *[shape.mask_token_id] * (shape.block_size - 1)]])
    with torch.inference_mode():
        return drafter(block, torch.tensor([7]), cache[0], cache[1], 7, target)


@pytest.mark.parametrize("held", [5, 7])
def test_every_layer_asks_for_the_next_and_all_is_joined_before_the_head(
    device, heads, session, make_ids, held
) -> None:
    """Of the target and of the drafter, with the results of either without; nothing where a cache holds the target."""
    target, drafter = small_pair()
    running = session(target, 1, 24)
    expected = (*running.run(make_ids(9)[None]), draft(target, drafter))
    for model in (target, drafter):
        device.give(model)
        model.prefetch.decide(device.side, held * max(map(num_bytes, target.layers)))
    heads.append(target.lm_head.weight)
    results = []
    for number, run in (
        (6, lambda: running.run(make_ids(9)[None])),
        (2, lambda: (draft(target, drafter),)),
    ):
        device.log.clear()
        results += run()
        assert device.log == (asks(number) if held < 6 else quiet(number))
    for mine, other in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_long_prefill_asks_for_nothing(device, heads, session, make_ids) -> None:
    target, _ = small_pair()
    device.give(target)
    target.prefetch.decide(device.side, 5 * max(map(num_bytes, target.layers)))
    heads.append(target.lm_head.weight)
    session(target, 1, FEW_TOKENS + 8).run(make_ids(FEW_TOKENS + 1)[None])
    assert device.log == quiet(6)


def test_a_branch_that_was_not_forked_is_not_joined(device) -> None:
    """Of a model of one layer; and a second join finds nothing."""
    target, _ = small_pair()
    alone = Branch([weights(target.layers[0])], TORCH, device.side)
    alone.fork(0)
    assert not alone.join()
    assert device.log == []
    branch = Branch([weights(layer) for layer in target.layers], TORCH, device.side)
    branch.fork(0)
    assert (branch.join(), branch.join()) == (True, False)
    assert device.log == ["side waits for main", "main waits for side"]
