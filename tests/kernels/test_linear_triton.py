"""Small projections against their specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import linear as reference
from ddbench.testing import relative_error

kernels = pytest.importorskip("ddbench.kernels.linear_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def randn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def product(x, weight, **options):
    return kernels.linear_triton(x, weight, wanted=True, **options)


def check_equals_the_reference():
    for size in reference.SIZES:
        inputs = reference.make_inputs(0, size)
        exact = reference.linear(inputs["x"].double(), inputs["weight"].double())
        assert relative_error(product(inputs["x"].to(DEVICE), inputs["weight"].to(DEVICE)), exact) <= 2e-6


def check_low_precision_within_budget():
    """Twice the error of the result rounded once; the interpreter cuts where a GPU rounds."""
    for tokens, outputs, inputs in ((1, 64, 256), (33, 256, 96), (64, 48, 600), (8, 1040, 130)):
        x, weight = randn(tokens, inputs), randn(outputs, inputs, seed=1)
        exact = reference.linear(x.cpu().double(), weight.cpu().double())
        mine = product(x, weight)
        assert mine.dtype == torch.bfloat16
        factor = 2.0 if DEVICE == "cuda" else 4.0
        assert relative_error(mine, exact) <= factor * relative_error(reference.linear(x.cpu(), weight.cpu()), exact)


def check_company_changes_nothing():
    """Neither other tokens nor other rows of the weight, however the product is cut for them."""
    x, weight = randn(140, 256), randn(96, 256, seed=1)
    together = product(x, weight)
    for tokens in (1, 8, 17, 33, 65):
        assert torch.equal(product(x[:tokens], weight), together[:tokens])
    x[1::2] = torch.nan
    assert torch.equal(product(x, weight)[::2], together[::2])
    few, tall = randn(3, 64), randn(2080, 64, seed=1)
    assert kernels.plan(3, 1, 2080, 64).block_o != kernels.plan(3, 1, 96, 64).block_o
    assert torch.equal(product(few, tall)[:, :96], product(few, tall[:96]))


def check_rows_may_lie_apart():
    whole, weight = randn(3, 9, 64), randn(32, 64, seed=1)
    x = whole[:, 1:, :]
    assert torch.equal(product(x, weight), product(x.contiguous(), weight))
    out = torch.full((3, 8, 32), 7.0, dtype=torch.bfloat16, device=DEVICE)
    assert product(x, weight, out=out) is out
    assert torch.equal(out, product(x, weight))
    assert product(x[:0], weight).shape == (0, 8, 32)


def check_heads_have_weights_of_their_own():
    """Turned or not, of tokens and heads cut out of wider rows; a head's product is that of its rows alone."""
    for size in reference.SIZES:
        inputs = reference.make_head_inputs(0, size)
        x, weight = inputs["x"].to(DEVICE), inputs["weight"].to(DEVICE)
        exact = reference.head_linear(inputs["x"].double(), inputs["weight"].double())
        for turned in (weight, weight.contiguous()):
            assert relative_error(kernels.head_linear_triton(x, turned, wanted=True), exact) <= 2e-6
    wide, weight = randn(9, 4, 96), randn(4, 48, 64, seed=1)
    x = wide[:, :, 32:]
    out = torch.full((9, 4, 48), 7.0, dtype=torch.bfloat16, device=DEVICE)
    assert kernels.head_linear_triton(x, weight, out=out, wanted=True) is out
    for h in range(4):
        assert torch.equal(out[:, h], product(x[:, h].contiguous(), weight[h]))
    strided = kernels.head_linear_triton(x.float(), weight.float())
    torch.testing.assert_close(strided, torch.einsum("thi,hoi->tho", x.float(), weight.float()))


