"""A run held against a baseline: exact counters first, then paired times; the result, whatever kept it from being one.

Last step of the analysis for continuous integration: frames of a run and a `Baseline` in, a `GateResult` out. Whatever
is wrong with the run or the baseline is a row of the result, so that there is always something to publish; only a
request that makes no sense is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from ddbench.analysis.conditions import host_load
from ddbench.analysis.frames import RunFrames, load_run
from ddbench.analysis.gate.baseline import (
    Baseline,
    Shape,
    differences,
    label_of,
    place_of,
    read_baseline,
    shape_key,
    shapes_of,
)
from ddbench.analysis.gate.counters import UPDATE, counter_rows, incomparable_row, other_weights, why_not_comparable
from ddbench.analysis.gate.noise import TRIPWIRE
from ddbench.analysis.gate.policies import Request, check_thresholds, policies_of, ungated
from ddbench.analysis.gate.rows import EXIT_CODES, Difference, GateResult, Row
from ddbench.analysis.gate.timings import Entry, timing_rows
from ddbench.analysis.settings import Setting
from ddbench.errors import SchemaError, UserError
from ddbench.records import BUSY_HOST, NotMeasured

ReadT = TypeVar("ReadT")
RunT = TypeVar("RunT")
BaselineT = TypeVar("BaselineT")
RowsAndNotes = tuple[list[Row], list[str]]


def gate_folders(run: Path, baseline: Path, request: Request, confirm: Path | None = None) -> GateResult:
    """What cannot be read becomes a row: a damaged run was not measured, a damaged baseline compares with nothing."""
    return gate(
        read_or_reason(load_run, run),
        read_or_reason(read_baseline, baseline),
        request,
        None if confirm is None else read_or_reason(load_run, confirm),
    )


def read_or_reason(reader: Callable[[Path], ReadT], path: Path) -> ReadT | NotMeasured:
    """What a file or folder holds, or why that cannot be read."""
    try:
        return reader(path)
    except SchemaError as error:
        return NotMeasured(not_measured=str(error))


def gate(
    run: RunFrames | NotMeasured,
    baseline: Baseline | NotMeasured,
    request: Request,
    confirm: RunFrames | NotMeasured | None = None,
) -> GateResult:
    """The rows of everything that the baseline holds, and what else has to be said."""
    policies = policies_of(request.thresholds)
    rows, notes = compared(run, baseline, confirm, _why_nothing, lambda a, b, second: _compared(a, b, request, second))
    manifest = None if isinstance(run, NotMeasured) else run.manifests[0]
    known = None if isinstance(baseline, NotMeasured) else baseline
    place = {} if manifest is None else place_of(manifest.environment)
    return GateResult(
        run="" if manifest is None else manifest.run_id,
        baseline=() if known is None else known.runs,
        experiment=manifest.experiment.name if manifest else known.experiment if known else "",
        question=manifest.experiment.question if manifest else known.question if known else "",
        rows=tuple(rows),
        notes=tuple(notes),
        place=both_places(known.place, place) if known and manifest else (),
        ungated=ungated(policies) if request.only != "counters" else (),
        is_undecided_passing=request.is_undecided_passing,
    )


def compared(
    run: RunT | NotMeasured,
    baseline: BaselineT | NotMeasured,
    confirm: RunT | NotMeasured | None,
    why_nothing: Callable[[RunT], str],
    compare: Callable[[RunT, BaselineT, RunT | None], RowsAndNotes],
) -> RowsAndNotes:
    """What `compare` finds, or rows of why the three cannot be compared; `why_nothing`: a run without any value."""
    rows: list[Row] = []
    nothing = run.not_measured if isinstance(run, NotMeasured) else why_nothing(run)
    if nothing:
        rows.append(about_all("run", "missing", nothing))
    if isinstance(confirm, NotMeasured):
        rows.append(about_all("run", "missing", f"the run that is to confirm: {confirm.not_measured}"))
    if isinstance(baseline, NotMeasured):
        rows.append(about_all("baseline", "incomparable", baseline.not_measured))
    if rows or isinstance(run, NotMeasured) or isinstance(baseline, NotMeasured) or isinstance(confirm, NotMeasured):
        return rows, []
    return compare(run, baseline, confirm)


def about_all(kind: Literal["run", "baseline"], verdict: Literal["missing", "incomparable"], reason: str) -> Row:
    """What is not about one shape."""
    return Row(kind=kind, shape="", name=kind, verdict=verdict, reason=reason)


def _why_nothing(run: RunFrames) -> str:
    if run.cases["status"].eq("ok").any():
        return ""
    if len(run.failures):
        first = run.failures.iloc[0]
        return f"nothing was measured: '{first['label']}' {first['outcome']}: {first['reason']}"
    return "nothing was measured: the run has no case that was measured and correct"


def both_places(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Difference, ...]:
    """What the two have, side by side."""
    names = dict.fromkeys((*before, *now))
    return tuple(
        Difference(name=name, before=before.get(name, "absent"), now=now.get(name, "absent")) for name in names
    )


# ---------------------------------------------------------------------------------------------------------- comparing


def _compared(run: RunFrames, baseline: Baseline, request: Request, confirm: RunFrames | None) -> RowsAndNotes:
    manifest = run.manifests[0]
    partner = manifest.interleaved_with if manifest.interleaved_with in baseline.runs else None
    if request.only != "counters" and partner is None:
        check_thresholds(baseline, request.thresholds)
    settings = shapes_of(run)
    known = [shape for shape in baseline.shapes if shape.key in settings]
    if not known:
        reason = (
            f"no case of the run ('{manifest.experiment.name}') is in the baseline ('{baseline.experiment}'): run the "
            f"baseline's experiment, or make a baseline of this one with: ddbench qualify --from RUN --out FILE"
        )
        return [about_all("baseline", "incomparable", reason)], []
    problems = _problems(run)
    rows = [_missing_row(shape, problems, run) for shape in baseline.shapes if _is_missing(shape, settings, problems)]
    usable = [shape for shape in known if shape.key not in problems]
    strangers = {shape.key: why for shape in usable if (why := other_weights(shape, settings[shape.key]))}
    rows += [_stranger_row(shape, strangers[shape.key]) for shape in usable if shape.key in strangers]
    usable = [shape for shape in usable if shape.key not in strangers]
    if request.only != "timings":
        rows += _counters(baseline, usable, settings, run)
    if request.only != "counters":
        rows += timing_rows(
            _entries(baseline, usable, settings, run, confirm, partner), policies_of(request.thresholds)
        )
    if not any(row.verdict != "not_gated" for row in rows):
        rows.append(about_all("run", "missing", "nothing that the two have in common can be gated"))
    return rows, _notes(run, baseline, settings, rows, request, partner)


def _problems(run: RunFrames) -> dict[str, str]:
    """Shape key -> what became of its first case that was not measured and correct."""
    manifest = run.manifests[0]
    cases = dict(zip(manifest.case_ids, manifest.cases, strict=True)) if manifest.cases else {}
    cases |= {case_id: result.case for (_, case_id), result in run.results.items()}
    found: dict[str, str] = {}
    for _, row in run.failures.iterrows():
        if row["case_id"] in cases:
            found.setdefault(shape_key(cases[row["case_id"]]), f"{row['outcome']}: {row['reason']}")
    return found


def _is_missing(shape: Shape, settings: Mapping[str, Setting], problems: Mapping[str, str]) -> bool:
    return shape.key not in settings or shape.key in problems


def _missing_row(shape: Shape, problems: Mapping[str, str], run: RunFrames) -> Row:
    skipped = dict(zip(run.skipped["label"], run.skipped["reason"], strict=True))
    reason = problems.get(shape.key) or skipped.get(shape.label, "the plan of the run does not hold it")
    return Row(kind="shape", shape=shape.label, name="case", verdict="missing", reason=reason)


def _stranger_row(shape: Shape, reason: str) -> Row:
    return Row(kind="shape", shape=shape.label, name="weights", verdict="incomparable", reason=reason)


def _counters(baseline: Baseline, shapes: list[Shape], settings: Mapping[str, Setting], run: RunFrames) -> list[Row]:
    why = why_not_comparable(baseline.place, place_of(run.manifests[0].environment))
    if why:
        return [incomparable_row(shape, why) for shape in shapes]
    return [row for shape in shapes for row in counter_rows(shape, settings[shape.key])]


def _entries(
    baseline: Baseline,
    shapes: list[Shape],
    settings: Mapping[str, Setting],
    run: RunFrames,
    confirm: RunFrames | None,
    partner: str | None,
) -> list[Entry]:
    environment = run.manifests[0].environment
    confirming: Mapping[str, Setting] = {}
    if confirm is not None:
        _check_confirmation(run, confirm)
        confirming = shapes_of(confirm)
    changed = [one.name for one in both_places(baseline.place, place_of(environment)) if one.before != one.now]
    why_not = f"another place (its {', '.join(changed)})" if changed else ""
    return [Entry(shape, settings[shape.key], confirming.get(shape.key), why_not, partner or "") for shape in shapes]


def _check_confirmation(run: RunFrames, confirm: RunFrames) -> None:
    one, two = run.manifests[0], confirm.manifests[0]
    digests = (one.environment.code_digest, two.environment.code_digest)
    changed = differences(place_of(one.environment), place_of(two.environment))
    check_confirmation(two.run_id, one.run_id == two.run_id, digests, changed)


def check_confirmation(confirm: str, is_itself: bool, digests: tuple[str, str], changed: Sequence[str]) -> None:
    """A second run says something only if it is one, of the same code and at the same place."""
    if is_itself:
        raise UserError(f"--confirm {confirm}: is the run itself: give a second run of the same code")
    if digests[0] != digests[1]:
        raise UserError(
            f"--confirm {confirm}: is of other code (digest {digests[1][:12]}, the run's is "
            f"{digests[0][:12]}): give a second run of the same code"
        )
    if changed:
        raise UserError(f"--confirm {confirm}: ran at another place: {', '.join(changed)}")


# -------------------------------------------------------------------------------------------------------------- notes


def _notes(
    run: RunFrames,
    baseline: Baseline,
    settings: Mapping[str, Setting],
    rows: list[Row],
    request: Request,
    partner: str | None,
) -> list[str]:
    notes = []
    environment = run.manifests[0].environment
    if environment.code_digest == baseline.code_digest:
        notes.append("The run is of the baseline's own code.")
    known = {shape.key for shape in baseline.shapes}
    new = [label_of(setting) for key, setting in settings.items() if key not in known]
    if new:
        notes.append(f"Not in the baseline and so not gated: {', '.join(new)}.")
    if run.manifests[0].run_id in baseline.runs:
        notes.append("The baseline was made of this very run: held against itself it cannot fail.")
    fails = any(EXIT_CODES[row.verdict] == 1 for row in rows)  # no advice to take over what is worse as well
    if not fails and any(row.verdict == "improved" for row in rows):
        notes.append(f"Something is {UPDATE}.")
    cpus = (baseline.place.get("cpu_model", ""), environment.cpu_model)
    is_worse = any(row.kind in ("counter", "output") and EXIT_CODES[row.verdict] == 1 for row in rows)
    if is_worse and cpus[0] != cpus[1]:
        notes.append(
            f"The processors differ ({cpus[0]} then, {cpus[1]} now): sums are rounded differently, and where two "
            "tokens are too close to call the other one may win. If the code did not change, this is why."
        )
    moved = differences(baseline.place, place_of(environment))
    if request.only == "counters":
        return notes
    if moved:
        return [*notes, f"Times are not judged, {'; '.join(moved)}: qualify a baseline here, or say --only counters."]
    notes += _doubts(settings, rows)
    if partner is not None:
        notes.append("The two codes ran in turns: the spread of their pairs holds the noise, and no floor is needed.")
    elif len(baseline.runs) == 1:
        notes.append(
            "The noise floor is of one run: what differs between two runs of the same code is not in it. Qualify with "
            "several runs (--from, repeated), or confirm a slowdown with a second run (--confirm)."
        )
    return notes


def _doubts(settings: Mapping[str, Setting], rows: list[Row]) -> list[str]:
    """What a reader of slow times should look at before the code."""
    loads = [load for setting in settings.values() if (load := host_load(setting)) is not None]
    found = []
    if loads and 2 * sum(load > BUSY_HOST for load in loads) >= len(loads):
        found.append("Other processes kept the host busy around most cases: what is slower may be slower for that.")
    floors = [row.timing.floor for row in rows if row.timing and isinstance(row.timing.floor, float)]
    coarse = sum(floor > TRIPWIRE for floor in floors)
    if coarse:
        found.append(
            f"{coarse} of {len(floors)} times have a noise floor above {100 * TRIPWIRE:.0f} %: only a gross slowdown "
            f"would show in them. Qualify on a quieter machine, or with more repeats."
        )
    plain = {label_of(setting) for setting in settings.values() if setting.arm == "ar"}
    if any(row.kind == "timing" and row.verdict == "regression" and row.shape in plain for row in rows):
        found.append("Plain decoding (ar) is slower too: look at the target's own pass, or at the machine, first.")
    return found
