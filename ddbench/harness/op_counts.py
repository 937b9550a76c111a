"""Counts what the engine asks of torch: ops per stage, and reads of a value back to the host. Exact, on any machine.

A short pass of its own, after the timed ones: the first few requests, a few tokens each, under a dispatch mode. What is
counted is the engine's own doing and no property of the machine, so a gate may hold it without statistics. An op is not
a kernel: views launch none, and some ops launch several; launches are counted where there is a GPU to launch on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ddbench.engine.engine import Engine
from ddbench.engine.stages import Stage
from ddbench.engine.types import Request, RoundOutcome
from ddbench.harness.capture import CleanProbe

COUNTED_TOKENS = 8  # per request: enough for a prompt's first round and some more
_OUTSIDE = ""  # no round is running: prefills are not counted
_BETWEEN = "host"  # within a round, between its stages

_aten = torch.ops.aten
# The value, or the shape of the result, has to be known on the host before the next line can run.
_READING_OPS = frozenset(
    (
        _aten._local_scalar_dense.default,
        _aten.nonzero.default,
        _aten.masked_select.default,
        _aten._unique2.default,
        _aten.unique_dim.default,
        _aten.repeat_interleave.Tensor,
        _aten.equal.default,
    )
)
_INDEX_OPS = frozenset((_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default))
_Tensor = torch.Tensor
_READING_METHODS = frozenset(
    (
        _Tensor.tolist,
        _Tensor.numpy,
        _Tensor.item,
        _Tensor.__bool__,
        _Tensor.__int__,
        _Tensor.__float__,
        _Tensor.__index__,
    )
)


class _Tally:
    """Where the engine is, and what it asked for there."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.place = _OUTSIDE
        self.is_reading = False  # within a method that counts as one read, whatever it dispatches
        self.ops: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def counters(self, num_steps: int) -> dict[str, int]:
        found = {"counted_steps": num_steps}
        for name, tally in (("torch_ops", self.ops), ("host_reads", self.reads)):
            found[name] = tally.total()
            found.update({f"{name}.{place}": count for place, count in sorted(tally.items())})
        return found

    def add_read(self) -> None:
        if self.place != _OUTSIDE and not self.is_reading:
            self.reads[self.place] += 1


class _CountOps(TorchDispatchMode):
    """Every op that reaches the dispatcher, and those that need an answer from the device."""

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self._tally = tally

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._tally.place != _OUTSIDE:
            self._tally.ops[self._tally.place] += 1
            if func in _READING_OPS or _has_mask_index(func, args):
                self._tally.add_read()
        result = func(*args, **(kwargs or {}))
        if _leaves_device(self._tally.device, args, result):
            self._tally.add_read()
        return result


class _CountReads(TorchFunctionMode):
    """Methods that hand values to Python without an op of their own."""

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self._tally = tally

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _READING_METHODS or self._tally.is_reading or args[0].device.type != self._tally.device:
            return func(*args, **(kwargs or {}))
        self._tally.add_read()
        self._tally.is_reading = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._tally.is_reading = False


def _has_mask_index(func: Any, args: Sequence[Any]) -> bool:
    """Indexing by a mask: its result is as long as the mask has ones."""
    if func not in _INDEX_OPS:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _leaves_device(device: str, args: Sequence[Any], result: Any) -> bool:
    """A copy from the engine's device to the host."""
    if device == "cpu" or not isinstance(result, torch.Tensor) or result.device.type != "cpu":
        return False
    return any(isinstance(arg, torch.Tensor) and arg.device.type == device for arg in args)


class _CountProbe(CleanProbe):
    """Tells the tally where the engine is."""

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self._tally = tally

    def round_started(self, batch_size: int) -> None:
        super().round_started(batch_size)
        self._tally.place = _BETWEEN

    def committed(self, outcome: RoundOutcome) -> None:
        super().committed(outcome)
        self._tally.place = _OUTSIDE

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        return self._at(stage.value) if self._tally.place != _OUTSIDE else super().stage(stage)

    @contextmanager
    def _at(self, place: str) -> Iterator[None]:
        before, self._tally.place = self._tally.place, place
        try:
            yield
        finally:
            self._tally.place = before


def count_ops(engine: Engine, requests: Sequence[Request], concurrency: int) -> dict[str, int]:
    """Counters of the rounds of as many requests as fill the batch, `COUNTED_TOKENS` tokens each.

    `torch_ops` and `host_reads`, in all and by stage (`torch_ops.verify`); `host` is a round's work between its stages.
    """
    chosen = [
        replace(request, max_new_tokens=min(request.max_new_tokens, COUNTED_TOKENS))
        for request in requests[:concurrency]
    ]
    engine.run(chosen, concurrency)  # what is made once per shape counts for no round
    tally = _Tally(engine.spec.device)
    probe = _CountProbe(tally)
    with _CountReads(tally), _CountOps(tally):
        engine.run(chosen, concurrency, probe)
    return tally.counters(len(probe.commits))
