"""What a round's code may ask of its executor: op by op, and under a capture that fails."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from ddbench.engine.launch import AT_ONCE
from ddbench.engine.probe import NullProbe
from ddbench.engine.recording import Recording, _CapturingLaunch
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


class Graph:
    """A made-up graph that captures nothing."""

    def capture_begin(self, pool: object) -> None:
        """Nothing is launched."""

    def capture_end(self) -> None:
        """Nothing was."""

    def replay(self) -> None:
        """Nothing to do."""


class Naming(NullProbe):
    """Notes what is bracketed, and by which of its methods."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        self.words.append(f"+{name}")
        yield
        self.words.append(f"-{name}")

    def stage(self, stage: Stage):
        return self._noted(f"stage {stage}")

    def recording(self, stage: Stage):
        return self._noted(f"recording {stage}")


def made_up_round(launch: _CapturingLaunch, words: list[str]) -> None:
    with launch.stage(Stage.DRAFT):
        words.append("draft")
    with launch.stage(Stage.TREE_BUILD):
        launch.on_host(lambda: words.append("host"))


@pytest.mark.parametrize("by_stage", [False, True])
@pytest.mark.parametrize("times_stages", [False, True])
def test_stages_are_bracketed_while_their_launches_become_nodes(
    by_stage: bool, times_stages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H17: a replay is one launch for all; what a node is for can only be told when it is recorded."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: type("Event", (), {"record": lambda self: None})())
    probe = Naming()
    launch = _CapturingLaunch(None, (), by_stage=by_stage, times_stages=times_stages, probe=probe)
    with nullcontext() if by_stage else launch_of_one_graph(launch):
        made_up_round(launch, probe.words)
    assert probe.words == [
        *("+recording draft", "draft", "-recording draft"),
        *("+recording tree_build", "-recording tree_build"),
    ]


@contextmanager
def launch_of_one_graph(launch: _CapturingLaunch) -> Iterator[None]:
    launch.begin()
    yield
    launch.end()


@pytest.mark.parametrize(("by_stage", "around"), [(False, "recording tree_build"), (True, "stage tree_build")])
def test_a_host_step_between_two_graphs_is_its_stages(
    by_stage: bool, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    stream = type("Stream", (), {"synchronize": lambda self: None})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    launch, probe = _CapturingLaunch(None, (), by_stage=by_stage, times_stages=False), Naming()
    with nullcontext() if by_stage else launch_of_one_graph(launch):
        made_up_round(launch, probe.words)
    probe.words.clear()
    event = type("Event", (), {"record": lambda self: None})()
    recording = Recording(tuple(launch.segments), (), torch.zeros(1))
    recording.replay(probe, [(event, event)] * recording.num_stretches)
    place = probe.words.index("host")
    assert probe.words[place - 1 : place + 2] == [f"+{around}", "host", f"-{around}"]
