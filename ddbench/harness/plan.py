"""From a question to the cases that answer it: ExperimentSpec -> Plan of runnable cases and skipped ones with reasons.

First step of a sweep. A plan is a pure function of the experiment and of what the engine can do (`Capabilities`), so
that it can be printed, tested and resumed without running anything.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from ddbench.errors import UnsupportedVariant, UserError, did_you_mean
from ddbench.records import SkippedCase
from ddbench.spec import (
    ARMS,
    LABELLED,
    PART_FIELDS,
    UNUSED,
    Axis,
    Case,
    Device,
    EngineSpec,
    ExperimentSpec,
    Record,
    WorkloadSpec,
    first_message,
)

RecordT = TypeVar("RecordT", bound=Record)

MAX_CASES = 10_000  # blocks included; a plan beyond is a slip of the pen, and would take weeks
_READ_WITH = {
    "temperature": "sampling 'stochastic'",
    "oracle_quality": "draft 'oracle'",
    "oracle_profile": "draft 'oracle' without oracle_quality",
    "block_size": "an arm that drafts",
    "drafter": "an arm with a drafter",
    "node_budget": "the arm 'ddtree'",
}  # what has to be in a plan for these fields to be read


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine can do, as far as a plan needs to know."""

    variants: Mapping[str, Collection[str]]  # part field -> names
    absence: Callable[[EngineSpec], str | None]  # which choice cannot be had on the spec's device; None: all can
    check_target: Callable[[str], object]  # raises a UserError for an unknown target
    supports: Callable[[EngineSpec], str | None]  # why a combination cannot run; None: it can


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases in execution order, and the points that cannot be run."""

    experiment: ExperimentSpec
    cases: tuple[Case, ...]
    skipped: tuple[SkippedCase, ...]


def engine_capabilities() -> Capabilities:
    """What the engine of this package can do. Imports torch."""
    from ddbench.engine.parts import PARTS, absence, supports
    from ddbench.models.weights import checkpoint_folder, pair_shapes

    def reason_against(spec: EngineSpec) -> str | None:
        shapes = pair_shapes(spec)
        return supports(spec, shapes.target, shapes.drafter)

    return Capabilities(
        variants=PARTS,
        absence=absence,
        check_target=checkpoint_folder,
        supports=reason_against,
    )


def with_overrides(
    experiment: ExperimentSpec,
    *,
    arms: Sequence[str] = (),
    axes: Sequence[Axis] = (),
    engine: Mapping[str, Any] | None = None,
    num_blocks: int | None = None,
    seed: int | None = None,
) -> ExperimentSpec:
    """The experiment with what a command line says put in place.

    An axis replaces one of the same name or is added; so does a fixed engine field. Arms that leave out the ablated one
    leave out its variants too. On a GPU the experiment's `on_gpu` counts and `kernels` are 'triton', where the command
    line says nothing else.
    """
    new = {axis.name for axis in axes}
    fixed = {name for name, value in (engine or {}).items() if value is not None and name != "device"}
    for name in sorted(new & fixed):
        raise UserError(f"--{name} and --set {name}=... are both given: keep one of them")
    kept = [axis for axis in experiment.axes if axis.name not in new | fixed]
    chosen = tuple(dict.fromkeys(arms)) or experiment.arms
    changes = {
        "arms": chosen,
        "ablate": experiment.ablate if not arms or experiment.ablate_arm in chosen else (),
        "axes": (*kept, *axes),
        "engine": _engine(experiment, {name: value for name, value in (engine or {}).items() if value is not None}),
        "num_blocks": num_blocks if num_blocks is not None else experiment.num_blocks,
        "seed": seed if seed is not None else experiment.seed,
    }
    return _changed(experiment, changes)


def _engine(experiment: ExperimentSpec, changes: Mapping[str, Any]) -> EngineSpec:
    """The engine on its device; an axis or an ablation changes this base."""
    engine = _changed(experiment.engine, changes)
    if engine.device != "cuda":
        return engine
    usual = {} if "kernels" in engine.model_fields_set else {"kernels": "triton"}
    return _changed(engine, usual | {k: v for k, v in experiment.on_gpu.items() if k not in changes})


def make_plan(experiment: ExperimentSpec, can: Capabilities) -> Plan:
    """Every case of the experiment once per block, in a seeded order.

    Cases that are compared with each other (same workload, target, precision, device) stand together, `ar` first in
    block 0 because its output is what the others are held against. Odd blocks run in the reverse order of the block
    before (ABBA), so that a steady drift of the machine cancels in every pair.
    """
    _check_axes(experiment)
    _check_size(experiment)
    unique = list(dict.fromkeys(_candidates(experiment)))
    for case in unique:
        _check_values(case, can)
    absent = _with_reasons(unique, lambda case: can.absence(case.engine))
    misfits = _with_reasons([case for case in unique if case not in absent], lambda case: can.supports(case.engine))
    _check_fit(experiment, unique, misfits)
    skipped = {case: (absent | misfits)[case] for case in unique if case in absent or case in misfits}
    runnable = [case for case in unique if case not in skipped]
    blocks = (_ordered(runnable, experiment.seed, block) for block in range(experiment.num_blocks))
    return Plan(
        experiment=experiment,
        cases=tuple(itertools.chain.from_iterable(blocks)),
        skipped=tuple(SkippedCase(arm=case.arm, label=case.label, reason=why) for case, why in skipped.items()),
    )


def reference_key(case: Case) -> str:
    """What decides a greedy output: cases that agree here must emit the same tokens as their `ar` case."""
    engine = case.engine
    about_target = (engine.target, engine.dtype, engine.device, engine.experts, engine.num_threads, engine.seed)
    return f"{case.workload.digest()} {about_target}"


def case_key(case: Case) -> dict[str, Any]:
    """What makes a case itself: everything but how it is labelled."""
    return case.model_dump(mode="json", exclude={"shown"})


# -------------------------------------------------------------------------------------------------- enumeration


def _candidates(experiment: ExperimentSpec) -> Iterator[Case]:
    names = [axis.name for axis in experiment.axes]
    for values in itertools.product(*(axis.values for axis in experiment.axes)):
        point = dict(zip(names, values, strict=True))
        for arm in experiment.arms:
            yield _case(experiment, arm, point)
        for axis in experiment.ablate:
            for value in axis.values:
                yield _variant(experiment, point, axis.name, value)


def _case(experiment: ExperimentSpec, arm: str, point: dict[str, Any], change: dict[str, Any] | None = None) -> Case:
    """One case: the experiment's specs, the axes' values, one changed field, and what the arm pins, in that order."""
    values = {**point, **(change or {})}
    engine = _changed(experiment.engine, {**_owned(EngineSpec, values), **ARMS[arm]})
    engine = _changed(engine, {name: EngineSpec.model_fields[name].default for name in _idle_fields(engine)})
    return Case(
        arm=arm,
        engine=engine,
        workload=_changed(experiment.workload, _owned(WorkloadSpec, values)),
        capture=_changed(experiment.capture, _owned(type(experiment.capture), values)),
        shown=tuple(axis.name for axis in experiment.axes if _is_shown(axis) and _is_read(axis.name, arm, engine)),
    )


def _variant(experiment: ExperimentSpec, point: dict[str, Any], name: str, value: Any) -> Case:
    """The ablated arm with one field changed. Its label says so, or it would be the arm's own."""
    case = _case(experiment, experiment.ablate_arm, point, {name: value})
    is_said = name in (*LABELLED, *case.shown) or case == _case(experiment, experiment.ablate_arm, point)
    return case if is_said else case.model_copy(update={"shown": (*case.shown, name)})


