"""The probe below a profiler: ranges nest, a window holds whole rounds on an idle device, times are those of steps."""

from __future__ import annotations

from collections.abc import Iterator

import nvtx
import pytest
import torch

from ddbench.analysis.nsys.names import WINDOW, parse_round, parse_stage
from ddbench.engine.stages import Stage
from ddbench.engine.types import RoundOutcome
from ddbench.harness.profilers.window import NvtxRanges, TorchRanges, WindowProbe


class Log:
    """Ranges as a list of what was opened and closed; refuses a pop too many."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.open: list[str] = []

    def push(self, name: str) -> None:
        self.open.append(name)
        self.words.append(f"+{name}")

    def pop(self) -> None:
        self.words.append(f"-{self.open.pop()}")

    def say(self, word: str) -> None:
        self.words.append(word)


def ticking() -> Iterator[int]:
    now = 0
    while True:
        yield now
        now += 10


def probe_of(log: Log, first_round: int, num_rounds: int) -> WindowProbe:
    clock = ticking()
    return WindowProbe(
        log,
        first_round=first_round,
        num_rounds=num_rounds,
        synchronize=lambda: log.say("idle"),
        opening=lambda: log.say("start"),
        closed=lambda: log.say("stop"),
        clock=lambda: next(clock),
    )


def outcome(tokens: int = 2) -> RoundOutcome:
    return RoundOutcome((0,), (4,), (1,), (tuple(range(tokens)),), (1.5,), (True,), 5)


def play(probe: WindowProbe, rounds: int, *, is_late: bool = False) -> None:
    """`rounds` rounds of one stage each, read at once or one round late."""
    for step in range(rounds):
        probe.round_started(1)
        with probe.stage(Stage.VERIFY):
            pass
        if not is_late or step:
            probe.committed(outcome())
    if is_late:
        probe.committed(outcome())
    probe.close()


def test_a_window_of_rounds_that_are_read_at_once() -> None:
    log = Log()
    probe = probe_of(log, 1, 2)
    play(probe, 4)
    assert log.words == [
        *("+round/0", "+verify", "-verify", "-round/0"),
        *("idle", "start", "+window"),
        *("+round/1", "+verify", "-verify", "-round/1"),
        *("+round/2", "+verify", "-verify", "-round/2", "idle", "-window", "stop"),
    ]


def test_a_window_of_rounds_that_are_read_late() -> None:
    """The last round's device time lies in the window; the round that tells of its end is not in it."""
    log = Log()
    play(probe_of(log, 1, 2), 5, is_late=True)
    assert log.words == [
        *("+round/0", "+verify", "-verify", "-round/0"),
        *("idle", "start", "+window"),
        *("+round/1", "+verify", "-verify", "-round/1"),
        *("+round/2", "+verify", "-verify", "-round/2", "idle", "-window", "stop"),
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_run_with_fewer_rounds_ends_the_window(is_late: bool) -> None:
    log = Log()
    probe = probe_of(log, 1, 10)
    play(probe, 3, is_late=is_late)
    assert log.words[-2:] == ["-window", "stop"]
    assert not log.open
    assert len(probe.run({}).round_ns) == 2


def test_a_run_that_never_reaches_its_window_says_so_by_no_rounds() -> None:
    log = Log()
    probe = probe_of(log, 7, 2)
    play(probe, 3)
    assert "stop" not in log.words
    assert probe.run({"0": (1,)}).round_ns == ()


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("first_round", [0, 1, 3])
def test_times_of_rounds_are_those_of_a_clean_passs_steps(first_round: int, is_late: bool) -> None:
    """From a round's start, or from the moment in which the one before it was read, to its own tokens; the first one
    of the window from its start, as the device was idle then.
    """
    probe = probe_of(Log(), first_round, 2)
    play(probe, 6, is_late=is_late)
    expected = []
    for step in range(first_round, first_round + 2):
        begin = max(probe.round_starts[step][0], probe.commits[step - 1][0] if step > first_round else 0)
        expected.append(probe.commits[step][0] - begin)
    run = probe.run({"3": (5, 6)})
    assert run.round_ns[0] == expected[0]
    assert 0 < run.round_ns[1] <= expected[1], "what closing the window took is not the round's"
    assert (run.first_round, run.num_emitted, run.outputs) == (first_round, 4, {"3": (5, 6)})


def test_recorded_stages_are_named_before_any_round() -> None:
    log = Log()
    probe = probe_of(log, 0, 1)
    with probe.recording(Stage.DRAFT):
        pass
    assert log.words == ["+draft", "-draft"]
    assert probe.times_stages is False, "the graphs are those of a clean pass"


def test_names_are_the_ones_that_the_analysis_finds() -> None:
    log = Log()
    play(probe_of(log, 0, 3), 3)
    names = {word[1:] for word in log.words if word[0] == "+"}
    assert {name for name in names if parse_stage(name) is None and parse_round(name) is None} == {WINDOW}


class Domain:
    """A made-up NVTX domain: attributes are the names themselves."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.registered: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        self.registered.append(message)
        return message

    def push_range(self, attributes: str) -> None:
        self.words.append(attributes)

    def pop_range(self) -> None:
        self.words.append("pop")


def test_nvtx_ranges_lie_in_our_domain_and_stages_are_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    domains: dict[str, Domain] = {}
    monkeypatch.setattr(nvtx, "get_domain", lambda name: domains.setdefault(name, Domain()))
    ranges = NvtxRanges()
    for name in ("window", "verify", "verify"):
        ranges.push(name)
        ranges.pop()
    assert list(domains) == ["ddbench"]
    assert domains["ddbench"].words == ["window", "pop", "verify", "pop", "verify", "pop"]
    assert domains["ddbench"].registered.count("verify") == 1


def test_ranges_of_the_torch_profiler_nest() -> None:
    ranges = TorchRanges()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ranges.push("window")
        ranges.push("verify")
        ranges.pop()
        ranges.pop()
    outer, inner = (next(one for one in profile.events() if one.name == name) for name in ("window", "verify"))
    assert inner.cpu_parent is outer


def test_names_may_be_given_where_nobody_records() -> None:
    ranges = NvtxRanges()
    ranges.push("verify")
    assert ranges.pop() is None
