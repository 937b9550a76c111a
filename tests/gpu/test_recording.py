"""What recordings take from the memory of the device."""

from __future__ import annotations

import pytest
import torch

from ddbench.engine.launch import Launch
from ddbench.engine.recording import record

pytestmark = pytest.mark.gpu
NUM_BYTES = 256 * 2**20


def test_what_a_recording_lets_go_of_serves_the_next():
    """Of ten rounds with a large tensor for a while, all but the first find the memory of the one before."""

    def round_(batch: None, launch: Launch) -> torch.Tensor:
        while_it_lasts = torch.ones(NUM_BYTES, dtype=torch.uint8, device="cuda")
        return while_it_lasts[:8].double()[None]

    pool = torch.cuda.graph_pool_handle()
    torch.cuda.empty_cache()
    reserved = []
    kept = []
    for _ in range(10):
        kept.append(record(round_, None, pool, (), by_stage=False, times_stages=False))  # type: ignore[arg-type]
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] - reserved[0] < NUM_BYTES, reserved
