"""What is compared with what: settings of two runs, of two arms, or of two variants of a part, in pairs.

Between settings and comparisons. Two runs pair what was asked for alike; where only a condition differs (precision,
workload, sampling, weights) the two are still paired, so that the comparison can say why it is refused. Nothing is
left out in silence: what has no partner is `Unmatched`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.analysis.compare.comparability import Reason
from ddbench.analysis.settings import SAME_FOR_SPEEDUP, Setting, likeness
from ddbench.errors import UserError, did_you_mean
from ddbench.records import Manifest
from ddbench.spec import ARMS, PART_FIELDS

# What a setting is, beside the conditions that it was measured under.
IDENTITY_FIELDS: tuple[str, ...] = (
    *(name for name in PART_FIELDS if name != "sampling"),
    "node_budget",
    "block_size",
)
Couple = tuple[Setting, Setting]  # (A, B)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A setting that only one side has."""

    label: str
    concurrency: int
    side: str  # 'A' or 'B': the side that has it; of a skipped one, the side that skipped it, or 'both'
    reason: Reason


@dataclass(frozen=True, slots=True)
class Matching:
    couples: tuple[Couple, ...]
    unmatched: tuple[Unmatched, ...]


def of_runs(ours: Sequence[Setting], theirs: Sequence[Setting], manifests: tuple[Manifest, Manifest]) -> Matching:
    """Settings of run A with those of run B: exactly alike first, then alike but for the conditions."""
    left, right = list(ours), list(theirs)
    couples = _taken(left, right, lambda s: (s.arm, s.engine, s.workload))
    couples += _taken(left, right, lambda s: (s.arm, s.concurrency, *(getattr(s.engine, n) for n in IDENTITY_FIELDS)))
    places = {setting.key: place for place, setting in enumerate(ours)}
    couples.sort(key=lambda couple: places[couple[0].key])
    alone = [*(_alone(s, "A", manifests[1]) for s in left), *(_alone(s, "B", manifests[0]) for s in right)]
    return Matching(tuple(couples), (*alone, *_not_yet((*ours, *theirs), manifests), *_never_ran(manifests)))


def _taken(left: list[Setting], right: list[Setting], key: Callable[[Setting], Any]) -> list[Couple]:
    """Couples of equal key, taken out of both lists; of several candidates the most similar one."""
    couples = []
    for setting in list(left):
        candidates = [other for other in right if key(other) == key(setting)]
        if candidates:
            partner = max(candidates, key=lambda other: likeness(setting, other))
            couples.append((setting, partner))
            left.remove(setting)
            right.remove(partner)
    return couples


def _alone(setting: Setting, side: str, other: Manifest) -> Unmatched:
    is_planned = any(
        (case.arm, case.engine, case.workload) == (setting.arm, setting.engine, setting.workload)
        for case in other.cases
    )
    lacks = "B" if side == "A" else "A"
    if is_planned:
        reason = Reason("not_run", f"the plan of {lacks} holds it, but it has no result there: interrupted or going on")
    else:
        reason = Reason("absent", f"{lacks} has no such setting")
    return Unmatched(setting.label, setting.concurrency, side, reason)


def _not_yet(settings: Sequence[Setting], manifests: tuple[Manifest, Manifest]) -> Iterator[Unmatched]:
    """What both plans hold and neither run has a result of."""
    known = [(setting.arm, setting.engine, setting.workload) for setting in settings]
    planned = [[(case.arm, case.engine, case.workload) for case in manifest.cases] for manifest in manifests]
    for case in manifests[0].cases:
        asked = (case.arm, case.engine, case.workload)
        if asked in planned[1] and asked not in known:
            known.append(asked)
            reason = Reason("not_run", "both plans hold it, and neither run has a result: interrupted or going on")
            label = case.label.removesuffix(f" c={case.workload.concurrency}")
            yield Unmatched(label, case.workload.concurrency, "both", reason)


def _never_ran(manifests: tuple[Manifest, Manifest]) -> Iterator[Unmatched]:
    """Points of either plan that cannot be run there: nothing else would name them."""
    found: dict[tuple[str, str], str] = {}
    for side, manifest in zip("AB", manifests, strict=True):
        for skipped in manifest.skipped:
            key = (skipped.label, skipped.reason)
            found[key] = "both" if key in found else side
    for (label, why), side in found.items():
        name, _, concurrency = label.rpartition(" c=")
        is_whole = name and concurrency.isdigit()
        place = (name, int(concurrency)) if is_whole else (label, 0)
        yield Unmatched(*place, side, Reason("skipped", f"skipped in {side}: {why}"))


def of_arms(settings: Sequence[Setting], base: str, candidate: str) -> Matching:
    """Every setting of one arm with its counterpart in the other: same conditions, same workload."""
    present = tuple(dict.fromkeys(setting.arm for setting in settings))
    for arm in (base, candidate):
        if arm not in ARMS:
            raise UserError(f"unknown arm '{arm}': {did_you_mean(arm, ARMS)}")
        if arm not in present:
            raise UserError(f"the run has no {arm} arm: it has {', '.join(present) or 'no results'}")
    if base == candidate:
        raise UserError(f"--arms names {base} twice: name two arms of {', '.join(present)}")
    left, right = ([s for s in settings if s.arm == arm] for arm in (base, candidate))
    is_base_few = len(left) <= len(right)
    many, few = (right, left) if is_base_few else (left, right)
    couples: list[Couple] = []
    unmatched = []
    for setting in many:
        partner = _counterpart(setting, few)
        if partner is None:
            other = few[0].arm
            reason = Reason("absent", f"no {other} case with the same target, precision, sampling and workload")
            unmatched.append(Unmatched(setting.label, setting.concurrency, "B" if is_base_few else "A", reason))
        else:
            couples.append((partner, setting) if is_base_few else (setting, partner))
    return Matching(tuple(couples), tuple(unmatched))


def _counterpart(setting: Setting, others: Iterable[Setting]) -> Setting | None:
    fit = [
        other
        for other in others
        if other.workload == setting.workload
        and all(getattr(other.engine, name) == getattr(setting.engine, name) for name in SAME_FOR_SPEEDUP)
    ]
    return max(fit, key=lambda other: (other.is_ok, likeness(setting, other)), default=None)


def of_parts(settings: Sequence[Setting], field: str, base: Any, candidate: Any) -> Matching:
    """Settings that differ in one field of the engine only: `tree_build` heap against device."""
    have = tuple(dict.fromkeys(str(getattr(setting.engine, field)) for setting in settings))
    for value in (base, candidate):
        if str(value) not in have:
            raise UserError(f"the run has no case with {field}={value}: it has {', '.join(have) or 'no results'}")
    if base == candidate:
        raise UserError(f"{field}={base} on both sides: name two of {', '.join(have)}")
    couples, unmatched = [], []
    right = [setting for setting in settings if getattr(setting.engine, field) == candidate]
    for setting in settings:
        if getattr(setting.engine, field) == base:
            wanted = setting.engine.model_copy(update={field: candidate})
            partner = next((o for o in right if (o.engine, o.workload) == (wanted, setting.workload)), None)
            if partner is not None:
                couples.append((setting, partner))
            else:
                reason = Reason("absent", f"no case differs from it in {field}={candidate} only")
                unmatched.append(Unmatched(setting.label, setting.concurrency, "A", reason))
    return Matching(tuple(couples), tuple(unmatched))
