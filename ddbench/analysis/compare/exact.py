"""What needs no statistics: counters and, under greedy decoding, acceptance. And acceptance where it does need them.

Between settings and comparisons. Greedy decoding takes the same rounds whenever it is repeated; where it does, one more
round is one more round, on any machine. Under sampling the prompts are what acceptance is compared over.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ddbench.analysis import speed
from ddbench.analysis.counters import agreed_counters, counter
from ddbench.analysis.effects import Effect, Pair
from ddbench.analysis.paired import Decision
from ddbench.analysis.settings import Setting
from ddbench.records import NotMeasured


@dataclass(frozen=True, slots=True)
class CounterChange:
    """An exact number that differs; `rates` are per round, where the counter grows with the rounds."""

    name: str
    a: int
    b: int
    verdict: Literal["better", "worse", "changed"]
    rates: tuple[float, float] | None

    @property
    def ratio(self) -> float | None:
        """Of the rates where there are any, else of the counts."""
        one, other = self.rates or (self.a, self.b)
        return other / one if one else None


def is_exact(setting: Setting) -> bool:
    """Greedy, and every repeat of the workload took the same rounds: acceptance and counters carry no noise."""
    return setting.engine.sampling == "greedy" and len(set(_repeats(setting))) == 1


def _repeats(setting: Setting) -> list[tuple[int, int]]:
    """(tokens, rounds) of every clean pass of every process."""
    rounds = setting.rounds
    of_pass = rounds.codes("case_id") * (1 + rounds["pass_index"].max(initial=0)) + rounds["pass_index"]
    _, numbers = np.unique(of_pass, return_inverse=True)
    tokens = np.bincount(numbers, weights=rounds["num_emitted"])
    return list(zip(map(int, tokens), map(int, np.bincount(numbers)), strict=True))


def decide_length(key: Hashable, a: Setting, b: Setting, min_effect: float) -> Decision:
    """tau of two settings that are both exact."""
    one, other = (tokens / count for tokens, count in (_repeats(setting)[0] for setting in (a, b)))
    ratio = other / one
    effect = Effect(ratio, ratio, ratio, None, len(set(a.requests["unit"])), None, 0.0, "exact: greedy decoding")
    if one == other:
        return Decision(key, "same", ("exact",), effect, None)
    if abs(math.log(ratio)) < math.log1p(min_effect):
        return Decision(key, "same", ("exact", "below_min_effect"), effect, None)
    return Decision(key, "faster" if ratio > 1 else "slower", ("exact",), effect, None)


def pairs_of_prompts(a: Setting, b: Setting) -> tuple[Pair, ...]:
    """tau of every prompt that both have; the order of prompts is no order in time."""
    ours, theirs = _lengths(a), _lengths(b)
    shared = [unit for unit in ours if unit in theirs]
    return tuple(Pair(place, ours[unit], theirs[unit]) for place, unit in enumerate(shared))


def _lengths(setting: Setting) -> dict[str, float]:
    sums = sorted(speed.emitted_and_rounds(setting).items())
    return {prompt: emitted / count for prompt, (emitted, count) in sums if emitted > 0}


def pooled(decision: Decision, a: Setting, b: Setting) -> Decision:
    """The effect as tau is defined, pooled over rounds; a verdict that its sign contradicts is none."""
    found = speed.length_ratio(b, a)
    if isinstance(found, NotMeasured) or isinstance(decision.effect, NotMeasured):
        return decision
    effect = replace(decision.effect, ratio=found.value, low=found.low, high=found.high, n=found.n, note=found.note)
    if decision.verdict in ("faster", "slower") and (found.value > 1) != (decision.verdict == "faster"):
        return Decision(decision.key, "undecided", ("interval_spans_both",), effect, decision.q_value)
    return replace(decision, effect=effect)


# --- counters ---------------------------------------------------------------------------------------------------------


def counter_changes(a: Setting, b: Setting) -> Iterator[CounterChange]:
    """Counters that both sides have, that repeat exactly on each, and that differ. Under sampling chance moves them."""
    if any(len(setting.rounds) and not is_exact(setting) for setting in (a, b)):
        return
    ours, theirs = counters(a), counters(b)
    for name in sorted(ours.keys() & theirs.keys()):
        one, other = ours[name], theirs[name]
        if one != other:
            rates = _rates(name, ours, theirs)
            yield CounterChange(name, one, other, _verdict(counter(name).direction, *(rates or (one, other))), rates)


def _verdict(direction: str, one: float, other: float) -> Literal["better", "worse", "changed"]:
    """Of rates where there are any: more rounds that each take the same work are told by their own counter."""
    if direction == "equal" or one == other:
        return "changed"
    return "better" if (other < one) == (direction == "lower") else "worse"


def counters(setting: Setting) -> dict[str, int]:
    """Counters that every process of the setting agrees in."""
    return {name: count for name, count in agreed_counters(setting.results).items() if isinstance(count, int)}


def _rates(name: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> tuple[float, float] | None:
    per = counter(name).per
    if not (ours.get(per) and theirs.get(per)):
        return None
    return ours[name] / ours[per], theirs[name] / theirs[per]