def _is_shown(axis: Axis) -> bool:
    return axis.owner != "capture" and axis.name != "concurrency" and len(axis.values) > 1


def _is_read(name: str, arm: str, engine: EngineSpec) -> bool:
    """Whether a case of this arm and engine takes notice of the field at all."""
    return name not in ARMS[arm] and name not in _idle_fields(engine)


def _owned(model: type[Record], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in model.model_fields}


def _changed(record: RecordT, changes: Mapping[str, Any]) -> RecordT:
    """A validated copy; fields that were never set stay unset."""
    given = {name: getattr(record, name) for name in record.model_fields_set}
    try:
        return type(record)(**{**given, **changes})
    except ValidationError as error:
        raise UserError(first_message(error)) from error


def _idle_fields(engine: EngineSpec) -> set[str]:
    """Fields that this combination never reads: they stay at their defaults, so that they do not multiply a case."""
    idle: set[str] = set()
    if engine.sampling == "greedy":
        idle.add("temperature")
    if engine.draft != "oracle":
        idle.add("oracle_quality")
    if engine.draft != "oracle" or engine.oracle_quality:
        idle.add("oracle_profile")
    if engine.draft == UNUSED:
        idle.update(("block_size", "drafter"))
    if engine.draft == "prompt_lookup":
        idle.add("drafter")
    return idle


