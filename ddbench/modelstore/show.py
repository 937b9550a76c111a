"""What `ddbench models list` and `show` print: every name with its facts; a model's configuration, tensors, digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from ddbench.errors import UserError
from ddbench.models.catalog import architecture, catalog, num_parameters, weight_bytes
from ddbench.models.checkpoints import published
from ddbench.models.checkpoints.fetchable import SOURCE
from ddbench.models.checkpoints.files import read_json
from ddbench.models.shapes import DRAFTERS, TARGETS
from ddbench.models.weights import check_files, checkpoint_folder, pair_shapes, published_digest
from ddbench.spec import ARMS, EngineSpec
from ddbench.units import byte_count, rate
from ddbench.wheels import sha256_of

PROVENANCE = ("about", "licence", "package", "file", "file_sha256", "converted_by")


def models_table() -> Table:
    """Every target that has a name."""
    table = Table(title="Models", title_justify="left", title_style="bold", header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("weights")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("acceptance", overflow="fold")
    for one in catalog():
        parameters = rate(one.num_parameters, "").replace(" ", "")
        table.add_row(one.name, one.weights, parameters, byte_count(one.num_bytes), one.licence, one.acceptance)
    return table


def show(name: str, target: str | None) -> Iterator[Table]:
    """The tables of a model or of a folder; whatever does not fit raises what loading it would raise."""
    if target is not None:
        yield from _drafter(name, target)
        return
    folder = checkpoint_folder(name)
    if folder is None:
        yield _facts(f"{name}: a shape, its weights are random", _size(TARGETS[name]) | _flat(TARGETS[name]))
        if name in DRAFTERS:
            yield _facts(DRAFTERS[name].name, _flat(DRAFTERS[name]))
        return
    spec = EngineSpec(target=name, **ARMS["ar"])
    shapes = pair_shapes(spec)
    check_files(spec)
    facts = {"folder": str(folder), **_source(folder), "digest": _digest(spec, folder)}
    yield _facts(name, facts | _size(shapes.target) | _flat(shapes.target))
    if shapes.drafter is not None:
        yield _facts(shapes.drafter.name, _flat(shapes.drafter))
    if shapes.is_streamed:
        yield _tensors(published.target_layout(folder, published.published_target(folder)))


def _drafter(name: str, target: str) -> Iterator[Table]:
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"'{name}' is no folder: with --target, expected one that holds a drafter")
    spec = EngineSpec(target=target, drafter=name)
    shapes = pair_shapes(spec)
    if shapes.drafter is None or not published.is_published(folder):
        raise UserError(f"{folder}: a folder of the lab's own: leave out --target")
    layout = published.drafter_layout(folder, shapes.drafter)
    facts = {"folder": str(folder), "for target": target, "digest": published.digest(folder)}
    yield _facts(shapes.drafter.name, facts | _flat(shapes.drafter))
    yield _tensors(layout)


def _digest(spec: EngineSpec, folder: Path) -> str:
    return published_digest(spec) or sha256_of(folder / "target.safetensors")[:16]


def _source(folder: Path) -> dict[str, Any]:
    """Where a fetched model came from."""
    path = folder / SOURCE
    if not path.is_file():
        return {}
    source = read_json(path)
    return {name: source[name] for name in PROVENANCE if name in source}


def _size(shape: Any) -> dict[str, Any]:
    return {
        "architecture": architecture(shape),
        "parameters": f"{num_parameters(shape):,}",
        "size in bf16": byte_count(weight_bytes(shape)),
    }


def _flat(record: BaseModel, prefix: str = "") -> dict[str, Any]:
    """The fields of a shape, those of tables below it with dotted names; what is not set is left out."""
    found: dict[str, Any] = {}
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, BaseModel):
            found |= _flat(value, f"{prefix}{name}.")
        elif value not in (None, ()) and not (name == "name" and not prefix):
            found[f"{prefix}{name}"] = value
    return found


def _facts(title: str, facts: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column("fact")
    table.add_column("value", overflow="fold")
    for name, value in facts.items():
        text = ", ".join(str(one) for one in value) if isinstance(value, tuple) else str(value)
        table.add_row(Text(name), Text(text))
    return table


def _tensors(layout: published.Layout) -> Table:
    """Tensors by file and type; all of them have found their place."""
    table = Table(title="Tensors", title_justify="left", title_style="bold")
    table.add_column("file")
    table.add_column("type")
    table.add_column("tensors", justify="right")
    table.add_column("values", justify="right")
    numbers: Counter[tuple[str, str]] = Counter()
    values: Counter[tuple[str, str]] = Counter()
    for one in layout.stored.values():
        numbers[one.file.name, one.dtype] += 1
        values[one.file.name, one.dtype] += one.num_values
    for file, dtype in sorted(numbers):
        table.add_row(Text(file), dtype, f"{numbers[file, dtype]:,}", f"{values[file, dtype]:,}")
    return table
