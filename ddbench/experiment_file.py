"""A TOML file -> `ExperimentSpec`. Every fault is one line that names the file, the key and what is expected.

question = "..."    name: the file's
[engine] [on_gpu] [workload] [capture]    fields of the specs
[axes] [ablate]    field = [values]
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddbench.errors import UserError, did_you_mean, shown
from ddbench.files import why_unread
from ddbench.spec import AXIS_MODELS, Axis, EngineSpec, ExperimentSpec, first_message, make_axis, with_tuples


def experiment_files() -> dict[str, Path]:
    """Shipped experiments by name."""
    import ddbench.experiments

    folders = [Path(folder) for folder in ddbench.experiments.__path__]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def find_experiment(name: str) -> ExperimentSpec:
    """A shipped experiment by name, or any TOML file by path."""
    files = experiment_files()
    if name in files:
        return load_experiment(files[name])
    path = Path(name)
    if path.suffix == ".toml" and path.stem in files and not path.exists():
        raise UserError(f"{path}: there is no such file: did you mean the experiment '{path.stem}'?")
    if path.suffix == ".toml":
        return load_experiment(path)
    raise UserError(f"unknown experiment {shown(name)}: {did_you_mean(name, files)}; or give the path of a .toml file")


def load_experiment(path: Path) -> ExperimentSpec:
    """Read a TOML experiment. Every fault is one line naming the file, the key and what is expected."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        hint = did_you_mean(path.name, (other.name for other in path.parent.glob("*.toml")))
        raise UserError(f"{path}: there is no such file; TOML files in its folder: {hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({why_unread(error)}); expected a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    return experiment_from_mapping(data, name=path.stem, where=str(path))


def experiment_from_mapping(data: dict[str, Any], name: str, where: str) -> ExperimentSpec:
    """Turn a TOML document (`[engine]`, `[on_gpu]`, `[workload]`, `[capture]`, `[axes]`, `[ablate]`) into a spec."""
    _reject_unknown(data, (*ExperimentSpec.model_fields,), where)
    _reject_unknown(data.get("on_gpu", {}), tuple(EngineSpec.model_fields), f"{where} [on_gpu]")
    for owner, model in AXIS_MODELS.items():
        _reject_unknown(data.get(owner, {}), tuple(model.model_fields), f"{where} [{owner}]")
    fields: dict[str, Any] = {"name": name, **with_tuples(data)}
    for key in ("axes", "ablate"):
        try:
            fields[key] = _axes_of(data.get(key, {}))
        except UserError as error:
            raise UserError(f"{where} [{key}]: {error}") from error
    for axis in fields["axes"]:
        if axis.name in data.get(axis.owner, {}):
            raise UserError(f"{where}: '{axis.name}' is fixed in [{axis.owner}] and varied in [axes]: keep one of them")
    try:
        return ExperimentSpec.model_validate(fields, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_message(error)}") from error


def _axes_of(table: Any) -> tuple[Axis, ...]:
    if not isinstance(table, dict):
        raise UserError(f"expected a table of axis = [values], got {shown(table)}")
    return tuple(
        make_axis(axis, tuple(values) if isinstance(values, list) else (values,)) for axis, values in table.items()
    )


def _reject_unknown(table: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(table, dict):
        raise UserError(f"{where}: expected a table of key = value, got {shown(table)}")
    for key in table:
        if key not in known:
            raise UserError(f"{where}: unknown key {shown(key)}: {did_you_mean(key, known)}")
