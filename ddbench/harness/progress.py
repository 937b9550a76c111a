"""What a person sees while a sweep runs: a bar and an estimate on a terminal, plain lines elsewhere; a row per case."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ddbench import units
from ddbench.captured import Capture
from ddbench.records import CaseResult, FailedResult, IncorrectResult, OkResult
from ddbench.spec import Case

ROOMY = 80  # columns of a terminal from which there is room for a bar and for labels that line up
_COLOURS = {"ok": "green", "incorrect": "red", "failed": "red"}


class SweepDisplay:
    """Told when a case starts, what it is doing, and how it ended."""

    def __init__(
        self, console: Console, cases: Sequence[Case], num_left: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._num_cases = len(cases)
        self._num_done = self._num_cases - num_left
        self._label_width = max(len(_label(case)) for case in cases) if console.width >= ROOMY else 0
        self._num_left = num_left
        self._spent = 0.0
        self._num_timed = 0
        self._clock = clock
        self._begin = clock()
        self._label = ""
        self._bar = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            *((BarColumn(bar_width=24),) if console.width >= ROOMY else ()),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            refresh_per_second=2,  # the bar runs beside the measurement
            disable=not self._is_live,
        )
        self._task = self._bar.add_task("", total=self._num_cases, completed=self._num_done, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def started(self, case: Case) -> None:
        self._begin = self._clock()
        self._label = case.label
        self._bar.update(self._task, description=self._doing(""), left=self._time_left())

    def phase(self, text: str) -> None:
        self._bar.update(self._task, description=self._doing(f": {text}"))

    def finished(self, result: CaseResult, captures: Sequence[Capture] = ()) -> None:
        self._spent += self._clock() - self._begin
        self._num_timed += 1
        self._num_done += 1
        self._num_left -= 1
        self._bar.update(self._task, completed=self._num_done, left=self._time_left())
        place = f"[{self._num_done:>{len(str(self._num_cases))}}/{self._num_cases}]"
        colour = _COLOURS[result.status]
        line = (
            f"{place} [{colour}]{result.status:<9}[/] {result_row(result, self._label_width)}{_captures_note(captures)}"
        )
        if not self._is_live and self._num_left:
            line += f"  ({self._time_left()})"
        self._console.print(line, highlight=False, soft_wrap=not self._is_live)

    def _doing(self, phase: str) -> str:
        """What stands behind the bar, short enough for one line and a `^C` after it."""
        taken = 65 if self._console.width >= ROOMY else 40
        return escaped(units.shortened(f"{self._label}{phase}", max(12, self._console.width - taken)))

    def _time_left(self) -> str:
        if not self._num_timed:
            return "time left: unknown"
        return f"about {units.about(self._spent / self._num_timed * self._num_left)} left"


def result_row(result: CaseResult, width: int = 0) -> str:
    """One finished case on one line: label, tokens per second and acceptance length, or what went wrong."""
    label = _label(result.case)
    if isinstance(result, OkResult):
        speed = f"{_speed(result):>{10 if width else 0}}"
        return f"{label:<{width}}  {speed}  tau {_acceptance_length(result)}{_parity_note(result)}"
    if isinstance(result, FailedResult):
        return f"{label:<{width}}  {result.outcome}: {escaped(result.reason)}"
    return f"{label:<{width}}  {_first_divergence(result)}"


def _label(case: Case) -> str:
    return case.label + (f" block={case.block}" if case.block else "")


def escaped(text: str) -> str:
    """Text that rich must not read as markup."""
    return text.replace("[", "\\[")


def _speed(result: OkResult) -> str:
    clean = [summary for summary in result.passes if summary.pass_name == "clean"]
    seconds = sum(summary.wall_ns for summary in clean) / 1e9
    return f"{units.significant(sum(summary.num_emitted for summary in clean) / seconds)} tok/s"


def _acceptance_length(result: OkResult) -> str:
    """Tokens that reached the output per round, pooled; a request's first token comes from its prefill."""
    counters = result.counters
    if not counters["num_rounds"]:
        return "-"
    return units.significant((counters["tokens_emitted"] - counters["num_requests"]) / counters["num_rounds"])


def _parity_note(result: OkResult) -> str:
    return "" if result.parity.status == "identical" else f"  parity {result.parity.status}"


def _captures_note(captures: Sequence[Capture]) -> str:
    """The tools that recorded the case, and why others did not; the cure stands at the end of the sweep."""
    if not captures:
        return ""
    return "  " + ", ".join(
        one.tool if one.fault is None else f"[yellow]{one.tool}: {one.fault.reason.replace('_', ' ')}[/]"
        for one in captures
    )


def _first_divergence(result: IncorrectResult) -> str:
    if not result.parity.divergences:
        return f"parity {result.parity.status}"
    first = result.parity.divergences[0]
    return (
        f"differs from plain decoding: prompt {first.prompt_id}, token {first.position}: "
        f"expected {first.expected}, got {first.got}"
    )
