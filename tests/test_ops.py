"""The correctness matrix: every op, every implementation, every kind of input, against the specification."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ddbench.errors import UserError
from ddbench.ops import OPS, SIZES, TritonLauncher, check_op, why_not
from ddbench.reference import rms_norm

MATRIX = [(op, name, size) for op in OPS.values() for name in op.implementations for size in SIZES]


@pytest.mark.parametrize(("op", "implementation", "size"), MATRIX, ids=[f"{o.name}-{i}-{s}" for o, i, s in MATRIX])
@pytest.mark.parametrize("seed", [0, 1])
def test_implementation_meets_specification(op, implementation, size, seed):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reason = why_not(op, implementation, device)
    if reason is not None:
        pytest.skip(reason)
    check = check_op(op, implementation, size, seed, device)
    assert check.ok, check.detail
    assert check.error <= check.tolerance
    assert check.detail == ""


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_inputs_are_seeded_and_cost_is_counted(op):
    for size in SIZES:
        cost = op.cost(**op.make_inputs(0, size))
        assert cost == op.cost(**op.make_inputs(0, size))
        assert set(cost) == {"bytes", "flops"}
        assert cost["bytes"] > 0
        assert cost["flops"] >= 0
        assert all(type(value) is int for value in cost.values())


def _check_fake(implementation, op="rms_norm", size="small"):
    fake = dataclasses.replace(OPS[op], implementations={"fake": implementation})
    return check_op(fake, "fake", size)


def test_check_reports_what_is_wrong():
    """Each kind of fault is found and named: error, shape, dtype, missing result, touched argument, wrong integer."""

    def slightly_off(x, weight, eps):
        return rms_norm.rms_norm(x, weight, eps) * 1.001

    def touching(x, weight, eps):
        out = rms_norm.rms_norm(x, weight, eps)
        x[0] += 1
        return out

    assert "relative error 0.00" in _check_fake(slightly_off).detail
    assert "result" in _check_fake(lambda x, weight, eps: rms_norm.rms_norm(x, weight, eps)[:1]).detail
    assert "float64" in _check_fake(lambda x, weight, eps: rms_norm.rms_norm(x, weight, eps).double()).detail
    assert "got inputs.x" in _check_fake(lambda x, weight, eps: None).detail
    assert _check_fake(touching).detail.startswith("inputs.x: relative error")
    assert not _check_fake(touching).ok
    nan = _check_fake(lambda x, weight, eps: torch.full_like(x, float("nan")))
    assert nan.error == float("inf")

    def other_expert(**inputs):
        ids, weights = OPS["moe_route"].reference(**inputs)
        return ids.flip(1), weights

    assert "differ" in _check_fake(other_expert, op="moe_route").detail


def test_an_unknown_implementation_is_a_user_error():
    with pytest.raises(UserError, match="did you mean 'fused'"):
        check_op(OPS["materialize_kv"], "fuse", "small")


def test_what_needs_a_gpu_says_so():
    fake = dataclasses.replace(OPS["rms_norm"], implementations={"triton": TritonLauncher("rms_norm"), "torch": len})
    assert why_not(fake, "torch", "cpu") is None
    reason = why_not(fake, "triton", "cpu")
    assert reason in ("needs a CUDA device", "triton is not installed: pip install 'ddbench[gpu]'")
