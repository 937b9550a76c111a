"""Claims about draft-KV materialize's three implementations."""

from __future__ import annotations

import itertools

import pytest
import torch

from ddbench.kernels import materialize_kv as kernel
from ddbench.reference import materialize_kv as spec

PATHS = {
    "sequential": kernel.materialize_sequential,
    "batched": kernel.materialize_batched,
    "fused": kernel.materialize_fused,
}
EACH_PATH = pytest.mark.parametrize("run", PATHS.values(), ids=PATHS)


def _run(run, inputs, **changes):
    inputs = inputs | changes
    inputs["k_cache"], inputs["v_cache"] = inputs["k_cache"].clone(), inputs["v_cache"].clone()
    run(**inputs)
    return inputs["k_cache"], inputs["v_cache"]


def _long(rows, dtype=torch.float32, batch=1, seed=0):
    """`rows` feature rows in small dims; one position stays free at each end of the cache."""
    g = torch.Generator().manual_seed(seed)
    inputs = spec.make_inputs(seed, "small")
    cos, sin = spec.cos_sin(spec.inv_freq(8, 10000.0), rows + 2)
    caches = {name: torch.zeros(3, batch, rows + 2, 2, 8, dtype=dtype) for name in ("k_cache", "v_cache")}
    weights = {name: inputs[name].to(dtype) for name in ("fc", "hidden_norm", "kv_weights", "k_norms")}
    new = {
        "features": torch.randn(batch, rows, 24, generator=g).to(dtype),
        "positions": 1 + torch.arange(rows).expand(batch, -1),
        "num_rows": torch.full((batch,), rows),
        "cos": cos,
        "sin": sin,
    }
    return inputs | weights | caches | new


@EACH_PATH
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 129])
def test_any_number_of_rows(run, rows):
    """H25."""
    inputs = _long(rows)
    expected = _run(spec.materialize_kv, inputs)
    for ours, theirs in zip(_run(run, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours[:, :, 0].abs().max() == ours[:, :, -1].abs().max() == 0


@pytest.mark.parametrize("path", ["batched", "fused"])
def test_long_prompt_equals_sequential(path):
    """H31: 8193 rows, up to the last row but one of the table."""
    inputs = _long(8193)
    expected = _run(kernel.materialize_sequential, inputs)
    for ours, theirs in zip(_run(PATHS[path], inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours[:, :, 1:-1].abs().amax((-1, -2)).min() > 0


def test_bf16_paths_agree():
    """H30: V bit-equal (one GEMM, no arithmetic after it); K within 2 bf16 ULP of the head row's largest value."""
    inputs = _long(40, torch.bfloat16, batch=2)
    k_seq, v_seq = _run(kernel.materialize_sequential, inputs)
    for path in ("batched", "fused"):
        k, v = _run(PATHS[path], inputs)
        assert torch.equal(v, v_seq)
        ulp = k_seq.float().abs().amax(-1, keepdim=True) * 2**-7
        assert bool(((k.float() - k_seq.float()).abs() <= 2 * ulp).all())
        cosine = torch.cosine_similarity(k.float(), k_seq.float(), dim=-1)[:, :, 1:-1]
        assert float(cosine.min()) > 0.9999


@EACH_PATH
def test_rows_that_do_not_count_change_nothing(run):
    """H32: sentinel caches with counts 0, some, all and 1; the rows beyond hold NaN and positions off the table."""
    inputs = spec.make_inputs(3, "adversarial")
    expected = _run(spec.materialize_kv, inputs)
    for before, ours, theirs in zip((inputs["k_cache"], inputs["v_cache"]), _run(run, inputs), expected, strict=True):
        assert torch.equal(ours == before, theirs == before)
        assert ours.isfinite().all()


@EACH_PATH
def test_twice_is_once(run):
    """H34."""
    inputs = spec.make_inputs(0, "small")
    once = _run(run, inputs)
    again = _run(run, inputs, k_cache=once[0], v_cache=once[1])
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@EACH_PATH
def test_no_rows_no_change(run):
    """H24: T = 0, whatever the counts say."""
    inputs = spec.make_inputs(0, "small")
    none = {name: inputs[name][:, :0] for name in ("features", "positions")}
    k_cache, v_cache = _run(run, inputs, **none)
    assert torch.equal(k_cache, inputs["k_cache"])
    assert torch.equal(v_cache, inputs["v_cache"])


@EACH_PATH
def test_bounds_and_shapes_are_checked(run):
    """H26: off the table or off the cache raises before anything is written; H27: so do positions of another shape."""
    inputs = spec.make_inputs(0, "small")
    inputs |= {"num_rows": torch.tensor([4, 4]), "features": inputs["features"].nan_to_num()}
    last = torch.arange(20).unfold(0, 4, 1)[-1].expand(2, -1)  # up to the last row of the table: allowed
    assert _run(run, inputs, positions=last)[0].isfinite().all()
    for positions, changes in (
        (last + 1, {}),
        (last, {"cos": inputs["cos"][:19]}),
        (last, {"k_cache": inputs["k_cache"][:, :, :19]}),
    ):
        with pytest.raises(IndexError, match="max_context"):
            _run(run, inputs, positions=positions, **changes)
    with pytest.raises(IndexError, match="position 20 is beyond the last one, 19"):
        run(**inputs, position_bound=21)
    with pytest.raises(ValueError, match="positions have shape"):
        _run(run, inputs, positions=last[:, :3])


@EACH_PATH
def test_company_only_adds_rounding(run):
    inputs = spec.make_inputs(5, "adversarial")
    together = _run(run, inputs)
    rows = {name: inputs[name][1:2] for name in ("features", "positions", "num_rows")}
    caches = {name: inputs[name][:, 1:2] for name in ("k_cache", "v_cache")}
    for alone, all_of_them in zip(_run(run, inputs, **rows, **caches), together, strict=True):
        torch.testing.assert_close(alone[:, 0], all_of_them[:, 1])


@EACH_PATH
def test_host_reads_nothing(run):
    """H38: given a host bound, it runs on tensors without values."""
    inputs = spec.make_inputs(0, "odd")
    meta = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    assert run(**meta, position_bound=33) is None


def test_partial_rotation_leaves_the_tail():
    """H11: all paths write the tail dims of K un-rotated: they do not depend on the position."""
    inputs = spec.make_inputs(0, "odd")
    inputs["num_rows"] = torch.tensor([1, 1, 1])
    for run, position in itertools.product(PATHS.values(), (3, 30)):
        k_cache, _ = _run(run, inputs, positions=torch.full((3, 7), position))
        base, _ = _run(spec.materialize_kv, inputs, positions=torch.zeros(3, 7, dtype=torch.int64))
        torch.testing.assert_close(k_cache[:, :, position, :, 6:], base[:, :, 0, :, 6:])
        assert not torch.allclose(k_cache[:, :, position, :, :6], base[:, :, 0, :, :6], atol=1e-2)
