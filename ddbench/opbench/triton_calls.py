"""Triton launchers, imported when they are first called: triton is an extra, and where it is missing a row says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddbench.opbench.shapes import Call, Implementation, Inputs, Shape
from ddbench.ops import TritonLauncher, why_no_triton


def launcher(stem: str, name: str = "") -> Callable[..., Any]:
    """`name` (without: the stem's own launcher) of kernels/<stem>_triton.py."""
    return TritonLauncher(stem, name).load()


def why_not_triton(shape: Shape, device: str) -> str | None:
    """Of every shape alike."""
    return why_no_triton(device)


def triton_kernel(prepare: Callable[[Inputs], Call], name: str = "triton") -> Implementation:
    """A row of ours."""
    return Implementation(name, "ours", prepare, why_not=why_not_triton)


def launch(stem: str, name: str = "", *chosen: str) -> Callable[[Inputs], Call]:
    """`prepare` of a launcher that takes the inputs as they are (or those chosen)."""

    def prepare(inputs: Inputs) -> Call:
        function = launcher(stem, name)
        arguments = {key: inputs[key] for key in chosen} if chosen else inputs
        return lambda: function(**arguments)

    return prepare
