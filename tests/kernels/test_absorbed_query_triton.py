"""The query of absorbed MLA in Triton against its specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import absorbed_query as reference
from ddbench.testing import copied, relative_error, to_float64

kernels = pytest.importorskip("ddbench.kernels.absorbed_query_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6


def run(inputs, **options):
    return kernels.absorbed_query_triton(**copied(inputs, DEVICE), **options).cpu()


def inputs_of(batch, tokens, heads, rank, half, seed=0):
    generator = torch.Generator().manual_seed(seed)
    angles = 3 * torch.randn(batch, tokens, 1, half, generator=generator)
    return {
        "q_latent": torch.randn(batch, tokens, heads, rank, generator=generator),
        "q_rope": torch.randn(batch, tokens, heads, 2 * half, generator=generator),
        "cos_rows": angles.cos(),
        "sin_rows": angles.sin(),
    }


def check_equals_the_reference():
    """Far positions, a token of NaN beside finite ones; latent parts bit for bit."""
    for size in reference.SIZES:
        for seed in range(2):
            inputs = reference.make_inputs(seed, size)
            out, rank = run(inputs), inputs["q_latent"].shape[-1]
            assert out.dtype == torch.float32
            assert relative_error(out, reference.absorbed_query(**to_float64(inputs))) <= TOLERANCE
            same = (out[..., :rank] == inputs["q_latent"]) | inputs["q_latent"].isnan()
            assert same.all()


def check_heads_of_every_count():
    """Around a program's heads; K2.6's rank, and half of a rotary part that is no power of two."""
    for heads, rank, half in ((1, 512, 32), (5, 512, 32), (9, 700, 3), (3, 3000, 1)):
        inputs = inputs_of(2, 2, heads, rank, half)
        assert relative_error(run(inputs), reference.absorbed_query(**to_float64(inputs))) <= TOLERANCE


def check_views_of_the_products_are_taken_as_they_are():
    """The latent part heads first, the rotary part between the heads' other dims; no copy is made."""
    inputs = inputs_of(2, 3, 5, 16, 4)
    expected = run(inputs)
    heads_first = inputs["q_latent"].permute(2, 0, 1, 3).contiguous().to(DEVICE)
    whole = torch.full((2, 3, 5, 20), torch.nan)
    whole[..., 7:15] = inputs["q_rope"]
    tables = (inputs["cos_rows"].to(DEVICE), inputs["sin_rows"].to(DEVICE))
    out = kernels.absorbed_query_triton(heads_first.permute(1, 2, 0, 3), whole.to(DEVICE)[..., 7:15], *tables)
    assert torch.equal(out.cpu(), expected)
    assert out.is_contiguous()


def check_company_changes_nothing():
    inputs = inputs_of(4, 3, 6, 40, 5)
    together = run(inputs)
    for b in range(4):
        alone = run({name: t[b : b + 1] for name, t in inputs.items()})
        assert torch.equal(alone[0], together[b])


def check_low_precision():
    """The latent part keeps its bits. The interpreter truncates where a GPU rounds: twice the error."""
    inputs = inputs_of(1, 5, 3, 33, 8)
    low = {name: t.bfloat16() if name.startswith("q") else t for name, t in inputs.items()}
    exact = reference.absorbed_query(**to_float64(low))
    out, obvious = run(low), reference.absorbed_query(**low)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out[..., :33], low["q_latent"])
    factor = 2.0 if DEVICE == "cuda" else 4.0
    assert relative_error(out, exact) <= factor * relative_error(obvious, exact)


def check_result_goes_where_it_should():
    inputs = inputs_of(2, 2, 3, 8, 2)
    out = torch.full((2, 2, 3, 12), 7.0, device=DEVICE)
    assert kernels.absorbed_query_triton(**copied(inputs, DEVICE), out=out) is out
    assert torch.equal(out.cpu(), run(inputs))
    assert run(inputs_of(2, 0, 3, 8, 2)).shape == (2, 0, 3, 12)


def check_scattered_elements_are_refused():
    inputs = copied(inputs_of(1, 2, 3, 8, 2), DEVICE)
    inputs["q_rope"] = torch.zeros(1, 2, 4, 3, device=DEVICE).transpose(2, 3)
    with pytest.raises(ValueError, match="elements must lie together"):
        kernels.absorbed_query_triton(**inputs)


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    for usage in (usage for name, usage in compiled.items() if name.startswith("k2.6")):
        assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(usage["accesses"])


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="q_latent is on cpu, need a CUDA device"):
        kernels.absorbed_query_triton(**reference.make_inputs(0, "small"))
