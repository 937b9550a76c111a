"""Products of few tokens by large weights against their specification."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from ddbench.engine import parts as engine_parts
from ddbench.engine.engine import Engine
from ddbench.engine.types import Request
from ddbench.models import shapes
from ddbench.models.weights import load_models
from ddbench.reference import linear as reference
from ddbench.spec import ARMS, EngineSpec
from ddbench.testing import relative_error

kernels = pytest.importorskip("ddbench.kernels.stream_linear_triton", reason="triton is not installed")
linear_triton = pytest.importorskip("ddbench.kernels.linear_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Rows of a weight that fill the places in one part, and that need two and four; few columns, so that tests are fast.
WHOLE, HALVES, QUARTERS = 64 * 100, 64 * 50, 64 * 26


def randn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def exact(x, weight):
    return reference.linear(x.cpu().double(), weight.cpu().double())


def check_equals_the_reference():
    """In one part or several, for every padding of the tokens."""
    for outputs, inputs, parts in ((WHOLE, 128, 1), (HALVES, 512, 2), (QUARTERS, 512, 4)):
        weight = randn(outputs, inputs, seed=1, dtype=torch.float32)
        for tokens in (1, 16, 19, 64):
            x = randn(tokens, inputs, dtype=torch.float32)
            found = kernels.stream_linear_triton(x, weight, may_split=True)
            assert found.shape == (parts, tokens, outputs)
            assert relative_error(found.sum(0), exact(x, weight)) <= 2e-6


def check_parts_are_of_columns_in_order():
    x, weight = randn(5, 512, dtype=torch.float32), randn(QUARTERS, 512, seed=1, dtype=torch.float32)
    found = kernels.stream_linear_triton(x, weight, may_split=True)
    for s, part in enumerate(found):
        mine = slice(128 * s, 128 * (s + 1))
        assert relative_error(part, exact(x[:, mine], weight[:, mine])) <= 2e-6


def check_low_precision_within_budget():
    """Whole products are rounded once; sums that are yet to be added are not."""
    x, weight = randn(33, 256), randn(WHOLE, 256, seed=1)
    whole = kernels.stream_linear_triton(x, weight, may_split=True)
    assert whole.dtype == torch.bfloat16
    factor = 2.0 if DEVICE == "cuda" else 4.0
    rounded = relative_error(reference.linear(x.cpu(), weight.cpu()), exact(x, weight))
    assert relative_error(whole[0], exact(x, weight)) <= factor * rounded
    x, weight = randn(33, 512), randn(QUARTERS, 512, seed=1)
    parts = kernels.stream_linear_triton(x, weight, may_split=True)
    assert parts.dtype == torch.float32
    assert relative_error(parts.sum(0), exact(x, weight)) <= 2e-6


def check_company_changes_nothing():
    """Neither other tokens, however many, nor values that are not numbers among them."""
    shapes = ((WHOLE, 128), (QUARTERS, 512))
    if (
        DEVICE == "cuda"
    ):  # two programs to a multiprocessor: their steps depend on the tokens, the interpreter sums by step
        assert kernels.plan(12288, 128, False).residents == 2
        shapes += ((12288, 128),)
    for outputs, inputs in shapes:
        x, weight = randn(64, inputs), randn(outputs, inputs, seed=1)
        together = kernels.stream_linear_triton(x, weight, may_split=True)
        for tokens in (1, 8, 17, 33):
            assert torch.equal(kernels.stream_linear_triton(x[:tokens], weight, may_split=True), together[:, :tokens])
        x[1::2] = torch.nan
        assert torch.equal(kernels.stream_linear_triton(x, weight, may_split=True)[:, ::2], together[:, ::2])


def check_rows_may_lie_apart():
    whole, weight = randn(3, 9, 128), randn(WHOLE, 128, seed=1)
    for x in (whole[:, 1:], whole[:1, 2:], whole.transpose(0, 1)):
        found = kernels.stream_linear_triton(x, weight)
        assert found.shape == (1, *x.shape[:2], WHOLE)
        assert torch.equal(found, kernels.stream_linear_triton(x.contiguous(), weight))
    assert kernels.stream_linear_triton(whole[:0], weight).shape == (1, 0, 9, WHOLE)


def check_an_engine_of_streamed_products_emits_what_plain_torch_does():
    """Products in one part and in two, through every reader of them: norms, SwiGLU, latent rows. On a GPU the parity of
    large models is this; here every product that can be cut is streamed."""
    if DEVICE == "cuda":
        return
    # A width that can be cut into two parts, and a latent row beside q's that fills a tile.
    width, latent = 256, {"q_lora_rank": 64, "kv_lora_rank": 48, "qk_rope_dim": 16}
    target = shapes.TARGETS["tiny-mla-moe"]
    wide = target.model_copy(
        update={
            "hidden": width,
            "dense_width": width,
            "attention": target.attention.model_copy(update=latent),
            "rope": target.rope.model_copy(update={"rotary_dim": 16}),
            "moe": target.moe.model_copy(update={"expert_width": 128}),
        }
    )
    drafter = shapes.DRAFTERS["tiny-mla-moe"].model_copy(
        update={"hidden": width, "width": width, "target_hidden": width}
    )
    seen = set()

    def is_streamed(x, weight, may_split=False):
        (outputs, inputs), num_tokens = weight.shape, x.numel() // x.shape[-1]
        is_cut = num_tokens <= kernels.MAX_TOKENS and outputs % kernels.BLOCK_O == 0 and inputs % kernels.STEP == 0
        seen.update([(outputs, inputs, cut(outputs, inputs, may_split).parts)] if is_cut else [])
        return is_cut

    def cut(outputs, inputs, may_split):
        return kernels.Plan(outputs // kernels.BLOCK_O, 2 if may_split and inputs % 256 == 0 else 1, 1)

    request = Request(0, (5, 9, 2), 3)
    with (
        mock.patch.dict(shapes.TARGETS, {"tiny-mla-moe": wide}),
        mock.patch.dict(shapes.DRAFTERS, {"tiny-mla-moe": drafter}),
        mock.patch.object(engine_parts, "supports", return_value=None),  # triton needs a GPU, or an interpreter
    ):
        models = load_models(EngineSpec(target="tiny-mla-moe", device="cpu"))
        (plain,) = Engine(EngineSpec(target="tiny-mla-moe", device="cpu", **ARMS["ar"]), models).run([request], 1)
        spec = {"target": "tiny-mla-moe", "kernels": "triton", "attention": "tree_triton", **ARMS["chain"]}
        with (
            mock.patch.object(linear_triton, "is_streamed", is_streamed),
            mock.patch.object(kernels, "plan", cut),
        ):
            (streamed,) = Engine(EngineSpec(device="cpu", **spec), models).run([request], 1)
    assert streamed.tokens == plain.tokens
    assert {(128, width, 2), (2 * width, width, 2), (width, 128, 1)} <= seen


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    assert max(usage["REG"] for usage in compiled.values()) <= 255


def test_nothing_is_read_but_by_copies_on_their_way_to_shared_memory(compiled):
    """One operand whose alignment the compiler does not know, and both wait in every step: half the memory's rate."""
    for name, usage in compiled.items():
        assert {access for access in usage["accesses"] if access.startswith("ld.")} == set(), name


