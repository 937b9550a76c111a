"""Why one side is slower: acceptance or the cost of a round, which stage, which counter, where, and whose fault it is.

After comparisons, in front of their report. The same data gives the same sentences. A request's time per token is what
a round costs over what it brings, so a change of it is told apart into the two; `ar`, which drafts nothing, is the
control: where it moved as well, the machine or the target did, and what is a ratio to it is withheld.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ddbench import units
from ddbench.analysis.compare import scope, shifts
from ddbench.analysis.compare.comparison import Comparisons, Match
from ddbench.analysis.compare.exact import CounterChange
from ddbench.analysis.compare.judge import COST, REASON_TEXTS, TAU
from ddbench.analysis.compare.phrases import moved, value_text
from ddbench.analysis.compare.shifts import RoundShift, Shift
from ddbench.analysis.counters import counter
from ddbench.analysis.decompose import HOST_GAP
from ddbench.analysis.effects import Effect
from ddbench.analysis.paired import Verdict

Cause = Literal["cost", "tau", "both", "prefill", "none", "open"]
MAX_COUNTERS = 3
_MAIN_SHARE = 0.6  # of a round's difference from which one stage is the answer

NEXT_STEPS: dict[str, str] = {
    "tau": "Next: acceptance by depth in both reports; drafter weights and block size; ddbench check --only parity.",
    "prefill": "Next: the prefill column of section Stages in both reports; prompt lengths; the prompt's materialize.",
    "draft": "Next: the drafter's forward: block size, dtype, its path; section Stages of both reports.",
    "tree_build": "Next: the tree_build part and its host reads; ddbench compare RUN --where tree_build=heap,device.",
    "tree_compile": "Next: the tree_compile part: mask layout, padded size, copies to the device.",
    "verify": "Next: verify width and padding, the attention part's path, section Stages' work table of both reports.",
    "accept": "Next: host reads while walking the tree, full-vocabulary work in sampling.",
    "commit": "Next: how many accepted paths move cache rows (identity paths), the copies that move them.",
    "materialize": "Next: the materialize part: is it batched and fused; its path in both reports; rows per round.",
    HOST_GAP: "Next: host work between stages: host reads, executor, garbage collection, other load on the host.",
    "machine": "Next: clocks, power cap, temperature and host load of both runs; then run both codes again in turns.",
}


@dataclass(frozen=True)
class Diagnosis:
    """What is to be said of one match. Sentences in reading order; cautions are what speaks against them."""

    match: Match
    cause: Cause
    sentences: tuple[str, ...]
    cautions: tuple[str, ...]
    next_step: str  # empty where nothing moved
    round: RoundShift | None
    control: scope.Control


def diagnose(found: Comparisons) -> Diagnosis | None:
    """Of the match that changed most among the slower ones, else the faster, the undecided, the same; None where
    nothing may be compared.
    """
    match = _picked(found)
    if match is None:
        return None
    cause = _cause(match)
    shift = shifts.round_shift(match.a, match.b, found.is_interleaved)
    control, of_control = scope.control_of(found, match)
    told = [
        *_why(match, cause, found.min_effect),
        *_stages(match, cause, shift),
        *_counters(match, cause),
        *scope.where(found, match),
    ]
    if of_control:
        told.append(of_control)
    return Diagnosis(
        match=match,
        cause=cause,
        sentences=tuple(told),
        cautions=tuple(_cautions(match, shift, cause)),
        next_step=_next(found, match, cause, shift, control),
        round=shift,
        control=control,
    )


def _picked(found: Comparisons) -> Match | None:
    order: tuple[Verdict, ...] = ("slower", "faster", "undecided", "same")
    for verdict in order:
        own = [match for match in found.comparable if match.verdict == verdict]
        if own:
            return max(own, key=_change_of)
    return None


def _change_of(match: Match) -> float:
    """Of the metric that changed most among those that share the match's verdict, else of the time per token."""
    own = [abs(math.log(c.ratio)) for c in match.named(match.verdict) if c.ratio and match.verdict != "same"]
    return max(own, default=abs(match.log_change))


# --- tau or cost ------------------------------------------------------------------------------------------------------


def _is_worse(match: Match) -> bool:
    return match.verdict == "slower" or (match.verdict != "faster" and match.log_change > 0)


def _cause(match: Match) -> Cause:
    """What moved the time per token the way that it moved."""
    direction = "slower" if _is_worse(match) else "faster"
    tau, cost = match.comparisons.get(TAU), match.comparisons[COST]
    is_tau, is_cost = tau is not None and tau.verdict == direction, cost.verdict == direction
    if is_tau and is_cost:
        return "both"
    if is_tau or is_cost:
        return "tau" if is_tau else "cost"
    if "ttft_ms" in match.comparisons and match.comparisons["ttft_ms"].verdict == direction:
        return "prefill"
    return "none" if match.verdict == "same" else "open"


