"""Exact numbers of a run against the baseline's: no statistics, a difference is a difference.

Part of `gate`. Counters carry their direction in `counters`: worse is a regression, better passes with a note, and one
that must stay equal has changed. Some counters only mean the same as long as others are equal; those are shown and not
judged where that is not so, since the cause has a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddbench.analysis.counters import Counter, agreed_counters, counter
from ddbench.analysis.gate.baseline import Shape
from ddbench.analysis.gate.repeats import agreed_digest
from ddbench.analysis.gate.rows import Row, Verdict
from ddbench.analysis.settings import Setting
from ddbench.records import NotMeasured

Counters = Mapping[str, int | NotMeasured]

UPDATE = "better than the baseline: make it anew, so that this is kept"


def why_not_comparable(then: Mapping[str, str], place: Mapping[str, str]) -> str:
    """Counters need neither the same machine nor the same speed: the same torch minor version and kind of device."""
    before, now = (_minor(one.get("library torch", "absent")) for one in (then, place))
    if before != now:
        return f"torch {before} then, {now} now: another version may dispatch other ops"
    if then.get("device") != place.get("device"):
        return f"{then.get('device')} then, {place.get('device')} now: another device rounds differently"
    return ""


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def other_weights(shape: Shape, setting: Setting) -> str:
    """Why nothing of the two can be compared, where their models are not the same."""
    for result in setting.results:
        for what in ("target_digest", "drafter_digest"):
            before, now = getattr(shape, what), getattr(result.models, what)
            if before != now:
                return f"other weights: {what} {before[:12]} then, {now[:12]} now"
    return ""


def counter_rows(shape: Shape, setting: Setting) -> list[Row]:
    """The output, then every counter of the baseline, then those that it does not know."""
    now = agreed_counters(setting.results)
    if not shape.is_greedy:
        reason = "sampled: what is emitted and accepted follows random numbers, which no counter can be held against"
        return [_row(shape, name, "not_gated", shape.counters[name], now.get(name), reason) for name in shape.counters]
    rows = [_output_row(shape, setting)]
    rows += [_counter_row(shape, name, now) for name in shape.counters]
    new = [name for name in now if name not in shape.counters]
    reason = "not in the baseline: make it anew to gate this"
    return rows + [_row(shape, name, "not_gated", None, now[name], reason) for name in new]


def _output_row(shape: Shape, setting: Setting) -> Row:
    before, now = shape.output_digest, agreed_digest(setting.results)
    verdict: Verdict = "same"
    reason = ""
    if isinstance(before, NotMeasured):
        verdict, reason = "not_gated", f"baseline: {before.not_measured}"
    elif isinstance(now, NotMeasured):
        has_outputs = all(isinstance(result.output_digest, str) for result in setting.results)
        verdict, reason = ("changed" if has_outputs else "missing"), now.not_measured
    elif before != now:
        verdict, reason = "changed", "greedy decoding emits other tokens than the baseline"
    return Row(kind="output", shape=shape.label, name="output", verdict=verdict, before=before, now=now, reason=reason)


def _counter_row(shape: Shape, name: str, counters: Counters) -> Row:
    before, now, about = shape.counters[name], counters.get(name), counter(name)
    is_other = isinstance(before, int) and isinstance(now, int) and before != now
    if is_other and any(counters.get(other) != shape.counters.get(other) for other in about.given):
        return _row(shape, name, "not_gated", before, now, about.why_given)
    return judged_row(shape.label, name, about, before, now)


def judged_row(label: str, name: str, about: Counter, before: int | NotMeasured, now: int | NotMeasured | None) -> Row:
    """A counter against the baseline's, whatever the shape is one of."""
    verdict: Verdict
    if isinstance(before, NotMeasured):
        verdict, reason = "not_gated", f"baseline: {before.not_measured}"
    elif now is None:
        verdict, reason = "missing", "the run did not count it"
    elif isinstance(now, NotMeasured):
        verdict, reason = "changed", now.not_measured
    else:
        verdict, reason = _judged(about, before, now)
    return Row(kind="counter", shape=label, name=name, verdict=verdict, before=before, now=now, reason=reason)


def _judged(about: Counter, before: int, now: int) -> tuple[Verdict, str]:
    if before == now:
        return "same", ""
    if about.direction == "equal":
        return "changed", f"{about.meaning}: must stay as it is"
    is_better = (now < before) == (about.direction == "lower")
    return (
        ("improved", "better than the baseline")
        if is_better
        else ("regression", f"{about.meaning}: {about.direction} is better")
    )


def _row(
    shape: Shape, name: str, verdict: Verdict, before: int | NotMeasured | None, now: int | NotMeasured | None, why: str
) -> Row:
    return Row(kind="counter", shape=shape.label, name=name, verdict=verdict, before=before, now=now, reason=why)


def incomparable_row(shape: Shape, reason: str) -> Row:
    return Row(kind="shape", shape=shape.label, name="counters", verdict="incomparable", reason=reason)
