"""What a gate over ops says beside its rows: how the machine compares, how sure a pass is, what would not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddbench.analysis.gate.counters import UPDATE
from ddbench.analysis.gate.policies import Policy
from ddbench.analysis.gate.rows import EXIT_CODES, Row
from ddbench.opbench.gate.baseline import OpsBaseline, name_of, timed_rows
from ddbench.opbench.gate.machine import ALL, OWN_OF_TORCH, Group, Machine
from ddbench.opbench.gate.times import least_seen, signed_shift
from ddbench.opbench.records import OpsFile
from ddbench.records import NotMeasured
from ddbench.report.cells import percent

VISIBLE = 0.05  # relative: the slowdown that a gate is expected to see


def machine_row(machine: Machine, times: Sequence[Row]) -> Iterator[Row]:
    """One row for a machine that has changed, however many times it has moved."""
    if not machine.drifting:
        return
    excused = sum(row.verdict == "not_gated" for row in times)
    reason = "; ".join(_drift(group) for group in machine.drifting)
    if excused:
        reason += f": {excused} times are slower no more than that, and are not judged; measure again when it is rested"
    yield Row(kind="run", shape="", name="machine", verdict="undecided" if excused else "not_gated", reason=reason)


def _drift(group: Group) -> str:
    slower = "slower" if group.shift > 0 else "faster"
    share = signed_shift(group.shift)
    seen = signed_shift(group.controls[group.witness])
    return f"the machine is {slower} at {_what(group)}: {share} ({group.witness}: {seen})"


def _what(group: Group) -> str:
    which = "all" if group.bound == ALL else f"what is bound by {group.bound}"
    return f"{which} (median of {group.num_times} times)"


def notes_of(
    run: OpsFile, baseline: OpsBaseline, rows: Sequence[Row], machine: Machine | None, policy: Policy
) -> list[str]:
    """`machine`: where times are judged."""
    notes = []
    if run.environment.code_digest == baseline.code_digest:
        notes.append("The run is of the baseline's own code.")
    if name_of(run) in baseline.repeats:
        notes.append("The baseline was made of this very run: held against itself it cannot fail.")
    known = {row.key for row in baseline.rows}
    new = {key[:3] for key, row in timed_rows(run).items() if key not in known and row.kind == "ours"}
    if new:
        notes.append(f"Not in the baseline and so not gated: {', '.join(sorted(map(' '.join, new)))}.")
    fails = any(EXIT_CODES[row.verdict] == 1 for row in rows)  # no advice to take over what is worse as well
    if not fails and any(row.verdict == "improved" for row in rows):
        notes.append(f"Something is {UPDATE}.")
    if machine is not None:
        notes += [_control(machine), *_together(machine), *_certainty(baseline, rows, policy)]
    return notes


def _control(machine: Machine) -> str:
    """What a reader of slow times should look at before the code."""
    shifts = [f"{label} {signed_shift(shift)}" for label, shift in machine.ceilings.items()]
    whole = machine.groups.get(ALL)
    if whole is not None:
        shifts.insert(0, f"median of all {whole.num_times} times {signed_shift(whole.shift)}")
        if OWN_OF_TORCH in whole.controls:
            shifts.append(f"{OWN_OF_TORCH} {signed_shift(whole.controls[OWN_OF_TORCH])}")
    return f"The machine against the baseline's, as times (more is slower): {', '.join(shifts)}."


def _together(machine: Machine) -> Iterator[str]:
    for group in machine.unexplained:
        if group.bound == ALL or ALL not in machine.groups or not machine.groups[ALL].has_moved:
            yield (
                f"Times moved together and no control with them: {_what(group)}, {signed_shift(group.shift)}. Look for "
                f"what these kernels share before you look at each."
            )


def _certainty(baseline: OpsBaseline, rows: Sequence[Row], policy: Policy) -> Iterator[str]:
    gated = {row.shape for row in rows if row.kind == "timing"}
    times = [row for row in baseline.rows if row.label in gated]
    if all(isinstance(row.floor, NotMeasured) for row in times):
        return
    yield (
        f"Of runs of the same code about {percent(baseline.alarm)} raise a false alarm in any of these times, if "
        f"processes differ as the {len(baseline.repeats)} repeats of the baseline do."
    )
    blind = [row.label for row in times if least_seen(row, policy) > VISIBLE]
    if blind:
        yield (
            f"A slowdown of {percent(VISIBLE)} would not show in {len(blind)} of {len(times)} times: their noise floor "
            f"is wider, or it is less than {policy.absolute_floor:g} us."
        )
