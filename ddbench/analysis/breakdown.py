"""Where the time of a round goes: mean time of each stage in the attributed pass, the rest, and what measuring it cost.

The attributed pass is slower than the clean one. Its shares are what it is for; speed is read from the clean pass, and
`tax` says how far the two are apart. `work` sets the fewest bytes and flops that a stage needs against its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddbench.analysis.settings import Setting
from ddbench.analysis.timing import MILLISECOND
from ddbench.analysis.values import missing
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured


@dataclass(frozen=True)
class Breakdown:
    """Milliseconds per round of the whole batch, means over all rounds of the attributed pass."""

    stage_ms: Mapping[str, float]  # stages that ran, in the order of a round
    round_ms: float
    num_rounds: int
    clock: str  # 'host' or 'device'
    tax: float | NotMeasured  # attributed wall time / clean wall time - 1
    outside_ms: Mapping[str, float]  # prefill and other work before a request's first round, per request

    @property
    def gap_ms(self) -> float:
        """Time of a round that no stage accounts for: host work and launches between stages."""
        return self.round_ms - sum(self.stage_ms.values())

    def share(self, stage: str) -> float:
        return self.stage_ms[stage] / self.round_ms


@dataclass(frozen=True, slots=True)
class StageWork:
    """The least that a stage of a typical round has to move and to compute, and the time it took."""

    stage: str
    num_bytes: float
    num_flops: float
    milliseconds: float
    basis: str  # what round it is for

    @property
    def bytes_per_s(self) -> float | NotMeasured:
        return self._per_second(self.num_bytes, "the stage has nothing to move")

    @property
    def flops_per_s(self) -> float | NotMeasured:
        return self._per_second(self.num_flops, "the stage computes nothing to speak of")

    def _per_second(self, amount: float, why_not: str) -> float | NotMeasured:
        if amount <= 0:
            return missing(why_not)
        if self.milliseconds <= 0:
            return missing("the stage took no time that its clock can tell")
        return amount / (self.milliseconds / 1e3)


def work(setting: Setting, found: Breakdown) -> tuple[StageWork, ...]:
    """Every stage that was timed and whose cost is known; processes of a setting are averaged."""
    rows = []
    for stage, milliseconds in found.stage_ms.items():
        costs = [cost for result in setting.results for cost in result.stage_costs if cost.stage == stage]
        if costs:
            num_bytes = sum(cost.num_bytes for cost in costs) / len(costs)
            num_flops = sum(cost.num_flops for cost in costs) / len(costs)
            rows.append(StageWork(stage, num_bytes, num_flops, milliseconds, costs[0].basis))
    return tuple(rows)


def breakdown(setting: Setting) -> Breakdown | NotMeasured:
    """The stage breakdown of one setting."""
    if not setting.is_ok:
        return missing(setting.reason)
    steps, stages = setting.attributed_steps, setting.stages
    if steps.empty or stages.empty:
        return missing("no attributed pass was run: capture mode 'none'")
    round_ms = float((steps["end_ns"] - steps["start_ns"]).mean()) / MILLISECOND
    if round_ms <= 0:
        return missing("the rounds of the attributed pass took no time: the clock is broken")
    is_inside = (stages["step"] >= 0).to_numpy(dtype=bool)
    inside = stages[is_inside].groupby("stage")["duration_ns"].sum()
    outside = stages[~is_inside].groupby("stage")["duration_ns"].sum()
    num_requests = sum(result.case.workload.num_requests for result in setting.results)
    return Breakdown(
        stage_ms={
            stage.value: float(inside[stage.value]) / len(steps) / MILLISECOND
            for stage in ROUND_STAGES
            if stage.value in inside.index
        },
        round_ms=round_ms,
        num_rounds=len(steps),
        clock=" and ".join(sorted(stages["clock"].unique())),
        tax=_tax(setting),
        outside_ms={str(stage): float(total) / num_requests / MILLISECOND for stage, total in outside.items()},
    )


def _tax(setting: Setting) -> float | NotMeasured:
    clean, attributed = setting.passes["wall_ns"], setting.attributed_passes["wall_ns"]
    if clean.empty or attributed.empty or clean.mean() <= 0:
        return missing("one of the two passes has no wall time")
    return float(attributed.mean() / clean.mean() - 1)
