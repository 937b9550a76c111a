"""A run of `ddbench bench-ops` held against a baseline of ops: the rows of the gate, and what must be said beside them.

The gate over runs with other rules in it: the same rows, verdicts, exit codes and reports (`analysis/gate`). Exact
counters come first, then times. Whatever is wrong with a file is a row; only a request that makes no sense is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ddbench.analysis.counters import Counter
from ddbench.analysis.gate.baseline import differences
from ddbench.analysis.gate.counters import judged_row, why_not_comparable
from ddbench.analysis.gate.policies import Policy, Request
from ddbench.analysis.gate.result import (
    RowsAndNotes,
    about_all,
    both_places,
    check_confirmation,
    compared,
    read_or_reason,
)
from ddbench.analysis.gate.rows import GateResult, Row, Ungated
from ddbench.errors import UserError, did_you_mean, shown
from ddbench.opbench.gate.baseline import (
    HeldRow,
    Key,
    OpsBaseline,
    absence,
    ceilings_of,
    counters_of,
    name_of,
    place_of_ops,
    read_ops,
    read_ops_baseline,
    timed_rows,
)
from ddbench.opbench.gate.machine import machine
from ddbench.opbench.gate.notes import machine_row, notes_of
from ddbench.opbench.gate.times import METRIC, POLICY, RULE, Measured, shown_rows, time_rows
from ddbench.opbench.records import IncorrectRow, OkRow, OpsFile
from ddbench.records import NotMeasured

COUNTERS = {
    counter.name: counter
    for counter in (
        Counter("launches", "Launches", "lower", "kernels of one call"),
        Counter("num_bytes", "Fewest bytes", "equal", "fewest bytes of a call, from its inputs", unit="bytes"),
        Counter("num_flops", "Flops", "equal", "flops of a call, from its inputs", unit="flop"),
    )
}
UNGATED = (Ungated(metric="eager_us", reason="what the host takes to launch: as noisy as the host is busy"),)
QUESTION = "Does every op cost what it did in the baseline: as many launches, and no more time than noise explains?"


def gate_ops_folders(run: Path, baseline: Path, request: Request, confirm: Path | None = None) -> GateResult:
    """What cannot be read becomes a row: a damaged run was not measured, a damaged baseline compares with nothing."""
    return gate_ops(
        read_or_reason(read_ops, run),
        read_or_reason(read_ops_baseline, baseline),
        request,
        None if confirm is None else read_or_reason(read_ops, confirm),
    )


def gate_ops(
    run: OpsFile | NotMeasured,
    baseline: OpsBaseline | NotMeasured,
    request: Request,
    confirm: OpsFile | NotMeasured | None = None,
) -> GateResult:
    """The rows of everything that the baseline holds, and what else has to be said."""
    policy = policy_of(request.thresholds)
    rows, notes = compared(
        run, baseline, confirm, _why_empty, lambda a, b, second: _compared(a, b, request, policy, second)
    )
    file = None if isinstance(run, NotMeasured) else run
    known = None if isinstance(baseline, NotMeasured) else baseline
    return GateResult(
        run="" if file is None else name_of(file),
        baseline=() if known is None else known.repeats,
        experiment="single ops",
        question=QUESTION,
        rows=tuple(rows),
        notes=tuple(notes),
        place=both_places(known.place, place_of_ops(file)) if known and file else (),
        ungated=UNGATED if request.only != "counters" else (),
        is_undecided_passing=request.is_undecided_passing,
        rule=RULE,
    )


def _why_empty(run: OpsFile) -> str:
    has_any = any(isinstance(row, OkRow | IncorrectRow) for row in run.rows)
    return "" if has_any else "nothing was measured: the run has no op with a time"


def policy_of(thresholds: Mapping[str, float]) -> Policy:
    """A threshold of the command line replaces the one for times of ops."""
    for name in thresholds:
        if name != METRIC:
            raise UserError(f"--threshold: no timing of an op is called {shown(name)}: {did_you_mean(name, (METRIC,))}")
    return Policy(thresholds.get(METRIC, POLICY.threshold), POLICY.absolute_floor)


# ---------------------------------------------------------------------------------------------------------- comparing


def _compared(
    run: OpsFile, baseline: OpsBaseline, request: Request, policy: Policy, confirm: OpsFile | None
) -> RowsAndNotes:
    place = place_of_ops(run)
    why = _why_incomparable(baseline, place)
    if why:
        return [about_all("baseline", "incomparable", why)], []
    held = _held(baseline, request.ops)
    timed = timed_rows(run)
    rows = [*_absent(held, timed, run), *_incorrect(run, request.ops)]
    if request.only != "timings":
        rows += _counters(held, timed)
    if request.only == "counters":
        return rows, notes_of(run, baseline, rows, None, policy)
    moved = differences(baseline.place, place)
    measured = _measured(run, baseline)
    if moved:
        rows += shown_rows(held, policy, measured.times_ns, f"another place ({'; '.join(moved)})")
        return rows, notes_of(run, baseline, rows, None, policy)
    confirming = None if confirm is None else _confirming(run, confirm, baseline)
    times = list(time_rows(held, policy, measured, confirming))
    rows += [*machine_row(measured.machine, times), *times]
    return rows, notes_of(run, baseline, rows, measured.machine, policy)


def _why_incomparable(baseline: OpsBaseline, place: Mapping[str, str]) -> str:
    """Other inputs make other counters, and another device other kernels."""
    for what in ("dtype", "measured"):
        if baseline.place.get(what) != place[what]:
            return f"{what}: {baseline.place.get(what)} then, {place[what]} now: other inputs were measured"
    return why_not_comparable(baseline.place, place)


def _held(baseline: OpsBaseline, ops: tuple[str, ...]) -> dict[Key, HeldRow]:
    """What is to be gated; controls are there to be compared with."""
    known = {row.op for row in baseline.rows if not row.is_control}
    for name in ops:
        if name not in known:
            raise UserError(f"--op: the baseline holds no op {shown(name)}: {did_you_mean(name, known)}")
    return {row.key: row for row in baseline.rows if not row.is_control and (not ops or row.op in ops)}


def _absent(held: Mapping[Key, HeldRow], timed: Mapping[Key, OkRow], run: OpsFile) -> Iterator[Row]:
    """What the baseline has and the run has not; what is incorrect has a row of its own."""
    told: set[tuple[str, str, str]] = set()
    for key, row in held.items():
        found = None if key in timed else absence(run, key)
        if key in timed or isinstance(found, IncorrectRow) or key[:3] in told:
            continue
        reason = "the run did not measure it: ddbench bench-ops --ours measures all, --op here gates a part"
        if found is not None:
            reason = found.reason
            told.add(key[:3])
        label = " ".join(key[:3]) if found is not None else row.label
        yield Row(kind="shape", shape=label, name="time", verdict="missing", reason=reason)


def _incorrect(run: OpsFile, ops: tuple[str, ...]) -> Iterator[Row]:
    """Whether the baseline knows it or not."""
    for row in run.rows:
        if isinstance(row, IncorrectRow) and row.kind != "peer" and (not ops or row.op in ops):
            label = " ".join((row.op, row.shape, row.implementation))
            reason = f"incorrect: {row.detail}"
            yield Row(kind="output", shape=label, name="result", verdict="regression", reason=reason)


def _counters(held: Mapping[Key, HeldRow], timed: Mapping[Key, OkRow]) -> Iterator[Row]:
    for key, row in held.items():
        if key in timed:
            now = counters_of(timed[key])
            for name, about in COUNTERS.items():
                if name in row.counters:
                    yield judged_row(row.label, name, about, row.counters[name], now.get(name))


def _measured(run: OpsFile, baseline: OpsBaseline) -> Measured:
    known = {row.key for row in baseline.rows}
    times = {key: row.time_ns for key, row in timed_rows(run).items() if key in known}
    return Measured(times, machine(baseline, times, ceilings_of(run)))


def _confirming(run: OpsFile, confirm: OpsFile, baseline: OpsBaseline) -> Measured:
    digests = (run.environment.code_digest, confirm.environment.code_digest)
    changed = differences(place_of_ops(run), place_of_ops(confirm))
    check_confirmation(name_of(confirm), run.created_at == confirm.created_at, digests, changed)
    return _measured(confirm, baseline)
