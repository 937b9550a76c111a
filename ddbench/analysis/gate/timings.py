"""Times of a run against the baseline's: repeats in pairs, held to the larger of a threshold and the noise floor.

Part of `gate`; the decision itself is `paired`'s. Pairs are repeats with the same number. Where the two codes ran in
turns they also share the moment: then no floor is needed, since what remains of the machine's noise is in the spread of
the pairs themselves (A/A runs with drift, ramp and slot effect stay under the nominal rate of alarms without one).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ddbench.analysis.blocks import started_at
from ddbench.analysis.effects import Effect, Pair
from ddbench.analysis.gate.baseline import Samples, Shape
from ddbench.analysis.gate.policies import Policy
from ddbench.analysis.gate.repeats import block_values
from ddbench.analysis.gate.rows import Row, Timing, Verdict
from ddbench.analysis.metrics import METRICS, Metric
from ddbench.analysis.paired import (
    BELOW_ABSOLUTE_FLOOR,
    BELOW_MIN_EFFECT,
    BELOW_NOISE_FLOOR,
    IDENTICAL,
    INTERVAL_SPANS_BOTH,
    NO_PAIRS,
    NO_SPREAD,
    NOT_CONFIRMED,
    NOT_SIGNIFICANT_AFTER_FDR,
    ONE_ORDER_ONLY,
    SPREAD_TOO_WIDE,
    TOO_FEW_BLOCKS,
    UNUSABLE_VALUES,
    Cell,
    Decision,
    Limits,
    decide,
)
from ddbench.analysis.settings import Setting
from ddbench.records import NotMeasured

_VERDICTS: dict[str, Verdict] = {
    "faster": "improved",
    "slower": "regression",
    "same": "same",
    "undecided": "undecided",
    "incomparable": "incomparable",
}
_REASONS: dict[str, str] = {
    NO_PAIRS: "no pair of repeats",
    UNUSABLE_VALUES: "a value is not positive: there is no ratio to it",
    TOO_FEW_BLOCKS: "too few repeats to decide from: run with --blocks 6 or more",
    ONE_ORDER_ONLY: "the same code always ran first",
    SPREAD_TOO_WIDE: "repeats differ too much from each other",
    INTERVAL_SPANS_BOTH: "the interval holds both a change that counts and none: more repeats decide",
    NOT_SIGNIFICANT_AFTER_FDR: "not significant among so many comparisons",
    NOT_CONFIRMED: "not confirmed by the other half of the repeats, or by the second run",
    BELOW_MIN_EFFECT: "smaller than what counts",
    BELOW_NOISE_FLOOR: "within the noise floor",
    BELOW_ABSOLUTE_FLOOR: "smaller than anybody would feel",
    IDENTICAL: "identical in every repeat",
    NO_SPREAD: "the same in every repeat",
}
_SMALL = (_REASONS[BELOW_MIN_EFFECT], _REASONS[BELOW_NOISE_FLOOR])
IN_TURNS = NotMeasured(not_measured="not needed: the codes ran in turns, the spread of their pairs holds the noise")
_REFUSALS = frozenset((NO_PAIRS, UNUSABLE_VALUES, TOO_FEW_BLOCKS, ONE_ORDER_ONLY, SPREAD_TOO_WIDE))


@dataclass(frozen=True)
class Entry:
    """A shape of the baseline and its setting in the run, and in the run that is to confirm it."""

    shape: Shape
    setting: Setting
    confirming: Setting | None = None
    why_not: str = ""  # its times may not be compared
    partner: str = ""  # the run of the baseline that ran in turns with this one


@dataclass(frozen=True)
class _Measured:
    """One metric of an entry, before the decision."""

    entry: Entry
    metric: Metric
    policy: Policy
    pairs: tuple[Pair, ...] = ()
    confirmation: tuple[Pair, ...] = ()
    why_nothing: str = ""
    samples: Samples = field(default=Samples(values=(), floor=NotMeasured(not_measured="not in the baseline")))

    @property
    def key(self) -> tuple[str, str]:
        return self.entry.shape.key, self.metric.name

    @property
    def floor(self) -> float | NotMeasured:
        if self.entry.partner:
            return IN_TURNS
        floor = self.samples.floor
        return floor if isinstance(floor, NotMeasured) else floor.value

    @property
    def needed_floor(self) -> float:
        """What a difference must exceed, besides its threshold."""
        return self.floor if isinstance(self.floor, float) else 0.0

    @property
    def is_decidable(self) -> bool:
        has_floor = self.floor is IN_TURNS or isinstance(self.floor, float)
        return bool(self.pairs) and not self.entry.why_not and has_floor


# --------------------------------------------------------------------------------------------------------------- rows


def timing_rows(entries: Sequence[Entry], policies: Mapping[str, Policy]) -> list[Row]:
    """Every gated metric of every entry. All decisions are made together, because their number counts."""
    measured = [_measured(entry, METRICS[name], policy) for entry in entries for name, policy in policies.items()]
    open_ones = [one for one in measured if one.is_decidable]
    confirming: dict[Hashable, tuple[Pair, ...]] = {
        one.key: one.confirmation for one in open_ones if one.entry.confirming is not None
    }
    decisions = decide([_cell(one) for one in open_ones], confirmation=confirming or None)
    by_key = {decision.key: decision for decision in decisions}
    return [_row(one, by_key.get(one.key)) for one in measured]


def _measured(entry: Entry, metric: Metric, policy: Policy) -> _Measured:
    samples = entry.shape.metrics.get(metric.name)
    if samples is None:
        return _Measured(entry, metric, policy, why_nothing="the baseline does not have it: make it anew")
    before = _baseline_blocks(entry, samples)
    now = block_values(metric.name, entry.setting)
    pairs = tuple(_pairs(before, now, _orders(entry)))
    confirmation: tuple[Pair, ...] = ()
    if entry.confirming is not None:
        confirmation = tuple(_pairs(before, block_values(metric.name, entry.confirming), {}))
    why = "" if pairs else _why_no_pairs(before, now)
    return _Measured(entry, metric, policy, pairs, confirmation, why, samples)


def _baseline_blocks(entry: Entry, samples: Samples) -> dict[int, float | NotMeasured]:
    """Block -> the partner's value, or the median over the baseline's runs: one slow run does not stand for all."""
    found: dict[int, list[float | NotMeasured]] = {}
    for repeat, value in zip(entry.shape.repeats, samples.values, strict=True):
        if entry.partner in ("", repeat.run):
            found.setdefault(repeat.block, []).append(value)
    merged: dict[int, float | NotMeasured] = {}
    for block, values in found.items():
        numbers = [value for value in values if not isinstance(value, NotMeasured)]
        merged[block] = median(numbers) if numbers else values[0]
    return merged


def _orders(entry: Entry) -> dict[int, bool]:
    """Block -> whether the baseline's code ran first, where the two ran in turns."""
    theirs = {one.block: one.started_at for one in entry.shape.repeats if entry.partner == one.run}
    ours = started_at(entry.setting)
    return {block: theirs[block] < ours[block] for block in theirs if block in ours and theirs[block] != ours[block]}


