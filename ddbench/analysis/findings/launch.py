"""Q3: what do CUDA graphs and a tree built on the device buy, what blocks them, and what about several devices?

Where both variants of a part ran, their contest answers. Where they did not, the run's own reason stands there, and an
upper bound: what a round would gain if the host gap, or the tree build, took no time at all. Reads back to the host end
a graph, so their number per round says what blocks one graph for the whole round. Captures say what is launched, how
long the device is idle, and what it waits for (`device_idle.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddbench import units
from ddbench.analysis import contests
from ddbench.analysis.breakdown import idle_between_graphs
from ddbench.analysis.contests import Contest
from ddbench.analysis.counters import agreed_counters
from ddbench.analysis.decompose import HOST_GAP, PARTS, Shares
from ddbench.analysis.findings.answers import (
    Finding,
    Number,
    Part,
    Verdict,
    computed,
    measured,
    named,
    overall,
    plain,
    reasons,
    told,
)
from ddbench.analysis.findings.basis import Basis
from ddbench.analysis.findings.device_idle import compared, idle_gaps, idle_numbers, idle_sentences
from ddbench.analysis.roofline import Machine
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate, Value, missing
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

PLAIN: dict[str, str] = {"executor": "eager", "tree_build": "heap"}  # part -> the variant that others are set against
TITLES: dict[str, str] = {"executor": "graphs", "tree_build": "a tree built on the device"}
SAME = 0.02  # a speedup whose whole interval is this close to 1 buys nothing
SEVERAL_DEVICES = "expert against tensor parallelism: every case of this version runs on one device"


def launch(basis: Basis) -> Finding:
    """The answer of one run."""
    parts, numbers, rests_on, captured = [], [], [], []
    gaps: list[str] = []
    looked_at: list[Setting] = []  # settings whose captures say something about the question
    for axis in PLAIN:
        found = list(part_contests(basis, axis))
        if axis == "executor":
            captured = list(compared(basis, found))
            looked_at += [side for contest in found for side in (contest.base, contest.setting)]
        parts.append(_part(basis, axis, found, _why_not(basis, axis)))
        for contest in found:
            numbers += _contest_numbers(basis, axis, contest)
            rests_on += [named(contest.base), named(contest.setting)]
        if not found:
            gaps.append(f"{plain(axis)}: {_why_not(basis, axis)}")
    for concurrency in basis.concurrencies:
        best = basis.best_drafter(concurrency)
        if best is not None:
            numbers += _bounds(basis, best)
            rests_on.append(named(best))
            looked_at.append(best)
    for setting in dict.fromkeys(looked_at):
        numbers += idle_numbers(basis, setting)
    gaps += (*idle_gaps(basis, looked_at), *reasons(number.value for number in numbers))
    captured = captured or list(idle_sentences(basis, basis.concurrencies))
    return Finding(
        "Q3",
        of_both([part.verdict for part in parts]),
        " ".join((*(part.sentence for part in parts), *captured, *_upper_bounds(basis))),
        measured(numbers),
        tuple(dict.fromkeys(rests_on)),
        "Measuring the variants that are missing here would replace bounds; several devices would open the question of "
        "parallelism.",
        (*dict.fromkeys(gaps), SEVERAL_DEVICES),
        tuple(part.brief for part in parts),
    )


def of_both(verdicts: Sequence[Verdict]) -> Verdict:
    """The question asks for both parts: where one was not measured, the other's answer is not the whole one."""
    known = {verdict for verdict in verdicts if verdict != "not_measured"}
    return overall("undecided" if known and verdict == "not_measured" else verdict for verdict in verdicts)


# --- contests ---------------------------------------------------------------------------------------------------------


def part_contests(basis: Basis, axis: str) -> Iterator[Contest]:
    """Every trusted setting against the one that differs from it in the plain variant of this part alone."""
    plain = PLAIN[axis]
    others = [s for s in basis.study.settings if basis.is_trusted(s) and s.has_draft]
    for setting in others:
        if getattr(setting.engine, axis) == plain:
            continue
        wanted = setting.engine.model_copy(update={axis: plain})
        base = next(
            (s for s in others if (s.arm, s.engine, s.workload) == (setting.arm, wanted, setting.workload)), None
        )
        found = None if base is None else contests.versus(setting, base)
        if isinstance(found, Contest):
            yield found


