"""Which kernels of ours an engine launched. Some launchers choose between two by shape, type and GPU; what was chosen
is observed, not foretold.

Triton tells every launch to its hooks, also one that becomes a node of a graph. Hooks take time, so they are in place
in what is not timed: while graphs are recorded, and while ops are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ddbench.spec import EngineSpec

KERNELS = "ddbench.kernels."


@contextmanager
def launches_seen(spec: EngineSpec, names: set[str]) -> Iterator[None]:
    """Add the name of every Triton or Gluon kernel that is launched within."""
    if spec.device != "cuda" or not (spec.kernels == "triton" or spec.attention == "tree_triton"):
        yield
        return
    from triton import knobs

    def launched(metadata: Any) -> None:
        names.add(metadata.get()["name"])

    knobs.runtime.launch_enter_hook.add(launched)
    try:
        yield
    finally:
        knobs.runtime.launch_enter_hook.remove(launched)


def by_file(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Files below `kernels`, without suffix -> those of the kernels that they hold; what is not ours is left out."""
    found = {module.removeprefix(KERNELS): sorted(set(names) & held) for module, held in _held().items()}
    return {file: tuple(kernels) for file, kernels in sorted(found.items()) if kernels}


def _held() -> Mapping[str, set[str]]:
    """Kernels by the module that they are written in, of those that are loaded."""
    modules = {name: module for name, module in sys.modules.items() if name.startswith(KERNELS)}
    return {
        name: {one.__name__ for one in vars(module).values() if _is_kernel(one) and one.__module__ == name}
        for name, module in modules.items()
    }


def _is_kernel(value: Any) -> bool:
    """What `triton.jit` and `gluon.jit` make; under Triton's interpreter as well."""
    return hasattr(value, "fn") and hasattr(value, "arg_names") and hasattr(value, "__name__")
