"""Drives the torch profiler: the case's process records itself (`kineto.py`), nothing stands around it."""

from __future__ import annotations

from ddbench.harness.profilers.errand import CaptureFailed, Errand, Files, last_words
from ddbench.harness.tool_faults import TORCH_FAULTS, crashed, cut_off, fault_in, no_report, timed_out

TRACE = "torch.json.gz"


def capture(errand: Errand) -> Files:
    """Run the case's process. Raises `CaptureFailed`."""
    ending = errand.start(())
    command = errand.shown(())
    if ending.exit_code is None:
        raise CaptureFailed(timed_out("torch", errand.timeout_s), command=command)
    file = errand.raw / TRACE
    if errand.run_file.is_file() and file.is_file():
        if not file.stat().st_size:
            raise CaptureFailed(cut_off(TRACE), command=command)
        return Files(reads=TRACE, raw=(TRACE,), command=command)
    said = errand.plain(last_words(ending.log_tail))
    fallback = no_report(said) if errand.run_file.is_file() else crashed(said)
    raise CaptureFailed(fault_in(ending.log_tail, TORCH_FAULTS) or fallback, command=command)
