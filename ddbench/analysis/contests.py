"""One setting against another: is it faster, and is that longer acceptance or cheaper rounds?

A request's time per token is what a round costs it over what a round brings it, so a speedup is the ratio of tau over
the ratio of round costs; the two are measured apart, and `net` is their quotient. It differs a little from the speedup
by median TPOT, which also holds the waiting for other requests' prefills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddbench.analysis import speed
from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import Estimate, Value, missing, to_estimate
from ddbench.records import NotMeasured

Standing = Literal["ahead", "even", "behind", "unknown"]


@dataclass(frozen=True)
class Contest:
    """`setting` against `base`, at the same workload."""

    setting: Setting
    base: Setting
    speedup: Value  # TPOT of base / TPOT of setting
    length: Value  # tau of setting / tau of base
    cost: Value  # round cost of setting / round cost of base

    @property
    def net(self) -> float | None:
        """Gain per round over cost per round."""
        if isinstance(self.length, NotMeasured) or isinstance(self.cost, NotMeasured):
            return None
        return self.length.value / self.cost.value


def contest(setting: Setting, arm: str, study: Study) -> Contest | NotMeasured:
    """`setting` against its counterpart in `arm`."""
    base = study.counterpart(setting, arm)
    return base if isinstance(base, NotMeasured) else versus(setting, base)


def versus(setting: Setting, base: Setting) -> Contest | NotMeasured:
    """Two settings of one run at one workload."""
    for one in (setting, base):
        if not one.is_ok:
            return missing(one.reason)
    speedup = to_estimate(speed.tpot_ratio(base, setting), "x")
    if not len(setting.rounds) or not len(base.rounds):
        nothing = missing("the clean pass recorded no rounds")
        return Contest(setting, base, speedup, nothing, nothing)
    length, cost = speed.length_ratio(setting, base), speed.round_cost_ratio(setting, base)
    return Contest(setting, base, speedup, to_estimate(length, "x"), to_estimate(cost, "x", counted="rounds"))


def standing(value: Value) -> Standing:
    """Where a ratio stands against 1; `even` when its interval holds 1."""
    if not isinstance(value, Estimate) or value.low is None or value.high is None:
        return "unknown"
    return "ahead" if value.low > 1 else "behind" if value.high < 1 else "even"