def _pairs(
    before: Mapping[int, float | NotMeasured], now: Mapping[int, float | NotMeasured], orders: Mapping[int, bool]
) -> Iterator[Pair]:
    """`orders` of a run that did not take turns with the baseline's is empty."""
    for block in sorted(set(before) & set(now)):
        a, b = before[block], now[block]
        if isinstance(a, float) and isinstance(b, float) and a > 0 and b > 0:
            yield Pair(block, a, b, orders.get(block))


def _why_no_pairs(before: Mapping[int, float | NotMeasured], now: Mapping[int, float | NotMeasured]) -> str:
    for where, values in (("", now), ("baseline: ", before)):
        missing = [value.not_measured for value in values.values() if isinstance(value, NotMeasured)]
        if missing and len(missing) == len(values):
            return f"{where}{missing[0]}"
    return "no repeat of the run has its counterpart in the baseline"


def _cell(one: _Measured) -> Cell:
    direction = one.metric.direction
    assert direction != "neither", "only metrics with a better side are gated"
    floor = one.needed_floor
    limits = Limits(max(one.policy.threshold, floor), one.policy.absolute_floor, floor)
    return Cell(one.key, one.pairs, direction, limits)


def _row(one: _Measured, decision: Decision | None) -> Row:
    verdict, reason = _verdict(one, decision)
    return Row(
        kind="timing",
        shape=one.entry.shape.label,
        name=one.metric.name,
        verdict=verdict,
        before=median(pair.a for pair in one.pairs) if one.pairs else None,
        now=median(pair.b for pair in one.pairs) if one.pairs else None,
        unit=one.metric.unit,
        reason=reason,
        timing=_timing(one, decision),
    )


