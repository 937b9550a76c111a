"""The part of Q3 that captures answer: what a round launches, how long the device is idle and what it waits for.

Between the profiles of captured cases and `launch.py`. Shares are of the captured rounds, under the capture's tax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ddbench import units
from ddbench.analysis.contests import Contest
from ddbench.analysis.findings.answers import Number, captured, named, reasons, told
from ddbench.analysis.findings.basis import Basis
from ddbench.analysis.profile.device_time import HOST_CAUSES, DeviceTime
from ddbench.analysis.profile.idle import Cause
from ddbench.analysis.profile.launches import RoundLaunches
from ddbench.analysis.profile.profile import Profile
from ddbench.analysis.profile.tax import Tax
from ddbench.analysis.settings import Setting
from ddbench.records import NotMeasured


def idle_numbers(basis: Basis, setting: Setting) -> Iterator[Number]:
    """Launches per round and idle shares, as captured; nothing where no usable timeline is."""
    found = _seen(basis, setting)
    if found is None:
        return
    launches, time = found
    about, rounds = named(setting), time.num_rounds
    whole = launches.whole
    counts = {
        "kernels that a round runs": whole.ops["kernel"] + whole.ops["operator"],
        "launch calls of a round": whole.calls["launch"],
        "graph launches of a round": whole.calls["graph_launch"],
        "copies of a round": whole.ops["copy"],
        "synchronising calls of a round": whole.calls["sync"],
    }
    shares = {
        "device idle: share of a round": time.idle_share,
        "device idle as the host is late: share of a round": _late(time),
        "device idle as a launch is on its way: share of a round": time.share(Cause.LAUNCH),
        "device idle between nodes of a replay: share of a round": time.share(Cause.REPLAY),
    }
    for label, value in counts.items():
        yield Number(f"{label}, captured", captured(value, "count", rounds), about)
    for label, value in shares.items():
        yield Number(f"{label}, captured", captured(value, "share", rounds), about)


def idle_sentences(basis: Basis, concurrencies: Sequence[int]) -> Iterator[str]:
    """Of the best arm with a drafter of every concurrency, where it was captured."""
    for concurrency in concurrencies:
        best = basis.best_drafter(concurrency)
        if best is not None and (text := _told(basis, best)):
            yield f"Captured at concurrency {concurrency}, {best.label}: {text}."


def compared(basis: Basis, contests: Sequence[Contest]) -> Iterator[str]:
    """Both sides of a contest, where both were captured."""
    for contest in contests:
        sides = [(side, _told(basis, side)) for side in (contest.base, contest.setting)]
        if all(text for _, text in sides):
            each = [f"{side.engine.executor} {text}" for side, text in sides]
            yield f"Captured at concurrency {contest.setting.concurrency}: {'; '.join(each)}."


def idle_gaps(basis: Basis, settings: Sequence[Setting]) -> tuple[str, ...]:
    """Why captured settings have no timeline to be read."""
    profiles = [basis.profiles[setting.key] for setting in settings if setting.key in basis.profiles]
    return reasons(profile.device_time for profile in profiles)


def _seen(basis: Basis, setting: Setting) -> tuple[RoundLaunches, DeviceTime] | None:
    profile = basis.profiles.get(setting.key)
    if profile is None or isinstance(profile.launches, NotMeasured) or isinstance(profile.device_time, NotMeasured):
        return None
    return profile.launches, profile.device_time


def _told(basis: Basis, setting: Setting) -> str:
    """`runs 412 kernels by 1 launch call and 1 graph launch a round; the device is idle 12 % of the time, ...`."""
    found = _seen(basis, setting)
    if found is None:
        return ""
    launches, time = found
    whole = launches.whole
    kernels = _count(whole.ops["kernel"] + whole.ops["operator"], "kernel")
    calls = f"{_count(whole.calls['launch'], 'launch call')} and {_count(whole.calls['graph_launch'], 'graph launch')}"
    idle, late = (told(captured(share, "share", time.num_rounds)) for share in (time.idle_share, _late(time)))
    median = units.significant(100 * float(np.median(time.round_idle)))
    why = f"{late} as the host is late, {median} % in the median round{_tax(basis.profiles[setting.key])}"
    return f"runs {kernels} by {calls} a round, and leaves the device idle for {idle} of the time, {why}"


def _tax(profile: Profile) -> str:
    """How far the capture is from what ran clean."""
    tax = profile.tax
    return f" (rounds of {units.ratio(tax.ratio)} their clean time)" if isinstance(tax, Tax) else ""


def _late(time: DeviceTime) -> float:
    return sum(time.share(cause) for cause in HOST_CAUSES)


def _count(value: float, what: str) -> str:
    """`1 kernel`, `2.5 kernels`, `3 launches`."""
    text = units.grouped(round(value)) if abs(value - round(value)) < 1e-9 else units.significant(value)
    if text == "1":
        return f"1 {what}"
    return f"{text} {what}{'es' if what.endswith('h') else 's'}"
