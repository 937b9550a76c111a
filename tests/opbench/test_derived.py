"""Floors, shares and targets, by numbers that can be worked out on paper (1 GB/s, 10 GB/s cached, 1 TFLOP/s)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddbench.opbench.derived import Derived, derive
from ddbench.opbench.records import IncorrectRow, Target
from ddbench.records import NotMeasured


def only(make: SimpleNamespace, *rows: object) -> Derived:
    found = derive(make.file(*rows))[0]
    assert isinstance(found, Derived)
    return found


def test_a_floor_is_the_longest_of_bytes_flops_and_launch(make: SimpleNamespace) -> None:
    by_bytes = only(make, make.row())
    assert by_bytes.floor.floor_ns == pytest.approx(50_000)  # 50 kB at 1 GB/s
    assert (by_bytes.floor.bound, by_bytes.floor.share) == ("bytes", pytest.approx(0.5))
    assert by_bytes.bytes_per_s == pytest.approx(5e8)
    by_flops = only(make, make.row(num_flops=80e6))
    assert (by_flops.floor.bound, by_flops.floor.floor_ns) == ("flops", pytest.approx(80_000))
    assert by_flops.floor.share_of_read == pytest.approx(0.5), "of the bytes alone"
    by_launch = only(make, make.row(num_bytes=1, num_flops=0, time_ns=4000.0))
    assert (by_launch.floor.bound, by_launch.floor.share) == ("launch", pytest.approx(0.25))


def test_hot_rows_are_held_against_the_cache_and_host_rows_against_a_host_launch(make: SimpleNamespace) -> None:
    assert only(make, make.row(cache="hot")).floor.floor_ns == pytest.approx(5000)
    assert only(make, make.row(num_bytes=1, num_flops=0, clock="host")).floor.floor_ns == pytest.approx(5000)


def test_without_ceilings_there_is_no_floor_and_no_verdict(make: SimpleNamespace) -> None:
    row = make.row(targets=(Target(metric="share_of_floor", limit=0.5), Target(metric="time_us", limit=200)))
    file = make.file(row)
    bare = file.model_copy(update={"ceilings": file.ceilings.model_copy(update={"samples": ()})})
    found = derive(bare)[0]
    assert isinstance(found, Derived)
    assert isinstance(found.floor, NotMeasured)
    assert [result.outcome for result in found.targets] == ["unknown", "met"]


@pytest.mark.parametrize(
    ("target", "outcome", "value"),
    [
        (Target(metric="time_us", limit=100.0), "met", 100.0),
        (Target(metric="time_us", limit=99.0), "missed", 100.0),
        (Target(metric="share_of_floor", limit=0.5), "met", 0.5),
        (Target(metric="share_of_floor", limit=0.51), "missed", 0.5),
        (Target(metric="share_of_read", limit=0.4), "met", 0.5),
        (Target(metric="launches", limit=1), "met", 1),
        (Target(metric="speedup", limit=3.0, against=("slow", "slower")), "met", 3.0),
        (Target(metric="speedup", limit=3.1, against=("slow", "slower")), "missed", 3.0),
    ],
)
def test_targets_are_met_or_missed(make: SimpleNamespace, target: Target, outcome: str, value: float) -> None:
    others = [
        make.row(implementation="slower", kind="peer", time_ns=900_000.0),
        make.row(implementation="slow", kind="peer", time_ns=300_000.0),
        make.row(implementation="slow", kind="peer", time_ns=1.0, cache="hot"),
        make.row(implementation="slow", kind="peer", time_ns=1.0, shape="another"),
    ]
    (result,) = only(make, make.row(targets=(target,)), *others).targets
    assert (result.outcome, result.value) == (outcome, pytest.approx(value))


def test_a_speedup_over_nothing_measured_is_unknown(make: SimpleNamespace) -> None:
    wrong = IncorrectRow(op="copy", shape="small", about="", implementation="slow", kind="peer", detail="wrong")
    row = make.row(targets=(Target(metric="speedup", limit=3.0, against=("slow",)),))
    assert [result.outcome for result in only(make, row, wrong).targets] == ["unknown"]


def test_only_our_cold_rows_are_held_to_targets(make: SimpleNamespace) -> None:
    targets = (Target(metric="time_us", limit=1.0),)
    assert only(make, make.row(targets=targets, cache="hot")).targets == ()
    assert only(make, make.row(targets=targets, kind="peer")).targets == ()
