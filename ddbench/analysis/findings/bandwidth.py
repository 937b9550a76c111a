"""Q1: is context read once per round and shared by all verified tokens, and which stages waste bandwidth?

Where a capture has the bytes that moved they answer (`traffic.py`). Elsewhere the answer is an inference and says so:
if a further node costs `verify` less than reading the context again would take at the highest read rate that was
measured, context cannot have been read again for it. The reverse proves nothing: the time may be arithmetic. Bandwidth
is then wasted where a stage whose floor is its bytes takes far longer than they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ddbench import units
from ddbench.analysis import stats
from ddbench.analysis.decompose import PARTS, Shares
from ddbench.analysis.findings.answers import (
    FLOOR_NOTE,
    Finding,
    Number,
    Part,
    at,
    computed,
    measured,
    named,
    overall,
    plain,
    reasons,
    told,
)
from ddbench.analysis.findings.basis import Basis, has_drafter
from ddbench.analysis.findings.traffic import (
    MATTERS,
    SHOWN,
    WASTE,
    traffic,
    traffic_gaps,
    traffic_numbers,
    traffic_part,
)
from ddbench.analysis.roofline import StageFloor
from ddbench.analysis.settings import Setting
from ddbench.analysis.values import Estimate, Value, missing
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

NO_COUNTERS = "bytes moved: that needs hardware counters of a profiler, which this run does not have"
INFERENCE_CHANGE = (
    "Counted bytes per stage would replace the inference; longer contexts, dearer to read again, let it tell more."
)
BYTES_CHANGE = (
    "Longer contexts, dearer to read again, and bytes of attention's own kernels, counted from flushed caches, would "
    "tell more."
)
_VERIFY = PARTS.index(Stage.VERIFY.value)


@dataclass(frozen=True)
class Marginal:
    """What one more node per request costs `verify`, and what could explain it; milliseconds per round."""

    settings: tuple[Setting, ...]  # of different widths
    slope: Estimate
    again: Value  # reading the context again
    everything: Value  # reading all that verify reads again, weights included
    arithmetic: Value  # the node's own flops


@dataclass
class _Gathered:
    """What the concurrencies say, as it comes together."""

    parts: list[Part] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    gaps: list[object] = field(default_factory=list)
    rests_on: list[str] = field(default_factory=list)
    num_measured: int = 0  # concurrencies whose bytes were measured
    sources: set[str] = field(default_factory=set)  # of these: counted, sampled

    @property
    def how(self) -> str:
        """What the answer is drawn from."""
        if not self.num_measured:
            return "By inference, as no bytes were counted."
        how = " or ".join(sorted(self.sources))
        if self.num_measured == sum(bool(part.sentence) for part in self.parts):
            return f"By the bytes that captures {how}."
        return f"By the bytes that captures {how}, where there are any, by inference elsewhere."


def bandwidth(basis: Basis) -> Finding:
    """The answer of one run."""
    found = _Gathered(gaps=[] if basis.study.settings else [missing("no case has a result")])
    for concurrency in basis.concurrencies:
        if not _by_bytes(basis, concurrency, found):
            _by_inference(basis, concurrency, found)
    verdict = overall(part.verdict for part in found.parts)
    told_parts = [part.sentence for part in found.parts if part.sentence]
    why = reasons(found.gaps)
    answer = f"{found.how} {' '.join(told_parts)}"
    return Finding(
        "Q1",
        verdict,
        answer if told_parts else f"It cannot be inferred either: {why[0] if why else 'no case has a result'}.",
        measured(found.numbers),
        tuple(dict.fromkeys(found.rests_on)),
        BYTES_CHANGE if found.num_measured else INFERENCE_CHANGE,
        why if found.num_measured else (NO_COUNTERS, *why),
        tuple(part.brief for part in found.parts if part.brief) or why[:1],
        is_inferred=not found.num_measured,
    )


def _by_bytes(basis: Basis, concurrency: int, into: _Gathered) -> bool:
    """Whether a capture answers for this concurrency."""
    found = traffic(basis, concurrency)
    if found is None:
        return False
    into.parts.append(traffic_part(concurrency, found))
    into.numbers += traffic_numbers(found)
    into.gaps += [at(concurrency, gap) for gap in traffic_gaps(found)]
    into.rests_on.append(named(found.setting))
    into.num_measured += 1
    into.sources |= found.sources
    return True


def _by_inference(basis: Basis, concurrency: int, into: _Gathered) -> None:
    found = marginal(basis, concurrency)
    best = basis.best_drafter(concurrency)
    floors = missing("no arm with a drafter was measured") if best is None else basis.floors[best.key]
    if isinstance(found, Marginal):
        into.gaps += [found.again, found.everything, found.arithmetic]
        into.numbers += _marginal_numbers(found)
        into.rests_on += [named(setting) for setting in found.settings]
    into.gaps += [at(concurrency, found), floors if best is not None else at(concurrency, floors)]
    if best is not None and not isinstance(floors, NotMeasured):
        into.numbers += _floor_numbers(best, _important(basis, best, floors))
        into.rests_on.append(named(best))
    into.parts.append(_part(basis, concurrency, found, best, floors))


# --- sharing ----------------------------------------------------------------------------------------------------------


def marginal(basis: Basis, concurrency: int) -> Marginal | NotMeasured:
    """The slope of verify time over verified width at one concurrency."""
    settings = _widths(basis, concurrency)
    shares = [basis.shares[setting.key] for setting in settings]
    for found in shares:
        if isinstance(found, NotMeasured):
            return found
    known = [found for found in shares if isinstance(found, Shares)]
    widths = np.array([_mean_width(setting) for setting in settings])
    if len(set(widths.round(6))) < 2:
        return missing("rounds of one width only: nothing shows what a further node costs")
    slope = _slope(known, widths)
    again, everything = (_reading(basis, settings, which) for which in ("context", "all"))
    return Marginal(tuple(settings), slope, again, everything, _arithmetic(basis, settings, widths))


def _widths(basis: Basis, concurrency: int) -> list[Setting]:
    """Trees that differ in their budget, else arms with a drafter, else all arms that are no control."""
    sweeps = [list(sweep.trees) for sweep in basis.sweeps if sweep.concurrency == concurrency]
    if sweeps:
        return max(sweeps, key=len)
    own = [s for s in basis.study.at(concurrency) if basis.is_trusted(s) and s.key not in basis.variants]
    drafting = [setting for setting in own if has_drafter(setting)]
    chosen = drafting if len({_mean_width(s) for s in drafting}) > 1 else own
    if not chosen:
        return []
    attention = chosen[-1].engine.attention
    return [setting for setting in chosen if setting.engine.attention == attention]


def _mean_width(setting: Setting) -> float:
    """Tokens per request in the target forward, rounds weighted by the requests they serve."""
    attributed, clean = setting.attributed_steps, setting.steps
    steps = attributed if len(attributed) else clean
    if not len(steps):
        return 0.0
    return float(np.average(steps["verify_width"], weights=steps["batch_size"]))


def _slope(shares: Sequence[Shares], widths: np.ndarray) -> Estimate:
    """Least squares over settings; verify time is its share of the attributed pass on the clean round cost."""
    times = np.array([one.setting.round_costs.ratio * one.values[_VERIFY] for one in shares])
    centred = (widths - widths.mean()) / ((widths - widths.mean()) ** 2).sum()
    value, count = float(times @ centred), min(one.num_rounds for one in shares)
    note = next((one.why_no_interval for one in shares if one.why_no_interval), "")
    if note:
        return Estimate(value, None, None, count, "ms", "attributed", note, "rounds")
    costs = [np.divide(*one.setting.round_costs.sums) for one in shares]
    resampled = np.column_stack([cost * one.resampled[:, _VERIFY] for cost, one in zip(costs, shares, strict=True)])
    ends = stats.around(value, resampled @ centred)
    return Estimate(value, *ends, count, "ms", "attributed", counted="rounds")


def _reading(basis: Basis, settings: Sequence[Setting], which: str) -> Value:
    """Milliseconds to read the context of a round, or all that its verify reads, at the highest rate measured."""
    machine = basis.machine(settings[0])
    if isinstance(machine, NotMeasured):
        return machine
    costs = [
        cost for s in settings for result in s.results for cost in result.stage_costs if cost.stage == Stage.VERIFY
    ]
    amounts = [cost.context_bytes if which == "context" else cost.fewest_bytes for cost in costs]
    known = [float(amount) for amount in amounts if not isinstance(amount, NotMeasured)]
    if not known:
        return missing(f"context bytes: {reasons(amounts)[0]}" if amounts else "nothing says what verify has to read")
    return computed(1e3 * min(known) / machine.fast.hot, "ms", FLOOR_NOTE)


def _arithmetic(basis: Basis, settings: Sequence[Setting], widths: np.ndarray) -> Value:
    """Milliseconds that the flops of one more node per request need at the highest matmul rate measured."""
    machine = basis.machine(settings[0])
    if isinstance(machine, NotMeasured):
        return machine
    flops = []
    for setting in settings:
        own = [c.num_flops for result in setting.results for c in result.stage_costs if c.stage == Stage.VERIFY]
        if not own:
            return missing("nothing says what verify has to compute")
        flops.append(sum(own) / len(own))
    narrow, wide = int(np.argmin(widths)), int(np.argmax(widths))
    each = (flops[wide] - flops[narrow]) / (widths[wide] - widths[narrow])
    return computed(1e3 * float(each) / machine.fast.matmul, "ms", FLOOR_NOTE)


# --- waste ------------------------------------------------------------------------------------------------------------


def _important(basis: Basis, setting: Setting, floors: Sequence[StageFloor]) -> list[StageFloor]:
    """Stages that take a part of the round worth speaking of, the largest excess over its floor first."""
    found = []
    for floor in floors:
        share = basis.share(setting, floor.stage)
        if isinstance(share, Estimate) and share.value >= MATTERS:
            found.append(floor)
    return sorted(found, key=lambda floor: floor.floor_ms - floor.milliseconds)


def is_wasteful(floor: StageFloor) -> bool:
    """Bound by its bytes, and far slower than they allow."""
    return floor.bound == "bytes" and floor.low > WASTE


# --- words ------------------------------------------------------------------------------------------------------------


def _part(
    basis: Basis,
    concurrency: int,
    found: Marginal | NotMeasured,
    best: Setting | None,
    floors: Sequence[StageFloor] | NotMeasured,
) -> Part:
    sharing = Part("not_measured", "") if isinstance(found, NotMeasured) else _sharing(found)
    known = [] if best is None or isinstance(floors, NotMeasured) else _important(basis, best, floors)
    wasteful = [floor for floor in known if is_wasteful(floor)]
    sentences = [sharing.sentence] if sharing.sentence else []
    if wasteful:
        stages = [f"{plain(floor.stage)} ({units.significant(floor.distance, 2)}x)" for floor in wasteful]
        sentences.append(f"bandwidth is wasted in {units.listed(stages)}, set against the time of its fewest bytes")
    if not sentences:
        return Part("not_measured", "")
    text = f"At concurrency {concurrency}: {'; '.join(sentences)}."
    if wasteful:
        shown = [f"{plain(floor.stage)} {units.significant(floor.distance, 2)}x" for floor in wasteful[:SHOWN]]
        brief = f"{sharing.brief + '; ' if sharing.brief else ''}{units.listed(shown)} the time of its fewest bytes"
        return Part("mixed" if sharing.verdict == "yes" else "no", text, f"c={concurrency}: {brief}")
    return Part(sharing.verdict, text, f"c={concurrency}: {sharing.brief}")


def _sharing(found: Marginal) -> Part:
    slope, again = found.slope, found.again
    if isinstance(again, NotMeasured):
        return Part("not_measured", "")
    costs = f"a further node costs verify {told(slope)}, and reading the context again for it would take {told(again)}"
    if slope.low is None or slope.high is None:
        return Part("undecided", f"{costs}: without an interval that tells nothing", "no interval")
    if slope.high < again.value:
        return Part("yes", f"{costs} at least: it is shared", "shared, by inference")
    weights = ""
    if isinstance(found.everything, Estimate) and slope.high < found.everything.value:
        weights = f"; the weights at least are shared, as reading them too would take {told(found.everything)}"
    if slope.low <= again.value:
        return Part(
            "undecided",
            f"{costs}: the interval does not tell these apart{weights}",
            "too noisy to exclude reading it again",
        )
    if isinstance(found.arithmetic, Estimate) and 2 * found.arithmetic.value > slope.value:
        why = f"its arithmetic alone takes {told(found.arithmetic)} and would hide that{weights}"
        return Part("undecided", f"{costs}: {why}", "arithmetic hides any reading")
    return Part("undecided", f"{costs}: time enough to have done so{weights}", "reading it again is not excluded")


def _marginal_numbers(found: Marginal) -> list[Number]:
    first, last = named(found.settings[0]), named(found.settings[-1])
    about = f"{len(found.settings)} settings, {first} to {last}" if len(found.settings) > 2 else f"{first}, {last}"
    return [
        Number("verify time of a further node per request", found.slope, about),
        Number("reading the context again for it, at least", found.again, about),
        Number("reading weights and context again for it, at least", found.everything, about),
        Number("its arithmetic, at least", found.arithmetic, about),
    ]


def _floor_numbers(setting: Setting, floors: Sequence[StageFloor]) -> list[Number]:
    """Distances of the stages that matter."""
    numbers = []
    for floor in floors:
        spread = f"quartiles {floor.low:.3g} to {floor.high:.3g}: of the times and of the ceiling"
        label = f"{plain(floor.stage)}: time over the least possible ({floor.bound})"
        numbers.append(Number(label, computed(floor.distance, "x", spread), named(setting)))
        label = f"{plain(floor.stage)}: share of the read rate"
        numbers.append(Number(label, computed(floor.share_of_read, "share", FLOOR_NOTE), named(setting)))
    return numbers
