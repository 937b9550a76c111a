"""Claims about the implementation of queries and new K/V rows."""

from __future__ import annotations

import pytest
import torch

from ddbench.kernels.qk_rows import qk_rows
from ddbench.reference import qk_rows as spec
from ddbench.testing import copied, relative_error, to_float64


def _low(inputs):
    names = ("q", "k", "v", "q_norm", "k_norm", "k_cache", "v_cache")
    return inputs | {name: inputs[name].bfloat16() for name in names if inputs[name] is not None}


@pytest.mark.parametrize("size", ["small", "odd"])
def test_low_precision_within_budget(size):
    low = _low(spec.make_inputs(0, size))
    mine, obvious, exact = copied(low), copied(low), to_float64(low)
    got = (qk_rows(**mine), mine["k_cache"], mine["v_cache"])
    rounded = (spec.qk_rows(**obvious), obvious["k_cache"], obvious["v_cache"])
    for one, other, best in zip(got, rounded, (spec.qk_rows(**exact), exact["k_cache"], exact["v_cache"]), strict=True):
        assert one.dtype == torch.bfloat16
        assert relative_error(one, best) <= 2 * relative_error(other, best)
    assert torch.equal(got[2], rounded[2])


def test_one_norm_alone_is_refused():
    with pytest.raises(AssertionError, match="one of the two norms is missing"):
        qk_rows(**spec.make_inputs(0, "small") | {"q_norm": None})


def test_query_is_contiguous_and_host_reads_nothing():
    """H38: runs on tensors without values."""
    inputs = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in spec.make_inputs(0, "odd").items()}
    whole = torch.empty(3, 5, 15, 22, device="meta")
    inputs |= {"q": whole[:, :, :9], "k": whole[:, :, 9:12], "v": whole[:, :, 12:]}
    q = qk_rows(**inputs)
    assert q.shape == (3, 5, 9, 22)
    assert q.is_contiguous()
