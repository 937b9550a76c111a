"""Run the points of a selection one after the other: make inputs, check, time, free.

A point's inputs live only while its implementations are measured. An implementation that fails is a row with its
reason, and the next one goes on; where the device itself is lost, all later rows say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ddbench.opbench.correct import Expected, check, expectation
from ddbench.opbench.records import Cache, IncorrectRow, NotMeasuredRow, OkRow, OpRow
from ddbench.opbench.shapes import BenchOp, Call, Implementation, Inputs, Place
from ddbench.opbench.table import Point
from ddbench.opbench.timing import Budget, Rotation, Timing, Watch, rotation, time_calls
from ddbench.records import NotMeasured

SEED = 20250101
INTERRUPTED = "the run was interrupted before"
SETS_BYTES = 4 << 30  # that copies of a set of inputs may take together
FAILURES: tuple[type[Exception], ...] = (RuntimeError, ValueError, AssertionError, IndexError, TypeError, MemoryError)


class DeviceLost(Exception):
    """The device answers no more: nothing can be measured in this process any longer."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every point is measured with."""

    place: Place
    watch: Watch
    budget: Budget


@dataclass(frozen=True, slots=True)
class Prepared:
    """A point's inputs: what is expected of the first set, all sets, and the mean cost over them."""

    sets: tuple[Inputs, ...]
    expected: Expected
    turn: Rotation
    num_bytes: float
    num_flops: float
    first_cost: dict[str, int]


def run_points(
    points: Sequence[Point],
    bench: Bench,
    started: Callable[[Point, Implementation], None],
    finished: Callable[[Sequence[OpRow]], None],
) -> tuple[OpRow, ...]:
    """All rows in order. `started` and `finished` are told of every implementation."""
    rows: list[OpRow] = []
    lost = ""
    for point in points:
        prepared: Prepared | str | None = None  # made when the first implementation that can run here needs it
        for implementation in point.implementations:
            started(point, implementation)
            reason = lost or implementation.why_not(point.shape, bench.place.device)
            try:
                if prepared is None and not reason:
                    prepared = _guarded(partial(_prepare, point, bench), bench)
                found = _rows(point, implementation, reason, prepared, bench)
            except DeviceLost as error:
                lost = str(error)
                found = (not_measured(point, implementation, lost),)
            except KeyboardInterrupt:  # what is measured is kept; the next one, while files are written, ends it
                lost = INTERRUPTED
                found = (not_measured(point, implementation, lost),)
            rows += found
            finished(found)
    return tuple(rows)


def _rows(
    point: Point, implementation: Implementation, reason: str | None, prepared: Prepared | str | None, bench: Bench
) -> Sequence[OpRow]:
    if reason:
        return (not_measured(point, implementation, reason),)
    if not isinstance(prepared, Prepared):
        return (not_measured(point, implementation, f"its inputs or oracle: {prepared}"),)
    found = _guarded(partial(_measure, point, implementation, prepared, bench), bench)
    return (not_measured(point, implementation, found),) if isinstance(found, str) else found


def _guarded(step: Callable[[], Any], bench: Bench) -> Any:
    """The step's result, or why there is none in one line."""
    try:
        return step()
    except (*FAILURES, *_triton_failures()) as error:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
        if bench.place.device == "cuda":
            _still_answers(reason)
        return reason


def _triton_failures() -> tuple[type[Exception], ...]:
    """Compilation errors and kernels that need more than the device has."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return ()
    return (TritonError,)


def _still_answers(reason: str) -> None:
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise DeviceLost(f"the device was lost: {reason}") from error


# ------------------------------------------------------------------------------------------------------------ one point


def _prepare(point: Point, bench: Bench) -> Prepared:
    op = point.op
    inputs = op.build(bench.place, SEED, **point.shape.dims)
    cost = op.cost(inputs)
    expected = expectation(op, inputs)
    turn = rotation(bench.watch.cache_bytes, cost["bytes"], min(bench.budget.most_sets, _most_sets(op, inputs)))
    sets = (inputs, *(op.another(inputs, index) for index in range(1, turn.num_sets)))
    costs = [cost, *(op.cost(one) for one in sets[1:])] if op.is_shared else [cost]
    num_bytes, num_flops = (sum(one[name] for one in costs) / len(costs) for name in ("bytes", "flops"))
    return Prepared(sets, expected, turn, num_bytes, num_flops, cost)


def _most_sets(op: BenchOp, inputs: Inputs) -> int:
    if op.is_shared:
        return op.max_sets
    return max(1, min(op.max_sets, SETS_BYTES // max(1, _num_bytes(list(inputs.values())))))


def _num_bytes(values: list[Any]) -> int:
    nested = sum(_num_bytes(value) for value in values if isinstance(value, list))
    return nested + sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def _measure(point: Point, implementation: Implementation, prepared: Prepared, bench: Bench) -> Sequence[OpRow]:
    first = prepared.sets[0]
    expected = expectation(point.op, first) if point.op.moves_inputs else prepared.expected
    verdict = check(point.op, implementation, first, expected)
    if verdict.detail:
        return (IncorrectRow(**_names(point, implementation), detail=verdict.detail),)
    calls = implementation.calls(prepared.sets)
    for call in calls:
        call()
    shared = {
        "eager_ns": _nanoseconds(bench.watch.eager(calls, implementation.has_host_sync)),
        "launches": bench.watch.launches(calls[0], implementation.has_host_sync),
        "error": verdict.error,
        "tolerance": verdict.tolerance,
    }
    cold = _timed(calls, prepared.turn, implementation, bench, is_cold=True)
    costs = {"num_bytes": prepared.num_bytes, "num_flops": prepared.num_flops}
    rows = [_row(point, implementation, "cold", cold, {**shared, **costs, "num_sets": len(calls)})]
    if prepared.first_cost["bytes"] <= bench.watch.cache_bytes:
        hot = _timed(calls[:1], prepared.turn, implementation, bench, is_cold=False)
        costs = {"num_bytes": prepared.first_cost["bytes"], "num_flops": prepared.first_cost["flops"]}
        rows.append(_row(point, implementation, "hot", hot, {**shared, **costs, "num_sets": 1}))
    return rows


def _timed(calls: list[Call], turn: Rotation, implementation: Implementation, bench: Bench, is_cold: bool) -> Timing:
    return time_calls(bench.watch, calls, bench.budget, is_cold, turn.needs_flush, implementation.has_host_sync)


def _nanoseconds(seconds: float | NotMeasured) -> float | NotMeasured:
    return seconds if isinstance(seconds, NotMeasured) else seconds * 1e9


def _row(point: Point, implementation: Implementation, cache: Cache, timing: Timing, more: dict[str, Any]) -> OkRow:
    return OkRow(
        **_names(point, implementation),
        cache=cache,
        time_ns=timing.median * 1e9,
        low_ns=_nanoseconds(timing.low),
        high_ns=_nanoseconds(timing.high),
        num_samples=timing.num_samples,
        calls_per_sample=timing.calls_per_sample,
        clock=timing.clock,
        **more,
    )


def _names(point: Point, implementation: Implementation) -> dict[str, Any]:
    return {
        "op": point.op.name,
        "shape": point.shape.name,
        "about": point.shape.about,
        "implementation": implementation.name,
        "kind": implementation.kind,
        "targets": point.shape.targets if implementation.kind == "ours" else (),
    }


def not_measured(point: Point, implementation: Implementation, reason: str) -> NotMeasuredRow:
    """A row that says why there is no time."""
    return NotMeasuredRow(**_names(point, implementation), reason=reason)
