"""Probes: what the harness hears from the engine, and the state of the machine around a pass.

`CleanProbe` reads the host clock when a request is admitted, when its first token is there, when a round starts and
when its tokens have arrived, and nothing else: speed is only ever read from it. `StageProbe` also times every stage;
its pass is run apart and its tax is printed. On a GPU stages are timed by event pairs in the stream: no synchronisation
is added, and a stage that waits for the host is charged for the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psutil
import torch

from ddbench.captured import OUTSIDE_ROUNDS
from ddbench.engine.stages import Stage
from ddbench.engine.types import RoundOutcome
from ddbench.harness.environment import nvml_answer, nvml_device
from ddbench.records import BUSY_HOST, LoadSample, NotMeasured, StageSample

Clock = Callable[[], int]
LOAD_WINDOW_S = 0.1
CALM_S = 10.0  # to wait at most, until others leave the CPUs alone
_NOTHING = nullcontext()


class CleanProbe:
    """Host clock at the events that a user of the engine could see. Everything else is derived afterwards."""

    times_stages = False

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self.admissions: dict[int, int] = {}  # request -> ns
        self.first_tokens: dict[int, tuple[int, int]] = {}  # request -> (ns, token)
        self.round_starts: list[tuple[int, int]] = []  # (ns, batch size)
        self.commits: list[tuple[int, RoundOutcome]] = []
        self.finishes: dict[int, str] = {}
        self.paths: dict[str, str] = {}

    def admitted(self, request_id: int) -> None:
        self.admissions[request_id] = self._clock()

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        return _NOTHING

    def recording(self, stage: Stage) -> AbstractContextManager[None]:
        return _NOTHING

    def timed(self, stage: Stage, duration_ns: int) -> None: ...

    def first_token(self, request_id: int, token: int) -> None:
        self.first_tokens[request_id] = (self._clock(), token)

    def round_started(self, batch_size: int) -> None:
        self.round_starts.append((self._clock(), batch_size))

    def committed(self, outcome: RoundOutcome) -> None:
        self.commits.append((self._clock(), outcome))

    def finished(self, request_id: int, reason: str) -> None:
        self.finishes[request_id] = reason

    def path_used(self, part: str, name: str) -> None:
        self.paths[part] = name

    def stage_samples(self) -> list[StageSample]:
        """No stage is timed in a clean pass."""
        return []


@dataclass(slots=True)
class _Span:
    """One stay in a stage; `begin` and `end` are clock readings or CUDA events."""

    step: int
    stage: Stage
    parent: _Span | None
    begin: Any = None
    end: Any = None


class StageProbe(CleanProbe):
    """Times every stage as well. A stage inside another one is charged to itself only."""

    times_stages = True

    def __init__(self, device: str = "cpu", clock: Clock = time.perf_counter_ns) -> None:
        super().__init__(clock)
        self._is_device = device == "cuda"
        self._spans: list[_Span] = []
        self._replayed: list[tuple[int, Stage, int]] = []  # step, stage, ns inside a graph
        self._open: _Span | None = None
        self._step = OUTSIDE_ROUNDS

    def round_started(self, batch_size: int) -> None:
        self._step = len(self.round_starts)
        super().round_started(batch_size)

    def committed(self, outcome: RoundOutcome) -> None:
        super().committed(outcome)
        if len(self.commits) == len(self.round_starts):  # else the next round is already under way
            self._step = OUTSIDE_ROUNDS

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        return _StageTimer(self, _Span(self._step, stage, self._open))

    def timed(self, stage: Stage, duration_ns: int) -> None:
        self._replayed.append((self._step, stage, duration_ns))

    def mark(self) -> Any:
        """Now: on the host's clock, or as an event in the current stream."""
        if not self._is_device:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def enter(self, span: _Span) -> None:
        self._open = span
        span.begin = self.mark()

    def leave(self, span: _Span) -> None:
        span.end = self.mark()
        self._open = span.parent
        self._spans.append(span)

    def stage_samples(self) -> list[StageSample]:
        """Exclusive times: one sample per stage and round, one per stay outside rounds."""
        if self._is_device:
            torch.cuda.synchronize()
        exclusive = {id(span): self._duration_ns(span) for span in self._spans}
        for span in self._spans:
            if span.parent is not None:
                exclusive[id(span.parent)] -= self._duration_ns(span)
        rows: list[tuple[int, Stage, int]] = []
        in_rounds: dict[tuple[int, Stage], int] = {}
        for span in self._spans:
            if span.step == OUTSIDE_ROUNDS:
                rows.append((span.step, span.stage, exclusive[id(span)]))
            else:
                key = (span.step, span.stage)
                in_rounds[key] = in_rounds.get(key, 0) + exclusive[id(span)]
        for step, stage, duration in self._replayed:
            in_rounds[step, stage] = in_rounds.get((step, stage), 0) + duration
        rows += [(step, stage, duration) for (step, stage), duration in in_rounds.items()]
        clock = "device" if self._is_device else "host"
        return [
            StageSample(step=step, stage=stage.value, duration_ns=duration, clock=clock)  # type: ignore[arg-type]
            for step, stage, duration in rows
        ]

    def _duration_ns(self, span: _Span) -> int:
        return round(span.begin.elapsed_time(span.end) * 1e6) if self._is_device else span.end - span.begin


