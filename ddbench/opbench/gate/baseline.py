"""The baseline of single ops: what repeats of one code gave, each in a process of its own; one JSON file. No torch.

Made by `ddbench qualify --ops` from folders of `ddbench bench-ops`, read by `ddbench gate`. Of every op it holds what
`foremost` says: our kernels, or our plain torch where they cannot run; what has neither is a control of the machine and
is not gated. Processes are the repeats because a gate compares processes: clocks, addresses and graphs are others in
each, and what differs between them is the noise that counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ddbench.analysis.gate.baseline import KEPT, check_one_code, differences, place_of, read_kept
from ddbench.analysis.gate.noise import FEWEST_REPEATS, shared_floors
from ddbench.errors import DdbenchError, SchemaError, UserError
from ddbench.files import read_text, write_out
from ddbench.opbench.derived import Derived, derive
from ddbench.opbench.records import Cache, Clock, IncorrectRow, Kind, NotMeasuredRow, OkRow, OpsFile, foremost
from ddbench.records import NotMeasured
from ddbench.spec import Record, from_json

SCHEMA_VERSION = 1
ALARM = 0.01  # share of runs of the same code in which chance may raise an alarm, over all times together
FILE = "ops.json"
GPU_PLACE = ("device", "driver", "power_cap_w")  # graphs are timed by the device: the host's processor does not matter
CPU_PLACE = ("machine", "cpu_model", "num_threads", "device")
LIBRARIES = ("torch", "triton", "cuda")  # what makes the kernels

Key = tuple[str, str, str, Cache]  # op, shape, implementation, cache
Number = int | NotMeasured
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Values = Annotated[tuple[Positive, ...], Field(min_length=1)]  # one per repeat


class HeldRow(Record):
    """One implementation of an op at a shape, with a cold or a hot cache."""

    op: str
    shape: str
    implementation: str
    cache: Cache
    kind: Kind
    clock: Clock
    bound: str  # the ceiling that its floor consists of: `read cold`, `matmul`, `replay`, ...; empty: not known
    counters: dict[str, Number]
    times_ns: Values  # the median of each repeat
    floor: Positive | NotMeasured  # relative: by how much chance alone may make a new repeat slower

    @property
    def key(self) -> Key:
        return self.op, self.shape, self.implementation, self.cache

    @property
    def label(self) -> str:
        return " ".join(self.key)

    @property
    def is_control(self) -> bool:
        return self.kind == "peer"

    @property
    def typical_ns(self) -> float:
        """Geometric mean of the repeats, which the floor is about."""
        return geometric_mean(self.times_ns)


class OpsBaseline(Record):
    """The whole file."""

    kind: Literal["ops"] = "ops"
    schema_version: int = SCHEMA_VERSION
    ddbench_version: str
    code_digest: str
    place: dict[str, str]
    repeats: tuple[str, ...]  # names of the files behind it
    alarm: Positive = ALARM
    ceilings: dict[str, Values]  # bytes/s, flops/s, or ns of a launch
    rows: tuple[HeldRow, ...]

    @model_validator(mode="after")
    def _one_value_a_repeat(self) -> Self:
        for name, values in (*((row.label, row.times_ns) for row in self.rows), *self.ceilings.items()):
            if len(values) != len(self.repeats):
                raise ValueError(f"{name}: {len(values)} values of {len(self.repeats)} repeats")
        return self


# -------------------------------------------------------------------------------------------------------- one file


def read_ops(folder: Path) -> OpsFile:
    """The record in a folder of `ddbench bench-ops`."""
    path = folder / FILE
    cure = "measure it with: ddbench bench-ops --ours --out FOLDER"
    text = read_text(path, f"; {cure}", absent=f"{folder}: holds no {FILE}")
    try:
        return from_json(OpsFile, text, str(path))
    except SchemaError as error:
        raise SchemaError(f"{error}; {cure}") from error


def name_of(file: OpsFile) -> str:
    return f"bench-ops {file.created_at}"


def place_of_ops(file: OpsFile) -> dict[str, str]:
    """What must agree before times may be compared."""
    whole = place_of(file.environment)
    is_cpu = file.environment.device == "cpu"
    names = [*(CPU_PLACE if is_cpu else GPU_PLACE), *(f"library {name}" for name in LIBRARIES)]
    how = "few samples" if file.selection == "quick" else "in full"
    return {name: whole[name] for name in names if name in whole} | {"dtype": file.dtype, "measured": how}


def ceilings_of(file: OpsFile) -> dict[str, float]:
    """`read cold`, `matmul`, ...: the geometric mean of before and after the ops."""
    found: dict[str, list[float]] = {}
    for sample in file.ceilings.samples:
        label = sample.kind + (f" {sample.cache}" if sample.cache != "none" else "")
        found.setdefault(label, []).append(sample.amount)
    return {label: geometric_mean(amounts) for label, amounts in found.items()}


def timed_rows(file: OpsFile) -> dict[Key, OkRow]:
    return {(row.op, row.shape, row.implementation, row.cache): row for row in file.rows if isinstance(row, OkRow)}


def counters_of(row: OkRow) -> dict[str, Number]:
    """Exact: a cost of several sets of inputs is the mean over them, the same every time."""
    return {"launches": row.launches, "num_bytes": round(row.num_bytes), "num_flops": round(row.num_flops)}


def _held_rows(file: OpsFile) -> dict[Key, OkRow]:
    """Those that a baseline keeps: of every op at every shape, the foremost kind that was measured."""
    rows = timed_rows(file)
    kinds: dict[tuple[str, str], set[Kind]] = {}
    for row in rows.values():
        kinds.setdefault((row.op, row.shape), set()).add(row.kind)
    found: dict[Key, OkRow] = {}
    controls: dict[tuple[str, str], str] = {}
    for key, row in rows.items():
        if row.kind != foremost(kinds[row.op, row.shape]):
            continue
        first = controls.setdefault((row.op, row.shape), row.implementation)
        if row.kind != "peer" or row.implementation == first:
            found[key] = row
    return found


def _bounds(file: OpsFile) -> dict[Key, str]:
    """The ceiling that the floor of each row consists of."""
    found: dict[Key, str] = {}
    for one in derive(file):
        if isinstance(one, Derived) and not isinstance(one.floor, NotMeasured):
            launch = "replay" if one.row.clock == "graph" else "launch"
            label = {"bytes": f"read {one.row.cache}", "flops": "matmul", "launch": launch}[one.floor.bound]
            found[one.row.op, one.row.shape, one.row.implementation, one.row.cache] = label
    return found


# -------------------------------------------------------------------------------------------------------- all of them


def ops_baseline_of_folders(folders: Sequence[Path]) -> OpsBaseline:
    """The baseline of folders of `ddbench bench-ops`, each given once."""
    return ops_baseline([read_ops(folder) for folder in folders])


def ops_baseline(files: Sequence[OpsFile]) -> OpsBaseline:
    """One or more repeats of the same code, at the same place, of the same ops."""
    names = [name_of(file) for file in files]
    if len(set(names)) < len(names):
        raise UserError(f"a repeat is there twice among {', '.join(names)}: give each folder once")
    for file in files:
        _check_sound(file)
    held = [_held_rows(file) for file in files]
    for file, rows in zip(files, held, strict=True):
        _check_alike(files[0], file, held[0], rows)
    first = files[0]
    ceilings = [ceilings_of(file) for file in files]
    shared = [label for label in ceilings[0] if all(label in one for one in ceilings)]
    return OpsBaseline(
        ddbench_version=first.ddbench_version,
        code_digest=first.environment.code_digest,
        place=place_of_ops(first),
        repeats=tuple(names),
        ceilings={label: tuple(round(one[label], 3) for one in ceilings) for label in shared},
        rows=_rows(held, _bounds(first)),
    )


def _rows(held: Sequence[Mapping[Key, OkRow]], bounds: Mapping[Key, str]) -> tuple[HeldRow, ...]:
    times = {key: tuple(round(one[key].time_ns, 2) for one in held) for key in held[0]}
    gated = [key for key, row in held[0].items() if row.kind != "peer"]
    floors: dict[Key, float] = {}
    if len(held) >= FEWEST_REPEATS and gated:
        floors = dict(zip(gated, shared_floors([times[key] for key in gated], ALARM), strict=True))
    too_few = NotMeasured(not_measured=f"{len(held)} repeats, a noise floor takes at least {FEWEST_REPEATS}")
    control = NotMeasured(not_measured="a control of the machine")
    return tuple(
        HeldRow(
            op=row.op,
            shape=row.shape,
            implementation=row.implementation,
            cache=row.cache,
            kind=row.kind,
            clock=row.clock,
            bound=bounds.get(key, ""),
            counters=_agreed([counters_of(one[key]) for one in held]),
            times_ns=times[key],
            floor=control if row.kind == "peer" else floors.get(key, too_few),
        )
        for key, row in held[0].items()
    )


def _agreed(found: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    """What every repeat counts alike."""
    differs = NotMeasured(not_measured="differs between repeats of the same code")
    return {name: value if all(one[name] == value for one in found) else differs for name, value in found[0].items()}


def _check_sound(file: OpsFile) -> None:
    """A baseline with holes would let what is in them pass."""
    name = name_of(file)
    wrong = [row for row in file.rows if isinstance(row, IncorrectRow) and row.kind != "peer"]
    if wrong:
        row = wrong[0]
        raise DdbenchError(
            f"{name}: {row.op} {row.shape} {row.implementation} is incorrect ({row.detail}): no baseline is made of "
            f"it; mend the code, and measure anew"
        )
    if not any(isinstance(row, OkRow) and row.kind != "peer" for row in file.rows):
        raise DdbenchError(f"{name}: nothing of ours was measured: there is nothing to make a baseline of")


def _check_alike(first: OpsFile, other: OpsFile, rows: Mapping[Key, OkRow], others: Mapping[Key, OkRow]) -> None:
    one, two = name_of(first), name_of(other)
    check_one_code(one, first.environment, two, other.environment)
    changed = differences(place_of_ops(first), place_of_ops(other))
    if changed:
        raise UserError(f"{one} and {two} were measured at different places: {', '.join(changed)}")
    apart = sorted(set(rows) ^ set(others))
    if apart:
        lacking = other if apart[0] in rows else first
        raise UserError(
            f"{one} and {two} did not measure the same: {' '.join(apart[0])} is in one of them only"
            + _why_absent(lacking, apart[0])
        )


def _why_absent(file: OpsFile, key: Key) -> str:
    found = absence(file, key)
    return f" ({found.reason})" if isinstance(found, NotMeasuredRow) else ""


def absence(file: OpsFile, key: Key) -> IncorrectRow | NotMeasuredRow | None:
    """What a file has in place of a time."""
    return next(
        (row for row in file.rows if not isinstance(row, OkRow) and (row.op, row.shape, row.implementation) == key[:3]),
        None,
    )


# --------------------------------------------------------------------------------------------------------------- file


def ops_baseline_text(baseline: OpsBaseline) -> str:
    """JSON with one line for every row and every ceiling, so that a new baseline can be read as a difference."""
    data = baseline.model_dump(mode="json")
    rows, ceilings = data.pop("rows"), data.pop("ceilings")
    head = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False).removesuffix("\n}")
    kept = ",\n".join(f"  {json.dumps(label)}: {json.dumps(values)}" for label, values in ceilings.items())
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{head},\n "ceilings": {{\n{kept}\n }},\n "rows": [\n{lines}\n ]\n}}\n'


def write_ops_baseline(path: Path, baseline: OpsBaseline) -> None:
    write_out(path, ops_baseline_text(baseline), "file")


def read_ops_baseline(path: Path) -> OpsBaseline:
    """A file that is absent, damaged or of another kind is a SchemaError with its cure."""
    cure = f"make one of {KEPT['ops'].partition(' (')[0]} with: ddbench qualify --ops --out {path}"
    return read_kept(OpsBaseline, path, "ops", SCHEMA_VERSION, cure)
