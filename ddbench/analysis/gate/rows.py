"""What a gate says, row by row, and what it all comes to: verdicts, exit codes, `GateResult`.

Between the rules (`counters`, `timings`) and whatever shows the result. A row is one number of one shape, or
one thing that kept numbers from being compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ddbench.analysis.values import Unit
from ddbench.records import NotMeasured
from ddbench.spec import Record

Verdict = Literal[
    "same",  # as in the baseline, or no worse than may be
    "improved",  # better: passes, and the baseline should be made anew
    "regression",
    "changed",  # different where only equal will do
    "missing",  # the baseline has it, the run does not
    "incomparable",  # the two may not be compared
    "undecided",  # measured, and cannot tell
    "not_gated",  # shown only
]
Kind = Literal["counter", "output", "timing", "shape", "run", "baseline"]
Scalar = int | float | str | NotMeasured

EXIT_CODES: dict[Verdict, int] = {
    "same": 0,
    "improved": 0,
    "not_gated": 0,
    "regression": 1,
    "changed": 1,
    "undecided": 3,
    "missing": 4,
    "incomparable": 5,
}
# The first that occurs is the exit code. A regression is a fact about the code that no other row takes back, so nothing
# that a pipeline may retry or tolerate hides it. What was not measured comes before what may not be compared: the cure
# of the latter is a new baseline, and that must not be made of a broken run. A rerun decides an undecided row, but
# brings back neither a missing one nor a comparable machine.
PRECEDENCE: tuple[int, ...] = (1, 4, 5, 3, 0)
MEANINGS: dict[int, str] = {
    0: "passed",
    1: "regression",
    3: "undecided",
    4: "not everything was measured",
    5: "not comparable",
}


class Timing(Record):
    """What stands behind the verdict of a timing."""

    ratio: float  # run / baseline, as measured
    low: float | None  # interval of the ratio
    high: float | None
    num_pairs: int  # 0: the run has one value, held against all of the baseline's
    is_interleaved: bool  # the two codes ran in turns
    floor: float | NotMeasured  # relative
    threshold: float  # relative, as asked for
    absolute_floor: float  # in the metric's unit
    q_value: float | None

    @property
    def limit(self) -> float:
        """What a difference must exceed."""
        return self.threshold if isinstance(self.floor, NotMeasured) else max(self.threshold, self.floor)


PAIRED_RULE = (
    "A time is worse when its pairs agree that it is, and by more than both its threshold and the noise floor."
)


class Row(Record):
    """One line of a gate."""

    kind: Kind
    shape: str  # its label; empty: about the whole run
    name: str
    verdict: Verdict
    before: Scalar | None = None
    now: Scalar | None = None
    unit: Unit = "count"
    reason: str = ""
    timing: Timing | None = None


class Ungated(Record):
    """A metric that is not held against anything, and why."""

    metric: str
    reason: str


class Difference(Record):
    """One thing about the two places."""

    name: str
    before: str
    now: str


class GateResult(Record):
    """All of it. The exit code follows from the rows alone."""

    run: str  # run id; empty: none could be read
    baseline: tuple[str, ...]  # run ids behind the baseline
    experiment: str
    question: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    place: tuple[Difference, ...] = ()
    ungated: tuple[Ungated, ...] = ()
    is_undecided_passing: bool = False
    rule: str = PAIRED_RULE  # when a time counts as worse

    @property
    def exit_code(self) -> int:
        codes = {self.code_of(row) for row in self.rows}
        return next(code for code in PRECEDENCE if code in codes or code == 0)

    def code_of(self, row: Row) -> int:
        code = EXIT_CODES[row.verdict]
        return 0 if code == 3 and self.is_undecided_passing else code

    def with_verdict(self, *verdicts: Verdict) -> Sequence[Row]:
        return [row for row in self.rows if row.verdict in verdicts]

    @property
    def num_gated(self) -> int:
        return len(self.rows) - len(self.with_verdict("not_gated"))

    @property
    def counts(self) -> str:
        counts = [(verdict, len(self.with_verdict(verdict))) for verdict in EXIT_CODES]
        return ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts if count)

    @property
    def headline(self) -> str:
        """One line: what it comes to, and how many rows stand where."""
        return f"gate {MEANINGS[self.exit_code]} (exit {self.exit_code}): {self.counts}"
