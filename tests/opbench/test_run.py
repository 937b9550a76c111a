"""A run of points: incorrect ones carry no time, failures are rows with a reason, inputs live no longer than needed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddbench.opbench import run
from ddbench.opbench.command import exit_code
from ddbench.opbench.records import IncorrectRow, NotMeasuredRow, OkRow, OpRow, Target
from ddbench.opbench.run import INTERRUPTED, Bench, run_points
from ddbench.opbench.shapes import BenchOp, Place, Shape
from ddbench.opbench.table import Point
from ddbench.opbench.timing import HostWatch

GOOD, BAD = (lambda x: x * 2), (lambda x: x * 3)


def ran(make: SimpleNamespace, watch: HostWatch, *ops: BenchOp, place: Place | None = None) -> tuple[OpRow, ...]:
    points = [Point(op, shape, op.implementations) for op in ops for shape in op.shapes]
    bench = Bench(place or make.cpu, watch, make.fast)
    return run_points(points, bench, lambda point, one: None, lambda rows: None)


def raising(error: BaseException) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        raise error

    return function


def test_what_is_wrong_has_no_time(make: SimpleNamespace, watch: HostWatch) -> None:
    rows = ran(make, watch, make.op([make.implementation("bad", BAD), make.implementation("good", GOOD)]))
    bad = [row for row in rows if row.implementation == "bad"]
    assert all(isinstance(row, IncorrectRow) for row in bad)
    assert len(bad) == 2, "one at every shape"
    assert {row.cache for row in rows if isinstance(row, OkRow)} == {"cold", "hot"}


@pytest.mark.parametrize("error", [RuntimeError("out of\nmemory"), ValueError("no"), AssertionError(), TypeError("x")])
def test_a_failure_is_a_row_and_the_next_one_goes_on(make: SimpleNamespace, watch: HostWatch, error: Exception) -> None:
    rows = ran(make, watch, make.op([make.implementation("fails", raising(error)), make.implementation("good", GOOD)]))
    first = rows[0]
    assert isinstance(first, NotMeasuredRow)
    assert first.reason.startswith(type(error).__name__)
    assert "\n" not in first.reason
    assert any(isinstance(row, OkRow) and row.shape == first.shape for row in rows)


def test_inputs_that_cannot_be_made_are_said_once_for_every_implementation(
    make: SimpleNamespace, watch: HostWatch
) -> None:
    def build(place: Place, seed: int, count: int) -> dict[str, Any]:
        raise RuntimeError("too large")

    rows = ran(make, watch, make.op([make.implementation("a", GOOD), make.implementation("b", GOOD)], build=build))
    assert [row.status for row in rows] == ["not_measured"] * 4
    assert all("its inputs or oracle: RuntimeError: too large" in row.reason for row in rows)  # type: ignore[union-attr]


def test_nothing_is_built_for_what_cannot_run(make: SimpleNamespace, watch: HostWatch) -> None:
    def build(place: Place, seed: int, count: int) -> dict[str, Any]:
        raise AssertionError("built")

    never = make.implementation("never", GOOD, why_not=lambda shape, device: f"not on a {device}")
    rows = ran(make, watch, make.op([never], build=build))
    assert [row.reason for row in rows] == ["not on a cpu"] * 2  # type: ignore[union-attr]


def test_a_lost_device_ends_all_later_rows(
    make: SimpleNamespace, watch: HostWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead() -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    on_cpu = make.op([make.implementation("breaks", raising(RuntimeError("boom"))), make.implementation("good", GOOD)])
    build = on_cpu.build
    op = make.op(on_cpu.implementations, build=lambda place, seed, count: build(make.cpu, seed, count=count))
    rows = ran(make, watch, op, place=Place("cuda", torch.float32))
    assert [row.status for row in rows] == ["not_measured"] * 4
    assert all(row.reason == "the device was lost: RuntimeError: boom" for row in rows)  # type: ignore[union-attr]


def test_an_interruption_keeps_what_is_measured(make: SimpleNamespace, watch: HostWatch) -> None:
    calls = [make.implementation("good", GOOD), make.implementation("stopped", raising(KeyboardInterrupt()))]
    rows = ran(make, watch, make.op([*calls, make.implementation("later", GOOD)]))
    measured = [row for row in rows if isinstance(row, OkRow)]
    assert {(row.implementation, row.shape) for row in measured} == {("good", "small")}
    assert all(row.reason == INTERRUPTED for row in rows if row not in measured)  # type: ignore[union-attr]
    assert exit_code(make.file(*rows)) == 130


def test_a_set_larger_than_the_cache_has_no_hot_time(make: SimpleNamespace) -> None:
    tiny = HostWatch(100, torch.zeros(100))
    rows = ran(make, tiny, make.op([make.implementation("good", GOOD)]))
    found = {(row.shape, row.cache) for row in rows if isinstance(row, OkRow)}
    assert found == {("small", "cold"), ("small", "hot"), ("large", "cold")}, "32 and 512 bytes, a cache of 100"


def test_a_point_is_freed_before_the_next_one_is_built(make: SimpleNamespace, watch: HostWatch) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def build(place: Place, seed: int, count: int) -> dict[str, Any]:
        gc.collect()
        counts.append(sum(one() is not None for one in alive))
        x = torch.ones(count)
        alive.append(weakref.ref(x))
        return {"x": x}

    ran(make, watch, make.op([make.implementation("good", GOOD), make.implementation("bad", BAD)], build=build))
    assert counts == [0, 0]


def test_cost_is_the_mean_over_the_sets_where_they_differ(make: SimpleNamespace, watch: HostWatch) -> None:
    def another(inputs: dict[str, Any], index: int) -> dict[str, Any]:
        return {"x": torch.ones(4 + index)}

    op = make.op([make.implementation("good", GOOD)], another=another, is_shared=True)
    rows = [row for row in ran(make, watch, op) if isinstance(row, OkRow) and row.shape == "small"]
    by_cache = {row.cache: row for row in rows}
    assert by_cache["cold"].num_sets == 3
    assert by_cache["cold"].num_bytes == pytest.approx(8 * (4 + 5 + 6) / 3)
    assert by_cache["hot"].num_bytes == 8 * 4


def test_an_op_that_moves_its_inputs_is_judged_by_what_it_finds(make: SimpleNamespace, watch: HostWatch) -> None:
    """Timing one implementation has changed what the next one starts from."""

    def shift(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(x.roll(1) + 1)

    both = [make.implementation("first", shift), make.implementation("second", shift)]
    moved = {"oracle": lambda inputs: shift(inputs["x"]), "results": lambda inputs, result: {"x": inputs["x"]}}
    rows = ran(make, watch, make.op(both, moves_inputs=True, is_exact=True, **moved))
    assert all(isinstance(row, OkRow) for row in rows)
    rows = ran(make, watch, make.op(both, is_exact=True, **moved))
    assert any(isinstance(row, IncorrectRow) for row in rows), "not said, it is seen"


def test_targets_are_held_by_ours_only(make: SimpleNamespace, watch: HostWatch) -> None:
    shape = Shape("small", "4", "quick", {"count": 4}, (Target(metric="time_us", limit=1e9),))
    ours, theirs = make.implementation("ours", GOOD, "ours"), make.implementation("theirs", GOOD, "peer")
    rows = ran(make, watch, make.op([ours, theirs], shapes=(shape,)))
    assert {row.implementation for row in rows if row.targets} == {"ours"}


def test_whoever_watches_is_told_of_every_implementation(make: SimpleNamespace, watch: HostWatch) -> None:
    told: list[str] = []
    op = make.op([make.implementation("good", GOOD), make.implementation("bad", BAD)])

    def finished(rows: Sequence[OpRow]) -> None:
        told.append(f"done {rows[0].implementation}")

    points = [Point(op, op.shapes[0], op.implementations)]
    run_points(points, Bench(make.cpu, watch, make.fast), lambda point, one: told.append(one.name), finished)
    assert told == ["good", "done good", "bad", "done bad"]


def test_sets_stay_within_their_memory(make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SETS_BYTES", 2 * 16)
    rows = ran(make, HostWatch(1 << 20, torch.zeros(8)), make.op([make.implementation("good", GOOD)]))
    cold = {row.shape: row.num_sets for row in rows if isinstance(row, OkRow) and row.cache == "cold"}
    assert cold == {"small": 2, "large": 1}