class _StageTimer(AbstractContextManager[None]):
    __slots__ = ("_probe", "_span")

    def __init__(self, probe: StageProbe, span: _Span) -> None:
        self._probe = probe
        self._span = span

    def __enter__(self) -> None:
        self._probe.enter(self._span)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._probe.leave(self._span)


# CaptureSpec.mode -> the probe of the pass that follows the clean one, built for a device
CAPTURES: dict[str, Callable[[str], CleanProbe] | None] = {"none": None, "stages": StageProbe}


# ----------------------------------------------------------------------------------------------- the machine's state


def host_load() -> float | NotMeasured:
    """Share of all CPU time that is busy right now, in a short window in which the caller does nothing."""
    try:
        return psutil.cpu_percent(interval=LOAD_WINDOW_S) / 100
    except (OSError, psutil.Error) as error:
        return NotMeasured(not_measured=f"CPU times cannot be read: {type(error).__name__}")


def is_busy(load: float | NotMeasured, device: str) -> bool:
    """Whether a pass had better wait: on a GPU others' bursts last for longer than a pass, most of which are launches.

    On a CPU passes are longer than bursts, and a machine that is busy stays so.
    """
    return device == "cuda" and isinstance(load, float) and load > BUSY_HOST


def calm_load(load: float | NotMeasured) -> float | NotMeasured:
    """The host's load once it is no more than BUSY_HOST, or after CALM_S seconds; `load`: what it was a moment ago."""
    deadline = time.monotonic() + CALM_S
    while isinstance(load, float) and load > BUSY_HOST and time.monotonic() < deadline:
        load = host_load()
    return load


def load_sample(before: float | NotMeasured, after: float | NotMeasured, device: str) -> LoadSample:
    """Host load around a pass, and clocks, temperature and throttling of the GPU right after it."""
    gpu = nvml_device(device)
    state = nvml_answer(gpu, lambda nvml: _gpu_state(nvml, gpu))
    clock, temperature, bits = (state, state, state) if isinstance(state, NotMeasured) else state
    return LoadSample(
        host_load_before=before,
        host_load_after=after,
        sm_clock_mhz=clock,
        temperature_c=temperature,
        throttle_reasons=bits if isinstance(bits, NotMeasured) else throttle_names(bits),
    )


def _gpu_state(nvml: Any, gpu: Any) -> tuple[int, int, int]:
    """Clock of the SMs in MHz, degrees Celsius, throttle bits."""
    clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
    temperature = nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    return clock, temperature, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)


_THROTTLE_BITS = {
    0x002: "applications clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}  # bit 0 is "idle": no throttling


def throttle_names(bits: int) -> tuple[str, ...]:
    """The reasons set in NVML's bit mask."""
    return tuple(name for bit, name in _THROTTLE_BITS.items() if bits & bit)
