"""Probes: what is written down at which event, with a clock that counts its readings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ddbench.engine.stages import Stage
from ddbench.engine.types import RoundOutcome
from ddbench.harness import capture
from ddbench.harness.capture import CAPTURES, CleanProbe, StageProbe, host_load, throttle_names
from ddbench.records import NotMeasured, StageSample
from ddbench.spec import CaptureSpec


class Clock:
    """Tells 10, 20, 30, ... or what it is set to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10
        return self.now


def outcome(*request_ids: int) -> RoundOutcome:
    n = len(request_ids)
    return RoundOutcome(request_ids, (4,) * n, (1,) * n, ((7, 8),) * n, (1.5,) * n, (True,) * n, 5)


def test_a_clean_probe_reads_the_clock_once_per_event() -> None:
    clock = Clock()
    probe = CleanProbe(clock)
    probe.admitted(3)
    probe.first_token(3, 7)
    probe.round_started(1)
    with probe.stage(Stage.DRAFT):
        pass
    probe.committed(outcome(3))
    probe.finished(3, "length")
    probe.path_used("materialize", "fused")
    assert clock.now == 40, "stages and endings cost no reading"
    assert probe.admissions == {3: 10}
    assert probe.first_tokens == {3: (20, 7)}
    assert probe.round_starts == [(30, 1)]
    assert probe.commits == [(40, outcome(3))]
    assert probe.finishes == {3: "length"}
    assert probe.paths == {"materialize": "fused"}
    assert probe.stage_samples() == []


def samples(probe: StageProbe) -> set[tuple[int, str, int]]:
    assert all(isinstance(sample, StageSample) and sample.clock == "host" for sample in probe.stage_samples())
    return {(sample.step, sample.stage, sample.duration_ns) for sample in probe.stage_samples()}


def test_stages_belong_to_their_round_and_prefill_to_none() -> None:
    probe = StageProbe(clock=Clock())
    with probe.stage(Stage.PREFILL):
        pass
    for _ in range(2):
        probe.round_started(1)
        with probe.stage(Stage.VERIFY):
            pass
        probe.committed(outcome(0))
    with probe.stage(Stage.PREFILL):
        pass
    assert samples(probe) == {(-1, "prefill", 10), (0, "verify", 10), (1, "verify", 10)}
    assert [s.step for s in probe.stage_samples()].count(-1) == 2, "prefills stay apart"


def test_a_stage_entered_twice_in_a_round_is_one_sample() -> None:
    probe = StageProbe(clock=Clock())
    probe.round_started(1)
    for _ in range(3):
        with probe.stage(Stage.MATERIALIZE):
            pass
    assert samples(probe) == {(0, "materialize", 30)}


def test_a_stage_inside_another_is_charged_once() -> None:
    """The outer stage takes 50 ns from its first to its last reading, of which the inner ones have 10 and 10."""
    clock = Clock()
    probe = StageProbe(clock=clock)
    probe.round_started(1)
    with probe.stage(Stage.VERIFY):
        with probe.stage(Stage.ACCEPT):
            pass
        with probe.stage(Stage.COMMIT):
            pass
    assert samples(probe) == {(0, "verify", 30), (0, "accept", 10), (0, "commit", 10)}


def test_a_stage_that_raises_is_still_closed() -> None:
    probe = StageProbe(clock=Clock())
    probe.round_started(1)
    try:
        with probe.stage(Stage.DRAFT):
            raise ValueError
    except ValueError:
        pass
    with probe.stage(Stage.VERIFY):
        pass
    assert samples(probe) == {(0, "draft", 10), (0, "verify", 10)}


def test_when_tokens_arrive_a_round_late_stages_belong_to_the_latest_round() -> None:
    probe = StageProbe(clock=Clock())
    probe.round_started(1)
    probe.round_started(1)
    probe.committed(outcome(0))
    with probe.stage(Stage.DRAFT):
        pass
    assert {step for step, _, _ in samples(probe)} == {1}


def test_stage_times_inside_a_replayed_graph_are_those_of_the_round_that_started_last() -> None:
    probe = StageProbe(clock=Clock())
    for _ in range(2):
        probe.round_started(1)
        for stage, duration in ((Stage.DRAFT, 30), (Stage.MATERIALIZE, 4), (Stage.MATERIALIZE, 5)):
            probe.timed(stage, duration)
        with probe.stage(Stage.MATERIALIZE):  # outside the graph: a newcomer's prompt
            pass
        probe.committed(outcome(0))
    assert samples(probe) == {(i, stage, n) for i in (0, 1) for stage, n in (("draft", 30), ("materialize", 19))}


class Event:
    """A CUDA event that is reached 5 us after the one before."""

    count = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.count += 1
        self.at = Event.count

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 0.005


def test_on_a_gpu_stages_are_event_pairs_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With made-up events: no synchronisation until the samples are asked for."""
    waits = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    probe = StageProbe("cuda", Clock())
    probe.round_started(1)
    with probe.stage(Stage.VERIFY), probe.stage(Stage.ACCEPT):
        pass
    assert waits == []
    found = {(s.step, s.stage, s.duration_ns, s.clock) for s in probe.stage_samples()}
    assert found == {(0, "verify", 10_000, "device"), (0, "accept", 5_000, "device")}
    assert waits == [1]


def test_every_capture_mode_has_a_probe() -> None:
    modes = CaptureSpec.model_fields["mode"].annotation.__args__  # type: ignore[union-attr]
    assert set(CAPTURES) == set(modes)
    makers: list[Callable[[str], CleanProbe]] = [make for make in CAPTURES.values() if make is not None]
    assert all(isinstance(make("cpu"), CleanProbe) for make in makers)


def test_a_burst_of_others_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    coming = [0.8, 0.1, 0.7]
    monkeypatch.setattr(capture, "host_load", lambda: coming.pop(0))
    assert capture.calm_load(0.9) == 0.1
    assert coming == [0.7]
    assert capture.calm_load(0.4) == 0.4


def test_a_host_that_stays_busy_is_waited_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "CALM_S", 0.02)
    monkeypatch.setattr(capture, "host_load", lambda: 0.9)
    assert capture.calm_load(0.95) == 0.9


def test_only_a_pass_on_a_gpu_waits_and_only_for_what_is_known() -> None:
    unknown = NotMeasured(not_measured="no such file")
    assert [capture.is_busy(load, "cuda") for load in (0.9, 0.4, unknown)] == [True, False, False]
    assert not capture.is_busy(0.9, "cpu")
    assert capture.calm_load(unknown) is unknown


def test_host_load_is_a_share() -> None:
    load = host_load()
    assert isinstance(load, float)
    assert 0 <= load <= 1


def test_throttle_reasons_are_named_and_idle_is_none() -> None:
    assert throttle_names(0x1) == ()
    assert throttle_names(0x4 | 0x40) == ("software power cap", "hardware thermal slowdown")