def check_many_heads_take_tall_tiles():
    """As many as MLA has: each reads a weight of its own, so that few programs read a head's tokens."""
    for tokens in (1, 9, 33):
        x, weight = randn(tokens, 64, 48), randn(64, 80, 48, seed=1)
        assert kernels.plan(tokens, 64, 80, 48).block_o == 64
        exact = reference.head_linear(x.cpu().double(), weight.cpu().double())
        mine = kernels.head_linear_triton(x, weight, wanted=True)
        factor = 2.0 if DEVICE == "cuda" else 4.0
        assert relative_error(mine, exact) <= factor * relative_error(exact.to(torch.bfloat16), exact)
    latent = torch.empty(64, 512, 128, dtype=torch.bfloat16, device="meta")
    assert kernels.suits(x, latent, 64)
    assert not kernels.suits(x, latent, 65)


def check_only_small_products_suit():
    """Others read too much for tiles as small as these."""
    x, weight = randn(33, 256), randn(512, 256)
    up = torch.empty(3072, 576, dtype=torch.bfloat16, device="meta")
    assert kernels.suits(x, weight, 33)
    assert kernels.suits(x, up, 64)
    assert not kernels.suits(x, up, 65)
    assert kernels.suits(x, up[:576], 144)
    assert kernels.suits(x, weight, 260)
    assert not kernels.suits(x, up.view(3, 1024, 576).expand(6, 3, 1024, 576), 33)
    assert not kernels.suits(x, weight, kernels.MAX_TOKENS + 1)
    assert not kernels.suits(x, torch.empty(16, 2049, dtype=torch.bfloat16, device=DEVICE), 33)
    assert not kernels.suits(x.float(), weight.float(), 33)
    wide = kernels.linear_triton(x.float(), weight.float())
    torch.testing.assert_close(wide, torch.nn.functional.linear(x.float(), weight.float()))


def check_parts_are_the_product_itself_where_it_is_not_split():
    """Small or cuBLAS's: a product, and no dim more."""
    for tokens, outputs, inputs in ((3, 96, 64), (3, 16, 2064)):
        x, weight = randn(tokens, inputs), randn(outputs, inputs, seed=1)
        parts = kernels.linear_parts_triton(x, weight, is_join=True)
        assert parts.shape == (tokens, outputs)
        assert torch.equal(parts, kernels.linear_triton(x, weight))


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    assert max(usage["REG"] for usage in compiled.values()) <= 168


@pytest.mark.parametrize("is_join", [False, True])
def test_large_weights_are_streamed_and_told_of_a_join(monkeypatch, is_join):
    """A launch behind a join must not begin early: no result would tell."""
    calls = []

    def stream(x, weight, *, may_split=False, is_join=False):
        calls.append((may_split, is_join))
        return torch.nn.functional.linear(x, weight)[None].expand(4 if may_split else 1, -1, -1)

    monkeypatch.setattr(kernels.triton.knobs.runtime, "interpret", True)
    monkeypatch.setattr(kernels, "is_streamed", lambda x, weight, may_split=False: True)
    monkeypatch.setattr(kernels, "stream_linear_triton", stream)
    x, weight = torch.zeros(2, 4), torch.zeros(3, 4)
    assert kernels.linear_triton(x, weight, is_join=is_join).shape == (2, 3)
    assert kernels.linear_parts_triton(x, weight, is_join=is_join).shape == (4, 2, 3)
    assert calls == [(False, is_join), (True, is_join)]


@pytest.mark.parametrize("is_join", [False, True])
def test_a_small_product_behind_a_join_is_launched_the_usual_way(monkeypatch, is_join):
    told = []
    monkeypatch.setattr(kernels.triton.knobs.runtime, "interpret", True)
    monkeypatch.setattr(kernels, "dependence", lambda out, is_join=False: told.append(is_join) or {})
    monkeypatch.setattr(kernels, "_linear_kernel", {(1, 1, 1): lambda *args, **options: None})
    kernels.linear_triton(torch.zeros(2, 16), torch.zeros(16, 16), wanted=True, is_join=is_join)
    assert told == [is_join]


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="x is on cpu, need a CUDA device"):
        kernels.linear_triton(torch.zeros(2, 4), torch.zeros(3, 4))