def test_programs_find_room_on_a_multiprocessor(compiled):
    for entry in kernels.AOT:
        assert entry["residents"] * (compiled[entry["name"]]["shared"] + 1024) <= 228 * 1024, entry["name"]


@pytest.mark.parametrize(
    ("outputs", "inputs", "may_split", "parts"),
    [
        (2112, 7168, True, 4),
        (2112, 7168, False, None),
        (12288, 1536, False, 1),
        (7168, 8192, True, 1),
        (4096, 7168, True, 2),
        (163840, 7168, True, None),
        (49152, 576, True, None),
        (7168, 18432, False, 1),
    ],
)
def test_a_weight_is_cut_into_the_fewest_parts_that_fill_the_gpu(outputs, inputs, may_split, parts):
    cut = kernels.plan(outputs, inputs, may_split)
    assert (None if cut is None else cut.parts) == parts
    assert cut is None or (cut.filled >= kernels.LEAST_FILLED and inputs % (cut.parts * kernels.STEP) == 0)


def test_only_few_tokens_and_large_weights_suit():
    x, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((33, 7168), (7168, 7168)))
    assert kernels.suits(x, weight, 33)
    assert not kernels.suits(x, weight, kernels.MAX_TOKENS + 1)
    assert not kernels.suits(x, weight, 0)
    assert not kernels.suits(x[:, :1024], weight[:7168, :1024].contiguous(), 33), "small: linear_triton's"
    assert not kernels.suits(x, weight.T, 33)
    assert not kernels.suits(x.float(), weight.float(), 33)


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="x is on cpu, need a CUDA device"):
        kernels.stream_linear_triton(torch.zeros(2, 128), torch.zeros(WHOLE, 128))
