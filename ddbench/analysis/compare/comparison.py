"""Two runs, two arms or two variants, setting by setting and metric by metric: faster, slower, same, undecided,
incomparable, each with its reasons.

Between settings and the comparison's report. A is the base ('before'), B the candidate ('after'). Times are compared
in pairs of interleaved repeats (`paired`); what greedy decoding makes exact is compared exactly; acceptance under
sampling in pairs of prompts. False discoveries are controlled over every cell of the comparison at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ddbench.analysis.compare import exact, matching
from ddbench.analysis.compare.comparability import (
    ALLOWABLE,
    LOST_CODES,
    Reason,
    environment_obstacles,
    remarks,
    setting_obstacles,
)
from ddbench.analysis.compare.exact import CounterChange
from ddbench.analysis.compare.judge import COMPARED, MIN_EFFECT, Basis, Floors, Judged, Trial, judge
from ddbench.analysis.compare.matching import Matching, Unmatched
from ddbench.analysis.effects import Effect
from ddbench.analysis.frames import RunFrames
from ddbench.analysis.metrics import METRICS, Metric, evaluate
from ddbench.analysis.paired import Decision, Verdict
from ddbench.analysis.settings import Setting, Study, study_of
from ddbench.analysis.values import Value
from ddbench.errors import UserError, did_you_mean
from ddbench.records import Manifest

# What a user of the engine feels; the other compared metrics say why, and decide only where these cannot.
OUTCOMES: tuple[str, ...] = ("output_tok_per_s", "tpot_ms", "ttft_ms")
# Of these, what must be told for a verdict; TTFT, one short wait per request, is heard where it can be told.
LEADING: tuple[str, ...] = ("output_tok_per_s", "tpot_ms")


@dataclass(frozen=True)
class Comparison:
    """One metric of one match. `a` and `b` are the values of either side's own report."""

    metric: Metric
    a: Value
    b: Value
    decision: Decision
    basis: Basis  # what the pairs are, or that none were needed

    @property
    def verdict(self) -> Verdict:
        return self.decision.verdict

    @property
    def ratio(self) -> float | None:
        """B over A; None where there is no number."""
        effect = self.decision.effect
        return effect.ratio if isinstance(effect, Effect) else None


@dataclass(frozen=True)
class Match:
    """One thing that was asked for, on both sides."""

    a: Setting
    b: Setting
    obstacles: tuple[Reason, ...]
    remarks: tuple[Reason, ...]
    comparisons: Mapping[str, Comparison]
    counters: tuple[CounterChange, ...]
    asked: tuple[str, ...]  # metrics that must be told; without any asked for, `LEADING`
    heard: tuple[str, ...]  # metrics that make the match slower or faster: the same, or `OUTCOMES`

    @property
    def label(self) -> str:
        same = (self.a.arm, self.a.engine) == (self.b.arm, self.b.engine)
        return self.a.label if same or self.a.label == self.b.label else f"{self.a.label} -> {self.b.label}"

    @property
    def concurrency(self) -> int:
        return self.b.concurrency

    @cached_property
    def verdict(self) -> Verdict:
        """Slower if anything that was asked for is; what says why decides only where the outcomes cannot."""
        if self.obstacles:
            return "incomparable"
        own = {name: comparison.verdict for name, comparison in self.comparisons.items()}
        outcomes = {own[name] for name in self.heard if name in own}
        if "slower" in outcomes:
            return "slower"
        if "undecided" in {own[name] for name in self.asked if name in own}:
            causes = {verdict for name, verdict in own.items() if name not in self.heard}
            return "slower" if "slower" in causes and "faster" not in causes else "undecided"
        return "faster" if "faster" in outcomes else "same"

    @property
    def log_change(self) -> float:
        """How far time per token moved, whatever is believed of it: what the largest change is picked by."""
        ratio = self.comparisons["tpot_ms"].ratio if "tpot_ms" in self.comparisons else None
        return math.log(ratio) if ratio is not None else 0.0

    def named(self, verdict: Verdict) -> tuple[Comparison, ...]:
        return tuple(c for c in self.comparisons.values() if c.verdict == verdict)


@dataclass(frozen=True)
class Side:
    """One of the two: what it is called, and the run that it is from."""

    letter: str
    title: str
    manifest: Manifest


@dataclass(frozen=True)
class Comparisons:
    """Everything that two sides have in common, and what they have not."""

    sides: tuple[Side, Side]
    kind: Literal["runs", "arms", "parts"]
    is_interleaved: bool
    matches: tuple[Match, ...]
    unmatched: tuple[Unmatched, ...]
    min_effect: float

    @property
    def comparable(self) -> tuple[Match, ...]:
        return tuple(match for match in self.matches if not match.obstacles)

    def counts(self) -> dict[Verdict, int]:
        verdicts = [match.verdict for match in self.matches]
        order: tuple[Verdict, ...] = ("slower", "faster", "same", "undecided", "incomparable")
        return {verdict: verdicts.count(verdict) for verdict in order if verdict in verdicts}

    @property
    def lost(self) -> tuple[str, ...]:
        """What B did not deliver although A did."""
        failed = [
            f"{m.label} c={m.concurrency}"
            for m in self.matches
            if m.a.is_ok and any(reason.code in LOST_CODES for reason in m.obstacles)
        ]
        never = [
            f"{u.label} c={u.concurrency}" for u in self.unmatched if u.reason.code in LOST_CODES and u.side == "A"
        ]
        return (*failed, *never)

    @property
    def awaited(self) -> tuple[str, ...]:
        """What both plans hold and neither run has."""
        return tuple(
            f"{u.label} c={u.concurrency}" for u in self.unmatched if u.reason.code == "not_run" and u.side == "both"
        )

    @property
    def verdict(self) -> Verdict:
        """Slower before anything else; undecided as long as something that was asked for cannot be told."""
        counts = self.counts()
        if not self.comparable:
            return "incomparable"
        if "slower" in counts:
            return "slower"
        if "undecided" in counts or "incomparable" in counts or self.lost or self.awaited:
            return "undecided"
        return "faster" if "faster" in counts else "same"

    @property
    def exit_code(self) -> int:
        """0 nothing is slower, 1 something is, 3 something cannot be told, 4 not measured, 5 nothing comparable."""
        if not self.matches and any(one.reason.code == "absent" for one in self.unmatched):
            return 5
        if not all(any(getattr(match, side).is_ok for match in self.matches) for side in ("a", "b")):
            return 4
        if not self.comparable:
            return 5
        if self.verdict == "slower":
            return 1
        return 4 if self.lost or self.awaited else 3 if self.verdict == "undecided" else 0


