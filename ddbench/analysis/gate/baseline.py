"""The baseline: what runs of a known code gave, kept as one JSON file that a gate holds later runs against.

Made by `ddbench qualify` from finished runs, read by `gate`. It holds exact counters and the output's digest of every
shape (a case without its interleaved repeat), the values of every repeat with their noise floor, and what must agree
before anything is compared. Nothing in it names a user, a host or a folder, and the same runs give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal

from ddbench.analysis.blocks import started_at
from ddbench.analysis.counters import agreed_counters
from ddbench.analysis.frames import RunFrames, load_run, setting_key
from ddbench.analysis.gate.noise import Floor, noise_floor
from ddbench.analysis.gate.repeats import agreed_digest, block_values
from ddbench.analysis.metrics import METRICS
from ddbench.analysis.settings import Setting, study_of
from ddbench.errors import DdbenchError, SchemaError, UserError
from ddbench.files import read_text, write_out
from ddbench.records import Environment, NotMeasured, OkResult
from ddbench.spec import Case, Record, RecordT, from_json

SCHEMA_VERSION = 1
KeptKind = Literal["runs", "ops"]  # what a file of a baseline says of itself; one of runs says nothing
KEPT: dict[KeptKind, str] = {
    "runs": "runs of an experiment (ddbench sweep)",
    "ops": "single ops (ddbench bench-ops)",
}


class Repeat(Record):
    """One process of a shape."""

    run: str
    block: int
    started_at: str  # UTC, ISO 8601; tells who was first where two codes ran in turns


class Samples(Record):
    """One metric of a shape."""

    values: tuple[float | NotMeasured, ...]  # one per repeat, in the metric's unit
    floor: Floor | NotMeasured


class Shape(Record):
    """What one shape gave."""

    key: str  # content address, the same for the same question on any machine
    label: str
    is_greedy: bool
    target_digest: str
    drafter_digest: str
    counters: dict[str, int | NotMeasured]
    output_digest: str | NotMeasured
    repeats: tuple[Repeat, ...]
    metrics: dict[str, Samples]


class Baseline(Record):
    """The whole file."""

    schema_version: int = SCHEMA_VERSION
    ddbench_version: str
    experiment: str
    question: str
    code_digest: str
    place: dict[str, str]
    runs: tuple[str, ...]
    shapes: tuple[Shape, ...]


# ------------------------------------------------------------------------------------------------------------- making


def baseline_of_folders(folders: Sequence[Path]) -> Baseline:
    """The baseline of run folders, each given once."""
    runs = [load_run(folder) for folder in folders]
    names = [run.manifests[0].run_id for run in runs]
    if len(set(names)) < len(names):
        raise UserError(f"a run is there twice among {', '.join(names)}: give each run folder once")
    return baseline_of(runs)


def baseline_of(runs: Sequence[RunFrames]) -> Baseline:
    """One or more finished runs of the same code, at the same place, of the same shapes."""
    for run in runs:
        _check_finished(run)
    first = runs[0].manifests[0]
    found = [shapes_of(run) for run in runs]
    for run, own in zip(runs, found, strict=True):
        _check_alike(runs[0], run, found[0], own)
    return Baseline(
        ddbench_version=first.ddbench_version,
        experiment=first.experiment.name,
        question=first.experiment.question,
        code_digest=first.environment.code_digest,
        place=place_of(first.environment),
        runs=tuple(run.manifests[0].run_id for run in runs),
        shapes=tuple(_shape(key, [own[key] for own in found]) for key in found[0]),
    )


def shapes_of(run: RunFrames) -> Mapping[str, Setting]:
    """Shape key -> setting, in reading order."""
    cases = {setting_key(run_id, result.case): result.case for (run_id, _), result in run.results.items()}
    return {shape_key(cases[setting.key]): setting for setting in study_of(run).settings}


def shape_key(case: Case) -> str:
    """Everything that was asked for except which repeat it is, where checkpoints lie, and how long it may take."""
    folders = {"target": _name(case.engine.target), "drafter": case.engine.drafter and _name(case.engine.drafter)}
    about = {"engine": case.engine.model_copy(update=folders), "block": 0, "shown": ()}
    patience = {"timeout_s": 1, "parity_prompts": 1, "parity_tokens": 1}
    return case.model_copy(update={**about, "capture": case.capture.model_copy(update=patience)}).digest()


def _name(checkpoint: str) -> str:
    return PurePath(checkpoint).name


def label_of(setting: Setting) -> str:
    """`ddtree node_budget=32 c=4`; of a checkpoint's folder the name only."""
    text = setting.label
    for folder in (setting.engine.target, setting.engine.drafter):
        text = text.replace(folder, _name(folder)) if folder else text
    return f"{text} c={setting.concurrency}"


def place_of(environment: Environment) -> dict[str, str]:
    """What must agree before times may be compared, by name: all of the fingerprint, and the threads."""
    libraries = {f"library {name}": version for name, version in environment.libraries.items()}
    return {
        "machine": environment.machine,
        "cpu_model": environment.cpu_model,
        "num_threads": str(environment.num_threads),
        "device": environment.device,
        "driver": _text(environment.driver),
        "power_cap_w": _text(environment.power_cap_w),
        **libraries,
    }


def _text(value: object) -> str:
    return f"not measured ({value.not_measured})" if isinstance(value, NotMeasured) else str(value)


