"""Queries and new K/V rows in Triton against their specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import qk_rows as reference
from ddbench.testing import copied, relative_error, to_float64

kernels = pytest.importorskip("ddbench.kernels.qk_rows_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-6
FLOATS = ("q", "k", "v", "q_norm", "k_norm", "k_cache", "v_cache")


def run(inputs, call=kernels.qk_rows_triton, device=DEVICE):
    """-> q and the two caches after the call."""
    given = copied(inputs, device)
    q = call(**given)
    return q.cpu(), given["k_cache"].cpu(), given["v_cache"].cpu()


def expected_of(inputs):
    return run(inputs, reference.qk_rows, "cpu")


def inputs_of(lengths, tokens, heads, kv_heads, dim, half, num_rows, has_norms=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    angles = 3 * torch.randn(batch, tokens, 1, half, generator=generator)
    q = torch.randn(batch, tokens, heads, dim, generator=generator)
    k, v = torch.randn(2, batch, tokens, kv_heads, dim, generator=generator)
    norms = 1 + 0.3 * torch.randn(2, dim, generator=generator)
    caches = torch.full((2, batch, num_rows, kv_heads, dim), torch.nan)
    return {
        "q": q, "k": k, "v": v,
        "q_norm": norms[0] if has_norms else None, "k_norm": norms[1] if has_norms else None, "eps": 1e-6,
        "cos_rows": angles.cos(), "sin_rows": angles.sin(),
        "lengths": torch.tensor(lengths), "k_cache": caches[0], "v_cache": caches[1],
    }  # fmt: skip


def assert_equals_reference(inputs, tolerance=TOLERANCE):
    for mine, exact in zip(run(inputs), expected_of(to_float64(inputs)), strict=True):
        assert mine.dtype == torch.float32
        error = relative_error(mine, exact)
        assert error <= tolerance, f"relative error {error:.3g}"


def bits(tensors):
    return [t.nan_to_num(5.0) for t in tensors]


def check_equals_the_reference():
    """NaN in every row that is not written stays; rows without a place are skipped; v keeps its bits."""
    for size in reference.SIZES:
        for seed in range(2):
            inputs = reference.make_inputs(seed, size)
            assert_equals_reference(inputs)
            assert torch.equal(*(run(inputs)[2].nan_to_num(5.0), expected_of(inputs)[2].nan_to_num(5.0)))


def check_heads_of_every_kind():
    """K2.6's drafter, nano-k2's, more KV heads than a program takes, one wide head; all dims rotating or some."""
    kinds = ((64, 8, 128, 64), (8, 4, 32, 16), (9, 9, 256, 32), (3, 1, 1500, 5), (2, 2, 3, 1), (5, 5, 24, 12))
    for heads, kv_heads, dim, half in kinds:
        for has_norms in (True, False):
            assert_equals_reference(inputs_of([1, 0], 2, heads, kv_heads, dim, half, 4, has_norms))


def check_lengths_of_idle_slots():
    """H68: no length is an address, and what stands beside an idle slot is written all the same."""
    lengths = [0, 3, 5, 6, 7, -1, 2**63 - 1, -(2**63), 10**15]
    inputs = inputs_of(lengths, 3, 3, 2, 8, 3, 7)
    for name in ("q", "k", "v"):
        inputs[name][4:] = torch.nan
    assert_equals_reference(inputs)
    for cache in run(inputs)[1:]:
        assert (~cache.isnan().flatten(2).any(-1)).sum(1).tolist() == [3, 3, 2, 1, 0, 0, 0, 0, 0]


def check_views_of_one_projection_and_of_a_cache():
    """Heads side by side in one projection, a layer of a cache; nothing around them changes, no copy is made."""
    inputs = inputs_of([2, 0, 4], 2, 5, 2, 10, 4, 6)
    expected = bits(run(inputs))
    whole = torch.full((3, 4, 10, 10), torch.nan)
    whole[:, 1:3, 1:] = torch.cat([inputs[name] for name in ("q", "k", "v")], dim=2)
    whole = whole.to(DEVICE)[:, 1:3]
    buffers = [torch.full((2, 3, 8, 4, 12), 7.0, device=DEVICE) for _ in range(2)]
    views = [buffer[1, :, 1:-1, 1:3, :10] for buffer in buffers]
    for view in views:
        view.fill_(torch.nan)
    given = copied(inputs, DEVICE) | {"q": whole[:, :, 1:6], "k": whole[:, :, 6:8], "v": whole[:, :, 8:]}
    out = kernels.qk_rows_triton(**given | {"k_cache": views[0], "v_cache": views[1]})
    assert out.is_contiguous()
    for mine, other in zip(bits(t.cpu() for t in (out, *views)), expected, strict=True):
        assert torch.equal(mine, other)
    for buffer, view in zip(buffers, views, strict=True):
        view.fill_(7.0)
        assert (buffer == 7.0).all()


def check_company_changes_nothing():
    inputs = inputs_of([2, 0, 4], 3, 6, 3, 20, 7, 9)
    together = bits(run(inputs))
    shared = ("q_norm", "k_norm", "eps")
    for b in range(3):
        alone = bits(run({name: t if name in shared else t[b : b + 1] for name, t in inputs.items()}))
        assert all(torch.equal(mine[0], other[b]) for mine, other in zip(alone, together, strict=True))


def check_low_precision():
    """v keeps its bits. The interpreter truncates where a GPU rounds: twice the error."""
    factor = 2.0 if DEVICE == "cuda" else 4.0
    for has_norms in (True, False):
        inputs = inputs_of([1, 3], 3, 6, 3, 20, 7, 9, has_norms)
        low = inputs | {name: inputs[name].bfloat16() for name in FLOATS if inputs[name] is not None}
        exact, obvious, mine = expected_of(to_float64(low)), expected_of(low), run(low)
        for one, other, best in zip(mine, obvious, exact, strict=True):
            assert one.dtype == torch.bfloat16
            assert relative_error(one, best) <= factor * relative_error(other, best)
        assert torch.equal(mine[2].nan_to_num(5.0), obvious[2].nan_to_num(5.0))


def check_result_goes_where_it_should():
    inputs = inputs_of([1, 3], 3, 6, 3, 20, 7, 9)
    out = torch.full((2, 3, 6, 20), 7.0, device=DEVICE)
    assert kernels.qk_rows_triton(**copied(inputs, DEVICE), out=out) is out
    assert torch.equal(out.cpu(), run(inputs)[0])
    assert run(inputs_of([1, 3], 0, 6, 3, 20, 7, 9))[0].shape == (2, 0, 6, 20)


def check_what_it_cannot_do_is_refused():
    inputs = copied(inputs_of([0], 2, 2, 2, 4, 2, 5), DEVICE)
    with pytest.raises(ValueError, match="elements of a head must lie together"):
        kernels.qk_rows_triton(**inputs | {"q": inputs["q"].transpose(2, 3).contiguous().transpose(2, 3)})
    with pytest.raises(AssertionError, match="one of the two norms is missing"):
        kernels.qk_rows_triton(**inputs | {"q_norm": None})


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    for name, usage in compiled.items():
        assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(usage["accesses"]), name


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="q is on cpu, need a CUDA device"):
        kernels.qk_rows_triton(**reference.make_inputs(0, "small"))
