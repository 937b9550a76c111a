"""Timing: which inputs a pass takes, what the cache holds when it begins, what is inside the clock, and how sure a
median is. The GPU's side runs against a made-up device that writes down what it is told."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ddbench.opbench import timing
from ddbench.opbench.timing import Budget, DeviceWatch, HostWatch, Rotation, median_interval, rotation, time_calls
from ddbench.records import NotMeasured


class FakeWatch:
    """A pass takes 2 s a call; which calls it was given is kept."""

    cache_bytes = 1000

    def __init__(self) -> None:
        self.calls: Sequence[Callable[[], Any]] = ()
        self.is_cold: bool | None = None
        self.num_passes = 0

    def once(self, call: Callable[[], Any]) -> float:
        return 2.0

    def passes(self, calls: Sequence[Callable[[], Any]], has_host_sync: bool, is_cold: bool) -> Any:
        self.calls, self.is_cold = calls, is_cold

        def run() -> float:
            self.num_passes += 1
            return 2.0 * len(calls)

        return run, "host"

    def eager(self, calls: Any, has_host_sync: bool) -> float:
        return 1.0

    def launches(self, call: Any, has_host_sync: bool) -> int:
        return 1


SETS = [lambda: 0, lambda: 1, lambda: 2]


def test_sets_are_as_many_as_outgrow_the_cache_several_times() -> None:
    assert rotation(1000, touched=500, most_sets=48) == Rotation(8, needs_flush=False)
    assert rotation(1000, touched=1e9, most_sets=48) == Rotation(1, needs_flush=False), "one such set is cold already"
    assert rotation(1000, touched=3, most_sets=48) == Rotation(48, needs_flush=True), "too small: flushed before"
    assert rotation(1000, touched=0, most_sets=5) == Rotation(5, needs_flush=True)


@pytest.mark.parametrize("touched", [1.0, 37.0, 999.0, 4001.0])
def test_between_two_uses_of_an_input_lies_more_than_the_cache(touched: float) -> None:
    turn = rotation(1000, touched, most_sets=48)
    assert turn.needs_flush or turn.num_sets * touched >= timing.COLD_FACTOR * 1000


def test_hot_calls_take_the_same_set_again_and_again() -> None:
    watch = FakeWatch()
    time_calls(watch, SETS[:1], Budget(0.0, sample_s=10.0), is_cold=False, needs_flush=True)
    assert list(watch.calls) == [SETS[0]] * 5
    assert watch.is_cold is False


def test_cold_calls_take_the_sets_in_turn() -> None:
    watch = FakeWatch()
    time_calls(watch, SETS, Budget(0.0, sample_s=10.0), is_cold=True, needs_flush=False)
    assert list(watch.calls) == [*SETS, *SETS[:2]]
    assert watch.is_cold is True


def test_where_sets_are_too_small_each_is_used_once_after_a_flush() -> None:
    watch = FakeWatch()
    time_calls(watch, SETS, Budget(0.0, sample_s=1000.0), is_cold=True, needs_flush=True)
    assert list(watch.calls) == SETS


def test_a_time_is_per_call_and_the_first_pass_does_not_count() -> None:
    watch = FakeWatch()
    found = time_calls(watch, SETS, Budget(0.0, sample_s=6.0), is_cold=True, needs_flush=False)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)
    assert (found.num_samples, found.calls_per_sample) == (timing.FEWEST_SAMPLES, 3)
    assert watch.num_passes == timing.FEWEST_SAMPLES + 1


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    """Exactly: order statistics k and n+1-k hold the median with 1 - 2 P(Binomial(n, 1/2) < k); the next k does not."""
    for count in range(6, 42):
        low, high = median_interval(list(range(count)))
        rank = int(low) + 1
        below = sum(math.comb(count, i) for i in range(rank)) / 2**count
        assert 1 - 2 * below >= 0.95 > 1 - 2 * (below + math.comb(count, rank) / 2**count)
        assert high == count - rank
    draw = random.Random(0)
    trials = [median_interval([draw.expovariate(1.0) for _ in range(15)]) for _ in range(2000)]
    assert sum(low <= math.log(2) <= high for low, high in trials) / 2000 >= 0.94


def test_five_samples_have_no_interval() -> None:
    low, high = median_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert low == high == NotMeasured(not_measured="5 samples are too few for an interval")


def test_a_host_pass_is_flushed_outside_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Other:
        def sum(self) -> None:
            told.append("flush")

    def tick() -> float:
        told.append("tick")
        return float(len(told))

    monkeypatch.setattr(timing.time, "perf_counter", tick)
    watch = HostWatch(10, Other())  # type: ignore[arg-type]
    run, clock = watch.passes([lambda: told.append("call")] * 2, has_host_sync=False, is_cold=True)
    run()
    assert told == ["flush", "tick", "call", "call", "tick"]
    assert clock == "host"


# ------------------------------------------------------------------------------------------------------ made-up device


class Device:
    """torch.cuda as far as it is needed; `told` is what happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        told = self.told

        class Graph:
            def __init__(self, keep_graph: bool = False) -> None:
                self.keep_graph = keep_graph

            def replay(self) -> None:
                told.append("replay")

            def raw_cuda_graph(self) -> int:
                assert self.keep_graph, "torch gives the graph away only where it was kept"
                return 4096

        class Capture:
            def __init__(self, graph: Graph) -> None:
                pass

            def __enter__(self) -> None:
                told.append("capture")

            def __exit__(self, *_: object) -> None:
                told.append("captured")

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                told.append("event")

            def synchronize(self) -> None:
                told.append("wait")

            def elapsed_time(self, end: Event) -> float:
                return 3.0  # ms

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("synchronize"))

    def watch(self) -> DeviceWatch:
        told = self.told

        class Other:
            def sum(self) -> None:
                told.append("flush")

        return DeviceWatch(10, Other())  # type: ignore[arg-type]

    def call(self) -> None:
        self.told.append("call")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_a_cold_replay_follows_a_flush_that_the_events_leave_out(device: Device) -> None:
    run, clock = device.watch().passes([device.call, device.call], has_host_sync=False, is_cold=True)
    assert device.told == ["synchronize", "capture", "call", "call", "captured"]
    device.told.clear()
    assert run() == pytest.approx(3e-3)
    assert device.told == ["flush", "event", "replay", "event", "wait"]
    assert clock == "graph"


