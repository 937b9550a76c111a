"""Correct first: the budget that a precision gets, equality where results decide, and inputs that stay as they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ddbench.opbench.correct import check, expectation, relative_error
from ddbench.opbench.shapes import Place

BF16 = Place("cpu", torch.bfloat16)


def test_a_wrong_result_is_found_and_named(make: SimpleNamespace) -> None:
    wrong = make.implementation("wrong", lambda x: x * 2.1)
    op = make.op([wrong])
    inputs = op.build(make.cpu, 0, count=8)
    verdict = check(op, wrong, inputs, expectation(op, inputs))
    assert verdict.detail.startswith("result: relative error 0.05")
    assert verdict.error == pytest.approx(0.05, rel=1e-3)


def test_low_precision_may_be_twice_as_wrong_as_the_oracle_in_it(make: SimpleNamespace) -> None:
    op = make.op([], oracle=lambda inputs: (inputs["x"] * 3) / 7 * 5, floor_error=0.0)
    inputs = op.build(BF16, 0, count=1000)
    budget = expectation(op, inputs)
    exact = inputs["x"].float() * 3 / 7 * 5
    own = relative_error((inputs["x"] * 3) / 7 * 5, exact)
    assert budget.tolerance == pytest.approx(2 * own)
    assert 0 < own < 0.02
    torch.testing.assert_close(budget.results["result"], exact)


def test_full_precision_gets_no_low_precision_budget(make: SimpleNamespace) -> None:
    op = make.op([])
    assert expectation(op, op.build(make.cpu, 0, count=8)).tolerance <= 1e-4
    assert expectation(op, op.build(BF16, 0, count=8)).tolerance >= op.floor_error


def test_results_that_decide_must_be_equal(make: SimpleNamespace) -> None:
    good = make.implementation("good", lambda x: (x * 2, x.argsort()))
    late = make.implementation("late", lambda x: (x * 2, x.argsort().roll(1)))
    rough = make.implementation("rough", lambda x: (x * 2 + 1e-6, x.argsort()))
    op = make.op([good, late, rough], oracle=lambda inputs: (inputs["x"] * 2, inputs["x"].argsort()), is_exact=True)
    inputs = op.build(make.cpu, 0, count=8)
    expected = expectation(op, inputs)
    details = [check(op, one, inputs, expected).detail for one in op.implementations]
    assert details[0] == ""
    assert details[1] == "result[1]: 8 of 8 differ"
    assert details[2].startswith("result[0]: relative error")


def test_only_what_an_implementation_promises_is_compared(make: SimpleNamespace) -> None:
    part = make.implementation("part", lambda x: (x * 2, x.argsort().flip(0)), checked=("result[0]",))
    op = make.op([part], oracle=lambda inputs: (inputs["x"] * 2, inputs["x"].argsort()))
    inputs = op.build(make.cpu, 0, count=8)
    assert check(op, part, inputs, expectation(op, inputs)).detail == ""


def test_in_place_work_leaves_the_inputs_alone(make: SimpleNamespace) -> None:
    in_place = make.implementation("in_place", lambda x: x.mul_(2))
    op = make.op([in_place], oracle=lambda inputs: inputs["x"].mul_(2))
    inputs = op.build(make.cpu, 0, count=8)
    before = inputs["x"].clone()
    assert check(op, in_place, inputs, expectation(op, inputs)).detail == ""
    assert torch.equal(inputs["x"], before)


def test_another_shape_is_wrong_whatever_it_holds(make: SimpleNamespace) -> None:
    flat = make.implementation("flat", lambda x: (x * 2)[None])
    op = make.op([flat])
    inputs = op.build(make.cpu, 0, count=8)
    assert "got shape [1, 8], expected [8]" in check(op, flat, inputs, expectation(op, inputs)).detail


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([float("-inf"), 1.0], [float("-inf"), 2.0], 0.5),
        ([float("nan"), 2.0], [1.0, 2.0], float("inf")),
        ([float("inf"), 2.0], [1.0, 2.0], float("inf")),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
    ],
)
def test_errors_are_relative_to_the_largest_magnitude(got: list[float], expected: list[float], error: float) -> None:
    assert relative_error(torch.tensor(got), torch.tensor(expected)) == error
