"""New latent rows in Triton against their specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import latent_rows as reference
from ddbench.testing import copied, relative_error, to_float64

kernels = pytest.importorskip("ddbench.kernels.latent_rows_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6


def run(inputs):
    """-> the cache after the call."""
    given = copied(inputs, DEVICE)
    assert kernels.latent_rows_triton(**given) is None
    return given["cache"].cpu()


def expected_of(inputs):
    given = copied(inputs)
    reference.latent_rows(**given)
    return given["cache"]


def inputs_of(lengths, tokens, rank, half, num_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    angles = 3 * torch.randn(batch, tokens, 1, half, generator=generator)
    return {
        "kv": torch.randn(batch, tokens, rank + 2 * half, generator=generator),
        "norm_weight": 1 + 0.3 * torch.randn(rank, generator=generator),
        "eps": 1e-6,
        "cos_rows": angles.cos(),
        "sin_rows": angles.sin(),
        "lengths": torch.tensor(lengths),
        "cache": torch.full((batch, num_rows, rank + 2 * half), torch.nan),
    }


def check_equals_the_reference():
    """NaN in every row that is not written stays; rows without a place are skipped."""
    for size in reference.SIZES:
        for seed in range(2):
            inputs = reference.make_inputs(seed, size)
            assert relative_error(run(inputs), expected_of(to_float64(inputs))) <= TOLERANCE


def check_ranks_of_every_width():
    """Around powers of two, K2.6's and one that several warps share."""
    for rank, half in ((1, 1), (31, 3), (64, 8), (512, 32), (513, 5), (1500, 32)):
        inputs = inputs_of([2, 0], 2, rank, half, 5)
        assert relative_error(run(inputs), expected_of(to_float64(inputs))) <= TOLERANCE


def check_lengths_of_idle_slots():
    """H68: no length is an address, and what stands beside an idle slot is written all the same."""
    lengths = [0, 3, 5, 6, 7, -1, -3, 2**63 - 1, -(2**63), 10**15]
    inputs = inputs_of(lengths, 3, 9, 2, 7)
    inputs["kv"][4:] = torch.nan
    cache, expected = run(inputs), expected_of(inputs)
    assert relative_error(cache, expected) <= TOLERANCE
    assert torch.equal(cache.isnan(), expected.isnan())
    assert (~cache.isnan().any(-1)).sum(1).tolist() == [3, 3, 2, 1, 0, 0, 0, 0, 0, 0]


def check_views_of_wider_tensors_are_written_in_place():
    """A layer of a cache, and kv cut out of a wider projection; nothing around them changes."""
    inputs = inputs_of([2, 0, 4], 2, 12, 3, 6)
    expected = run(inputs)
    buffer = torch.full((2, 3, 8, 25), 7.0, device=DEVICE)
    view = buffer[1, :, 1:-1, 3:21]
    view.fill_(torch.nan)
    wide = torch.full((3, 4, 40), torch.nan)
    wide[:, 1:3, 5:23] = inputs["kv"]
    given = copied(inputs, DEVICE) | {"cache": view, "kv": wide.to(DEVICE)[:, 1:3, 5:23]}
    kernels.latent_rows_triton(**given)
    assert torch.equal(view.cpu().nan_to_num(5.0), expected.nan_to_num(5.0))
    view.fill_(7.0)
    assert (buffer == 7.0).all()


def check_company_changes_nothing():
    inputs = inputs_of([2, 0, 4], 3, 40, 5, 9)
    together = run(inputs)
    for b in range(3):
        alone = run({name: t[b : b + 1] if torch.is_tensor(t) and t.dim() > 1 else t for name, t in inputs.items()}
                    | {"lengths": inputs["lengths"][b : b + 1]})  # fmt: skip
        assert torch.equal(alone[0].nan_to_num(5.0), together[b].nan_to_num(5.0))


def check_low_precision():
    """Also with an fp32 norm. The interpreter truncates where a GPU rounds: twice the error."""
    inputs = inputs_of([1, 3], 3, 33, 8, 9)
    for names in (("kv", "cache", "norm_weight"), ("kv", "cache")):
        low = inputs | {name: inputs[name].bfloat16() for name in names}
        exact = expected_of(to_float64(low))
        out, obvious = run(low), expected_of(low)
        assert out.dtype == torch.bfloat16
        factor = 2.0 if DEVICE == "cuda" else 4.0
        assert relative_error(out, exact) <= factor * relative_error(obvious, exact)


def check_lengths_of_32_bits_and_no_tokens():
    inputs = inputs_of([1, 3], 3, 8, 2, 9)
    narrow = run(inputs | {"lengths": inputs["lengths"].int()})
    assert torch.equal(narrow.nan_to_num(5.0), run(inputs).nan_to_num(5.0))
    assert run(inputs_of([1, 3], 0, 8, 2, 9)).isnan().all()


def check_scattered_elements_are_refused():
    inputs = copied(inputs_of([0], 2, 8, 2, 9), DEVICE)
    inputs["kv"] = torch.zeros(1, 12, 2, device=DEVICE).transpose(1, 2)
    with pytest.raises(ValueError, match="elements of a row must lie together"):
        kernels.latent_rows_triton(**inputs)


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    """And a row is one warp's: no barrier."""
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    for usage in compiled.values():
        assert "bar.sync" not in usage["accesses"]
    for usage in (usage for name, usage in compiled.items() if name.startswith("k2.6")):
        assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(usage["accesses"])


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="kv is on cpu, need a CUDA device"):
        kernels.latent_rows_triton(**reference.make_inputs(0, "small"))
