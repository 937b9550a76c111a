"""What a tool printed -> what is wrong: its words decide, not the options that it, or a log, prints back."""

from __future__ import annotations

import pytest

from ddbench.harness.tool_faults import METRICS_FAULTS, fault_in

COMMAND = "nsys profile -s none --gpu-metrics-devices=0 --gpu-metrics-frequency=100000 --output=/already/in use/nsys"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Illegal --gpu-metrics-devices argument: 0.\nInsufficient privilege, see ERR_NVGPUCTRPERM", "no_permission"),
        ("Illegal --gpu-metrics-devices argument: 0.\nNone of the installed GPUs are supported:", "unsupported"),
        ("Illegal --gpu-metrics-device argument: cuda-visible.", "unsupported"),
        ("unrecognised option '--gpu-metrics-devices=0'\n\nusage: nsys profile [<args>] [application]", "unsupported"),
        ("GPU Metrics: the installed driver is not supported", "unsupported"),
        ("GPU 0: already under profiling", "busy"),
        ("GPU Metrics are in use by another session", "busy"),
    ],
)
def test_why_gpu_metrics_cannot_be_had(said: str, reason: str) -> None:
    for text in (said, f"{COMMAND}\n{said}", f"{said}\n{COMMAND}"):
        found = fault_in(text, METRICS_FAULTS)
        assert found is not None
        assert found.reason == reason


@pytest.mark.parametrize(
    "log",
    [
        COMMAND,
        f"$ {COMMAND}\nRuntimeError: CUDA error: an illegal memory access was encountered",
        f"Invalid working directory\n{COMMAND}",
        f"ddbench: fp8 is not supported; started as {COMMAND}",
        f"WARNING: CPU sampling is not supported with {COMMAND}",
        f"the file is there already ({COMMAND})",
    ],
)
def test_an_option_that_is_printed_back_is_no_fault_of_its_own(log: str) -> None:
    """A case that crashed would run once more, without GPU metrics, to crash again."""
    assert fault_in(log, METRICS_FAULTS) is None