def _why_not(basis: Basis, axis: str) -> str:
    """Why no other variant of the part was measured."""
    skipped = [reason for label, reason in basis.skipped if f" {axis}=" in label]
    failed = [
        setting.reason
        for setting in basis.study.settings
        if not setting.is_ok and setting.has_draft and f" {axis}=" in f" {setting.label}"
    ]
    why = list(dict.fromkeys((*failed, *skipped)))
    if why:
        return "; ".join(why)
    asked = any(getattr(s.engine, axis) not in (PLAIN[axis], "none", "chain") for s in basis.study.settings)
    return "no pair of cases differs in it alone" if asked else f"the run asked for {PLAIN[axis]} only"


def _verdict(value: Value) -> Verdict:
    if not isinstance(value, Estimate):
        return "not_measured"
    if value.low is not None and value.high is not None and value.low > 1 - SAME and value.high < 1 + SAME:
        return "no"
    place = contests.standing(value)
    return "yes" if place == "ahead" else "no" if place == "behind" else "undecided"


def _part(basis: Basis, axis: str, found: list[Contest], why_not: str) -> Part:
    """One part of the engine over all concurrencies."""
    title = TITLES[axis]
    if not found:
        text = f"What {title} would buy was not measured: {why_not}."
        return Part("not_measured", text, f"{title}: not measured ({why_not})")
    texts = []
    for contest in found:
        where = f"{getattr(contest.setting.engine, axis)} at concurrency {contest.setting.concurrency}"
        texts.append(f"{told(contest.speedup)} ({where}{_of_a_round(basis, contest)})")
    verdict = overall(_verdict(contest.speedup) for contest in found)
    largest = max(found, key=lambda contest: contest.speedup.value if isinstance(contest.speedup, Estimate) else 0.0)
    brief = f"{title}: {'up to ' if len(found) > 1 else ''}{told(largest.speedup)} over {PLAIN[axis]}"
    return Part(verdict, f"Over {PLAIN[axis]}, speedups with {title}: {units.listed(texts)}.", brief)


def _contest_numbers(basis: Basis, axis: str, contest: Contest) -> list[Number]:
    change = f"{axis}={getattr(contest.setting.engine, axis)} over {PLAIN[axis]}"
    in_us, share = saved(basis, contest)
    rows = {"speedup of": contest.speedup, "time off a round by": in_us, "share off a round by": share}
    return [Number(f"{label} {change}", value, named(contest.setting)) for label, value in rows.items()]


def saved(basis: Basis, contest: Contest) -> tuple[Value, Value]:
    """What a round costs less than in the base: microseconds, and the share of the base's round; negative: more.

    The interval is that of the ratio of costs, laid on the base's cost.
    """
    cost, whole = contest.cost, basis.value(contest.base, "round_cost_ms")
    if isinstance(cost, NotMeasured):
        return cost, cost
    low, high = (None if end is None else 1 - end for end in (cost.high, cost.low))
    share = replace(cost, value=1 - cost.value, low=low, high=high, unit="share")
    if isinstance(whole, NotMeasured):
        return whole, share
    ends = [None if end is None else 1000 * whole.value * end for end in (low, high)]
    return replace(share, value=1000 * whole.value * share.value, low=ends[0], high=ends[1], unit="us"), share


def _of_a_round(basis: Basis, contest: Contest) -> str:
    in_us, share = saved(basis, contest)
    if isinstance(in_us, NotMeasured) or isinstance(share, NotMeasured):
        return ""
    what = "off" if share.value >= 0 else "more on"
    size = abs(in_us.value)
    amount = units.grouped(round(size)) if size >= 1000 else units.significant(size)
    return f": {amount} us or {told(share if share.value >= 0 else _turned(share))} {what} a round"


