"""What a round's code may ask of its executor: op by op, and under a capture that fails."""

import pytest
import torch

from ddbench.engine.launch import AT_ONCE
from ddbench.engine.recording import _CapturingLaunch
from ddbench.engine.stages import Stage


def test_a_host_step_of_an_engine_on_the_cpu_leaves_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking an idle GPU for its stream makes a context on it, within a timed round."""

    def touched() -> None:
        raise AssertionError("the GPU was touched")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", touched)
    steps: list[int] = []
    AT_ONCE.on_host(lambda: steps.append(1))
    assert steps == [1]


class InvalidCapture:
    """A made-up graph whose capture something has made invalid."""

    def capture_begin(self, pool: object) -> None:
        """Nothing yet."""

    def capture_end(self) -> None:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_a_round_that_fails_under_capture_is_seen_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", InvalidCapture)
    launch = _CapturingLaunch(None, (), by_stage=True, times_stages=False)

    def recorded() -> None:
        try:
            with launch.stage(Stage.DRAFT):
                raise ValueError("what was wrong")
        finally:
            launch.abandon()

    with pytest.raises(ValueError, match="what was wrong"):
        recorded()
    launch.abandon()
