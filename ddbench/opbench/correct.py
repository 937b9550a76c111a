"""Correct first: what an implementation returns at the shape that is to be timed, against the op's oracle there.

The oracle runs in fp32; the same oracle in the inputs' own precision says what error that precision costs, and twice as
much is allowed. Where results decide or are moved, they must be equal. Everything stays on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddbench.opbench.shapes import BenchOp, Implementation, Inputs, Tensors, clone_set, upcast

FULL_PRECISION = 1e-4  # always allowed where results are fp32: sums in another order


@dataclass(frozen=True, slots=True)
class Expected:
    """What an op's results must be, and how far floating-point ones may be off."""

    results: Tensors
    tolerance: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` says what is wrong, and is empty where nothing is."""

    error: float
    tolerance: float
    detail: str


def expectation(op: BenchOp, inputs: Inputs) -> Expected:
    """Run the oracle; the inputs stay as they are."""
    own = clone_set(inputs)
    rounded = op.results(own, op.oracle(own))
    if op.is_exact:
        return Expected(rounded, 0.0)
    wide = upcast(inputs)
    exact = op.results(wide, op.oracle(wide))
    floats = [name for name in rounded if rounded[name].is_floating_point()]
    budget = max((2 * relative_error(rounded[name], exact[name]) for name in floats), default=0.0)
    is_low = any(rounded[name].dtype != exact[name].dtype for name in floats)
    return Expected(exact, max(op.floor_error if is_low else min(op.floor_error, FULL_PRECISION), budget))


def check(op: BenchOp, implementation: Implementation, inputs: Inputs, expected: Expected) -> Verdict:
    """Run the implementation on a copy of the inputs and compare what it has in common with the oracle."""
    own = clone_set(inputs)
    got = op.results(own, implementation.prepare(own)())
    names = implementation.checked or tuple(expected.results)
    errors, wrong = [0.0], []
    for name in names:
        error, detail = _compared(name, got[name], expected.results[name], expected.tolerance)
        errors.append(error)
        wrong += [detail] if detail else []
    return Verdict(max(errors), expected.tolerance, "; ".join(wrong))


def _compared(name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> tuple[float, str]:
    if got.shape != expected.shape:
        return float("inf"), f"{name}: got shape {list(got.shape)}, expected {list(expected.shape)}"
    if not got.is_floating_point():
        count = int((got != expected).sum())
        return 0.0, f"{name}: {count} of {got.numel()} differ" if count else ""
    error = relative_error(got, expected)
    return error, f"{name}: relative error {error:.3g}, allowed {tolerance:.3g}" if error > tolerance else ""


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest finite magnitude expected; infinite where one of both only is not finite."""
    if torch.equal(got, expected):
        return 0.0
    wide, true = got.float(), expected.float()
    difference = torch.where(wide == true, 0.0, (wide - true).abs())
    if not bool(difference.isfinite().all()):
        return float("inf")
    largest = float(true.abs().where(true.isfinite(), 0.0).max())
    return float(difference.max()) / (largest or 1.0)
