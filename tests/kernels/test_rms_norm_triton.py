"""RMS normalisation in Triton against its specification, with and without the residual."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import rms_norm as reference
from ddbench.testing import copied, relative_error, to_float64

kernels = pytest.importorskip("ddbench.kernels.rms_norm_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6
EPS = 1e-6


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(mine, expected, tolerance=TOLERANCE):
    assert mine.dtype == expected.dtype
    assert mine.shape == expected.shape
    error = relative_error(mine, expected)
    assert error <= tolerance, f"relative error {error:.3g}"


def check_equals_the_reference():
    """Zero rows, rows where eps decides, rows with large squares."""
    for size in reference.SIZES:
        for seed in range(2):
            inputs = reference.make_inputs(seed, size)
            given = {name: value.to(DEVICE) if torch.is_tensor(value) else value for name, value in inputs.items()}
            exact = reference.rms_norm(inputs["x"].double(), inputs["weight"].double(), inputs["eps"])
            out = kernels.rms_norm_triton(**given)
            assert out.dtype == torch.float32
            assert relative_error(out, exact) <= TOLERANCE


def check_every_width():
    """Short rows many to a program, long ones one; around powers of two."""
    for size in (1, 2, 31, 32, 33, 128, 512, 513, 1000, 7168):
        x, weight = randn(3, size), 1 + 0.3 * randn(size, seed=1)
        mine = kernels.rms_norm_triton(x.to(DEVICE), weight.to(DEVICE), EPS)
        assert_close(mine, reference.rms_norm(x, weight, EPS))


def check_low_precision_within_budget():
    """Also with fp32 weights beside bf16 rows. The interpreter truncates where a GPU rounds: twice the error."""
    factor = 2.0 if DEVICE == "cuda" else 4.0
    x, weight = randn(9, 65).bfloat16(), randn(65, seed=1)
    for given in (weight.bfloat16(), weight):
        exact = reference.rms_norm(x.double(), given.double(), EPS)
        obvious = reference.rms_norm(x, given, EPS)
        mine = kernels.rms_norm_triton(x.to(DEVICE), given.to(DEVICE), EPS)
        assert mine.dtype == torch.bfloat16
        assert relative_error(mine, exact) <= factor * relative_error(obvious, exact)


def check_batch_invariance():
    """Bit for bit, whatever stands beside a row: NaN too."""
    for size in (40, 600):
        x, weight = randn(8, 3, size).to(DEVICE), torch.ones(size, device=DEVICE)
        together = kernels.rms_norm_triton(x, weight, EPS)
        for i in range(8):
            assert torch.equal(kernels.rms_norm_triton(x[i : i + 1], weight, EPS)[0], together[i])
        x[1::2] = torch.nan
        assert torch.equal(kernels.rms_norm_triton(x, weight, EPS)[::2], together[::2])


def check_rows_of_wider_tensors():
    """Heads cut out of a fused projection, a latent cut out of rows with a rotary part; no copy is made."""
    whole = randn(2, 3, 10, 16)
    weight = 1 + 0.3 * randn(16, seed=1)
    for x in (whole[:, :, 2:7], whole[:, 1:2], whole[1:, :, 4], whole[..., 3:11], whole.transpose(0, 1)[:1]):
        mine = kernels.rms_norm_triton(x.to(DEVICE), weight[: x.shape[-1]].to(DEVICE), EPS)
        assert mine.is_contiguous()
        assert_close(mine, reference.rms_norm(x, weight[: x.shape[-1]], EPS))
    with pytest.raises(ValueError, match="rows must be reachable by two strides"):
        kernels.rms_norm_triton(whole.to(DEVICE)[:, ::2, :5, :8], weight[:8].to(DEVICE), EPS)
    with pytest.raises(ValueError, match="rows must be reachable"):
        kernels.rms_norm_triton(whole.to(DEVICE).transpose(2, 3), torch.ones(10, device=DEVICE), EPS)


def check_addition_equals_the_reference():
    """A sum that cancels to zero, a residual that drowns the row."""
    for size in reference.SIZES:
        inputs = reference.make_add_inputs(0, size)
        mine = kernels.add_rms_norm_triton(**copied(inputs, DEVICE))
        for one, exact in zip(mine, reference.add_rms_norm(**to_float64(inputs)), strict=True):
            assert one.dtype == torch.float32
            assert relative_error(one, exact) <= TOLERANCE


def check_the_sum_is_what_is_normalised():
    """H08: the stored sum equals hidden + residual, and its norm is the norm of the sum as stored."""
    for dtype in (torch.float32, torch.bfloat16):
        for size in (37, 600):
            x, residual = randn(5, size).to(dtype), randn(5, size, seed=1).to(dtype)
            weight = (1 + 0.3 * randn(size, seed=2)).to(dtype)
            normed, total = kernels.add_rms_norm_triton(*(t.to(DEVICE) for t in (x, residual, weight)), EPS)
            exact = x.double() + residual.double()
            limit = 2**-23 if dtype == torch.float32 else 2**-8 if DEVICE == "cuda" else 2**-7
            assert total.dtype == normed.dtype == dtype
            assert ((total.cpu().double() - exact).abs() <= limit * exact.abs()).all()
            assert_close(normed, kernels.rms_norm_triton(total, weight.to(DEVICE), EPS), 0.0)
            in_place = residual.to(DEVICE)
            again, same = kernels.add_rms_norm_triton(
                x.to(DEVICE), in_place, weight.to(DEVICE), EPS, out=(torch.empty_like(in_place), in_place)
            )
            assert same is in_place
            assert torch.equal(same, total)
            assert torch.equal(again, normed)


def check_two_parts_are_added_as_one_after_the_other():
    """In every bit: the layer's sum is rounded before the stream's."""
    for dtype in (torch.float32, torch.bfloat16):
        for size in (37, 256, 600):
            x, more, residual = (randn(5, size, seed=seed).to(dtype).to(DEVICE) for seed in range(3))
            weight = (1 + 0.3 * randn(size, seed=3)).to(dtype).to(DEVICE)
            apart = kernels.add_rms_norm_triton(x + more, residual, weight, EPS)
            at_once = kernels.add_rms_norm_triton(x, residual, weight, EPS, more)
            if dtype == torch.float32 or DEVICE == "cuda":  # the interpreter cuts where bf16 is rounded
                assert all(torch.equal(one, other) for one, other in zip(at_once, apart, strict=True))
            exact = reference.add_rms_norm(*(t.cpu().double() for t in (x, residual, weight)), EPS, more.cpu().double())
            for one, other in zip(at_once, exact, strict=True):
                assert relative_error(one, other) <= (TOLERANCE if dtype == torch.float32 else 2**-6)


def check_parts_are_added_with_the_residual():
    """Against fp64, in fp32; of one part every bit is the op's without parts."""
    for num_parts, *shape in ((1, 5, 37), (2, 2, 3, 600), (4, 3, 256), (3, 1, 1), (8, 2, 513), (2, 2, 7168)):
        parts, residual = randn(num_parts, *shape, seed=num_parts), randn(*shape, seed=9)
        weight = 1 + 0.3 * randn(shape[-1], seed=3)
        given = [t.to(DEVICE) for t in (parts, residual, weight)]
        mine = kernels.add_rms_norm_triton(*given, EPS, in_parts=True)
        exact = reference.add_rms_norm(parts.double().sum(0), residual.double(), weight.double(), EPS)
        for one, other in zip(mine, exact, strict=True):
            assert one.dtype == torch.float32
            assert one.is_contiguous()
            assert relative_error(one, other) <= TOLERANCE
        if num_parts == 1:
            apart = kernels.add_rms_norm_triton(given[0][0], *given[1:], EPS)
            assert all(torch.equal(one, other) for one, other in zip(mine, apart, strict=True))


