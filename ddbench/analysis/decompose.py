"""A speedup taken apart: longer acceptance, dearer rounds, and stage by stage what makes the rounds dearer.

After contests. Of two settings, `speedup = tau ratio / round cost ratio x waiting x typical`, exactly:
- tau ratio and round cost ratio are the contest's own, over the clean pass;
- `waiting`: a request's time also holds what lies between its rounds, mostly the prefills of other requests;
- `typical`: a speedup compares medians over prompts, tau and round cost are means over rounds.
The round cost ratio splits further: `ratio - 1` is the sum over stages and the host gap of (time in the setting - time
in the base) / round cost of the base. Stage times exist in the attributed pass only, which is slower than the clean
one. So shares of a round are taken from the attributed pass and laid on the round cost of the clean one: that assumes
that attributing slows every stage by the same factor. `Contribution.attributed` is the same without that step. Under
graphs the host gap is the clean pass's (`breakdown.py`).

Rounds are weighted by the requests that they serve, as in the round cost. Letters: R resamples, N rounds, K parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddbench.analysis import series, stats
from ddbench.analysis.breakdown import idle_between_graphs
from ddbench.analysis.columns import Columns
from ddbench.analysis.contests import Contest
from ddbench.analysis.series import Layout
from ddbench.analysis.settings import Setting
from ddbench.analysis.stats import Summary
from ddbench.analysis.timing import MILLISECOND, processes, rounds_in_order
from ddbench.analysis.values import Estimate, Unit, Value, missing, or_zero
from ddbench.engine.stages import ROUND_STAGES
from ddbench.records import NotMeasured

HOST_GAP = "host_gap"  # what no stage accounts for
PARTS: tuple[str, ...] = (*(stage.value for stage in ROUND_STAGES), HOST_GAP)
_ATTRIBUTED_STREAM = 1  # draws apart from those of the clean pass, which has as many rounds
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Shares:
    """What part of a round's time each of `PARTS` takes in one setting; parts that never ran take 0."""

    setting: Setting
    times: np.ndarray  # [N, K + 1] ms of every attributed round times its batch size; the whole round last
    num_served: float  # requests, summed over these rounds
    layout: Layout
    names: tuple[str, ...]  # parts that ran, in the order of a round

    @property
    def num_rounds(self) -> int:
        return len(self.times)

    @cached_property
    def values(self) -> np.ndarray:
        """[K], adds up to 1."""
        sums = self.times.sum(axis=0)
        return sums[:-1] / sums[-1]

    @cached_property
    def resampled(self) -> np.ndarray:
        """[R, K]; rounds are drawn in blocks of neighbours, all parts of a round together."""
        sums = series.resampled_sums(self.times.T, self.layout, _ATTRIBUTED_STREAM)
        return (sums[:-1] / sums[-1]).T

    @property
    def round_ms(self) -> float:
        """What a round of the attributed pass costs a request."""
        return float(self.times[:, -1].sum() / self.num_served)

    @property
    def why_no_interval(self) -> str:
        if self.layout.num_blocks >= stats.FEWEST_UNITS:
            return ""
        return f"n={self.num_rounds} attributed rounds: too few for an interval"

    def of(self, part: str) -> Value:
        """The share of one part, with its interval."""
        if part not in self.names:
            return missing(f"the {self.setting.arm} arm has no {part.replace('_', ' ')}")
        place = PARTS.index(part)
        return self.estimate(float(self.values[place]), self.resampled[:, place])

    def estimate(self, value: float, resampled: np.ndarray, unit: Unit = "share") -> Estimate:
        """A share, or what is computed from shares alone."""
        note = self.why_no_interval
        return _estimate(value, None if note else resampled, self.num_rounds, note, unit)


@dataclass(frozen=True)
class Contribution:
    """What one part adds to the round cost, as a share of the base's round cost."""

    part: str
    share: Value  # on the clean round cost
    attributed: float  # in the attributed pass alone


