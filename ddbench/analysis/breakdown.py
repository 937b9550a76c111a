"""Where the time of a round goes: mean time of each stage in the attributed pass, the rest, and what measuring it cost.

The attributed pass is slower than the clean one. Its shares are what it is for; speed is read from the clean pass, and
`tax` says how far the two are apart. `roofline.py` sets the work of a stage against its time.

Where graphs are replayed the clean pass launches a round before it has read the one before; to time stages the
attributed pass has to wait for each. That wait is no part of a round: the host gap is then the clean pass's own, what
lies between its graphs on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ddbench.analysis.columns import Columns
from ddbench.analysis.settings import Setting
from ddbench.analysis.timing import MILLISECOND
from ddbench.analysis.values import missing
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured

_MOST_IDLE = 0.999  # graphs that did nothing all the time still ran


@dataclass(frozen=True)
class Breakdown:
    """Milliseconds per round of the whole batch, means over all rounds of the attributed pass.

    Under graphs `round_ms` is the stages and the clean pass's gap.
    """

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


def breakdown(setting: Setting) -> Breakdown | NotMeasured:
    """The stage breakdown of one setting."""
    if not setting.is_ok:
        return missing(setting.reason)
    steps, stages = setting.attributed_steps, setting.stages
    if not len(steps) or not len(stages):
        return missing("no attributed pass was run: capture mode 'none'")
    round_ms = float((steps["end_ns"] - steps["start_ns"]).mean()) / MILLISECOND
    if round_ms <= 0:
        return missing("the rounds of the attributed pass took no time: the clock is broken")
    is_inside = stages["step"] >= 0
    inside, outside = stage_totals(stages, is_inside), stage_totals(stages, ~is_inside)
    num_requests = sum(result.case.workload.num_requests for result in setting.results)
    clocks = stages.categories("clock")[np.unique(stages.codes("clock"))]
    stage_ms: dict[str, float] = {
        stage.value: inside[stage.value] / len(steps) / MILLISECOND for stage in ROUND_STAGES if stage.value in inside
    }
    idle = idle_between_graphs(setting)
    return Breakdown(
        stage_ms=stage_ms,
        round_ms=round_ms if isinstance(idle, NotMeasured) else sum(stage_ms.values()) / (1 - idle),
        num_rounds=len(steps),
        clock=" and ".join(sorted(clocks)),
        tax=_tax(setting),
        outside_ms={stage: total / num_requests / MILLISECOND for stage, total in outside.items()},
    )


def idle_between_graphs(setting: Setting) -> float | NotMeasured:
    """Where graphs were replayed: the share (0..1) of the clean rounds' time in which none of them was running."""
    clean = [one for result in setting.results for one in result.passes if one.pass_name == "clean"]
    replayed = [one.replayed_ns for one in clean if isinstance(one.replayed_ns, int)]
    rounds_ns = float((setting.steps["end_ns"] - setting.steps["start_ns"]).sum())
    if not replayed or len(replayed) < len(clean) or rounds_ns <= 0:
        return missing("the rounds were not replayed as graphs")
    return min(max(0.0, 1 - sum(replayed) / rounds_ns), _MOST_IDLE)


def stage_totals(stages: Columns, is_meant: np.ndarray) -> dict[str, float]:
    """Nanoseconds of every stage in some of the rows, in alphabetical order."""
    codes, times = stages.codes("stage")[is_meant], stages["duration_ns"][is_meant]
    sums = np.bincount(codes, weights=times)
    names = stages.categories("stage")
    return {str(names[code]): float(sums[code]) for code in np.unique(codes)}


def _tax(setting: Setting) -> float | NotMeasured:
    clean, attributed = setting.passes["wall_ns"], setting.attributed_passes["wall_ns"]
    if not len(clean) or not len(attributed) or clean.mean() <= 0:
        return missing("one of the two passes has no wall time")
    return float(attributed.mean() / clean.mean() - 1)