def _why(match: Match, cause: Cause, min_effect: float) -> Iterator[str]:
    if cause == "none":
        yield f"Nothing to explain: {units.listed([_length(match), _cost(match, is_out=False)])}."
        return
    if cause == "prefill":
        ttft = match.comparisons["ttft_ms"]
        spent = [shifts.prefill_us(setting) for setting in (match.a, match.b)]
        yield f"It is the time before the first round: TTFT {moved(ttft)}."
        if spent[0] and spent[1]:
            yield f"Prefill and what goes with it take {_us(spent[0])} -> {_us(spent[1])} us per request."
        return
    is_tau_out, is_cost_out = (_is_ruled_out(match, name, min_effect) for name in (TAU, COST))
    is_still = is_tau_out and is_cost_out
    heads: dict[str, str] = {
        "cost": "It is cost, not tau" if is_tau_out else "It is cost",
        "tau": "It is tau, not cost" if is_cost_out else "It is tau",
        "both": f"It is tau and cost ({_parts(match)})" if cause == "both" else "",
        "open": "Neither tau nor cost moved" if is_still else "Not told apart",
    }
    parts = [_length(match), _cost(match, is_cost_out)]
    yield f"{heads[cause]}: {'; '.join(reversed(parts) if cause == 'cost' else parts)}."


def _is_ruled_out(match: Match, metric: str, min_effect: float) -> bool:
    """It is the same, or its interval holds nothing that counts and that moves the time per token as it did move."""
    comparison = match.comparisons.get(metric)
    if comparison is None or comparison.verdict == "same":
        return True
    effect = comparison.decision.effect
    if comparison.verdict != "undecided" or not isinstance(effect, Effect) or effect.low is None or effect.high is None:
        return False
    is_high_bad = (comparison.metric.direction == "lower") == _is_worse(match)  # the end that would explain it
    return effect.high < 1 + min_effect if is_high_bad else effect.low > 1 / (1 + min_effect)


def _parts(match: Match) -> str:
    """How the change of time per token divides, on the logarithmic scale on which the two add up."""
    logs = [abs(math.log(match.comparisons[name].ratio or 1.0)) for name in (TAU, COST)]
    share = round(100 * logs[0] / sum(logs)) if sum(logs) else 0
    return f"{share} % and {100 - share} % of it"


def _length(match: Match) -> str:
    tau = match.comparisons.get(TAU)
    if tau is None:
        return "nothing is drafted, tau is 1"
    if tau.verdict == "same" and "exact" in tau.decision.reasons and tau.ratio == 1:
        return f"tau is the same ({value_text(tau.a)}, exact)"
    words = {"same": "tau is the same", "slower": "tau fell", "faster": "tau rose", "undecided": "tau is open"}
    return f"{words[tau.verdict]}, {moved(tau)}"


def _cost(match: Match, is_out: bool) -> str:
    cost = match.comparisons[COST]
    words = {
        "same": "a round costs the same",
        "slower": "a round costs more",
        "faster": "a round costs less",
        "undecided": f"a round costs no {'more' if _is_worse(match) else 'less'}"
        if is_out
        else "whether a round costs more is open",
    }
    return f"{words[cost.verdict]}, {moved(cost)}"


def _us(microseconds: float) -> str:
    return units.microseconds(microseconds)


# --- which stage, which counter ---------------------------------------------------------------------------------------


def _stages(match: Match, cause: Cause, shift: RoundShift | None) -> Iterator[str]:
    if cause == "tau":
        yield from _depth(match)
    if cause not in ("cost", "both", "open") or match.comparisons[COST].verdict == "same":
        return
    if shift is None:
        yield "Which stage it is cannot be told: one side has no attributed pass (capture mode none)."
        return
    if cause == "open" and _is_contrary(match, shift):
        return
    known = [part for part in shift.parts if part.share is not None and part.share > 0]
    if not known:
        return
    word, top = "more" if shift.delta_us > 0 else "less", known[0]
    assert top.share is not None, "only parts with a share are known"
    if top.low is not None and top.high is not None and top.low <= 0 <= top.high:
        yield f"No stage stands out: the largest shift is {_part(top)}, {_span(top)}."
    elif top.share > 1:
        yield f"{_part(top)} alone moved by more than the whole round: {_span(top)}."
    elif top.share >= _MAIN_SHARE:
        yield f"{_part(top)} makes {_percent(top)} of what a round takes {word}: {_span(top)}."
    else:
        names = [f"{_part(part)} {_percent(part)}" for part in known[:3]]
        yield f"What a round takes {word} ({_us(abs(shift.delta_us))} us) is spread: {units.listed(names)}."