def _verdict(one: _Measured, decision: Decision | None) -> tuple[Verdict, str]:
    if one.entry.why_not:
        return "incomparable", f"shown as context only: {one.entry.why_not}"
    if one.why_nothing:
        return "undecided", one.why_nothing
    if isinstance(one.floor, NotMeasured) and one.floor is not IN_TURNS:
        return "undecided", f"the baseline has no noise floor for it: {one.floor.not_measured}"
    assert decision is not None, "what is decidable was decided"
    texts = [_REASONS.get(code, code.replace("_", " ")) for code in decision.reasons]
    dropped = sum(isinstance(value, NotMeasured) for value in block_values(one.metric.name, one.entry.setting).values())
    if dropped:
        texts.append(f"{dropped} repeats of the run were throttled or have no value, and are left out")
    if decision.verdict == "slower":
        limit = "noise floor" if one.needed_floor > one.policy.threshold else "threshold"
        texts.insert(0, f"worse by more than the {limit} of {100 * max(one.needed_floor, one.policy.threshold):.3g} %")
    if decision.verdict in ("same", "undecided") and _is_hidden(one, decision):
        hidden = f"worse than the threshold, which the noise floor of {100 * one.needed_floor:.3g} % hides"
        more = [text for text in texts if text not in _SMALL]  # said by `hidden`
        return "undecided", "; ".join((f"{hidden}: qualify on a quieter machine", *more))
    if decision.verdict == "undecided" and _is_no_worse(one, decision):
        return "same", "; ".join(("whatever the difference is, it is not a slowdown that counts", *texts))
    return _VERDICTS[decision.verdict], "; ".join(texts)


def _is_hidden(one: _Measured, decision: Decision) -> bool:
    """A change for the worse that the threshold would count and only a wider noise floor lets pass: no clean bill."""
    effect = decision.effect
    if not isinstance(effect, Effect) or one.needed_floor <= one.policy.threshold:
        return False
    worse = effect.ratio if one.metric.direction == "lower" else 1 / effect.ratio
    is_felt = abs(effect.ratio - 1) * median(pair.a for pair in one.pairs) > one.policy.absolute_floor
    return worse > 1 + one.policy.threshold and is_felt


def _is_no_worse(one: _Measured, decision: Decision) -> bool:
    """A gate asks one side only: whether the interval reaches as far as a change for the worse that counts."""
    effect = decision.effect
    if not isinstance(effect, Effect) or effect.low is None or effect.high is None:
        return False
    worst = effect.high if one.metric.direction == "lower" else 1 / effect.low
    return not _REFUSALS.intersection(decision.reasons) and worst <= 1 + _cell(one).limits.min_effect


def _timing(one: _Measured, decision: Decision | None) -> Timing | None:
    if not one.pairs:
        return None
    effect = decision.effect if decision is not None and isinstance(decision.effect, Effect) else None
    plain = median(pair.b for pair in one.pairs) / median(pair.a for pair in one.pairs)
    return Timing(
        ratio=plain if effect is None else effect.ratio,
        low=None if effect is None else effect.low,
        high=None if effect is None else effect.high,
        num_pairs=len(one.pairs),
        is_interleaved=bool(one.entry.partner),
        floor=one.floor,
        threshold=one.policy.threshold,
        absolute_floor=one.policy.absolute_floor,
        q_value=None if decision is None else decision.q_value,
    )
