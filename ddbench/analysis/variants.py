"""One-factor-at-a-time variants of an experiment's ablated arm, each with the setting that it is a variant of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.analysis.settings import Setting, Study
from ddbench.analysis.values import missing
from ddbench.records import Manifest, NotMeasured
from ddbench.spec import EngineSpec, ExperimentSpec


@dataclass(frozen=True)
class Variant:
    """`setting` is `base` with the field `axis` set to `value`."""

    setting: Setting
    base: Setting | NotMeasured
    axis: str
    value: Any


def variants_of(study: Study, manifests: Sequence[Manifest]) -> tuple[Variant, ...]:
    """Every variant of every run, in reading order."""
    experiments = {manifest.run_id: manifest.experiment for manifest in manifests}
    found = []
    for setting in study.settings:
        variant = _variant(setting, experiments[setting.run], study)
        if variant is not None:
            found.append(variant)
    return tuple(found)


def _variant(setting: Setting, experiment: ExperimentSpec, study: Study) -> Variant | None:
    if setting.arm != experiment.ablate_arm:
        return None
    swept = {axis.name for axis in experiment.axes}
    changed = [
        axis.name
        for axis in experiment.ablate
        if axis.name not in swept and _asked(setting, axis.name) != _asked(experiment, axis.name)
    ]
    if len(changed) != 1:
        return None
    name = changed[0]
    return Variant(setting, _base(setting, name, experiment, study), name, _asked(setting, name))


def _base(setting: Setting, name: str, experiment: ExperimentSpec, study: Study) -> Setting | NotMeasured:
    default = _asked(experiment, name)
    if name in EngineSpec.model_fields:
        wanted = (setting.engine.model_copy(update={name: default}), setting.workload)
    else:
        wanted = (setting.engine, setting.workload.model_copy(update={name: default}))
    for other in study.settings:
        if other.run == setting.run and other.arm == setting.arm and (other.engine, other.workload) == wanted:
            return other
    return missing(f"the run has no case with {name}={default} to compare with")


def _asked(of: Setting | ExperimentSpec, name: str) -> Any:
    """What a setting, or a whole experiment, asks for in a field of engine or workload."""
    return getattr(of.engine, name, getattr(of.workload, name, None))
