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


def compressed_of(q_rank, num_parts, lengths, tokens, rank, half, num_rows, seed=0):
    """Inputs with a query's columns before the row's."""
    inputs = inputs_of(lengths, tokens, rank, half, num_rows, seed)
    generator = torch.Generator().manual_seed(seed + 100)
    del inputs["kv"]
    return {
        "parts": torch.randn(num_parts, len(lengths), tokens, q_rank + rank + 2 * half, generator=generator),
        "q_weight": 1 + 0.3 * torch.randn(q_rank, generator=generator),
        "kv_weight": inputs.pop("norm_weight"),
        "q_eps": 1e-2,
        "kv_eps": inputs.pop("eps"),
        **inputs,
    }


def run_compressed(inputs):
    """-> q, and the cache after the call."""
    given = copied(inputs, DEVICE)
    q = kernels.compressed_rows_triton(**given)
    assert q.is_contiguous()
    return q.cpu(), given["cache"].cpu()


def expected_compressed(inputs):
    given = copied(inputs)
    return reference.compressed_rows(**given), given["cache"]


def check_a_query_before_the_row():
    """Against the specification, with parts that cancel, too: then in fp64 within twice its own error in fp32."""
    for size in reference.SIZES:
        for seed in range(2):
            inputs = reference.make_compressed_inputs(seed, size)
            rounded, exact = expected_compressed(inputs), expected_compressed(to_float64(inputs))
            for mine, obvious, one in zip(run_compressed(inputs), rounded, exact, strict=True):
                assert mine.dtype == torch.float32
                assert relative_error(mine, one) <= max(TOLERANCE, 2 * relative_error(obvious, one))


def check_queries_of_every_width():
    """In one to eight parts; rows at the cache's end and beyond it are skipped, their queries are not."""
    shapes = ((1, 1, 1, 1), (2, 31, 33, 3), (4, 96, 64, 8), (4, 1536, 512, 32), (1, 1536, 512, 32), (8, 5, 513, 5))
    for num_parts, q_rank, rank, half in shapes:
        inputs = compressed_of(q_rank, num_parts, [0, 4, 5, -1, 2**63 - 1], 2, rank, half, 5)
        for mine, exact in zip(run_compressed(inputs), expected_compressed(to_float64(inputs)), strict=True):
            assert relative_error(mine, exact) <= TOLERANCE
        assert (~run_compressed(inputs)[1].isnan().any(-1)).sum(1).tolist() == [2, 1, 0, 0, 0]


def check_a_single_part_is_the_two_ops_apart():
    """q in every bit; the row, too, but on a GPU, where more warps than it has alone add its squares."""
    norms = pytest.importorskip("ddbench.kernels.rms_norm_triton")
    for q_rank, rank, half in ((1536, 512, 32), (700, 40, 5)):
        for dtype in (torch.float32, torch.bfloat16):
            inputs = compressed_of(q_rank, 1, [1, 3], 3, rank, half, 5)
            inputs |= {name: inputs[name].to(dtype) for name in ("parts", "q_weight", "kv_weight", "cache")}
            q, cache = run_compressed(inputs)
            given = copied(inputs, DEVICE)
            rows = given.pop("parts")[0]
            q_weight, q_eps = given.pop("q_weight"), given.pop("q_eps")
            assert q.dtype == dtype
            assert torch.equal(q, norms.rms_norm_triton(rows[..., :q_rank], q_weight, q_eps).cpu())
            weight, eps = given.pop("kv_weight"), given.pop("kv_eps")
            kernels.latent_rows_triton(rows[..., q_rank:], weight, eps, **given)
            limit = 0.0 if DEVICE == "cpu" else TOLERANCE if dtype == torch.float32 else 2**-8
            assert relative_error(cache, given["cache"]) <= limit


def check_fp32_parts_of_a_bf16_model():
    """The interpreter truncates where a GPU rounds: twice the error."""
    inputs = compressed_of(33, 4, [1, 3], 3, 33, 8, 9)
    low = inputs | {name: inputs[name].bfloat16() for name in ("q_weight", "kv_weight", "cache")}
    low["dtype"] = torch.bfloat16
    exact = expected_compressed(to_float64(low) | {"dtype": torch.float64})
    factor = 2.0 if DEVICE == "cuda" else 4.0
    for mine, obvious, one in zip(run_compressed(low), expected_compressed(low), exact, strict=True):
        assert mine.dtype == torch.bfloat16
        assert relative_error(mine, one) <= factor * relative_error(obvious, one)


def check_company_changes_no_query():
    inputs = compressed_of(70, 4, [2, 0, 4], 3, 40, 5, 9)
    q, cache = run_compressed(inputs)
    for b in range(3):
        one = slice(b, b + 1)
        alone = {name: inputs[name][one] for name in ("cos_rows", "sin_rows", "lengths", "cache")}
        mine = run_compressed(inputs | alone | {"parts": inputs["parts"][:, one]})
        assert torch.equal(mine[0][0], q[b])
        assert torch.equal(mine[1][0].nan_to_num(5.0), cache[b].nan_to_num(5.0))


def check_no_queries_and_strided_parts():
    inputs = compressed_of(7, 2, [1, 3], 0, 8, 2, 9)
    q, cache = run_compressed(inputs)
    assert q.shape == (2, 0, 7)
    assert cache.isnan().all()
    inputs = copied(compressed_of(7, 2, [1, 3], 3, 8, 2, 9), DEVICE)
    inputs["parts"] = inputs["parts"].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(AssertionError, match="parts have strides"):
        kernels.compressed_rows_triton(**inputs)


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


def test_compiles_for_hopper_without_spills_in_wide_accesses(compiled):
    """And a row without a query is one warp's: no barrier. With parts, a thread takes 16 bytes of each of q's."""
    assert {name for name, usage in compiled.items() if usage["STACK"] or usage["LOCAL"]} == set()
    for usage in (usage for name, usage in compiled.items() if "-q-" not in name):
        assert "bar.sync" not in usage["accesses"]
    for name in ("k2.6-bf16", "k2.6-fp32", "k2.6-q-x1-bf16"):
        assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(compiled[name]["accesses"])
    assert compiled["k2.6-q-x4-bf16"]["accesses"].count("ld.global.v4.b32") == 4


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="kv is on cpu, need a CUDA device"):
        kernels.latent_rows_triton(**reference.make_inputs(0, "small"))
