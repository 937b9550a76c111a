"""INT8 weights of a drafter: rounding as they are stored (`models/checkpoints/int8_rows.py`), and training at rounded
weights. Vectors (norms) stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ddbench.models.checkpoints.int8_rows import dequantize_rows, quantize_rows


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """What is read back of a stored matrix, in its dtype."""
    return dequantize_rows(*quantize_rows(weight)).to(weight.dtype)


def matrices(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that are stored in INT8."""
    return (parameter for parameter in module.parameters() if parameter.ndim == 2)


def round_to_int8(module: nn.Module) -> None:
    """Give every matrix the values that it will have once stored; doing so twice changes nothing more."""
    for parameter in matrices(module):
        parameter.data.copy_(rounded(parameter.data))


@contextmanager
def at_rounded_weights(module: nn.Module) -> Iterator[None]:
    """Within, matrices have their stored values; gradients pass straight through to the unrounded ones."""
    kept = [(parameter, parameter.data) for parameter in matrices(module)]
    for parameter, data in kept:
        parameter.data = rounded(data)
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
