"""The gated activation in Triton against its specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import swiglu as reference
from ddbench.testing import relative_error

kernels = pytest.importorskip("ddbench.kernels.swiglu_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_equals_the_reference():
    """Gates of zero, gates whose exponential overflows or vanishes."""
    for size in reference.SIZES:
        for seed in range(2):
            x = reference.make_inputs(seed, size)["gate_up"]
            out = kernels.swiglu_triton(x.to(DEVICE))
            assert out.dtype == torch.float32
            assert relative_error(out, reference.swiglu(x.double())) <= TOLERANCE


def check_every_width():
    """Around a program's columns, and those of K2.6's dense layer."""
    for width in (1, 2, 96, 1023, 1024, 1025, 18432):
        x = randn(2, 2 * width, seed=width)
        assert relative_error(kernels.swiglu_triton(x.to(DEVICE)), reference.swiglu(x)) <= TOLERANCE


def check_low_precision_within_budget():
    """The interpreter truncates where a GPU rounds: twice the error."""
    x = randn(9, 130).bfloat16()
    exact = reference.swiglu(x.double())
    mine = kernels.swiglu_triton(x.to(DEVICE))
    assert mine.dtype == torch.bfloat16
    factor = 2.0 if DEVICE == "cuda" else 4.0
    assert relative_error(mine, exact) <= factor * relative_error(reference.swiglu(x), exact)


def check_parts_are_added():
    """Against fp64; of one part every bit is the op's without parts, and the others are added in their order."""
    for num_parts, *shape in ((1, 3, 74), (2, 2, 5, 74), (4, 3, 2050), (3, 1, 2), (8, 2, 600)):
        parts = randn(num_parts, *shape, seed=num_parts)
        mine = kernels.swiglu_triton(parts.to(DEVICE), in_parts=True)
        assert mine.dtype == torch.float32
        assert mine.is_contiguous()
        assert relative_error(mine, reference.swiglu(parts.double().sum(0))) <= TOLERANCE
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        apart = kernels.swiglu_triton(total.to(DEVICE))
        assert relative_error(mine, apart) <= (0.0 if num_parts == 1 or DEVICE == "cpu" else TOLERANCE)
    assert kernels.swiglu_triton(torch.zeros(2, 0, 4, device=DEVICE), in_parts=True).shape == (0, 2)


def check_parts_of_a_wider_type_than_the_result():
    """The interpreter truncates where a GPU rounds."""
    parts = randn(2, 9, 130)
    exact = reference.swiglu(parts.double().sum(0))
    out = torch.empty(9, 65, dtype=torch.bfloat16, device=DEVICE)
    for given in ({"dtype": torch.bfloat16}, {"out": out}):
        mine = kernels.swiglu_triton(parts.to(DEVICE), in_parts=True, **given)
        assert mine.dtype == torch.bfloat16
        assert relative_error(mine, exact) <= (2**-8 if DEVICE == "cuda" else 2**-7)
    one = parts[:1].bfloat16().to(DEVICE)
    apart = kernels.swiglu_triton(one[0])
    assert torch.equal(kernels.swiglu_triton(one, in_parts=True, dtype=torch.bfloat16), apart)


def check_company_changes_nothing():
    x = randn(8, 3, 600).to(DEVICE)
    together = kernels.swiglu_triton(x)
    for i in range(8):
        assert torch.equal(kernels.swiglu_triton(x[i : i + 1])[0], together[i])
    x[1::2] = torch.nan
    assert torch.equal(kernels.swiglu_triton(x)[::2], together[::2])


def check_result_goes_where_it_should():
    x = randn(3, 10).to(DEVICE)
    out = torch.full((3, 5), 7.0, device=DEVICE)
    assert kernels.swiglu_triton(x, out=out) is out
    assert torch.equal(out, kernels.swiglu_triton(x))
    assert kernels.swiglu_triton(torch.zeros(2, 0, 4, device=DEVICE)).shape == (2, 0, 2)


def check_strided_rows_are_refused():
    with pytest.raises(ValueError, match="gate_up must be contiguous"):
        kernels.swiglu_triton(torch.zeros(4, 8, device=DEVICE)[:, :4])


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    parts = compiled.pop("k2.6-shared-parts-bf16")["accesses"]
    assert sorted(parts) == ["ld.global.v4.b32"] * 4 + ["st.global.v2.b32"], "16 bytes of each part of each half"
    wide = {name: usage["accesses"] for name, usage in compiled.items() if name.startswith("k2.6")}
    assert {access for accesses in wide.values() for access in accesses} == {"ld.global.v4.b32", "st.global.v4.b32"}


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="gate_up is on cpu, need a CUDA device"):
        kernels.swiglu_triton(torch.zeros(2, 4))
