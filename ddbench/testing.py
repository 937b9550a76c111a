"""What tests and `ddbench check` share: the error budget of low-precision results, poison for what is not to be read.

An implementation may not be more than twice as wrong as the obvious computation in the same precision, both measured
against the computation in fp64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def poison(tensor: torch.Tensor, value: float = float("nan")) -> torch.Tensor:
    """Fill a tensor (or a view of one) in place and return it. Integer tensors need a `value` that they can hold."""
    return tensor.fill_(value)


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """Largest absolute difference over the largest finite magnitude in `ref`; shapes must be equal.

    Equal infinities and NaN in the same place count as equal; a non-finite value in one of the two only makes the error
    infinite. Where `ref` is all zeros, the error is the absolute difference.
    """
    if out.shape != ref.shape:
        raise ValueError(f"relative_error: got shape {tuple(out.shape)}, expected {tuple(ref.shape)}")
    got, expected = out.detach().cpu().double(), ref.detach().cpu().double()
    same = (got == expected) | (got.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    difference = (got - expected).abs()[~same]
    if not bool(difference.isfinite().all()):
        return float("inf")
    finite = expected[expected.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return float(difference.max()) / (largest or 1.0)


def error_budget(low_precision_ref: torch.Tensor, float64_ref: torch.Tensor, factor: float = 2.0) -> float:
    """The error allowed: `factor` times that of the obvious low-precision computation."""
    return factor * relative_error(low_precision_ref, float64_ref)


def assert_within_budget(
    out: torch.Tensor, low_precision_ref: torch.Tensor, float64_ref: torch.Tensor, factor: float = 2.0
) -> None:
    """Raise AssertionError unless `out` has the low-precision reference's dtype and an error within its budget."""
    assert out.dtype == low_precision_ref.dtype, f"got {out.dtype}, expected {low_precision_ref.dtype}"
    error, budget = relative_error(out, float64_ref), error_budget(low_precision_ref, float64_ref, factor)
    assert error <= budget, f"relative error {error:.3g} against fp64 exceeds the budget {budget:.3g}"


def to_float64(value: object) -> object:
    """A copy of a tensor, or of a list, tuple or dict of them, with floating-point tensors as fp64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    return _mapped(value, to_float64)


def copied(value: object, device: str = "cpu") -> object:
    """A deep copy of a tensor, or of a list, tuple or dict of them, on `device`."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device)
    return _mapped(value, lambda item: copied(item, device))


def _mapped(value: object, change: Callable[[object], object]) -> object:
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(change(item) for item in value)
    return value


def named_tensors(value: object, name: str) -> dict[str, torch.Tensor]:
    """The tensors of a nested value by where they stand: `{"result[0]": ..., "inputs.k_cache": ...}`."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    found: dict[str, torch.Tensor] = {}
    if isinstance(value, dict):
        for key, item in value.items():
            found |= named_tensors(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            found |= named_tensors(item, f"{name}[{i}]")
    return found
