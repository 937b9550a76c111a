"""The cards of the headline: what came out best against ar, per concurrency, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddbench import units
from ddbench.analysis.contests import standing
from ddbench.analysis.findings.basis import CONTROL_ARMS
from ddbench.analysis.findings.frontier import field_of
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate
from ddbench.records import NotMeasured
from ddbench.report import cells
from ddbench.report.document import Fact, Tone
from ddbench.report.evidence import Evidence

STANDINGS: dict[str, str] = {
    "ahead": "faster than ar",
    "even": "not separated from ar",
    "behind": "slower than ar, which nothing here beats",
    "unknown": "without an interval",
}


def cards(evidence: Evidence) -> Iterator[Fact]:
    """One per run and concurrency; a control is no arm that somebody would choose."""
    for run in evidence.runs:
        for concurrency in evidence.study.concurrencies:
            own = (setting for setting in evidence.arms_at(concurrency) if setting.run == run)
            settings = [setting for setting in own if setting.arm not in CONTROL_ARMS]
            if settings:
                where = f"at concurrency {concurrency}" + (
                    f", run {evidence.run_names[run]}" if len(evidence.runs) > 1 else ""
                )
                yield _card(evidence, settings, where)


def _card(evidence: Evidence, settings: Sequence[Setting], where: str) -> Fact:
    """The arm with the highest speedup over ar, or with the lowest time per token where there is no ar."""
    speedups = _speedups(evidence, settings)
    if not speedups:
        return _fastest(evidence, settings, where)
    setting, best = max(speedups.values(), key=lambda pair: pair[1].value)
    candidates = [own for own, _ in speedups.values()]
    best = _allowing_for_choice(evidence, setting, "ar", best, candidates)
    place = standing(best)
    chosen = f", chosen of {len(speedups)}" if len(speedups) > 1 else ""
    details = [f"{STANDINGS[place]}: {cells.interval(best)}, n={best.n} prompts{chosen}"]
    chain = evidence.value(setting, "speedup_vs_chain")
    if isinstance(chain, Estimate):
        chain = _allowing_for_choice(evidence, setting, "chain", chain, candidates)
        details.append(f"{cells.number(chain.value, 'x')} vs chain {cells.interval(chain)}")
    details += _runners_up(evidence, setting, speedups)
    tone: Tone = "warn" if place == "behind" else "plain"
    if place == "ahead" and not evidence.is_busy(setting.run):
        tone = "good"
    return Fact(f"Best vs ar {where}", cells.number(best.value, "x"), setting.label, tuple(details), tone)


def _speedups(evidence: Evidence, settings: Sequence[Setting]) -> dict[str, tuple[Setting, Estimate]]:
    """Over ar, by setting key; where several ar arms are there (one per executor, say), over that of the fastest arm.

    An arm that gains most on a slow ar is not the best one.
    """
    speedups, bases, times = {}, {}, {}
    for setting in settings:
        value, base = evidence.value(setting, "speedup_vs_ar"), evidence.study.counterpart(setting, "ar")
        if evidence.may_be_best(setting) and isinstance(value, Estimate) and isinstance(base, Setting):
            tpot = evidence.value(setting, "tpot_ms")
            speedups[setting.key], bases[setting.key] = (setting, value), base.key
            times[setting.key] = tpot.value if isinstance(tpot, Estimate) else math.inf
    if not speedups:
        return {}
    meant = bases[min(times, key=times.__getitem__)]
    return {key: found for key, found in speedups.items() if bases[key] == meant}


def _allowing_for_choice(
    evidence: Evidence, setting: Setting, arm: str, speedup: Estimate, candidates: Sequence[Setting]
) -> Estimate:
    """The speedup with an interval that holds whichever of several arms came out best."""
    base = evidence.study.counterpart(setting, arm)
    if len(candidates) < 2 or isinstance(base, NotMeasured):
        return speedup
    field = field_of([base, *(own for own in candidates if own is not base)])
    return speedup if isinstance(field, NotMeasured) else field.speedup(setting, base)


def _runners_up(evidence: Evidence, best: Setting, speedups: dict[str, tuple[Setting, Estimate]]) -> Iterator[str]:
    """The best arm with a drafter, where the best has none; and what cannot be told from the best."""
    own = speedups[best.key][1]
    drafter = None if best.has_drafter else evidence.bases[best.run].best_drafter(best.concurrency)
    if drafter is not None and drafter.key in speedups:
        value = speedups[drafter.key][1]
        yield f"with a drafter: {drafter.label} {cells.number(value.value, 'x')} {cells.interval(value)}"
    close = [s.label for s, value in speedups.values() if s is not best and _overlap(own, value)]
    if close:
        yield f"intervals overlap with {few(close)}"


def _fastest(evidence: Evidence, settings: Sequence[Setting], where: str) -> Fact:
    """The lowest time per token, or the only one."""
    usable = [s for s in settings if evidence.may_be_best(s)]
    metric = METRICS["tpot_ms"]
    key = cells.best_of(((s.key, evidence.value(s, metric.name)) for s in usable), metric, fewest=1)
    if key is None:
        looping = [s for s in settings if s.is_ok and evidence.is_degenerate(s)]
        why = "the outputs of every measured arm loop" if looping else "nothing was measured"
        return Fact(where[:1].upper() + where[1:], "no best arm", why, tone="quiet")
    setting = next(s for s in usable if s.key == key)
    value = evidence.value(setting, metric.name)
    assert isinstance(value, Estimate), "the best of measured values is one"
    is_alone = len(usable) == 1
    why = "there is nothing to compare it with" if is_alone else "there is no ar arm to compare with"
    label = f"{'TPOT' if is_alone else 'Lowest TPOT'} {where}"
    details = (f"{cells.interval(value)}, n={value.n} prompts", why)
    return Fact(label, cells.with_unit(value.value, metric.unit), setting.label, details)


def _overlap(one: Estimate, other: Estimate) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.low <= other.high and other.low <= one.high


def few(names: list[str]) -> str:
    """Short, as long as they can be told apart so."""
    short = [units.shortened(name) for name in names[:3]]
    shown = short if len(set(short)) == len(short) else names[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
