"""Drives the torch profiler: the case's process records itself (`kineto.py`), nothing stands around it."""

from __future__ import annotations

from ddbench.harness.profilers.errand import Errand, Files
from ddbench.harness.tool_faults import TORCH_FAULTS

TRACE = "torch.json.gz"


def capture(errand: Errand) -> Files:
    """Run the case's process. Raises `CaptureFailed`."""
    ending = errand.start(())
    command = errand.shown(())
    errand.check(ending, TRACE, command, TORCH_FAULTS)
    return Files(reads=TRACE, raw=(TRACE,), command=command)
