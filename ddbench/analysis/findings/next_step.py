"""What to optimise next: every part of the best setting's time, ranked by what bringing it to its floor would gain.

Amdahl's law on measured shares: a part that takes the share s of the time per token, and could take f times as long as
it does, gains 1 / (1 - s (1 - f)). Shares are those of the attributed pass, of the time in which a round was running; f
is floor / time from the roofline. Parts that an engine may do without (the host gap, building, compiling and committing
trees, waiting between rounds) are ranked by their vanishing where no floor is known; the models' own work is not, since
it never vanishes. An interval covers the share, and where a floor is known also the quartiles of its distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddbench.analysis import speed
from ddbench.analysis.decompose import HOST_GAP, rounds_part
from ddbench.analysis.findings.answers import computed, named, plain
from ddbench.analysis.findings.basis import Basis
from ddbench.analysis.roofline import StageFloor
from ddbench.analysis.settings import Setting
from ddbench.analysis.stats import Summary
from ddbench.analysis.values import Estimate, Value, missing, or_zero, to_estimate
from ddbench.engine.stages import Stage
from ddbench.records import NotMeasured

# A model's work, never gone altogether.
FORWARDS: tuple[str, ...] = (Stage.DRAFT.value, Stage.VERIFY.value, Stage.MATERIALIZE.value)
LEAST_GAIN = 1.01  # what gains less is no proposal
_VANISHES = "it took no time at all and nothing else changed"


@dataclass(frozen=True)
class Proposal:
    """One thing to optimise in one setting, and what the time per token would gain."""

    setting: Setting
    title: str
    share: Value  # of the time per token after the first
    gain: Value  # predicted speedup
    at_most: Value  # speedup if the part vanished, or if tau were as long as a block
    assumption: str  # goes on from "if"
    rests_on: str


def proposals(basis: Basis) -> tuple[tuple[Proposal, ...], ...]:
    """For the best setting with a drafter of every concurrency: its proposals, the largest predicted gain first."""
    found = (basis.best_drafter(concurrency) for concurrency in basis.concurrencies)
    return tuple(ranked(basis, setting) for setting in found if setting is not None)


def ranked(basis: Basis, setting: Setting) -> tuple[Proposal, ...]:
    """Predicted gains in falling order, then what has a bound only."""
    every = [*_of_stages(basis, setting), *_of_waiting(basis, setting), *_of_tau(basis, setting)]
    worth = [one for one in every if max(or_zero(one.gain), or_zero(one.at_most)) >= LEAST_GAIN]
    return tuple(sorted(worth, key=lambda one: (-or_zero(one.gain), -or_zero(one.at_most), one.title)))


def _of_stages(basis: Basis, setting: Setting) -> Iterator[Proposal]:
    shares, running = basis.shares[setting.key], rounds_part(setting)
    if isinstance(shares, NotMeasured) or isinstance(running, NotMeasured):
        return
    for part in shares.names:
        share = _scaled(shares.of(part), min(1.0, running.value))
        at_most = _gain(share)
        floor = missing("it has no floor") if part == HOST_GAP else basis.floor(setting, part)
        title, gain, assumption, rests_on = _prediction(part, share, at_most, floor)
        yield Proposal(setting, title, share, gain, at_most, assumption, rests_on)


def _prediction(
    part: str, share: Value, at_most: Value, floor: StageFloor | NotMeasured
) -> tuple[str, Value, str, str]:
    """(title, gain, assumption, what it rests on)."""
    name = plain(part)
    if isinstance(floor, StageFloor) and floor.is_too_fast:
        why = f"{name} is faster than its floor: its cost or a ceiling is wrong"
        return f"{name} to its floor", missing(why), "its floor were known", "round shares"
    if isinstance(floor, StageFloor):
        ends = (1 / max(1.0, distance) for distance in (floor.distance, floor.low, floor.high))
        text = f"it took its least time ({floor.bound}) and not {floor.distance:.3g} times as long"
        return f"{name} to its floor", _gain(share, *ends), text, "round shares and ceilings"
    if part in FORWARDS:
        why = f"{name} never vanishes and has no floor here: {floor.not_measured}"
        return f"a faster {name}", missing(why), "its floor were known", "round shares"
    title = "no host gap" if part == HOST_GAP else f"no {name}"
    return title, at_most, _VANISHES, "round shares"


def _scaled(share: Value, factor: float) -> Value:
    if isinstance(share, NotMeasured):
        return share
    low, high = (None if end is None else end * factor for end in (share.low, share.high))
    return Estimate(share.value * factor, low, high, share.n, "share", "attributed", share.note, share.counted)


def _gain(share: Value, left: float = 0.0, left_low: float = 0.0, left_high: float = 0.0) -> Value:
    """Speedup if only the part `left` of the share is left; its ends go with the ends of the share."""
    if isinstance(share, NotMeasured):
        return share

    def speedup(taken: float, kept: float) -> float:
        return 1 / max(1e-9, 1 - taken * (1 - kept))

    value = speedup(share.value, left)
    if share.low is None or share.high is None:
        return Estimate(value, None, None, share.n, "x", share.pass_name, share.note, share.counted)
    low, high = speedup(share.low, left_low), speedup(share.high, left_high)
    ends = min(low, value), max(high, value)
    return Estimate(value, *ends, share.n, "x", share.pass_name, share.note, share.counted)


def _of_waiting(basis: Basis, setting: Setting) -> Iterator[Proposal]:
    running = rounds_part(setting)
    if isinstance(running, NotMeasured):
        return
    share = _rest(running)
    gain = _gain(share)
    what = "no request waited between its rounds, mostly for prefills; here all requests arrive at once"
    yield Proposal(setting, "no waiting between rounds", share, gain, gain, what, "clean pass")


def _rest(running: Summary) -> Estimate:
    """What is left of 1, as a share of the time per token."""
    value, low, high = (
        None if end is None else min(1.0, max(0.0, 1 - end)) for end in (running.value, running.high, running.low)
    )
    assert value is not None, "a summary has a value"
    return Estimate(value, low, high, running.n, "share", "clean", running.note)


def _of_tau(basis: Basis, setting: Setting) -> Iterator[Proposal]:
    """What a longer tau would bring: as long as that of the widest tree measured, at most as long as a block."""
    tau, block = basis.value(setting, "acceptance_length"), _block_size(setting)
    if isinstance(tau, NotMeasured) or block is None:
        return
    at_most = computed(block / tau.value, "x", "computed: block size over tau")
    sweep = basis.sweep_of(setting)
    gain: Value = missing("one node budget: nothing shows what a wider tree would accept")
    assumption, rests_on = "a wider tree had been measured", "measured tau"
    if sweep is not None and sweep.trees[-1] is not setting:
        widest = sweep.trees[-1]
        gain = to_estimate(speed.length_ratio(widest, setting), "x")
        assumption = f"{setting.engine.node_budget} nodes were accepted like {widest.engine.node_budget}: the drafter "
        assumption += "ranked its candidates better"
        rests_on = f"measured tau of both, {named(widest)}"
    nothing = missing("tau is no part of a time")
    yield Proposal(setting, "longer accepted paths", nothing, gain, at_most, assumption, rests_on)


def _block_size(setting: Setting) -> int | None:
    sizes = {result.models.block_size for result in setting.results}
    return max((size for size in sizes if size is not None), default=None)
