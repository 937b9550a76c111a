"""The machine told from the code: groups by what bounds them, and the controls that must have moved along."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ddbench.opbench.gate.baseline import OpsBaseline, ceilings_of, ops_baseline, timed_rows
from ddbench.opbench.gate.machine import ALL, Machine, machine
from ddbench.opbench.records import OpsFile


def of(file: OpsFile, base: OpsBaseline) -> Machine:
    return machine(base, {key: row.time_ns for key, row in timed_rows(file).items()}, ceilings_of(file))


def test_the_same_machine_has_not_drifted(maker: Any) -> None:
    base = maker.baseline(range(5))
    for seed in range(10, 30):
        found = of(maker.file(seed), base)
        assert found.drifting == []
        assert all(abs(group.shift) < 0.01 for group in found.groups.values())


@pytest.mark.parametrize("bound", ["replay", "read cold", "matmul"])
def test_only_what_a_slower_part_of_the_machine_bounds_has_drifted(maker: Any, bound: str) -> None:
    base = maker.baseline(range(5))
    found = of(maker.file(10, drift={bound: 1.05}), base)
    assert bound in {group.bound for group in found.drifting}
    assert {group.bound for group in found.drifting} <= {bound, ALL}
    for row in base.rows:
        expected = math.log(1.05) if row.bound == bound else 0.0
        assert found.drift_of(row) == pytest.approx(expected, abs=0.01)


def test_a_machine_that_moved_no_more_than_between_the_repeats_has_not_drifted(maker: Any) -> None:
    restless = ops_baseline([maker.file(i, drift={"": 0.96 + 0.02 * i}) for i in range(5)])
    assert of(maker.file(10, drift={"": 1.06}), restless).drifting == []
    assert of(maker.file(10, drift={"": 1.4}), restless).drift_of(restless.rows[0]) > 0.3


def test_one_op_is_not_taken_for_the_machine(maker: Any) -> None:
    found = of(maker.file(10, slow={"moe_experts_int4": 1.3}), maker.baseline(range(5)))
    assert (found.drifting, found.unexplained) == ([], [])


def test_a_control_that_stood_still_or_moved_the_other_way_explains_nothing(maker: Any) -> None:
    base = maker.baseline(range(5))
    slow = maker.file(10, drift={"": 1.06}, is_seen=False)
    assert of(slow, base).drifting == []
    assert ALL in {group.bound for group in of(slow, base).unexplained}
    rates = {label: amount / 0.9 if label not in ("launch", "replay") else amount * 0.9 for label, amount in
             ceilings_of(slow).items()}  # fmt: skip
    times = {key: row.time_ns for key, row in timed_rows(slow).items() if row.kind == "ours"}
    assert machine(base, times, rates).drifting == []


def test_a_group_of_a_few_times_is_held_against_all(maker: Any) -> None:
    base = maker.baseline(range(5))
    few = [row for row in base.rows if row.bound == "read cold" and not row.is_control][:3]
    rest = [row for row in base.rows if row.bound != "read cold"]
    small = base.model_copy(update={"rows": (*few, *rest)})
    found = of(maker.file(10, drift={"": 1.05}), small)
    assert "read cold" not in found.groups
    assert found.drift_of(few[0]) == found.groups[ALL].drift > 0


def test_one_op_by_itself_says_nothing_about_the_machine(maker: Any) -> None:
    """However many shapes of it are slower, and whatever the ceilings do."""
    base = maker.baseline(range(5))
    file = maker.file(10, drift={"": 1.05})
    alone = file.model_copy(update={"rows": tuple(row for row in file.rows if row.op == "moe_experts_int4")})
    assert len(alone.rows) > 5
    assert of(alone, base).groups == {}


def test_few_repeats_do_not_know_what_a_machine_does_by_itself(maker: Any) -> None:
    found = of(maker.file(10, drift={"": 1.05}), maker.baseline(range(2)))
    assert found.drifting == []
