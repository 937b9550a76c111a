"""The sentence of the headline that a drafter has to pass: does it beat drafting without a model?

Put together from contests, so that the same data gives the same words. A difference whose interval holds 1 is said to
be not separated, never to be a win. Whether the tree beats the chain is question 2 of the findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddbench import units
from ddbench.analysis.contests import Contest, Standing, standing
from ddbench.analysis.findings.basis import has_drafter
from ddbench.analysis.values import Estimate, Value
from ddbench.records import NotMeasured
from ddbench.report.evidence import Evidence

MAX_TOLD_APART = 3  # concurrencies of one verdict with brackets of their own; a range over more


@dataclass(frozen=True)
class Bout:
    """The best setting of some arms at one concurrency, against its counterpart."""

    concurrency: int
    contest: Contest


def verdicts(evidence: Evidence) -> Iterator[str]:
    """One sentence per run; nothing about what the run does not hold."""
    for run in evidence.runs:
        sentence = _drafter(evidence, run)
        if sentence:
            yield evidence.of_run(run) + sentence


def _drafter(evidence: Evidence, run: str) -> str:
    """The drafter against prompt_lookup: its fastest arm in speed, its longest paths in tau."""
    bouts, reasons = _bouts(evidence, run, "tpot_ms")
    if not bouts:
        return f"Whether the drafter beats prompt_lookup, which needs none, is open: {reasons[0]}." if reasons else ""
    speeds = _grouped(
        bouts,
        lambda bout: bout.contest.speedup,
        {
            "ahead": "is faster",
            "even": "is not separated in speed",
            "behind": "is slower",
            "unknown": "has no interval",
        },
    )
    longest, _ = _bouts(evidence, run, "acceptance_length")
    lengths = _grouped(
        longest,
        lambda bout: bout.contest.length,
        {"ahead": "higher", "even": "not separated", "behind": "lower", "unknown": "without an interval"},
    )
    text = f"Against prompt_lookup, which needs no model, the drafter {speeds}; its longest tau is {lengths}."
    lost = [bout.concurrency for bout in bouts if standing(bout.contest.speedup) != "ahead"]
    if not lost:
        return text
    where = "" if len(lost) == len(bouts) else f" at concurrency {units.listed(lost)}"
    return f"{text} A drafter that does not beat it has no headline{where}."


# --- picking and wording ----------------------------------------------------------------------------------------------


def _bouts(evidence: Evidence, run: str, metric: str) -> tuple[list[Bout], list[str]]:
    """The best drafter of every concurrency against prompt_lookup, and why there is none elsewhere."""
    bouts, reasons = [], []
    for concurrency in evidence.study.concurrencies:
        setting = evidence.bases[run].best(concurrency, has_drafter, metric)
        if setting is None:
            continue
        found = evidence.contests[setting.key, "prompt_lookup"]
        if isinstance(found, NotMeasured):
            reasons.append(found.not_measured)
        elif isinstance(found.speedup, NotMeasured):
            reasons.append(found.speedup.not_measured)
        elif not evidence.may_be_best(found.base):
            reasons.append("the outputs or the book-keeping of prompt_lookup are not to be trusted")
        else:
            bouts.append(Bout(concurrency, found))
    return bouts, reasons


def _grouped(bouts: Sequence[Bout], value_of: Callable[[Bout], Value], words: dict[Standing, str]) -> str:
    """`is faster at concurrency 1 (1.20x) and is slower at 4 (0.80x)`; one bracket for equal or for many details."""
    groups: dict[Standing, list[Bout]] = {}
    for bout in bouts:
        groups.setdefault(standing(value_of(bout)), []).append(bout)
    texts: list[str] = []
    for key, group in groups.items():
        details = [_named([bout], value_of) for bout in group]
        if len(group) > 1 and (len(set(details)) == 1 or len(group) > MAX_TOLD_APART):
            places = f"{units.listed([bout.concurrency for bout in group])} ({_named(group, value_of)})"
        else:
            places = units.listed([f"{bout.concurrency} ({text})" for bout, text in zip(group, details, strict=True)])
        texts.append(f"{words[key]} at {'' if texts else 'concurrency '}{places}")
    return units.listed(texts)


def _named(bouts: Sequence[Bout], value_of: Callable[[Bout], Value]) -> str:
    """The arm before its numbers, where all have the same one."""
    numbers = _range([value_of(bout) for bout in bouts])
    names = {units.shortened(bout.contest.setting.label) for bout in bouts}
    return f"{names.pop()} {numbers}" if len(names) == 1 else numbers


def _range(values: Sequence[Value]) -> str:
    """`1.20x`, or `1.10x to 1.30x` of several."""
    known = sorted(value.value for value in values if isinstance(value, Estimate))
    if not known:
        return "not measured"
    low, high = units.ratio(known[0]), units.ratio(known[-1])
    return low if low == high else f"{low} to {high}"