def _depth(match: Match) -> Iterator[str]:
    found = shifts.depth_shift(match.a, match.b)
    if found is not None and found.a != found.b:
        which = (
            "the first drafted token" if found.depth == 1 else f"drafted token {found.depth} after {found.depth - 1}"
        )
        yield f"Most of it at depth {found.depth}: {which} is accepted in {100 * found.a:.0f} -> {100 * found.b:.0f} %."


def _part(part: Shift) -> str:
    return part.part.replace("_", " ")


def _percent(part: Shift) -> str:
    assert part.share is not None, "only parts with a share are named"
    return f"{100 * part.share:.0f} %"


def _span(part: Shift) -> str:
    """`812 -> 1 275 us, +463 [455, 470]`."""
    text = f"{_us(part.a_us)} -> {_us(part.b_us)} us, {'+' if part.delta_us > 0 else ''}{_us(part.delta_us)}"
    if part.low is None or part.high is None:
        return text
    return f"{text} [{_us(part.low)}, {_us(part.high)}]"


def _counters(match: Match, cause: Cause) -> Iterator[str]:
    """The work of a round that changed; that none did is worth as much."""
    if cause in ("none", "prefill"):
        return
    changes = work_changes(match.counters)
    if changes:
        yield f"Exact counters per round: {units.listed([_change(change) for change in changes[:MAX_COUNTERS]])}."
    elif cause in ("cost", "both") and any("torch_ops" in result.counters for result in match.a.results):
        yield "No counter of a round's work differs: the same work takes longer."


def work_changes(changes: Sequence[CounterChange]) -> list[CounterChange]:
    """What a round has to do more or less, the largest change first; the sum over stages gives way to its stages."""
    own = [change for change in changes if counter(change.name).is_work and _size(change) > 1e-3]
    staged = {change.name.partition(".")[0] for change in own if "." in change.name}
    return sorted((change for change in own if change.name not in staged), key=lambda c: (-_size(c), c.name))


def _size(change: CounterChange) -> float:
    ratio = change.ratio
    return math.inf if ratio is None or ratio <= 0 else abs(math.log(ratio))


def _change(change: CounterChange) -> str:
    name, _, stage = change.name.partition(".")
    one, other = change.rates or (change.a, change.b)
    where = f" in {stage.replace('_', ' ')}" if stage else ""
    texts = [_amount(name, amount) for amount in (one, other)]
    return f"{name.replace('_', ' ')}{where} {' -> '.join(texts)}"


def _amount(name: str, amount: float) -> str:
    unit = counter(name).unit
    if unit == "bytes":
        return units.byte_count(amount)
    return units.rate(amount, "") if unit == "flop" else units.significant(amount)


# --- what speaks against it, and what to do ---------------------------------------------------------------------------


def _cautions(match: Match, shift: RoundShift | None, cause: Cause) -> Iterator[str]:
    for remark in match.remarks:
        yield f"{remark.text[0].upper()}{remark.text[1:]}."
    codes = {
        code: comparison.metric.title
        for name, comparison in match.comparisons.items()
        if name in match.asked and comparison.verdict == "undecided"
        for code in comparison.decision.reasons
    }
    for code in (code for code in codes if code != "not_interleaved"):  # that stands in the verdict
        titles = [
            c.metric.title for n, c in match.comparisons.items() if n in match.asked and code in c.decision.reasons
        ]
        yield f"Undecided in {units.listed(titles)}: {REASON_TEXTS.get(code, code.replace('_', ' '))}."
    if cause in ("cost", "both") and _is_contrary(match, shift):
        yield "The attributed pass does not show the change: its stages do not explain it."


def _is_contrary(match: Match, shift: RoundShift | None) -> bool:
    """Rounds got longer in one of the two passes and shorter in the other."""
    ratio = match.comparisons[COST].ratio
    return ratio is not None and shift is not None and (ratio > 1) != (shift.delta_us > 0)


def _next(found: Comparisons, match: Match, cause: Cause, shift: RoundShift | None, control: str) -> str:
    if cause == "none" or match.verdict == "faster":
        return ""
    if control in ("moved", "itself") and match.verdict == "slower":
        return NEXT_STEPS["machine"]
    if match.verdict == "undecided":
        return _how_to_tell(found)
    if cause in ("cost", "both") and shift is not None and shift.parts:
        return NEXT_STEPS[shift.parts[0].part]
    return NEXT_STEPS[cause] if cause in NEXT_STEPS else _how_to_tell(found)


def _how_to_tell(found: Comparisons) -> str:
    command = f"ddbench sweep {found.sides[1].manifest.experiment.name}"
    if found.kind != "runs":
        return f"To tell: more repeats on a quiet machine: {command} --blocks 20."
    if not found.is_interleaved:
        return f"To tell: both codes in turns: {command} --blocks 10 --against OTHER_CHECKOUT."
    return f"To tell: more repeats on a quiet machine: {command} --blocks 20 --against OTHER_CHECKOUT."
