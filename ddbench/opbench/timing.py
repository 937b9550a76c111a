"""How a call is timed: many calls in a row, with inputs that the cache holds (hot) or does not hold (cold).

Cold: calls take several sets of inputs in turn, as many as are several times the last-level cache; where a set is so
small that there are not enough of them, each is used once, after a pass over other memory. Nothing is subtracted. Hot:
the same set again and again; there is no such time for a set larger than the cache.
On a GPU the calls are nodes of one replayed CUDA graph between two events, so that what the host takes to launch does
not count; a replay (or the pass over other memory) just before keeps the device busy while the host launches. What
needs the host in between is timed by the host's clock, call by call. Samples are whole replays.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ddbench.opbench.records import Clock
from ddbench.opbench.shapes import Call
from ddbench.records import NotMeasured

COLD_FACTOR = 4  # times the cache that lies between two uses of an input
UNKNOWN_CACHE = 128 << 20  # bytes, where the system does not tell
MOST_CALLS, FEWEST_SAMPLES, MOST_SAMPLES = 50, 7, 41
EAGER_CALLS = 30
KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL

Pass = Callable[[], float]  # seconds of all calls, once


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds for one time, and that a sample should last at least."""

    seconds: float = 0.08
    sample_s: float = 0.004
    most_sets: int = 48


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: a median over samples and the 95 % interval of that median."""

    median: float
    low: float | NotMeasured
    high: float | NotMeasured
    num_samples: int
    calls_per_sample: int
    clock: Clock


class Watch(Protocol):
    """A device's clock."""

    @property
    def cache_bytes(self) -> int: ...

    def once(self, call: Call) -> float:
        """Seconds of one call, about: launching included."""

    def passes(self, calls: Sequence[Call], has_host_sync: bool, is_cold: bool) -> tuple[Pass, Clock]:
        """A pass over all calls, timed; `is_cold`: the cache is full of something else when it begins."""

    def eager(self, calls: Sequence[Call], has_host_sync: bool) -> float | NotMeasured:
        """Seconds per call, launched from the host back to back."""

    def launches(self, call: Call, has_host_sync: bool) -> int | NotMeasured:
        """Kernels of one call."""


# ----------------------------------------------------------------------------------------------------------------- CPU


@dataclass(frozen=True, slots=True)
class HostWatch:
    """The host's clock."""

    cache_bytes: int
    other: torch.Tensor  # memory that a pass over drives everything else out of the cache

    def once(self, call: Call) -> float:
        return min(_host_seconds([call]) for _ in range(3))

    def passes(self, calls: Sequence[Call], has_host_sync: bool, is_cold: bool) -> tuple[Pass, Clock]:
        def run() -> float:
            if is_cold:
                self.other.sum()
            return _host_seconds(calls)

        return run, "host"

    def eager(self, calls: Sequence[Call], has_host_sync: bool) -> float | NotMeasured:
        return NotMeasured(not_measured="a CPU has no other way of launching")

    def launches(self, call: Call, has_host_sync: bool) -> int | NotMeasured:
        return NotMeasured(not_measured="a CPU launches no kernels")