def check_parts_become_what_the_stream_is():
    """fp32 parts, a bf16 stream, which may be where the sum goes; what is stored is what is normalised."""
    for num_parts in (1, 2):
        for size in (37, 600):
            parts, residual = randn(num_parts, 5, size), randn(5, size, seed=1).bfloat16()
            weight = (1 + 0.3 * randn(size, seed=2)).bfloat16().to(DEVICE)
            in_place = copied(residual, DEVICE)
            normed, total = kernels.add_rms_norm_triton(
                parts.to(DEVICE), in_place, weight, EPS, in_parts=True, out=(torch.empty_like(in_place), in_place)
            )
            exact = parts.double().sum(0) + residual.double()
            limit = 2**-8 if DEVICE == "cuda" else 2**-7
            assert ((total.cpu().double() - exact).abs() <= limit * exact.abs() + 1e-6).all()
            assert total.dtype == normed.dtype == torch.bfloat16
            again = kernels.rms_norm_triton(total, weight, EPS)
            assert relative_error(normed, again) <= (0.0 if num_parts == 1 or DEVICE == "cpu" else 2**-8)
    parts, weight = torch.zeros(5, 2, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    with pytest.raises(AssertionError, match="parts have strides"):
        kernels.add_rms_norm_triton(parts.transpose(0, 1), parts[:, 0], weight, EPS, in_parts=True)
    with pytest.raises(AssertionError, match="or two addends"):
        kernels.add_rms_norm_triton(parts, parts[0], weight, EPS, parts[0], in_parts=True)


def check_no_rows():
    none, weight = torch.zeros(0, 4, device=DEVICE), torch.ones(4, device=DEVICE)
    assert kernels.rms_norm_triton(none, weight, EPS).shape == (0, 4)


def check_other_types_are_refused():
    x = torch.zeros(2, 4, dtype=torch.float64, device=DEVICE)
    with pytest.raises(ValueError, match=r"x is torch\.float64, need bfloat16, float16 or float32"):
        kernels.rms_norm_triton(x, torch.ones(4, device=DEVICE), EPS)


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    assert all("ld.global.v4.b32" in usage["accesses"] for usage in compiled.values())
    for name in ("k2.6-hidden-add", "k2.6-hidden-add-parts"):
        assert {access for access in compiled[name]["accesses"] if "global" in access} == {
            "ld.global.v4.b32",
            "st.global.v4.b32",
        }


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="x is on cpu, need a CUDA device"):
        kernels.rms_norm_triton(torch.zeros(2, 4), torch.ones(4), 1e-6)
