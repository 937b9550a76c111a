"""[part] How a round's work is launched: op by op, as one CUDA graph per stage, or as one graph for the whole round.

Every executor takes the same round code. Graph executors run it once per shape under capture and then replay what they
recorded; a key holds everything that decides a shape: batch size, context bound, whether stages are timed. Replays do
not wait for the host: a round's report is copied to pinned memory behind it and read one round late. Shapes are
recorded by `prepare`, before anything is timed; a round whose shape was not recorded runs op by op and is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from ddbench.engine.batch import Batch, context_bounds
from ddbench.engine.launch import EagerLaunch
from ddbench.engine.probe import Probe
from ddbench.engine.recording import Recording, Round, record
from ddbench.engine.stages import Stage
from ddbench.engine.types import CaseFacts, Part, Setting

NUM_REPORTS = 3  # in flight: the round that runs, the one before it, and the one being read


class Report(Protocol):
    """A round's report on its way to the host."""

    def rows(self) -> list[list[float]]:
        """The numbers that `outcome.unpack` understands, by batch row; waits until they are there."""

    def replayed_ns(self) -> int | None:
        """How long the round's graphs ran on the device, once the rows are there; None: there were none."""


class DeviceReport(NamedTuple):
    """A report that is fetched when it is asked for."""

    report: torch.Tensor
    probe: Probe

    def rows(self) -> list[list[float]]:
        """The copy is part of the commit; its time is not, as the host waits for the whole round meanwhile."""
        with self.probe.recording(Stage.COMMIT):
            return self.report.tolist()

    def replayed_ns(self) -> None:
        return None


class PinnedReport(NamedTuple):
    """A report that the device copies to the host behind the round."""

    host: torch.Tensor  # [B, columns], pinned
    arrived: torch.cuda.Event
    stretches: tuple[tuple[torch.cuda.Event, torch.cuda.Event], ...]  # around graphs with no host step between them

    def rows(self) -> list[list[float]]:
        self.arrived.synchronize()
        return self.host.tolist()

    def replayed_ns(self) -> int:
        return round(sum(begin.elapsed_time(end) for begin, end in self.stretches) * 1e6)


class Executor(Part):
    """Base: runs rounds at once."""

    fixed_shapes: ClassVar[bool] = False  # takes context bounds of `batch.context_bounds` only
    runs_ahead: ClassVar[bool] = False  # a round may be launched before the one before it was read

    def prepare(
        self,
        round_: Round,
        batch: Batch,
        generators: Sequence[torch.Generator],
        *,
        shortest: int,
        times_stages: bool,
        probe: Probe,
    ) -> None:
        """Rounds on this storage are to come, with contexts of `shortest` rows and more, and these sources of draws."""

    def release(self) -> None:
        """Let go of the storage prepared for: another takes its place."""

    def __call__(self, round_: Round, batch: Batch, probe: Probe) -> Report:
        """Launch one round or step for the active rows."""
        return DeviceReport(round_(batch, EagerLaunch(probe)), probe)

    def counters(self) -> dict[str, int]:
        """What happened so far, for a harness that takes differences."""
        return {}


class EagerExecutor(Executor):
    """Operation by operation, from Python."""


class _Key(NamedTuple):
    batch_size: int
    context_bound: int
    times_stages: bool


class GraphExecutor(Executor):
    """Base: replays recorded rounds."""

    needs_cuda = True
    fixed_shapes = True
    runs_ahead = True
    by_stage: ClassVar[bool]  # a graph for every stage, in place of one for the round

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        if facts.spec.kernels != "triton":
            return (
                f"executor '{facts.spec.executor}' needs kernels 'triton': plain torch reads expert choices on the host"
            )
        return None

    def __init__(self, setting: Setting) -> None:
        self._storage: Batch | None = None
        self._recordings: dict[_Key, Recording] = {}
        self._pool: Any = None
        self._reports: list[PinnedReport] = []
        self._counts = {"graph_captures": 0, "graph_replays": 0, "eager_rounds": 0}

    def prepare(
        self,
        round_: Round,
        batch: Batch,
        generators: Sequence[torch.Generator],
        *,
        shortest: int,
        times_stages: bool,
        probe: Probe,
    ) -> None:
        """Record every batch size with every context bound that the storage can come to hold.

        The largest first: what it let go of holds all that the others need, where a larger one would ask for more.
        """
        if batch is not self._storage:
            self.release()
            self._storage = batch
            self._pool = torch.cuda.graph_pool_handle()
        variants = (False, True) if times_stages and not self.by_stage else (False,)
        sizes = range(batch.capacity, 0, -1)
        bounds = [bound for bound in reversed(context_bounds(batch.most_context)) if bound >= shortest]
        for key in itertools.starmap(_Key, itertools.product(sizes, bounds, variants)):
            if key not in self._recordings:
                self._record(round_, batch, generators, key, probe)

    def release(self) -> None:
        self._storage = self._pool = None
        self._recordings.clear()
        self._reports.clear()

    def _record(
        self, round_: Round, batch: Batch, generators: Sequence[torch.Generator], key: _Key, probe: Probe
    ) -> None:
        view = batch.view(key.batch_size, key.context_bound)
        recording = record(
            round_, view, self._pool, generators, by_stage=self.by_stage, times_stages=key.times_stages, probe=probe
        )
        self._recordings[key] = recording
        self._counts["graph_captures"] += recording.num_graphs
        if not self._reports:
            self._reports = [_pinned(batch.capacity, recording) for _ in range(NUM_REPORTS)]

    def __call__(self, round_: Round, batch: Batch, probe: Probe) -> Report:
        key = _Key(batch.size, batch.context_bound, probe.times_stages and not self.by_stage)
        recording = self._recordings.get(key)
        if recording is None:
            self._counts["eager_rounds"] += 1
            return super().__call__(round_, batch, probe)
        slot = self._reports.pop(0)
        self._reports.append(slot)
        recording.replay(probe, slot.stretches)
        self._counts["graph_replays"] += recording.num_graphs
        host = slot.host[: batch.size]
        with probe.stage(Stage.COMMIT):  # this is how the round's tokens reach the host
            host.copy_(recording.report, non_blocking=True)
        slot.arrived.record()
        recording.tell(probe)  # after the copy: one launched to an idle device would be charged for its way there
        return slot._replace(host=host)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)


def _pinned(capacity: int, recording: Recording) -> PinnedReport:
    """Room for the reports of a storage's rounds."""
    host = torch.empty(capacity, recording.report.shape[1], dtype=torch.float64, pin_memory=True)
    stretches = tuple(
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(recording.num_stretches)
    )
    return PinnedReport(host, torch.cuda.Event(), stretches)


class StageGraphsExecutor(GraphExecutor):
    """One graph per stage, replayed one after the other."""

    by_stage = True


class RoundGraphExecutor(GraphExecutor):
    """One graph for the whole round; two where the tree is built on the host, with that step between them."""

    by_stage = False


EXECUTORS = {
    "eager": EagerExecutor,
    "stage_graphs": StageGraphsExecutor,
    "round_graph": RoundGraphExecutor,
}
