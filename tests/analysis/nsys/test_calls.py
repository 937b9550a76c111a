"""Calls of the host: what kind each is, and which lie within another."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.analysis.nsys.calls import CALL_KINDS, call_kind, outermost


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "launch",
            "cudaLaunchKernel_v7000 cudaLaunchKernelExC_v11060 cuLaunchKernel cuLaunchKernelEx "
            "cudaLaunchCooperativeKernel_v9000 cuLaunchCooperativeKernel cuLaunch cudaLaunch_v3020 cuLaunchGridAsync",
        ),
        ("graph_launch", "cudaGraphLaunch_v10000 cuGraphLaunch cudaGraphLaunch_ptsz_v10000"),
        (
            "copy",
            "cudaMemcpyAsync_v3020 cudaMemcpy_v3020 cuMemcpyHtoDAsync_v2 cudaMemcpy2DAsync_v3020 cudaMemcpyPeer_v4000",
        ),
        ("memset", "cudaMemsetAsync_v3020 cuMemsetD8Async"),
        (
            "sync",
            "cudaDeviceSynchronize_v3020 cudaStreamSynchronize_v3020 cudaEventSynchronize_v3020 cuCtxSynchronize "
            "cuStreamSynchronize cudaThreadSynchronize_v3020",
        ),
        (
            "memory",
            "cudaMalloc_v3020 cudaMallocAsync_v11020 cudaFree_v3020 cudaHostAlloc_v3020 cudaMallocHost_v3020 "
            "cuMemAlloc_v2 cuMemCreate cuMemMap cudaHostRegister_v4000 cuMemAddressReserve",
        ),
        (
            "other",
            "cudaStreamWaitEvent_v3020 cudaEventQuery_v3020 cudaGraphAddMemcpyNode_v10000 cudaLaunchHostFunc_v10000 "
            "cudaGraphInstantiateWithFlags_v11040 cuKernelGetName cudaStreamIsCapturing_v10000 <unnamed>",
        ),
    ],
)
def test_calls_are_told_apart_by_their_names(kind: str, names: str) -> None:
    assert {name: call_kind(name) for name in names.split()} == dict.fromkeys(names.split(), kind)
    assert kind in CALL_KINDS


@given(
    calls=st.lists(
        st.tuples(st.integers(1, 2), st.integers(0, 20), st.integers(0, 12)).map(lambda c: (c[0], c[1], c[1] + c[2])),
        max_size=14,
    )
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_outermost_call_is_the_last_that_begins_outside_of_all_before_it(calls: list[Any]) -> None:
    frame = pd.DataFrame(calls, columns=["thread", "start_ns", "end_ns"], dtype=np.int64)
    found = outermost(frame)
    for row, (thread, start, end) in enumerate(calls):
        before = [
            (s, -e, other)
            for other, (t, s, e) in enumerate(calls)
            if t == thread and (s, -e, other) <= (start, -end, row)
        ]
        outer = [call for call in before if all(-e <= call[0] for s, e, o in before if (s, e, o) < call)]
        assert found[row] == max(outer)[2]


def test_without_calls_there_is_no_outer_one() -> None:
    empty = pd.DataFrame({name: np.empty(0, np.int64) for name in ("thread", "start_ns", "end_ns")})
    assert outermost(empty).tolist() == []