# --------------------------------------------------------------------------------------------------------- checks


def _check_axes(experiment: ExperimentSpec) -> None:
    for where, axes in (("axes", experiment.axes), ("ablate", experiment.ablate)):
        names = [axis.name for axis in axes]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"[{where}]: axis '{name}' is there twice")
            if name == "device":
                raise UserError(f"[{where}]: a run has one device: use --device, and report two runs together")
    for axis in experiment.ablate:
        if axis.name in ARMS[experiment.ablate_arm]:
            raise UserError(
                f"[ablate]: '{axis.name}' is what defines the arm '{experiment.ablate_arm}': "
                f"ablate a field that the arm leaves open, or compare with another arm"
            )


def _check_size(experiment: ExperimentSpec) -> None:
    points = math.prod(len(axis.values) for axis in experiment.axes)
    variants = len(experiment.arms) + sum(len(axis.values) for axis in experiment.ablate)
    if points * variants * experiment.num_blocks > MAX_CASES:
        raise UserError(
            f"the plan has {points} points x {variants} arms and variants x {experiment.num_blocks} blocks, at most "
            f"{MAX_CASES} cases are possible: give the axes fewer values"
        )


def check_axes_are_read(experiment: ExperimentSpec, axes: Sequence[Axis]) -> None:
    """An axis that was asked for just now and that no case takes notice of is a slip, not a plan."""
    cases = list(_candidates(experiment))
    for axis in axes:
        if not any(_is_read(axis.name, case.arm, case.engine) for case in cases):
            needs = f"; it takes {_READ_WITH[axis.name]}" if axis.name in _READ_WITH else ""
            raise UserError(f"axis '{axis.name}' has no effect: no case of the plan reads it{needs}")


def _check_fit(experiment: ExperimentSpec, cases: Sequence[Case], misfits: Mapping[Case, str]) -> None:
    """Single values that do not fit are skipped; an axis, or a block size, of which nothing fits is a wrong request."""
    asked = [(axis.name, axis.values) for axis in (*experiment.axes, *experiment.ablate)]
    if experiment.engine.block_size is not None:
        asked.append(("block_size", (experiment.engine.block_size,)))
    for name, values in asked:
        readers = [case for case in cases if case.field(name) in values and _is_read(name, case.arm, case.engine)]
        if name == "block_size":  # prompt lookup takes any block, but it is the drafter that is asked about
            readers = [case for case in readers if case.engine.materialize != UNUSED]
        if readers and all(case in misfits for case in readers):
            raise UserError(misfits[readers[0]])


def _check_values(case: Case, can: Capabilities) -> None:
    """Names that exist nowhere are an error of the request; those that lack a device are skipped later."""
    can.check_target(case.engine.target)
    for field in PART_FIELDS:
        name = getattr(case.engine, field)
        known = can.variants.get(field, ())
        if name not in known and not (name == UNUSED and field in ARMS[case.arm]):
            raise UnsupportedVariant(f"{field}: unknown variant '{name}': {did_you_mean(name, known)}")


def _with_reasons(cases: Sequence[Case], reason_against: Callable[[Case], str | None]) -> dict[Case, str]:
    return {case: reason for case in cases if (reason := reason_against(case)) is not None}


# ---------------------------------------------------------------------------------------------------------- order


def _ordered(cases: Sequence[Case], seed: int, block: int) -> list[Case]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(reference_key(case), []).append(case)
    ordered: list[Case] = []
    for index, group in enumerate(groups.values()):
        shuffled = list(group)
        random.Random(f"{seed}/{block // 2}/{index}").shuffle(shuffled)
        ordered += sorted(shuffled, key=lambda case: case.arm != "ar")  # stable: only moves `ar` to the front
    if block % 2:
        ordered.reverse()
    return [case.model_copy(update={"block": block}) for case in ordered]


def resolve_device(requested: Device | None, experiment: ExperimentSpec) -> Device:
    """The command line's device, else the experiment's, else a GPU where torch sees one."""
    return default_device(
        requested or (experiment.engine.device if "device" in experiment.engine.model_fields_set else None)
    )


def default_device(requested: Device | None) -> Device:
    """The device asked for, else a GPU where torch sees one. Imports torch."""
    import torch

    has_gpu = torch.cuda.is_available()
    if requested == "cuda" and not has_gpu:
        raise UserError("device 'cuda': torch sees no CUDA device here; use --device cpu")
    return requested or ("cuda" if has_gpu else "cpu")
