"""The first launch of a forward against its specification, and against plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels.token_rows import token_rows
from ddbench.reference import token_rows as reference
from ddbench.testing import copied

kernels = pytest.importorskip("ddbench.kernels.token_rows_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assert_same(mine, expected):
    for one, other in zip(mine, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.cpu(), other.cpu())


def check_equals_the_reference_in_every_bit():
    for size in reference.SIZES:
        for seed in range(2):
            inputs = reference.make_inputs(seed, size)
            for dtype in (torch.float32, torch.bfloat16):
                given = inputs | {"embedding": inputs["embedding"].to(dtype)}
                assert_same(kernels.token_rows_triton(**copied(given, DEVICE)), reference.token_rows(**given))


def check_bits_that_are_no_number_are_copied():
    inputs = reference.make_inputs(0, "odd")
    inputs["embedding"] = torch.full_like(inputs["embedding"], torch.nan)
    assert kernels.token_rows_triton(**copied(inputs, DEVICE))[0].isnan().all()


def check_one_token_takes_the_position_given():
    """A single position is that of the first token and of the only one."""
    inputs = copied(reference.make_inputs(0, "small"), DEVICE)
    inputs |= {"ids": inputs["ids"][:, :1], "positions": inputs["positions"][:, 1:2]}
    assert_same(kernels.token_rows_triton(**inputs), token_rows(**inputs))


def check_views_and_results_may_be_passed_in():
    inputs = copied(reference.make_inputs(0, "small"), DEVICE)
    strided = inputs | {"ids": inputs["ids"].t().contiguous().t(), "positions": inputs["positions"][:1].expand(2, -1)}
    expected = token_rows(**strided)
    out = tuple(torch.full_like(one, 7) for one in expected)
    assert kernels.token_rows_triton(**strided, out=out) is out
    assert_same(out, expected)
    nothing = kernels.token_rows_triton(**inputs | {"ids": inputs["ids"][:0], "positions": inputs["positions"][:0]})
    assert [tuple(one.shape) for one in nothing] == [(0, 3, 16), (0, 3, 1, 4), (0, 3, 1, 4)]


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()


@pytest.mark.parametrize("size", reference.SIZES)
def test_plain_pytorch_equals_the_reference(size):
    inputs = reference.make_inputs(1, size)
    assert_same(token_rows(**inputs), reference.token_rows(**inputs))


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="ids are on cpu, need a CUDA device"):
        kernels.token_rows_triton(**reference.make_inputs(0, "small"))