def _turned(value: Estimate) -> Estimate:
    """With the other sign."""
    low, high = (None if end is None else -end for end in (value.high, value.low))
    return replace(value, value=-value.value, low=low, high=high)


# --- bounds -----------------------------------------------------------------------------------------------------------


def _upper_bounds(basis: Basis) -> Iterator[str]:
    """What is left to gain, concurrency by concurrency."""
    for concurrency in basis.concurrencies:
        best = basis.best_drafter(concurrency)
        if best is None:
            continue
        gap, build = (if_gone(basis.shares[best.key], part) for part in (HOST_GAP, Stage.TREE_BUILD.value))
        texts = []
        if isinstance(gap, Estimate):
            texts.append(f"without the host's time between stages a round would be at most {told(gap)} as fast")
        if isinstance(build, Estimate):
            texts.append(f"with a tree that takes no time at most {told(build)}")
        launching = _launching(basis, best)
        if isinstance(launching, Estimate):
            texts.append(f"launching as many ops one by one takes {told(launching)} of it")
        if texts:
            yield f"At concurrency {concurrency}: {'; '.join(texts)}."
    if any(basis.best_drafter(concurrency) for concurrency in basis.concurrencies):
        yield "Launches within a stage count as its own time: a graph may save more than the time between stages."


def if_gone(shares: Shares | NotMeasured, part: str) -> Value:
    """How much faster a round would be if `part` took no time and nothing else changed."""
    if isinstance(shares, NotMeasured):
        return shares
    share = shares.of(part)
    if isinstance(share, NotMeasured):
        return share
    return shares.estimate(1 / (1 - share.value), 1 / (1 - shares.resampled[:, PARTS.index(part)]), "x")


def _bounds(basis: Basis, setting: Setting) -> list[Number]:
    """Shares, bounds and counters of one setting."""
    about = named(setting)
    shares = basis.shares[setting.key]
    return [
        Number("host gap: share of a round", basis.share(setting, HOST_GAP), about),
        Number("at most, without a host gap", if_gone(shares, HOST_GAP), about),
        *_idle(setting),
        Number("tree build: share of a round", basis.share(setting, Stage.TREE_BUILD.value), about),
        Number("at most, if the tree took no time", if_gone(shares, Stage.TREE_BUILD.value), about),
        Number("ops that a round dispatches", per_round(setting, "torch_ops"), about),
        Number("reads back to the host per round", per_round(setting, "host_reads"), about),
        Number("launching these ops at best: share of a round", _launching(basis, setting), about),
    ]


def _idle(setting: Setting) -> list[Number]:
    """Where graphs ran: the share of the rounds' time, clean, in which none of them was running."""
    idle = idle_between_graphs(setting)
    if isinstance(idle, NotMeasured):
        return []
    value = computed(idle, "share", "clean passes, events around the graphs")
    return [Number("GPU idle between graphs: share of a round", value, named(setting))]


def per_round(setting: Setting, counter: str) -> Value:
    """A counter of the counted pass, per round of the whole batch."""
    found = agreed_counters(setting.results)
    total, steps = found.get(counter), found.get("counted_steps")
    if isinstance(total, int) and isinstance(steps, int) and steps > 0:
        return computed(total / steps, "count")
    why = next((one.not_measured for one in (total, steps) if isinstance(one, NotMeasured)), "not counted in this run")
    return missing(f"{plain(counter)} per round: {why}")


def _launching(basis: Basis, setting: Setting) -> Value:
    """Time to launch as many ops as a round dispatches one by one, over the time of a round.

    An estimate and no bound: views among the ops launch nothing, and some ops launch several kernels.
    """
    ops, machine, whole = per_round(setting, "torch_ops"), basis.machine(setting), basis.value(setting, "round_ms")
    for one in (ops, machine, whole):
        if isinstance(one, NotMeasured):
            return one
    assert isinstance(ops, Estimate)
    assert isinstance(machine, Machine)
    assert isinstance(whole, Estimate)
    if machine.typical.op_ms <= 0:
        return missing("the time of a launch was not measured")
    return computed(ops.value * machine.typical.op_ms / whole.value, "share", "computed: ops times the launch ceiling")
