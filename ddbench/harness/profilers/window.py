"""The probe of a run under a profiler: names stages, rounds and one window of rounds in the profiler's own recording.

Below `capture_worker.py`, which builds it; the names are those of `analysis/nsys/names.py`. Ranges are pushed and
popped on one thread. Where reports are read one round late, a round's range ends when the next round starts. The
device is idle where the window opens and where it closes; after that nothing is named any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol

from ddbench.analysis.nsys.names import DOMAIN, WINDOW, round_range, stage_range
from ddbench.captured import CapturedRun
from ddbench.engine.stages import Stage
from ddbench.engine.types import RoundOutcome
from ddbench.harness.capture import CleanProbe, Clock

_NOTHING = nullcontext()


class Ranges(Protocol):
    """Named stretches of the host's time, one inside the other."""

    def push(self, name: str) -> None:
        """Open a range."""

    def pop(self) -> None:
        """Close the one opened last."""


class NvtxRanges:
    """In our domain of NVTX, for nsys and ncu. Make it when the recording has begun: it registers its names then."""

    def __init__(self) -> None:
        import nvtx

        self._domain: Any = nvtx.get_domain(DOMAIN)
        self._stages = {stage_range(stage): self._named(stage_range(stage)) for stage in Stage}

    def _named(self, name: str) -> Any:
        return self._domain.get_event_attributes(message=name)

    def push(self, name: str) -> None:
        self._domain.push_range(self._stages.get(name) or self._named(name))

    def pop(self) -> None:
        self._domain.pop_range()


class TorchRanges:
    """As annotations of the torch profiler, which knows no domains."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def push(self, name: str) -> None:
        from torch.profiler import record_function

        self._open.append(record_function(name))
        self._open[-1].__enter__()

    def pop(self) -> None:
        self._open.pop().__exit__(None, None, None)


class WindowProbe(CleanProbe):
    """Names what happens until the window has closed, and keeps the clock of the rounds within it."""

    def __init__(
        self,
        ranges: Ranges,
        *,
        first_round: int,
        num_rounds: int,
        synchronize: Callable[[], None],  # returns when the device is idle
        opening: Callable[[], None],  # right before the window opens
        closed: Callable[[], None],  # right after it has closed
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        super().__init__(clock)
        self._ranges = ranges
        self._first, self._end = first_round, first_round + num_rounds  # steps
        self._synchronize, self._opening, self._closed = synchronize, opening, closed
        self._is_in_round = False
        self._is_open = False
        self._is_over = False
        self._closed_ns = 0
        self._closed_at = 0  # rounds started by then

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        return _NOTHING if self._is_over else _Bracket(self._ranges, stage_range(stage))

    recording = stage

    def round_started(self, batch_size: int) -> None:
        step = len(self.round_starts)
        if step == self._end:
            self.close()
        self._leave_round()
        if step == self._first:
            self._open()
        if not self._is_over:
            self._ranges.push(round_range(step))
            self._is_in_round = True
        super().round_started(batch_size)

    def committed(self, outcome: RoundOutcome) -> None:
        super().committed(outcome)
        if len(self.commits) == len(self.round_starts):  # else the next round is already under way
            if len(self.commits) == self._end:
                self.close()
            self._leave_round()

    def _leave_round(self) -> None:
        if self._is_in_round:
            self._ranges.pop()
            self._is_in_round = False

    def _open(self) -> None:
        self._synchronize()
        self._opening()
        self._ranges.push(WINDOW)
        self._is_open = True

    def close(self) -> None:
        """End of the window, where it is open: of its last round, or of a run that has fewer rounds."""
        if not self._is_open:
            return
        self._leave_round()  # before the host waits: that is no part of a round
        self._synchronize()
        self._closed_ns, self._closed_at = self._clock(), len(self.round_starts)
        self._ranges.pop()
        self._is_open, self._is_over = False, True
        self._closed()

    def run(self, outputs: dict[str, tuple[int, ...]]) -> CapturedRun:
        """What was seen of the window, once the run has ended. A round's time is as in a clean pass's steps.

        The first round begins on an idle device, whenever the one before it is read: under ncu a launch returns when
        the round's kernels have been counted, and only then may that reading come.
        """
        assert not self._is_open, "close the window first"
        seen = range(self._first, min(self._end, self._closed_at, len(self.commits)))
        times = []
        for step in seen:
            begin = self.round_starts[step][0]
            if step > self._first:
                begin = max(begin, self.commits[step - 1][0])
            times.append(min(self.commits[step][0], self._closed_ns) - begin)
        emitted = sum(len(tokens) for step in seen for tokens in self.commits[step][1].tokens)
        return CapturedRun(first_round=self._first, round_ns=tuple(times), num_emitted=emitted, outputs=outputs)


class _Bracket(AbstractContextManager[None]):
    __slots__ = ("_name", "_ranges")

    def __init__(self, ranges: Ranges, name: str) -> None:
        self._ranges = ranges
        self._name = name

    def __enter__(self) -> None:
        self._ranges.push(self._name)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._ranges.pop()