def _host_seconds(calls: Sequence[Call]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begin


# ----------------------------------------------------------------------------------------------------------------- GPU


@dataclass(frozen=True, slots=True)
class DeviceWatch:
    """Events of the current CUDA device around replayed graphs."""

    cache_bytes: int
    other: torch.Tensor

    def once(self, call: Call) -> float:
        torch.cuda.synchronize()
        return min(_synchronised([call]) for _ in range(2))

    def passes(self, calls: Sequence[Call], has_host_sync: bool, is_cold: bool) -> tuple[Pass, Clock]:
        if has_host_sync:
            return self._host_passes(calls, is_cold), "host"
        graph = _captured(calls)
        before: Call = self.other.sum if is_cold else graph.replay

        def run() -> float:
            assert calls, "a graph knows addresses only: what its calls hold must live as long"
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return run, "graph"

    def _host_passes(self, calls: Sequence[Call], is_cold: bool) -> Pass:
        """One call at a time, from an idle device until it is idle again."""

        def run() -> float:
            if is_cold:
                self.other.sum()
            torch.cuda.synchronize()
            return _synchronised(calls, each=True)

        return run

    def eager(self, calls: Sequence[Call], has_host_sync: bool) -> float | NotMeasured:
        if has_host_sync:
            return NotMeasured(not_measured="its time is that of eager calls already")
        torch.cuda.synchronize()
        repeated = [calls[i % len(calls)] for i in range(EAGER_CALLS)]
        return _synchronised(repeated) / EAGER_CALLS

    def launches(self, call: Call, has_host_sync: bool) -> int | NotMeasured:
        if has_host_sync:
            return NotMeasured(not_measured="needs the host in between: no graph can hold it")
        return _kernel_nodes(_captured([call], keep_graph=True))


def _synchronised(calls: Sequence[Call], each: bool = False) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
        if each:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _captured(calls: Sequence[Call], keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _kernel_nodes(graph: torch.cuda.CUDAGraph) -> int | NotMeasured:
    """Kernels of a captured graph, asked of the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return NotMeasured(not_measured=f"the driver's library cannot be loaded ({error})")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    if driver.cuGraphGetNodes(handle, None, ctypes.byref(count)):
        return NotMeasured(not_measured="the driver does not tell the nodes of the graph")
    nodes, kind = (ctypes.c_void_p * count.value)(), ctypes.c_int()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kinds = []
    for node in nodes:
        if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)):
            return NotMeasured(not_measured="the driver does not tell the kind of a node")
        kinds.append(kind.value)
    return kinds.count(KERNEL_NODE)


def watch_of(device: str, cache_bytes: int | NotMeasured) -> Watch:
    """The clock of a device whose last-level cache is known, or taken to be large."""
    known = UNKNOWN_CACHE if isinstance(cache_bytes, NotMeasured) else cache_bytes
    other = torch.ones(COLD_FACTOR * known // 4, device=device)
    return DeviceWatch(known, other) if device == "cuda" else HostWatch(known, other)


# ------------------------------------------------------------------------------------------------------------- sampling


@dataclass(frozen=True, slots=True)
class Rotation:
    """Which sets a cold pass takes: `num_sets` in turn, each once where together they are no match for the cache."""

    num_sets: int
    needs_flush: bool


def rotation(cache_bytes: int, touched: float, most_sets: int) -> Rotation:
    """For calls that touch so many bytes each."""
    enough = max(1, math.ceil(COLD_FACTOR * cache_bytes / max(touched, 1.0)))
    return Rotation(min(enough, most_sets), needs_flush=enough > most_sets)


def time_calls(
    watch: Watch, sets: Sequence[Call], budget: Budget, is_cold: bool, needs_flush: bool, has_host_sync: bool = False
) -> Timing:
    """Time calls that take the sets in turn; every call has run before."""
    wanted = max(1, min(MOST_CALLS, round(budget.sample_s / max(watch.once(sets[0]), 1e-7))))
    num_calls = len(sets) if is_cold and needs_flush else max(wanted, len(sets) if is_cold else 1)
    calls = [sets[i % len(sets)] for i in range(num_calls)]
    run, clock = watch.passes(calls, has_host_sync, is_cold)
    run()
    samples: list[float] = []
    deadline = time.perf_counter() + budget.seconds
    while len(samples) < FEWEST_SAMPLES or (len(samples) < MOST_SAMPLES and time.perf_counter() < deadline):
        samples.append(run() / num_calls)
    low, high = median_interval(samples)
    return Timing(statistics.median(samples), low, high, len(samples), num_calls, clock)


Bound = float | NotMeasured
_CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> tuple[Bound, Bound]:
    """Order statistics around the median: right for any distribution, of this process and these minutes only.

    The k-th smallest and k-th largest of n hold the median with probability 1 - 2 P(Binomial(n, 1/2) < k).
    """
    count, ordered = len(samples), sorted(samples)
    outside, place = 0.0, 0
    while True:
        outside += math.comb(count, place) / 2**count
        if 2 * outside > 1 - _CONFIDENCE or place >= count // 2:
            break
        place += 1
    if place == 0:
        missing = NotMeasured(not_measured=f"{count} samples are too few for an interval")
        return missing, missing
    return ordered[place - 1], ordered[count - place]