def _shape(key: str, settings: Sequence[Setting]) -> Shape:
    """The same shape in every run."""
    results = [result for setting in settings for result in setting.results]
    repeats = [
        Repeat(run=setting.run, block=block, started_at=started_at(setting)[block])
        for setting in settings
        for block in sorted(setting.blocks)
    ]
    return Shape(
        key=key,
        label=label_of(settings[0]),
        is_greedy=settings[0].engine.sampling == "greedy",
        target_digest=results[0].models.target_digest,
        drafter_digest=results[0].models.drafter_digest,
        counters=agreed_counters(results),
        output_digest=agreed_digest(results),
        repeats=tuple(repeats),
        metrics={name: _samples(name, settings) for name, metric in METRICS.items() if metric.is_comparable},
    )


def _samples(name: str, settings: Sequence[Setting]) -> Samples:
    values: list[float | NotMeasured] = []
    runs: list[list[float]] = []
    for setting in settings:
        found = block_values(name, setting)
        values += [found[block] for block in sorted(setting.blocks)]
        runs.append([value for _, value in sorted(found.items()) if not isinstance(value, NotMeasured)])
    return Samples(values=tuple(values), floor=noise_floor(runs))


# ------------------------------------------------------------------------------------------------------------- checks


def _check_finished(run: RunFrames) -> None:
    """A baseline with holes would let the shapes in them pass."""
    run_id = run.manifests[0].run_id
    if not any(isinstance(result, OkResult) for result in run.results.values()):
        raise DdbenchError(f"{run_id}: nothing was measured: there is nothing to make a baseline of")
    if len(run.failures):
        first = run.failures.iloc[0]
        raise DdbenchError(
            f"{run_id}: {len(run.failures)} of {len(run.manifests[0].case_ids)} cases were not measured and correct, "
            f"the first is '{first['label']}' ({first['outcome']}): no baseline is made of it; "
            + _cure(run, str(first["outcome"]))
        )


def _cure(run: RunFrames, outcome: str) -> str:
    """A case whose output is wrong stays wrong however often it runs."""
    if outcome == "incorrect":
        return "mend the code, and sweep anew"
    return "go on with: ddbench sweep --resume RUN" + (
        " --against CHECKOUT" if run.manifests[0].interleaved_with else ""
    )


def _check_alike(first: RunFrames, other: RunFrames, shapes: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    one, two = first.manifests[0], other.manifests[0]
    check_one_code(one.run_id, one.environment, two.run_id, two.environment)
    changed = differences(place_of(one.environment), place_of(two.environment))
    if changed:
        raise UserError(f"{one.run_id} and {two.run_id} ran at different places: {', '.join(changed)}")
    if set(shapes) != set(others):
        raise UserError(f"{one.run_id} and {two.run_id} did not measure the same cases: give runs of one plan")


def check_one_code(one: str, here: Environment, two: str, there: Environment) -> None:
    digests = here.code_digest, there.code_digest
    if digests[0] != digests[1]:
        raise UserError(
            f"{one} and {two} are of different code ({digests[0][:12]}, {digests[1][:12]}): a baseline is of one code"
        )


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """`driver (570.1 then, 580.2 now)`, for whatever is not the same."""
    names = dict.fromkeys((*before, *now))
    return [
        f"{name} ({before.get(name, 'absent')} then, {now.get(name, 'absent')} now)"
        for name in names
        if before.get(name) != now.get(name)
    ]


# --------------------------------------------------------------------------------------------------------------- file


def baseline_text(baseline: Baseline) -> str:
    return json.dumps(baseline.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_baseline(path: Path, baseline: Baseline) -> None:
    write_out(path, baseline_text(baseline), "file")


def read_baseline(path: Path) -> Baseline:
    """A file that is absent, damaged or of another schema is a SchemaError with its cure."""
    return read_kept(Baseline, path, "runs", SCHEMA_VERSION, f"make it with: ddbench qualify EXPERIMENT --out {path}")


def kept_kind(path: Path) -> KeptKind | None:
    """What a file says it is a baseline of; None where it cannot be read."""
    try:
        head = _head(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return _kind(head) if head else None


def _kind(head: Mapping[str, Any]) -> KeptKind:
    return "ops" if head.get("kind") == "ops" else "runs"


def read_kept(model: type[RecordT], path: Path, kind: KeptKind, schema_version: int, cure: str) -> RecordT:
    """A baseline of any kind; a fault of its file is a SchemaError that ends in the cure."""
    text = read_text(path, f"; {cure}", absent=f"{path}: there is no such baseline")
    head = _head(text)
    if head and _kind(head) != kind:
        raise SchemaError(f"{path}: a baseline of {KEPT[_kind(head)]}, to be held against {KEPT[kind]}; {cure}")
    version = head.get("schema_version")
    if isinstance(version, int) and version != schema_version:
        by_newer = "made by a newer ddbench: gate with that one, or " if version > schema_version else ""
        raise SchemaError(f"{path}: baseline schema {version}, this ddbench reads {schema_version}; {by_newer}{cure}")
    try:
        return from_json(model, text, str(path))
    except SchemaError as error:
        raise SchemaError(f"{error}; {cure}") from error


def _head(text: str) -> dict[str, Any]:
    """The object of a file; empty where it is none: damage is told better by whoever parses it all."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