@dataclass(frozen=True)
class Decomposition:
    """One contest taken apart."""

    contest: Contest
    contributions: tuple[Contribution, ...] | NotMeasured
    waiting: float | NotMeasured
    typical: float | NotMeasured

    @property
    def largest(self) -> Contribution | None:
        """The part that adds most time, where rounds take longer at all."""
        if isinstance(self.contributions, NotMeasured):
            return None
        found = max(self.contributions, key=lambda one: or_zero(one.share))
        return found if or_zero(found.share) > 0 else None


def shares_of(setting: Setting) -> Shares | NotMeasured:
    """The parts of a round in the attributed pass of one setting."""
    if not setting.is_ok:
        return missing(setting.reason)
    if not len(setting.attributed_steps) or not len(setting.stages):
        return missing("no attributed pass was run: capture mode 'none'")
    rounds = rounds_in_order(setting.attributed_steps, setting.attributed_passes)
    stages, ran = _stage_times(setting)
    whole = rounds.milliseconds
    if whole.sum() <= 0:
        return missing("the rounds of the attributed pass took no time: the clock is broken")
    idle = idle_between_graphs(setting)
    if not isinstance(idle, NotMeasured) and stages.sum() > 0:
        whole = stages.sum(axis=1) / (1 - idle)
    times = np.column_stack([stages, whole - stages.sum(axis=1), whole]) * rounds.batch_sizes[:, None]
    names = tuple(part for part in PARTS if part in ran or part == HOST_GAP)
    return Shares(setting, times, float(rounds.batch_sizes.sum()), rounds.layout, names)


def _stage_times(setting: Setting) -> tuple[np.ndarray, frozenset[str]]:
    """Milliseconds of every stage in every attributed round: [N, K - 1], and which stages ran."""
    steps, stages = setting.attributed_steps, setting.stages
    numbers = {part: place for place, part in enumerate(PARTS[:-1])}
    names = [str(name) for name in stages.categories("stage")]
    column_of = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)
    codes, places = stages.codes("stage"), stages["step"]
    columns = column_of[codes]
    found, ran = [], np.zeros(len(numbers), dtype=bool)
    for process in processes(setting.attributed_passes):
        for case_id, index, _ in process:
            own_steps = np.sort(steps["step"][_of_pass(steps, case_id, index)])
            is_own = (stages.codes("case_id") == stages.numbers("case_id").get(case_id, -1)) & (columns >= 0)
            is_own &= np.isin(places, own_steps)
            cells = np.searchsorted(own_steps, places[is_own]) * len(numbers) + columns[is_own]
            times = stages["duration_ns"][is_own] / MILLISECOND
            sums = np.bincount(cells, weights=times, minlength=len(own_steps) * len(numbers))
            found.append(sums.reshape(len(own_steps), len(numbers)))
            ran[columns[is_own]] = True
    return np.concatenate(found), frozenset(PARTS[place] for place in np.flatnonzero(ran))


def _of_pass(rows: Columns, case_id: str, index: int) -> np.ndarray:
    return (rows.codes("case_id") == rows.numbers("case_id").get(case_id, -1)) & (rows["pass_index"] == index)


def decompose(contest: Contest, shares: Mapping[str, Shares | NotMeasured]) -> Decomposition:
    """`shares` by setting key."""
    waiting = _waiting(contest)
    typical: float | NotMeasured = missing("the speedup or one of its parts is missing")
    net = contest.net
    if isinstance(contest.speedup, Estimate) and net is not None and not isinstance(waiting, NotMeasured):
        typical = contest.speedup.value / (net * waiting)
    return Decomposition(contest, _contributions(contest, shares), waiting, typical)