# --- the three questions ----------------------------------------------------------------------------------------------


def compare_runs(a: RunFrames, b: RunFrames, **options: Any) -> Comparisons:
    """Run B against run A: the same questions asked of two codes, or of one code twice."""
    ours, theirs = a.manifests[0], b.manifests[0]
    if ours.run_id == theirs.run_id:
        raise UserError(f"A and B are the same run ({ours.run_id}): give two runs, or two arms of one with --arms")
    studies = (study_of(a), study_of(b))
    found = matching.of_runs(studies[0].settings, studies[1].settings, (ours, theirs))
    if not found.couples and all(study.settings for study in studies):
        has = (f"{side} has {_listing(study.settings)}" for side, study in zip("AB", studies, strict=True))
        raise UserError(f"the two runs share no setting: {'; '.join(has)}")
    sides = (Side("A", ours.run_id, ours), Side("B", theirs.run_id, theirs))
    is_interleaved = ours.interleaved_with == theirs.run_id or theirs.interleaved_with == ours.run_id
    return _compare(found, sides, studies, "runs", is_interleaved, **options)


def compare_arms(frames: RunFrames, base: str, candidate: str, **options: Any) -> Comparisons:
    """Two arms of one run; its cases are interleaved by construction."""
    study, manifest = study_of(frames), frames.manifests[0]
    found = matching.of_arms(study.settings, base, candidate)
    sides = (Side("A", base, manifest), Side("B", candidate, manifest))
    return _compare(found, sides, (study, study), "arms", True, **options)


def compare_parts(frames: RunFrames, field: str, base: Any, candidate: Any, **options: Any) -> Comparisons:
    """Two values of one engine field within one run."""
    study, manifest = study_of(frames), frames.manifests[0]
    found = matching.of_parts(study.settings, field, base, candidate)
    sides = (Side("A", f"{field}={base}", manifest), Side("B", f"{field}={candidate}", manifest))
    return _compare(found, sides, (study, study), "parts", True, **options)


def _listing(settings: Sequence[Setting]) -> str:
    names = list(dict.fromkeys(f"{setting.label} c={setting.concurrency}" for setting in settings))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _compare(
    found: Matching,
    sides: tuple[Side, Side],
    studies: tuple[Study, Study],
    kind: Literal["runs", "arms", "parts"],
    is_interleaved: bool,
    *,
    min_effect: float = MIN_EFFECT,
    metrics: Sequence[str] = (),
    allow: Sequence[str] = (),
    floors: Floors | None = None,
) -> Comparisons:
    for words, known, what in ((metrics, COMPARED, "metric"), (allow, ALLOWABLE, "condition")):
        for word in words:
            if word not in known:
                raise UserError(f"unknown {what} '{word}': {did_you_mean(word, known)}")
    manifests = sides[0].manifest, sides[1].manifest
    of_places = environment_obstacles(*manifests) if kind == "runs" else ()
    places = manifests[0].environment, manifests[1].environment
    trials = []
    for a, b in found.couples:
        against = list({r.code + r.text: r for r in (*of_places, *setting_obstacles(a, b, places))}.values())
        obstacles = tuple(reason for reason in against if reason.code not in allow)
        trials.append(
            Trial((a, b), obstacles, tuple(r for r in against if r.code in allow), is_interleaved, min_effect)
        )
    judged = judge(trials, floors or {})
    matches = tuple(_match(trial, own, studies, tuple(metrics)) for trial, own in zip(trials, judged, strict=True))
    return Comparisons(sides, kind, is_interleaved, matches, found.unmatched, min_effect)


# --- putting a match together -----------------------------------------------------------------------------------------


def _match(trial: Trial, judged: Judged, studies: tuple[Study, Study], asked: tuple[str, ...]) -> Match:
    a, b = trial.couple
    comparisons = {}
    for name in (n for n in COMPARED if n in judged):
        values = [evaluate(METRICS[name], s, study) for s, study in zip((a, b), studies, strict=True)]
        decision, basis = judged[name]
        comparisons[name] = Comparison(METRICS[name], values[0], values[1], decision, basis)
    said: list[Reason] = list(trial.allowed)
    if a.is_ok and b.is_ok:
        said += remarks(a, b)
    if trial.throttled:
        names = ", ".join(sorted({name for names in trial.throttled.values() for name in names}))
        said.append(
            Reason("throttled", f"{len(trial.throttled)} repeats left out, their device was throttled ({names})")
        )
    changes = tuple(exact.counter_changes(a, b)) if a.is_ok and b.is_ok else ()
    return Match(a, b, trial.obstacles, tuple(said), comparisons, changes, asked or LEADING, asked or OUTCOMES)
