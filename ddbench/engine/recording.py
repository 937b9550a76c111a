"""A round recorded as CUDA graphs, with the host's steps between them; and its replay.

The round's own code runs once under capture: whatever it launches becomes nodes, and the tensors it makes keep their
addresses. Where a step has to happen on the host the graph is cut in two. Stage times inside a graph come from events
that are nodes of it, recorded anew by every replay. A profiler learns of stages while they are recorded: the probe
brackets each of them then, since a replay is one launch for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ddbench.engine.batch import Batch
from ddbench.engine.launch import AT_ONCE, Launch
from ddbench.engine.probe import UNOBSERVED, Probe
from ddbench.engine.stages import Stage

HostStep = Callable[[], None]
Round = Callable[[Batch, Launch], torch.Tensor]  # a round's code -> its report


@dataclass(frozen=True, slots=True)
class Segment:
    """A graph, or a step on the host that waits for the graph before it."""

    stage: Stage | None  # whose work it is; None where it spans several, or is within one that spans several
    graph: torch.cuda.CUDAGraph | None
    step: HostStep | None = None
    within: Stage | None = None  # of a step: the stage that it is a part of


@dataclass(frozen=True, slots=True)
class StageMark:
    """Events inside a graph around one stay in a stage."""

    stage: Stage
    begin: torch.cuda.Event
    end: torch.cuda.Event


@dataclass(frozen=True, slots=True)
class Recording:
    """What one round of one shape consists of."""

    segments: tuple[Segment, ...]
    marks: tuple[StageMark, ...]
    report: torch.Tensor  # [B, columns] float64, overwritten by every replay

    @property
    def num_graphs(self) -> int:
        return sum(segment.graph is not None for segment in self.segments)

    @property
    def num_stretches(self) -> int:
        """Runs of graphs without a step on the host between them."""
        return 1 + sum(segment.graph is None for segment in self.segments)

    def replay(self, probe: Probe, stretches: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]) -> None:
        """Launch it all, a pair of events around every stretch."""
        pairs = iter(stretches)
        begin, end = next(pairs)
        begin.record()
        for segment in self.segments:
            with nullcontext() if segment.stage is None else probe.stage(segment.stage):
                if segment.graph is not None:
                    segment.graph.replay()
                else:
                    end.record()
                    begin, end = next(pairs)
                    _wait_and_run(segment, probe)
                    begin.record()
        end.record()

    def tell(self, probe: Probe) -> None:
        """Tell each stage's time on the device, where there are marks; waits for all that was launched by then."""
        if self.marks:
            torch.cuda.current_stream().synchronize()
            for mark in self.marks:
                probe.timed(mark.stage, round(mark.begin.elapsed_time(mark.end) * 1e6))


def _wait_and_run(segment: Segment, probe: Probe) -> None:
    assert segment.step is not None, "a segment is a graph or a step"
    assert segment.within is not None, "a step is part of a stage"
    with nullcontext() if segment.stage is not None else probe.recording(segment.within):
        torch.cuda.current_stream().synchronize()
        segment.step()


class _CapturingLaunch:
    """Records what the round's code launches; cut by stage or only where the host is needed."""

    def __init__(
        self,
        pool: Any,  # of graph memory, shared by recordings that never run at the same time
        generators: Sequence[torch.Generator],
        *,
        by_stage: bool,
        times_stages: bool,
        probe: Probe = UNOBSERVED,
    ) -> None:
        self._pool = pool
        self._generators = generators
        self._probe = probe
        self._by_stage = by_stage
        self._times_stages = times_stages
        self._open: torch.cuda.CUDAGraph | None = None
        self._stage: Stage | None = None  # of the graph that is open, where each has one
        self._within: Stage | None = None
        self.segments: list[Segment] = []
        self.marks: list[StageMark] = []

    def begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        graph.capture_begin(pool=self._pool)
        self._open = graph

    def end(self) -> None:
        assert self._open is not None, "no graph is being captured"
        self._open.capture_end()
        self.segments.append(Segment(self._stage, self._open))
        self._open = None

    def abandon(self) -> None:
        """Leave no capture behind where the code failed, so that its own error is what is seen."""
        if self._open is not None:
            with suppress(RuntimeError):  # what failed may have made the capture invalid: ending it fails, too
                self._open.capture_end()
            self._open = None

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        self._within = stage
        with self._probe.recording(stage), self._cut_or_marked(stage):
            yield

    @contextmanager
    def _cut_or_marked(self, stage: Stage) -> Iterator[None]:
        if self._by_stage:
            self._stage = stage
            self.begin()
            yield
            self.end()
            self._stage = None
        elif self._times_stages:
            begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self.marks.append(StageMark(stage, begin, end))
        else:
            yield

    def on_host(self, step: HostStep) -> None:
        self.end()
        self.segments.append(Segment(self._stage, None, step, self._within))
        self.begin()


def record(
    round_: Round,
    batch: Batch,
    pool: Any,  # of graph memory, shared by recordings that never run at the same time
    generators: Sequence[torch.Generator],
    *,
    by_stage: bool,
    times_stages: bool,
    probe: Probe = UNOBSERVED,
) -> Recording:
    """Record `round_` for the shapes of `batch`, whose rows must all be idle: it is run, and changes nothing.

    The first run, outside of any graph, compiles kernels and creates library handles, which no capture may do.
    """
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    launch = _CapturingLaunch(pool, generators, by_stage=by_stage, times_stages=times_stages, probe=probe)
    with torch.cuda.stream(stream):
        round_(batch, AT_ONCE)
        stream.synchronize()
        try:
            if not by_stage:
                launch.begin()
            report = round_(batch, launch)
            if not by_stage:
                launch.end()
        finally:
            launch.abandon()
    torch.cuda.current_stream().wait_stream(stream)
    return Recording(tuple(launch.segments), tuple(launch.marks), report)


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """One for all recordings: memory that was let go of serves again on its own stream only."""
    return torch.cuda.Stream(device)
