"""What an op of the benchmark is: named shapes, inputs made on the device, implementations, what its result is.

The tables themselves stand by group in `materialize.py`, `drafting.py`, `attention.py`, `experts.py`, `accepting.py`,
`fused.py` and `dense.py`, and together in `table.py`. A shape is one line in its op's table; an implementation is a
name and a function that gets inputs ready (masks, packed bits: what an engine makes once for all layers) and returns
the call that is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ddbench.opbench.records import Kind, Target
from ddbench.testing import named_tensors

Inputs = dict[str, Any]
Call = Callable[[], Any]
Tensors = dict[str, torch.Tensor]
Tier = Literal["quick", "default", "full"]  # quick ones also run on a CPU; each tier includes those before it
TIERS: tuple[Tier, ...] = ("quick", "default", "full")


@dataclass(frozen=True, slots=True)
class Shape:
    """One named size of an op. `dims` are the arguments of the op's `build`."""

    name: str
    about: str
    tier: Tier
    dims: Mapping[str, int]
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where inputs are made, and in which precision."""

    device: str
    dtype: torch.dtype

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def randn(self, generator: torch.Generator, *sizes: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=self.device, dtype=self.dtype).mul_(scale)

    def integers(self, generator: torch.Generator, limit: int, *sizes: int) -> torch.Tensor:
        return torch.randint(limit, sizes, generator=generator, device=self.device)


def always(shape: Shape, device: str) -> str | None:
    """An implementation that serves every shape everywhere."""
    return None


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an op."""

    name: str
    kind: Kind
    prepare: Callable[[Inputs], Call]
    has_host_sync: bool = False  # cannot be captured: timed by the host's clock
    checked: tuple[str, ...] = ()  # results that it has in common with the others; empty: all
    why_not: Callable[[Shape, str], str | None] = always
    prepare_sets: Callable[[Sequence[Inputs]], list[Call]] | None = None  # where sets share what is costly to make

    def calls(self, sets: Sequence[Inputs]) -> list[Call]:
        """One call for every set of inputs."""
        return [self.prepare(inputs) for inputs in sets] if self.prepare_sets is None else self.prepare_sets(sets)


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def clone_set(inputs: Inputs, index: int = 0) -> Inputs:
    """Another set of inputs: the same values at other addresses."""
    return {name: _mapped(value, torch.clone) for name, value in inputs.items()}


def upcast(inputs: Inputs) -> Inputs:
    """A copy with what is in a lower precision in fp32."""

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        is_low = tensor.is_floating_point()
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True) if is_low else tensor.clone()

    return {name: _mapped(value, wide) for name, value in inputs.items()}


def returned(inputs: Inputs, result: Any) -> Tensors:
    """The tensors that a call returned."""
    return named_tensors(result, "result")


@dataclass(frozen=True, slots=True)
class BenchOp:
    """One op. `oracle` is what results are held against, run on inputs in fp32 and in their own precision."""

    name: str
    build: Callable[..., Inputs]  # (place, seed, **dims)
    cost: Callable[[Inputs], dict[str, int]]  # {"bytes": fewest bytes, "flops": flops}
    oracle: Callable[[Inputs], Any]
    implementations: tuple[Implementation, ...]
    shapes: tuple[Shape, ...]
    results: Callable[[Inputs, Any], Tensors] = returned
    another: Callable[[Inputs, int], Inputs] = clone_set  # set number `index` >= 1, as good as the first
    is_exact: bool = False  # results decide or are moved: the oracle keeps the inputs' precision, and all must be equal
    floor_error: float = 0.004  # always allowed; half a unit in the last place of bf16
    moves_inputs: bool = False  # a second call finds other inputs than the first: expected anew for each implementation
    is_shared: bool = False  # `another` shares the large tensors with the first set: memory does not limit the sets
    max_sets: int = 48  # different ones that `another` can make


def plain(function: Callable[..., Any], *names: str, **extra: Any) -> Callable[[Inputs], Call]:
    """`prepare` of a function that takes the inputs as they are (or those named)."""

    def prepare(inputs: Inputs) -> Call:
        chosen = {name: inputs[name] for name in names} if names else inputs
        return lambda: function(**chosen, **extra)

    return prepare