def test_a_hot_replay_follows_another_so_that_the_host_is_ahead(device: Device) -> None:
    run, _ = device.watch().passes([device.call], has_host_sync=False, is_cold=False)
    device.told.clear()
    run()
    assert device.told == ["replay", "event", "replay", "event", "wait"]


def test_what_needs_the_host_is_never_captured_and_waited_for_call_by_call(device: Device) -> None:
    watch = device.watch()
    run, clock = watch.passes([device.call, device.call], has_host_sync=True, is_cold=True)
    run()
    assert device.told == ["flush", "synchronize", *["call", "synchronize"] * 2, "synchronize"]
    assert clock == "host"
    assert isinstance(watch.eager([device.call], has_host_sync=True), NotMeasured)
    assert isinstance(watch.launches(device.call, has_host_sync=True), NotMeasured)
    assert "capture" not in device.told


def test_eager_calls_are_launched_back_to_back(device: Device) -> None:
    device.watch().eager([device.call], has_host_sync=False)
    assert device.told == ["synchronize", *["call"] * timing.EAGER_CALLS, "synchronize"]


class Driver:
    """Three nodes: two kernels and a copy between them."""

    KINDS = (0, 1, 0)

    def cuGraphGetNodes(self, graph: ctypes.c_void_p, nodes: Any, count: Any) -> int:
        assert graph.value == 4096
        count._obj.value = 3
        for place in range(3 if nodes is not None else 0):
            nodes[place] = 100 + place
        return 0

    def cuGraphNodeGetType(self, node: ctypes.c_void_p, kind: Any) -> int:
        kind._obj.value = self.KINDS[(node.value or 0) - 100]
        return 0


def test_launches_are_the_kernels_of_the_graph(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.ctypes, "CDLL", lambda name: Driver())
    assert device.watch().launches(device.call, has_host_sync=False) == 2


def test_without_the_driver_launches_are_not_measured(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(timing.ctypes, "CDLL", missing)
    assert isinstance(device.watch().launches(device.call, has_host_sync=False), NotMeasured)
