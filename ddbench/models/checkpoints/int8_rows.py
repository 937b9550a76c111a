"""Matrices stored in INT8, one fp32 scale per row: `X.weight` and beside it `X.weight_scale`, [rows, 1].

A drafter is shipped so, in half of what bf16 takes; it is read back into floats, so that nothing else has to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ddbench.errors import CheckpointError
from ddbench.models.checkpoints.files import Stored

SCALE = "_scale"  # after the name of a matrix
STORED = "I8"
LARGEST = 127


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, C] -> (int8 [R, C], scales [R, 1] fp32): the largest value of a row becomes +-127. Rows of zeros stay so."""
    scales = weight.float().abs().amax(dim=1, keepdim=True) / LARGEST
    steps = weight.float() / torch.where(scales > 0, scales, 1.0)
    return steps.round().clamp_(-LARGEST, LARGEST).to(torch.int8), scales


def dequantize_rows(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """-> fp32 [R, C]."""
    return values.float() * scales


def without_scales(folder: Path, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors as they are read: an INT8 matrix with its scales, which have to lie in the same file, is fp32."""
    kept = dict(stored)
    for name, one in stored.items():
        if one.dtype != STORED or len(one.shape) != 2:
            continue
        scale = kept.pop(name + SCALE, None)
        if scale is None:
            raise CheckpointError(f"{folder}: tensor '{name}' is {STORED} and misses its scales, '{name}{SCALE}'")
        expected = (one.shape[0], 1)
        if scale.shape != expected or scale.dtype != "F32" or scale.file != one.file:
            raise CheckpointError(
                f"{scale.file}: tensor '{name}{SCALE}' is {scale.dtype} {list(scale.shape)}, expected F32 "
                f"{list(expected)} in the file of '{name}'"
            )
        kept[name] = replace(one, dtype="F32")
    return kept