def rounds_part(setting: Setting) -> Summary | NotMeasured:
    """The part of the requests' time after their first token in which a round of theirs was running."""
    requests = setting.requests
    if not len(setting.rounds) or not len(setting.steps):
        return missing("the clean pass recorded no rounds")
    codes, prompts = setting.prompts
    numbers = {prompt: place for place, prompt in enumerate(prompts)}
    places = np.array([numbers.get(str(prompt), -1) for prompt in requests["unit"]], dtype=np.int64)
    has_rounds = places >= 0
    spans = (requests["last_token_ns"] - requests["first_token_ns"])[has_rounds]
    whole = np.bincount(places[has_rounds], weights=spans, minlength=len(prompts))
    if whole.sum() <= 0:
        return missing("no request had a round that took time")
    return stats.ratio_of_sums(np.bincount(codes, weights=_durations(setting), minlength=len(prompts)), whole)


def _durations(setting: Setting) -> np.ndarray:
    """Nanoseconds of the round that each row of `rounds` was part of."""
    rounds, steps = setting.rounds, setting.steps
    times = np.zeros(len(rounds))
    for process in processes(setting.passes):
        for case_id, index, _ in process:
            is_step, is_own = _of_pass(steps, case_id, index), _of_pass(rounds, case_id, index)
            order = np.argsort(steps["step"][is_step])
            lasted = (steps["end_ns"] - steps["start_ns"])[is_step][order]
            times[is_own] = lasted[np.searchsorted(steps["step"][is_step][order], rounds["step"][is_own])]
    return times


def _waiting(contest: Contest) -> float | NotMeasured:
    ours, theirs = _running(contest.setting), _running(contest.base)
    if isinstance(ours, NotMeasured):
        return ours
    return theirs if isinstance(theirs, NotMeasured) else ours / theirs


def _running(setting: Setting) -> float | NotMeasured:
    """The value of `rounds_part`, from sums alone."""
    requests = setting.requests
    spans = float((requests["last_token_ns"] - requests["first_token_ns"]).sum()) / MILLISECOND
    running = float(setting.round_costs.numerators.sum())
    return running / spans if spans > 0 and running > 0 else missing("no request had a round that took time")


def _contributions(
    contest: Contest, shares: Mapping[str, Shares | NotMeasured]
) -> tuple[Contribution, ...] | NotMeasured:
    ours, theirs = (shares[one.key] for one in (contest.setting, contest.base))
    for found in (ours, theirs):
        if isinstance(found, NotMeasured):
            return found
    if isinstance(contest.cost, NotMeasured):
        return contest.cost
    assert isinstance(ours, Shares)
    assert isinstance(theirs, Shares)
    ratio = contest.cost.value
    values = ratio * ours.values - theirs.values
    assert abs(values.sum() - (ratio - 1)) < _TOLERANCE * max(1.0, ratio), "contributions add up to what a round adds"
    scale = ours.round_ms / theirs.round_ms
    attributed = scale * ours.values - theirs.values
    note = (contest.cost.note if contest.cost.low is None else "") or ours.why_no_interval or theirs.why_no_interval
    count = min(ours.num_rounds, theirs.num_rounds)
    resampled = None if note else _resampled_ratio(contest)[:, None] * ours.resampled - theirs.resampled
    ran = [place for place, part in enumerate(PARTS) if part in ours.names or part in theirs.names]
    return tuple(
        Contribution(
            PARTS[place],
            _estimate(float(values[place]), None if resampled is None else resampled[:, place], count, note),
            float(attributed[place]),
        )
        for place in ran
    )


def _resampled_ratio(contest: Contest) -> np.ndarray:
    """Resamples of the round cost ratio, drawn as the contest's own interval is: [R]."""
    ours, theirs = series.resampled_ratios(contest.setting.round_costs, contest.base.round_costs)
    return ours / theirs


def _estimate(value: float, resampled: np.ndarray | None, count: int, note: str, unit: Unit = "share") -> Estimate:
    low, high = (None, None) if resampled is None else stats.around(value, resampled)
    return Estimate(value, low, high, count, unit, "attributed", note, "rounds")


def shares_by_setting(settings: Sequence[Setting]) -> dict[str, Shares | NotMeasured]:
    """Setting key -> the parts of its rounds."""
    return {setting.key: shares_of(setting) for setting in settings}
