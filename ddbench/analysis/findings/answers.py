"""What an answer to one of the three questions consists of, and the words that every answer uses for numbers.

An answer is data: a verdict, a sentence put together from measured values, the values themselves, what they rest on,
what is missing, and what would change the answer. The same run always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ddbench import units
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate, Unit, Value
from ddbench.records import NotMeasured

Question = Literal["Q1", "Q2", "Q3"]
Verdict = Literal["yes", "no", "mixed", "undecided", "not_measured"]  # undecided: measured, and it does not tell

QUESTIONS: dict[Question, str] = {
    "Q1": "Is context read once per round and shared by all verified tokens, without wasting memory bandwidth?",
    "Q2": "Does verifying more candidates per round pay: is idle compute traded for acceptance?",
    "Q3": "Do CUDA graphs and a tree built on the device pay?",
}
FLOOR_NOTE = "computed: from the shapes and the measured ceilings"


@dataclass(frozen=True, slots=True)
class Number:
    """One value that an answer rests on."""

    label: str
    value: Value
    about: str = ""  # the setting, or the two, that it was measured on


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question in one run."""

    question: Question
    verdict: Verdict
    answer: str
    numbers: tuple[Number, ...]
    rests_on: tuple[str, ...]  # labels of settings
    would_change: str
    missing: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()  # the answer in a few words, one line for every concurrency or part
    is_inferred: bool = False  # nothing measured the thing itself: the answer follows from times

    @property
    def text(self) -> str:
        return QUESTIONS[self.question]


@dataclass(frozen=True, slots=True)
class Part:
    """What one concurrency, or one part of the engine, says."""

    verdict: Verdict
    sentence: str
    brief: str = ""


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several: what was not measured has no say; different ones are mixed, if any of them is a yes."""
    known = {verdict for verdict in verdicts if verdict != "not_measured"}
    if not known:
        return "not_measured"
    if len(known) == 1:
        return known.pop()
    return "mixed" if known & {"yes", "mixed"} else "undecided"


def told(value: Value) -> str:
    """`1.25x [1.20, 1.31]` or `12.3 % [11.0, 13.1]`; of a missing value its reason."""
    if isinstance(value, NotMeasured):
        return f"not measured ({value.not_measured})"
    scale = 100 if value.unit == "share" else 1
    suffix = {"share": " %", "x": "", "count": ""}.get(value.unit, f" {value.unit}")
    if value.unit == "bytes":
        return units.byte_count(value.value)  # counted: an interval of bytes is not told anywhere
    text = units.ratio(value.value) if value.unit == "x" else units.significant(scale * value.value) + suffix
    if value.low is None or value.high is None:
        return text
    return f"{text} {units.interval(scale * value.low, scale * value.high)}"


def at(concurrency: int, reason: object) -> object:
    """A reason with the concurrency that it holds for; anything that is no reason as it is."""
    if not isinstance(reason, NotMeasured):
        return reason
    return NotMeasured(not_measured=f"{reason.not_measured} (concurrency {concurrency})")


def measured(numbers: Iterable[Number]) -> tuple[Number, ...]:
    """Those with a value; why the others have none is told apart from them."""
    return tuple(number for number in numbers if isinstance(number.value, Estimate))


def plain(stage: str) -> str:
    """A stage, a part or a counter in running text."""
    return stage.replace("_", " ")


def named(setting: Setting) -> str:
    """A setting with its concurrency."""
    return f"{setting.label} c={setting.concurrency}"


def computed(value: float, unit: Unit, why: str = "exact: it has no interval") -> Estimate:
    """A counter, or what is computed from shapes and ceilings; `why` says why there is no interval."""
    return Estimate(value, None, None, 1, unit, "clean", why)


def captured(value: float, unit: Unit, num_rounds: int) -> Estimate:
    """What one capture says about the rounds in its window."""
    return Estimate(value, None, None, num_rounds, unit, "captured", "one capture: it has no interval", "rounds")


def reasons(values: Iterable[object]) -> tuple[str, ...]:
    """Why the missing ones among `values` are missing, each reason once."""
    return tuple(dict.fromkeys(value.not_measured for value in values if isinstance(value, NotMeasured)))
